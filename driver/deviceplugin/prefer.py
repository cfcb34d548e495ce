"""Which of the available devices a container should get. Pure; made once per Snapshot, asked without any I/O (H9).

Whole GPUs: the best joined set (`subset`). Replicas: `distributed` gives a container distinct GPUs, the least used ones
first (M10); `packed` fills up the most used one. MIG devices are packed onto the GPUs that are partly used already,
unless the policy says `distributed`, so that whole GPUs stay free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driver.deviceplugin.subset import Choice
from driver.errors import InvalidValueError
from driver.model.device import FullGpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from driver.deviceplugin.links import Links
    from driver.deviceplugin.resources import Offered


class Preference:
    """Answers for one resource. `policy` is `distributed`, `packed`, or empty for what suits the devices best."""

    def __init__(self, devices: Sequence[Offered], links: Links, policy: str = "") -> None:
        self._by_id = {one.id: (position, one) for position, one in enumerate(devices)}
        self._links = links
        self._whole = all(one.replicas == 1 and isinstance(one.device, FullGpu) for one in devices)
        shared = any(one.replicas > 1 for one in devices)
        self._packed = (policy or ("distributed" if shared else "packed")) == "packed"
        self._totals: dict[str, int] = {}
        for one in devices:
            self._totals[one.gpu_uuid] = self._totals.get(one.gpu_uuid, 0) + 1

    def prefer(self, available: Iterable[str], must: Iterable[str], size: int) -> list[str]:
        """Return `size` ids of the available ones, `must` first among them, in stable order.

        An id that is not known any more comes last: it is for Allocate to refuse it.

        :raises InvalidValueError: the request makes no sense.
        """
        have = dict.fromkeys(available)
        required = list(dict.fromkeys(must))
        _check(have, required, size)
        known = [one for one in have if one in self._by_id]
        strange = [one for one in have if one not in self._by_id and one not in required]
        wanted = min(size, len(known) + sum(one not in self._by_id for one in required))
        chosen = self._chosen(known, required, wanted)
        return [*chosen, *strange[: size - len(chosen)]]

    def _chosen(self, known: list[str], required: list[str], size: int) -> list[str]:
        fixed = [one for one in required if one in self._by_id]
        odd = [one for one in required if one not in self._by_id]
        known.sort(key=lambda one: self._by_id[one][0])
        if self._whole:
            return [*odd, *Choice(known, self._links).best(fixed, size - len(odd))]
        return [*odd, *self._counted(known, fixed, size - len(odd))]

    def _counted(self, known: list[str], fixed: list[str], size: int) -> list[str]:
        """Choose one by one, each time from the device that suits best."""
        units: dict[str, _Unit] = {}
        groups: dict[str, _Group] = {}
        for one in known:
            position, device = self._by_id[one]
            unit = units.get(device.uuid)
            if unit is None:
                group = groups.setdefault(device.gpu_uuid, _Group(gpu=device.gpu_uuid))
                unit = units[device.uuid] = _Unit(group=group, position=position, used=device.replicas)
            unit.used -= 1
            unit.group.free += 1
            unit.free.append(one)
        for group in groups.values():
            group.used = self._totals[group.gpu] - group.free
        taken = [self._take(units[self._by_id[one][1].uuid], one) for one in fixed]
        key = _packed if self._packed else self._distributed(groups)
        while len(taken) < size:
            unit = min((unit for unit in units.values() if unit.free), key=key)
            taken.append(self._take(unit, unit.free[0]))
        return taken

    @staticmethod
    def _take(unit: _Unit, one: str) -> str:
        unit.free.remove(one)
        unit.taken += 1
        unit.used += 1
        unit.group.taken += 1
        unit.group.used += 1
        return one

    def _distributed(self, groups: dict[str, _Group]) -> Callable[[_Unit], tuple[int, ...]]:
        joined = self._links.joined

        def key(unit: _Unit) -> tuple[int, ...]:
            group = unit.group
            close = sum(joined(group.gpu, other.gpu) for other in groups.values() if other.taken)
            return unit.taken, group.taken, unit.used, group.used, -close, unit.position

        return key


@dataclass(slots=True, kw_only=True)
class _Group:
    """A GPU: how much of it is free, used, and taken by this request."""

    gpu: str
    free: int = 0
    used: int = 0
    taken: int = 0


@dataclass(slots=True, kw_only=True)
class _Unit:
    """A device: the whole GPU or a MIG device, with its replicas that are free."""

    group: _Group
    position: int
    used: int
    taken: int = 0
    free: list[str] = field(default_factory=list)


def _packed(unit: _Unit) -> tuple[int, ...]:
    group = unit.group
    return -min(group.taken, 1), -group.used, -min(unit.taken, 1), -unit.used, unit.position


def _check(available: dict[str, None], required: list[str], size: int) -> None:
    if size <= 0:
        raise InvalidValueError("allocation_size", size, "must be at least 1")
    if size > len(available):
        raise InvalidValueError("allocation_size", size, f"only {len(available)} devices are available")
    if len(required) > size:
        raise InvalidValueError("must_include_deviceIDs", required, f"must be at most allocation_size, {size}")
    missing = [one for one in required if one not in available]
    if missing:
        raise InvalidValueError("must_include_deviceIDs", missing, "must be among available_deviceIDs")
