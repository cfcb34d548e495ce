"""Faults of fake GPUs, as a file that a test or a person writes. Strict, and recovered by removing the entry.

```yaml
nvml: down                # nothing can be said about any GPU; or {slow: 60}, seconds per observation
gpus:
  gpu-3:                  # by name, index or UUID
    lost: true            # fell off the bus
    xid: 79               # reported once when it appears here; a list for several; 31@mig-1g10gb-19-0 in a MIG device
    slow: 2.5             # seconds that each observation of this GPU takes
    recovery: reset       # what the GPU says that it needs; by itself, what its serious XIDs ask for
    row_remap: pending    # or failed
    ecc: 2                # uncorrected memory errors since the last reset
    temperature: 95       # degrees; it slows down at 90
    nvlink_down: 1        # links
    nvlink_errors: 3      # more of them are news
    fabric: failed        # or not-ready, degraded
    not_supported: [memory]
    fails: pci            # this query fails midway: the GPU is left out as a whole
    mig:                  # changing MIG fails; `-once` is the first time after the file changed
      create_gi: fail     # or fail-once
      create_ci: fail     # or fail-once; fail-bare: the GPU instance can't be removed again either (M1)
      destroy: in-use     # or in-use-once, fail
      mode: in-use        # or in-use-once, fail
      slow: 0.5           # seconds before and after each step
```
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.files import write_atomic
from driver.inventory.health_faults import QUERIES, HealthFaults, decode_health, encode_health
from driver.model.decode import Fields, boolean, integer, suggestion, text
from driver.yaml_file import load_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from driver.model.device import Gpu

MAX_SLOW = 3600.0
_MOST = (1 << 31) - 1  # as an XID: garbage is to be had, too
EVENTS = "events"  # H4: a GPU without event support is not monitored, which is not unhealthy
ATTRIBUTES: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "minor": {"minor": None},
        "product": {"product": "Unknown"},
        "brand": {"brand": "Unknown"},
        "architecture": {"architecture": "Unknown"},
        "compute_capability": {"compute_capability": (0, 0)},
        "memory": {"memory": None},
        "addressing_mode": {"addressing_mode": "Unknown"},
        "pci": {"pci_bus_id": None, "pcie_root": None, "numa_node": None},
        "pcie_root": {"pcie_root": None},
        "numa_node": {"numa_node": None},
        "fabric": {"fabric": None},
        "mig": {"mig": None},
        "nvlink": {},  # replaced by an empty NvLink, see `fake`
        EVENTS: {},
    }
)
"""What can be unsupported, and what the GPU then reports."""
_MIG_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "create_gi": ("fail", "fail-once"),
        "create_ci": ("fail", "fail-once", "fail-bare"),
        "destroy": ("in-use", "in-use-once", "fail"),
        "mode": ("in-use", "in-use-once", "fail"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFaults:
    """What goes wrong when MIG is changed, by step; empty for nothing. `slow` in seconds around each step."""

    create_gi: str = ""
    create_ci: str = ""
    destroy: str = ""
    mode: str = ""
    slow: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class MigXid:
    """An XID in a MIG device, of which `device` is the name without its GPU's: `mig-1g10gb-19-0`."""

    xid: int
    device: str

    def __str__(self) -> str:
        return f"{self.xid}@{self.device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFaults:
    """What is wrong with one GPU; `slow` in seconds per observation."""

    lost: bool = False
    xids: tuple[int, ...] = ()
    mig_xids: tuple[MigXid, ...] = ()
    slow: float = 0.0
    not_supported: tuple[str, ...] = ()
    fails: str = ""
    mig: MigFaults = MigFaults()
    health: HealthFaults = field(default_factory=HealthFaults)

    def all_xids(self) -> tuple[int, ...]:
        """Return the XIDs, wherever they happened."""
        return (*self.xids, *(one.xid for one in self.mig_xids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with the node's fake GPUs, by UUID."""

    nvml_down: bool = False
    nvml_slow: float = 0.0
    gpus: Mapping[str, GpuFaults] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, gpu_uuid: str) -> GpuFaults:
        """Return the faults of a GPU."""
        return self.gpus.get(gpu_uuid, HEALTHY_GPU)

    def new_xids(self, before: Faults) -> Iterator[tuple[str, int]]:
        """Yield (UUID, XID) of what was added since `before`; GPUs without event support report none."""
        for uuid, faults in self.gpus.items():
            if EVENTS in faults.not_supported:
                continue
            for xid in (Counter(faults.xids) - Counter(before.of(uuid).xids)).elements():
                yield uuid, xid

    def new_mig_xids(self, before: Faults) -> Iterator[tuple[str, MigXid]]:
        """Yield (UUID, XID) of what was added in MIG devices, as `new_xids` does."""
        for uuid, faults in self.gpus.items():
            if EVENTS in faults.not_supported:
                continue
            for xid in (Counter(faults.mig_xids) - Counter(before.of(uuid).mig_xids)).elements():
                yield uuid, xid


HEALTHY_GPU = GpuFaults()
NO_FAULTS = Faults()


def decode_faults(data: str, gpus: Sequence[Gpu], path: str) -> Faults:
    """Decode a faults file; an empty one means no faults.

    :raises InvalidValueError: naming the field.
    """
    value = load_yaml(data, path)
    if value is None:
        return NO_FAULTS
    fields = Fields(value, path, separator=": ")
    down, slow = _nvml(fields.take("nvml", None), fields.at("nvml"))
    table = fields.take("gpus", None)
    fields.done()
    entries = _with_text_keys({} if table is None else table, fields.at("gpus"))
    decoded = {}
    for key, entry in entries.items():
        at = f"{fields.at('gpus')}.{key}"
        uuid = find_gpu(key, gpus, at).uuid
        if uuid in decoded:
            raise InvalidValueError(at, key, "this GPU is there twice, under another name")
        decoded[uuid] = decode_gpu(entry, at)
    return Faults(nvml_down=down, nvml_slow=slow, gpus=MappingProxyType(decoded))


def encode_faults(faults: Faults) -> str:
    """Write faults as `decode_faults` reads them."""
    gpus = {uuid: encode_gpu(one) for uuid, one in faults.gpus.items()}
    nvml: object = "down" if faults.nvml_down else {"slow": faults.nvml_slow}
    return json.dumps({"nvml": nvml, "gpus": gpus}, indent=2) + "\n"


def save_faults(file: Path, faults: Faults) -> None:
    """Replace the faults file, in one step: a watcher never sees half of it.

    :raises StorageError: the file is as it was.
    """
    write_atomic(file, encode_faults(faults).encode(), mode=0o644, durable=False)


def _nvml(value: object, path: str) -> tuple[bool, float]:
    if value in (None, "up", "down"):
        return value == "down", 0.0
    fields = Fields(value, path)
    slow = _seconds(fields.take("slow"), fields.at("slow"))
    fields.done()
    return False, slow


def _with_text_keys(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidValueError(path, value, "must be a mapping from a GPU's name, index or UUID to its faults")
    return {str(key): entry for key, entry in value.items()}


def find_gpu(word: str, gpus: Sequence[Gpu], path: str = "GPU") -> Gpu:
    """Return the GPU of a name, index or UUID.

    :raises InvalidValueError: naming `path`; there is none.
    """
    for gpu in gpus:
        if word in (gpu.uuid, gpu.name, str(gpu.index)):
            return gpu
    raise InvalidValueError(path, word, f"there is no such GPU; {suggestion(word, [gpu.name for gpu in gpus])}")


def decode_gpu(entry: object, path: str) -> GpuFaults:
    """Decode the faults of one GPU.

    :raises InvalidValueError: naming the field below `path`.
    """
    fields = Fields(entry, path)
    xids, mig_xids = _xids(fields.take("xid", []), fields.at("xid"))
    faults = GpuFaults(
        lost=boolean(fields.take("lost", False), fields.at("lost")),
        xids=xids,
        mig_xids=mig_xids,
        slow=_seconds(fields.take("slow", 0), fields.at("slow")),
        not_supported=tuple(_attribute(one, at) for one, at in fields.items("not_supported", [])),
        fails=_attribute(fields.take("fails"), fields.at("fails")) if "fails" in fields else "",
        mig=_mig_faults(fields.mapping("mig")) if "mig" in fields else MigFaults(),
        health=decode_health(fields),
    )
    fields.take("mig", None)
    fields.take("fails", None)
    fields.done()
    return faults


def _mig_faults(fields: Fields) -> MigFaults:
    chosen = {key: fields.choice(key, allowed) for key, allowed in _MIG_CHOICES.items() if key in fields}
    slow = _seconds(fields.take("slow", 0), fields.at("slow"))
    for key in _MIG_CHOICES:
        fields.take(key, None)  # so that an unknown field's message knows them
    fields.done()
    return MigFaults(**chosen, slow=slow)


def _xids(value: object, path: str) -> tuple[tuple[int, ...], tuple[MigXid, ...]]:
    values = value if isinstance(value, list) else [value]
    placed = [one for one in values if isinstance(one, str)]
    whole = tuple(integer(one, path, 0, _MOST) for one in values if not isinstance(one, str))
    return whole, tuple(_mig_xid(one, path) for one in placed)


def _mig_xid(value: str, path: str) -> MigXid:
    number, _, device = value.partition("@")
    if not re.fullmatch("[0-9]{1,9}", number) or not re.fullmatch("mig-[a-z0-9-]{1,60}", device):
        raise InvalidValueError(path, value, "must be a number, or NUMBER@DEVICE such as 31@mig-1g10gb-19-0")
    return MigXid(int(number), device)


def _seconds(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SLOW:
        raise InvalidValueError(path, value, f"must be seconds from 0 to {MAX_SLOW:g}")
    return float(value)


def _attribute(value: object, path: str) -> str:
    name = text(value, path)
    if name not in ATTRIBUTES and name not in QUERIES:
        raise InvalidValueError(path, name, f"no such query; {suggestion(name, [*ATTRIBUTES, *QUERIES])}")
    return name


def encode_gpu(faults: GpuFaults) -> dict[str, object]:
    """Write the faults of one GPU as `decode_gpu` reads them."""
    xids = [*faults.xids, *map(str, faults.mig_xids)]
    entry: dict[str, object] = {"lost": faults.lost, "xid": xids, "slow": faults.slow}
    entry["not_supported"] = list(faults.not_supported)
    entry.update(encode_health(faults.health))
    if faults.mig != MigFaults():
        steps = {key: getattr(faults.mig, key) for key in _MIG_CHOICES}
        entry["mig"] = {**{key: value for key, value in steps.items() if value}, "slow": faults.mig.slow}
    return {**entry, "fails": faults.fails} if faults.fails else entry
