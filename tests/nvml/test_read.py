"""What NVML says becomes the same facts as the profiles say, through nvidia-ml-py and our own library in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from driver.inventory.profiles import load_products
from tests.nvml.inventories import assert_same

if TYPE_CHECKING:
    from driver.inventory.nvml import NvmlInventory
    from tests.nvml.fake_nvml import FakeNvml

PRODUCTS = sorted(load_products())


@pytest.mark.parametrize("product", PRODUCTS)
async def test_each_product(nvml: FakeNvml, inventory: NvmlInventory, product: str) -> None:
    nvml.install(f"{product}:2")
    reading = await inventory.read()
    assert reading.problems == ()
    assert_same(reading.gpus, nvml.gpus)
    assert nvml.node is not None
    assert reading.versions == nvml.node.versions


@pytest.mark.parametrize(
    "gpus",
    [
        "h100:8,l4:2,t4",
        "a100-80:4@pairs,a100-40:2@none",
        "h100@mig=1g.10gb*3+3g.40gb:4,h100,h100@mig",
        "a30@mig=1g.6gb+me+2g.12gb",
        "rtx-pro-6000@mig=1g.24gb*2+2g.48gb",
        "h200:16",
    ],
)
async def test_mixes(nvml: FakeNvml, inventory: NvmlInventory, gpus: str) -> None:
    nvml.install(gpus)
    reading = await inventory.read()
    assert reading.problems == ()
    assert_same(reading.gpus, nvml.gpus)
