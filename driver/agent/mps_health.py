"""Devices whose MPS daemon has died: their clients have lost the GPU, and new ones would not get it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.claims.effect import MpsDaemon
from driver.model.health_facts import Fact, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from driver.claims.record import Record


class MpsHealth:
    """Remembers which daemons died, for as long as a claim needs them. `records` returns those of prepared claims."""

    def __init__(self, records: Callable[[], Iterable[Record]]) -> None:
        self._records = records
        self._dead: set[str] = set()

    def died(self, daemon_id: str) -> None:
        """Note that a daemon died by itself."""
        self._dead.add(daemon_id)

    def facts(self) -> dict[str, tuple[Fact, ...]]:
        """Return what is wrong: by UUID for whole GPUs, by name for MIG devices."""
        if not self._dead:
            return {}
        needed = {daemon.id: (daemon, record) for record in self._records() for daemon in _daemons(record)}
        self._dead &= needed.keys()
        facts: dict[str, tuple[Fact, ...]] = {}
        for daemon_id in sorted(self._dead):
            daemon, record = needed[daemon_id]
            fact = Fact(Kind.MPS, detail=f"the MPS daemon of claim {record.claim.name} died: its pods must start again")
            for key in _concerned(daemon, record):
                facts[key] = (*facts.get(key, ()), fact)
        return facts


def _daemons(record: Record) -> Iterator[MpsDaemon]:
    return (effect for effect in record.effects if isinstance(effect, MpsDaemon))


def _concerned(daemon: MpsDaemon, record: Record) -> Iterator[str]:
    for device in record.devices:
        if device.holding.device in daemon.devices:
            yield device.holding.device if device.kind == "mig" else device.holding.gpu_uuid
