"""NUMA node and PCIe root, from trees as sysfs has them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from driver.inventory.sysfs import Sysfs

if TYPE_CHECKING:
    from pathlib import Path

BUS_ID = "0000:65:00.0"


def device(sys: Path, path: str, numa: str | None = None) -> Sysfs:
    target = sys / "devices" / path
    target.mkdir(parents=True)
    if numa is not None:
        (target / "numa_node").write_text(numa)
    links = sys / "bus/pci/devices"
    links.mkdir(parents=True)
    (links / BUS_ID).symlink_to("../../../devices/" + path)
    return Sysfs(sys)


@pytest.mark.parametrize(
    ("path", "root"),
    [
        (f"pci0000:64/0000:64:02.0/{BUS_ID}", "pci0000:64"),
        (f"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/{BUS_ID}", "pci0000:00"),
        ("pci10000:00/10000:00:02.0/10000:01:00.0", "pci10000:00"),  # a VMD domain
        ("LNXSYSTM:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0", "pci0001:00"),  # Hyper-V
        ("platform/1e0000000.pcie/pci0008:00/0008:00:00.0", "pci0008:00"),  # Arm
        ("LNXSYSTM:00/VMBUS:00/47505500", None),
        ("pci-bridge/0000:65:00.0", None),
        ("pci0000:6/0000:65:00.0", None),
    ],
)
def test_A3_the_root_is_a_part_of_the_path_or_left_out(tmp_path: Path, path: str, root: str | None) -> None:
    assert device(tmp_path, path).pcie_root(BUS_ID) == root


def test_A3_an_unusual_path_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sysfs = device(tmp_path, "LNXSYSTM:00/VMBUS:00/47505500")
    with caplog.at_level(logging.WARNING):
        sysfs.pcie_root(BUS_ID)
        sysfs.pcie_root(BUS_ID)
    (record,) = caplog.records
    assert BUS_ID in record.getMessage()
    assert "pcieRoot is left out" in record.getMessage()


def test_A3_no_such_device(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    assert sysfs.pcie_root(BUS_ID) is None
    assert sysfs.numa_node(BUS_ID) is None


def test_A3_links_in_a_circle(tmp_path: Path) -> None:
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    (links / BUS_ID).symlink_to(BUS_ID)
    assert Sysfs(tmp_path).pcie_root(BUS_ID) is None


@pytest.mark.parametrize("bus_id", ["../../../devices", "0000:65:00.0/..", "", "0000:65:00.9", "N/A"])
def test_what_is_no_bus_id_leads_nowhere(tmp_path: Path, bus_id: str) -> None:
    sysfs = device(tmp_path, f"pci0000:64/{BUS_ID}", "0")
    (tmp_path / "devices/numa_node").write_text("0")
    assert sysfs.pcie_root(bus_id) is None
    assert sysfs.numa_node(bus_id) is None


@pytest.mark.parametrize(
    ("content", "node"),
    [("0\n", 0), ("1\n", 1), ("17\n", 17), ("-1\n", None), ("", None), ("none\n", None), ("\xff\n", None)],
)
def test_numa_node(tmp_path: Path, content: str, node: int | None) -> None:
    assert device(tmp_path, f"pci0000:64/{BUS_ID}", content).numa_node(BUS_ID) == node


def test_numa_node_that_is_no_text(tmp_path: Path) -> None:
    sysfs = device(tmp_path, f"pci0000:64/{BUS_ID}")
    (tmp_path / "bus/pci/devices" / BUS_ID / "numa_node").write_bytes(b"\xff\xfe")
    assert sysfs.numa_node(BUS_ID) is None
