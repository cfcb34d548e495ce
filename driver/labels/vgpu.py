"""What a virtual GPU tells of the hypervisor's driver, in a vendor-specific capability of its PCI configuration. Pure.

The capability holds the signature `VF` and records of (type, length, data); the record of type 0 has the driver's
version and branch, ten bytes each.
"""

from __future__ import annotations

from dataclasses import dataclass

_STATUS, _HAS_CAPABILITIES, _FIRST = 0x06, 0x10, 0x34
_VENDOR_SPECIFIC, _SIGNATURE = 0x09, b"VF"
_RECORDS = 5  # bytes of a capability before its records
_FIELD = 10  # bytes
_MOST = 48  # capabilities: more don't fit, and a broken chain must end


@dataclass(frozen=True, slots=True)
class HostDriver:
    """The driver of the hypervisor."""

    version: str
    branch: str


def host_driver(config: bytes) -> HostDriver | None:
    """Return what a device's PCI configuration space says; None if it is no virtual GPU, or can't be read so far."""
    position = config[_FIRST] if len(config) > _FIRST and config[_STATUS] & _HAS_CAPABILITIES else 0
    for _ in range(_MOST):
        if not 0 < position <= len(config) - 3:
            return None
        kind, following, length = config[position : position + 3]
        capability = config[position : position + length]
        if kind == _VENDOR_SPECIFIC and capability[3:5] == _SIGNATURE:
            return _driver_record(capability)
        position = following
    return None


def _driver_record(capability: bytes) -> HostDriver | None:
    position = _RECORDS
    while position + 2 <= len(capability):
        kind, length = capability[position : position + 2]
        data = capability[position + 2 : position + 2 + 2 * _FIELD]
        if kind == 0:
            return HostDriver(_text(data[:_FIELD]), _text(data[_FIELD:])) if len(data) == 2 * _FIELD else None
        if length == 0:
            return None
        position += length
    return None


def _text(data: bytes) -> str:
    return data.strip(b"\0").decode("ascii", errors="replace")
