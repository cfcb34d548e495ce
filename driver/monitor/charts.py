"""The charts of all GPUs: takes events, readings and checks in, gives verdicts. No I/O, no waiting.

What must not be forgotten with the process (serious XIDs) goes to a `Memory`, until the node boots anew.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from driver.model.device import MigDevice
from driver.model.health import HEALTHY, Health
from driver.model.health_chart import Chart, SeenXid
from driver.model.health_facts import Fact, Kind
from driver.model.health_rules import DEFAULT_RULES, MAX_XID, Rules, judge
from driver.model.snapshot import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from driver.inventory.base import Xid
    from driver.model.device import Gpu
    from driver.model.health_facts import HealthReport
    from driver.model.snapshot import Snapshot

_MOST = 1024  # charts; events on GPUs that nobody knows must not grow without bounds

Lasting = dict[str, tuple[SeenXid, ...]]


class Memory(Protocol):
    """What outlives the process (health_memory)."""

    def load(self) -> Lasting:
        """Return what was saved since the node booted, by GPU; never fails."""
        ...

    def save(self, lasting: Lasting) -> None:
        """Replace what is saved; never fails."""
        ...


class Charts:
    """One chart per GPU. Moments are in the caller's monotonic clock; `quiet` is in seconds."""

    def __init__(self, rules: Rules = DEFAULT_RULES, *, quiet: float = 300.0, memory: Memory | None = None) -> None:
        self.rules = rules
        self._quiet = quiet
        self._memory = memory
        self._saved: Lasting = {}
        self._charts: dict[str, Chart] = {}
        self._checked = -math.inf  # when the last check began
        self._known: set[str] = set()  # the GPUs of the last reading; others may be heard of, too
        self._sources: list[Callable[[], Mapping[str, Iterable[Fact]]]] = []
        self.monitored: frozenset[str] | None = None  # UUIDs of the GPUs whose XIDs arrive; None: not known
        self._problems: dict[str, tuple[str, ...]] = {}

    def recall(self, now: float) -> None:
        """Take up what an earlier process has left."""
        self._saved = self._memory.load() if self._memory is not None else {}
        for uuid, xids in self._saved.items():
            self._charts[uuid] = Chart(xids=tuple(replace(one, at=now, recalled=True) for one in xids))

    # --- what comes in -----------------------------------------------------------------------------------------------

    def take(self, event: Xid, now: float) -> bool:
        """Note an XID; say whether it is one: garbage is no fact about the GPU."""
        if not 1 <= event.xid <= MAX_XID or (event.gpu_uuid not in self._charts and len(self._charts) >= _MOST):
            return False
        gi, ci = event.gpu_instance_id, event.compute_instance_id
        seen = SeenXid(xid=event.xid, instances=None if gi is None else (gi, ci), at=now)
        self._set(event.gpu_uuid, self._chart(event.gpu_uuid).with_xid(seen, self.rules))
        return True

    def observe(self, found: Snapshot, began: float) -> None:
        """Note a reading that began at a moment: who answers, and who has left for good."""
        known = {gpu.uuid for gpu in found.gpus}
        for uuid in self._known - known:  # another GPU has its place
            self._charts.pop(uuid, None)
        self._known = known
        for gpu in found.gpus:
            chart, lost = self._chart(gpu.uuid), found.health_of(gpu.uuid)
            if lost.healthy:
                chart = chart.when_answering().after_reading(_instances(gpu), began=began, rules=self.rules)
            elif found.unavailable:
                chart = chart.when_unreachable(lost.reason)
            else:
                chart = chart.when_lost(lost.reason)
            self._set(gpu.uuid, chart)

    def check(self, reports: Mapping[str, HealthReport], began: float) -> None:
        """Note a check of the GPUs that began at a moment."""
        self._checked = began
        self._problems = {uuid: report.failed for uuid, report in reports.items() if report.failed}
        for uuid, report in reports.items():
            if uuid in self._charts:
                checked = self._charts[uuid].after(report, began=began, rules=self.rules, quiet=self._quiet)
                self._set(uuid, checked)

    def also(self, facts: Callable[[], Mapping[str, Iterable[Fact]]]) -> None:
        """Ask another part, at each verdict, what it knows: about whole GPUs by UUID, about MIG devices by name."""
        self._sources.append(facts)

    # --- what comes out ----------------------------------------------------------------------------------------------

    def judged(self, found: Snapshot) -> Snapshot:
        """Return a reading with the verdicts of now."""
        notes = self._noted()
        health = {gpu.uuid: judge((*self._facts(gpu), *notes.pop(gpu.uuid, ())), self.rules) for gpu in found.gpus}
        of_instances = dict(self._of_instances(found))
        for name, facts in notes.items():
            of_instances[name] = of_instances.get(name, HEALTHY).with_more(judge(facts, self.rules))
        return replace(
            found,
            health=_told(health),
            device_health=_told(of_instances),
            problems=(*found.problems, *self._failures(found)),
        )

    def due(self) -> float | None:
        """Return the moment at which a check could next clear something by quiet time."""
        times = (chart.due(self.rules, self._quiet, checked=self._checked) for chart in self._charts.values())
        return min((time for time in times if time is not None), default=None)

    def failing(self) -> Mapping[str, tuple[str, ...]]:
        """Return the queries that failed in the last check, by UUID."""
        return self._problems

    def remember(self) -> None:
        """Save what must not be forgotten, if that has changed."""
        lasting = {uuid: chart.lasting(self.rules) for uuid, chart in sorted(self._charts.items())}
        lasting = {uuid: xids for uuid, xids in lasting.items() if xids}
        if self._memory is not None and _shape(lasting) != _shape(self._saved):
            self._saved = lasting
            self._memory.save(lasting)

    def _facts(self, gpu: Gpu) -> Iterator[Fact]:
        yield from self._chart(gpu.uuid).facts(self.rules)
        if self.monitored is not None and gpu.uuid not in self.monitored:
            yield Fact(Kind.UNMONITORED, detail="its XID errors are not reported")

    def _noted(self) -> dict[str, tuple[Fact, ...]]:
        noted: dict[str, tuple[Fact, ...]] = {}
        for source in self._sources:
            for key, facts in source().items():
                noted[key] = (*noted.get(key, ()), *facts)
        return noted

    def _of_instances(self, found: Snapshot) -> Iterator[tuple[str, Health]]:
        for gpu in found.gpus:
            chart = self._chart(gpu.uuid)
            if gpu.mig is None or not chart.xids:
                continue
            for one in gpu.mig.instances:
                facts = chart.instance_facts(one.gpu_instance_id, one.compute_instance_id, self.rules)
                yield MigDevice(gpu=gpu, instance=one).name, judge(facts, self.rules)

    def _failures(self, found: Snapshot) -> Iterator[Problem]:
        for gpu in found.gpus:
            failed = self._problems.get(gpu.uuid)
            if failed:
                yield Problem(object=gpu.name, message=f"health queries failed: {', '.join(failed)} ({gpu.uuid})")

    def _chart(self, uuid: str) -> Chart:
        return self._charts.get(uuid) or Chart()

    def _set(self, uuid: str, chart: Chart) -> None:
        self._charts[uuid] = chart


def _instances(gpu: Gpu) -> frozenset[int]:
    return frozenset(one.gpu_instance_id for one in gpu.mig.instances) if gpu.mig is not None else frozenset()


def _told(health: Mapping[str, Health]) -> Mapping[str, Health]:
    return MappingProxyType({key: one for key, one in health.items() if one != HEALTHY})


def _shape(lasting: Lasting) -> object:
    """Return what is worth a write: an XID that comes again is no news."""
    return {uuid: [(one.xid, one.instances, one.down) for one in xids] for uuid, xids in lasting.items()}
