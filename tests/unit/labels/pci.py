"""PCI configuration spaces, with what a hypervisor says of itself in a vGPU's."""

from __future__ import annotations

DRIVER = bytes([0, 22]) + b"550.90.05\0" + b"r550_00\0\0\0"


def capability(*records: bytes, following: int = 0, signature: bytes = b"VF") -> bytes:
    body = signature + b"".join(records)
    return bytes([0x09, following, 3 + len(body)]) + body


def config(*capabilities: bytes, at: int = 0x40) -> bytes:
    """A PCI configuration space; each capability but the last points to the next."""
    data = bytearray(256)
    data[0:2] = b"\xde\x10"
    data[0x06], data[0x34] = 0x10, at
    for number, one in enumerate(capabilities):
        data[at : at + len(one)] = one
        if number + 1 < len(capabilities):
            data[at + 1] = at + len(one)
        at += len(one)
    return bytes(data)
