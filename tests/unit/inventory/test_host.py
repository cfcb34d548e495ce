from __future__ import annotations

import pytest

from driver.inventory.host import Host
from driver.labels.vgpu import HostDriver
from tests.unit.labels.pci import DRIVER, capability, config
from tests.unit.slices.helpers import gpus

(GPU,) = gpus("l4")


@pytest.fixture
def sys_root(tmp_path):
    (tmp_path / "class/dmi/id").mkdir(parents=True)
    (tmp_path / "bus/pci/devices" / GPU.pci_bus_id).mkdir(parents=True)
    return tmp_path


def test_the_machine_is_dmis(sys_root):
    (sys_root / "class/dmi/id/product_name").write_text("PowerEdge XE9680\n")
    assert Host(sys_root).machine() == "PowerEdge XE9680"


def test_or_a_files(sys_root, tmp_path):
    file = tmp_path / "machine"
    file.write_bytes(b" DGX\xff \n")
    assert Host(sys_root).machine(str(file)) == "DGX\ufffd"


@pytest.mark.parametrize("file", ["", "/nonexistent", "/", "a\0b"])
def test_a_machine_that_does_not_say(sys_root, file):
    assert Host(sys_root).machine(file) == "unknown"


@pytest.mark.parametrize(
    ("pci_class", "mode"),
    [("0x030200\n", "compute"), ("0x030000", "graphics"), ("0x010802", "unknown"), ("", "unknown")],
)
def test_the_mode_is_by_pci_class(sys_root, pci_class, mode):
    (sys_root / "bus/pci/devices" / GPU.pci_bus_id / "class").write_text(pci_class)
    assert Host(sys_root).modes([GPU]) == {GPU.uuid: mode}


def test_a_gpu_that_is_on_no_pci_bus(sys_root):
    assert Host(sys_root).modes([GPU]) == {GPU.uuid: "unknown"}


def test_fake_gpus_compute_whatever_is_at_their_address(sys_root):
    (sys_root / "bus/pci/devices" / GPU.pci_bus_id / "class").write_text("0x030000")
    assert Host(sys_root, fake=True).modes([GPU]) == {GPU.uuid: "compute"}


def test_a_gpu_that_is_not_virtual_tells_of_no_hypervisor(sys_root):
    (sys_root / "bus/pci/devices" / GPU.pci_bus_id / "config").write_bytes(bytes(256))
    assert Host(sys_root).hypervisor_driver([GPU]) is None


def test_a_virtual_one_does(sys_root):
    data = config(capability(DRIVER))
    (sys_root / "bus/pci/devices" / GPU.pci_bus_id / "config").write_bytes(data)
    assert Host(sys_root).hypervisor_driver([GPU]) == HostDriver("550.90.05", "r550_00")
    assert Host(sys_root, fake=True).hypervisor_driver([GPU]) is None
    assert Host(sys_root / "absent").hypervisor_driver([GPU]) is None
