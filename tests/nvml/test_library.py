"""A library that is missing, late, replaced, unfinished or gone, found under the driver root (P7)."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import InventoryError
from driver.inventory import library_watch
from driver.model.device import UNKNOWN
from tests.nvml.fake_nvml import FakeNvml, compiled
from tests.nvml.inventories import NEVER, assert_same, says

if TYPE_CHECKING:
    from driver.inventory.nvml import NvmlInventory
    from tests.nvml.inventories import Listen, Open


async def test_no_library(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    with pytest.raises(InventoryError, match=f"libnvidia-ml.so.1 is not below the driver root {nvml.root}"):
        await inventory.read()


@pytest.mark.parametrize("directory", ["usr/lib64", "lib64", "usr/lib/aarch64-linux-gnu", "usr/local/nvidia/lib64"])
async def test_libraries_of_several_distributions(tmp_path: Any, open_inventory: Open, directory: str) -> None:
    nvml = FakeNvml(tmp_path, directory).install("l4")
    assert_same((await open_inventory().read()).gpus, nvml.gpus)


async def test_P7_a_late_library_is_noticed_and_read(nvml: FakeNvml, open_inventory: Open, listen: Listen) -> None:
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    with pytest.raises(InventoryError):
        await inventory.read()
    nvml.install("h100:2")
    await listener.until(says("can be used now"))
    assert_same((await inventory.read()).gpus, nvml.gpus)


async def test_P7_a_library_that_comes_by_a_mount_is_found_by_looking(
    nvml: FakeNvml, open_inventory: Open, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(library_watch, "Inotify", blind)
    inventory = open_inventory(recheck=0.02)
    listener = listen(inventory)
    with pytest.raises(InventoryError):
        await inventory.read()
    nvml.install("h100:2")
    await listener.until(says("can be used now"))
    assert_same((await inventory.read()).gpus, nvml.gpus)


async def test_P7_a_driver_that_is_loaded_after_its_library_came(
    nvml: FakeNvml, open_inventory: Open, listen: Listen
) -> None:
    nvml.install("l4").control("fail nvmlInitWithFlags 9 *")
    inventory = open_inventory(recheck=0.02)
    listener = listen(inventory)
    with pytest.raises(InventoryError, match="kernel module"):
        await inventory.read()
    nvml.control()
    await listener.until(says("can be used now"))
    assert_same((await inventory.read()).gpus, nvml.gpus)


async def test_P7_an_upgraded_library_replaces_the_open_one(
    nvml: FakeNvml, open_inventory: Open, listen: Listen
) -> None:
    nvml.install("h100:2")
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    assert_same((await inventory.read()).gpus, nvml.gpus)
    for gpus in ("l4:3", "a100-80:1@mig=1g.10gb", "h100:4"):
        nvml.install(gpus)
        await listener.until(says("replaced"))
        assert_same((await inventory.read()).gpus, nvml.gpus)


async def test_P7_a_read_uses_the_new_library_even_if_nothing_told_it(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100:2")
    await inventory.read()
    nvml.install("l4:3", without=("nvmlDeviceGetBrand",))
    assert_same((await inventory.read()).gpus, tuple(replace(gpu, brand=UNKNOWN) for gpu in nvml.gpus))
    nvml.install("l4:2")
    assert_same((await inventory.read()).gpus, nvml.gpus)


async def test_a_library_that_goes_and_comes_back(nvml: FakeNvml, open_inventory: Open, listen: Listen) -> None:
    nvml.install("l4")
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    await inventory.read()
    nvml.library.unlink()
    await listener.until(says("has gone"))
    with pytest.raises(InventoryError, match="driver root"):
        await inventory.read()
    nvml.install()
    await listener.until(says("can be used now"))
    assert_same((await inventory.read()).gpus, nvml.gpus)


async def test_a_library_being_copied_is_not_touched_before_it_is_whole(
    nvml: FakeNvml, open_inventory: Open, listen: Listen
) -> None:
    nvml.configure("l4")
    whole = compiled().read_bytes()
    nvml.library.write_bytes(whole[: len(whole) // 2])
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    with pytest.raises(InventoryError, match=f"^{nvml.library} is no whole library for .*: wait if"):
        await inventory.read()
    with nvml.library.open("ab") as stream:
        stream.write(whole[len(whole) // 2 :])
    await listener.until(says("can be used now"))
    assert_same((await inventory.read()).gpus, nvml.gpus)


async def test_a_file_that_is_no_library_of_ours(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.configure("l4")
    header = bytearray(compiled().read_bytes())
    header[18] ^= 0xFF  # another machine
    nvml.library.write_bytes(header)
    with pytest.raises(InventoryError, match=f"^{nvml.library} is no whole library for .*install it anew"):
        await inventory.read()


async def test_a_library_that_the_linker_refuses(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.configure("l4")
    broken = bytearray(compiled().read_bytes())
    broken[32:40] = (len(broken) * 2).to_bytes(8, "little")  # where the program headers are
    nvml.library.write_bytes(broken)
    with pytest.raises(InventoryError, match="can't be loaded"):
        await inventory.read()
    nvml.install("l4")
    assert_same((await inventory.read()).gpus, nvml.gpus)


async def test_absolute_links_lead_into_the_driver_root(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    real = nvml.root / "opt/driver/libnvidia-ml.so.580.105.08"
    real.parent.mkdir(parents=True)
    nvml.configure("l4")
    shutil.move(f"{nvml.library}.conf", f"{real}.conf")
    shutil.copy(compiled(), real)
    os.symlink("/opt/driver/libnvidia-ml.so.580.105.08", nvml.library)
    assert_same((await inventory.read()).gpus, nvml.gpus)
