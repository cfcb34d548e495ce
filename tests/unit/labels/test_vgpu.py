from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.labels import LabelOptions, labels
from driver.labels.vgpu import HostDriver, host_driver
from tests.unit.labels.pci import DRIVER, capability, config
from tests.unit.slices.helpers import snapshot


def test_the_hypervisors_driver():
    assert host_driver(config(capability(DRIVER))) == HostDriver("550.90.05", "r550_00")


def test_behind_other_capabilities_and_records():
    power, other = bytes([0x01, 0, 8, 0, 0, 0, 0, 0]), bytes([2, 4, 7, 7])
    foreign = capability(bytes(4), signature=b"XX")
    assert host_driver(config(power, foreign, capability(other, DRIVER))) == HostDriver("550.90.05", "r550_00")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        config(capability(DRIVER))[:64],  # what a process without privileges may read
        config(bytes([0x01, 0, 8])),
        config(bytes([0x01, 0x40, 8])),  # a chain without an end
        config(capability(bytes([2, 0, 1, 1]))),
        config(capability(bytes([2, 200]))),
        config(capability(DRIVER[:12])),
        config(capability(DRIVER), at=0xF8)[:256],
        bytes(256),
    ],
)
def test_what_does_not_tell(data):
    assert host_driver(data) is None


@given(st.binary(max_size=256))
def test_no_bytes_are_too_odd(data):
    chained = config(data[:190])
    assert host_driver(data) is None or isinstance(host_driver(data), HostDriver)
    assert host_driver(chained) is None or isinstance(host_driver(chained), HostDriver)


def test_labels():
    found = labels(snapshot("h100"), LabelOptions(host_driver=HostDriver("550.90.05", "r550_00")))
    assert found["nvidia.com/vgpu.present"] == "true"
    assert found["nvidia.com/vgpu.host-driver-version"] == "550.90.05"
    assert found["nvidia.com/vgpu.host-driver-branch"] == "r550_00"


def test_what_is_no_label_value_is_left_out():
    found = labels(snapshot("h100"), LabelOptions(host_driver=HostDriver("\ufffd", "")))
    assert found["nvidia.com/vgpu.present"] == "true"
    assert not [key for key in found if "host-driver" in key]
