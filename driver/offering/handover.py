"""Who has which GPU, at run time: rules, holders, and the steps from one owner to the next.

The Snapshot is the one source of truth. The monitor asks `owners` for each one that it makes; between them, this asks
for a new one whenever a step is due. What was decided is kept in a file, so that a restart goes on from there, and
`gpu-dra migrate --status` can tell.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from driver import files
from driver.errors import DriverError, StorageError
from driver.model.json_object import parse_json
from driver.model.ownership import ALL_DRA, HANDING_OVER, Holders, Owner, Ownership, assign, wanted_owners
from driver.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from driver.claims.record import Record
    from driver.model.device import Gpu
    from driver.model.ownership import Rules
    from driver.teller import Teller

log = logging.getLogger(__name__)

VERSION = 1
_SETTLE = 5.0  # seconds in which what was on its way when a GPU was withdrawn becomes visible: claims, containers
_UNLISTED = 10.0  # seconds; the kubelet lists what it was given as soon as it has the answer
_LOOK = 2.0  # seconds between looks at who holds what, while a GPU waits for that


class OwnershipObserver(Protocol):
    """Who counts."""

    def owners(self, counts: Mapping[str, int], waiting: int) -> None:
        """Note how many GPUs each owner has, and how many wait for another one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where holders are known. `pods` maps a device's UUID to pods; None if the kubelet can't tell now."""

    records: Callable[[], Awaitable[Iterable[Record]]]
    pods: Callable[[], Awaitable[Mapping[str, tuple[str, ...]] | None]]


class Handover:
    """Moves GPUs between owners. `reown` is to make the monitor ask `owners` again and publish the answer."""

    def __init__(
        self,
        rules: Rules,
        sources: Sources,
        file: Path,
        *,
        tell: Teller,
        observer: OwnershipObserver,
        settle: float = _SETTLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._sources = sources
        self._file = file
        self._tell = tell
        self._observer = observer
        self._settle = settle
        self._clock = clock
        self._known: dict[str, Ownership] = {}
        self._loaded = False
        self._withdrawn: dict[str, float] = {}  # when its owner stopped offering a GPU
        self._given: dict[str, float] = {}  # when the device-plugin API gave one away
        self._problems: tuple[str, ...] = ()
        self._written = b""
        self._wake = asyncio.Event()

    def set_rules(self, rules: Rules) -> None:
        """Follow other rules from now on."""
        if rules != self._rules:
            log.info("new rules of ownership: %s", rules)
            self._rules = rules
            self._wake.set()

    def given(self, gpu_uuids: Iterable[str]) -> None:
        """Note that the device-plugin API gives GPUs away at this moment: the kubelet will list them a bit later."""
        self._given.update(dict.fromkeys(gpu_uuids, self._clock()))

    async def owners(self, gpus: Sequence[Gpu]) -> Mapping[str, Ownership]:
        """Return who has each GPU now; those that are simply DRA's are left out."""
        if not self._loaded:
            self._known, self._loaded = _load(self._file), True
        try:
            holders = await self._holders(gpus)
        except DriverError as exc:
            return self._unsure(gpus, str(exc))
        wanted, problems = wanted_owners(gpus, self._rules, self._known)
        # what is known of GPUs that are not there now is kept, in case they come back
        found = {**self._known, **assign(wanted, self._known, self._with_recent(holders, wanted))}
        self._note(gpus, found, problems)
        if found != self._known:
            self._wake.set()
        self._known = found
        self._save(gpus, holders)
        return _but_dra({gpu.uuid: found[gpu.uuid] for gpu in gpus})

    def _unsure(self, gpus: Sequence[Gpu], why: str) -> Mapping[str, Ownership]:
        """Leave everything as it is, and give nobody what nobody had."""
        log.warning("no GPU changes hands now: %s", why)
        new = Ownership(owner=Owner.WITHHELD, wanted=self._rules.default, waiting_for=why)
        return _but_dra({gpu.uuid: self._known.get(gpu.uuid, new) for gpu in gpus})

    async def run(self, reown: Callable[[], Awaitable[None]]) -> None:
        """Take the steps that are due, until cancelled."""
        while True:
            await happens(self._wake, self._pause())
            self._wake.clear()
            await reown()

    # --- holders -----------------------------------------------------------------------------------------------------

    async def _holders(self, gpus: Sequence[Gpu]) -> Holders:
        pods = await self._sources.pods()
        claims: dict[str, dict[str, None]] = {}
        for record in await self._sources.records():
            for holding in record.holdings:
                if not holding.admin_access:
                    claims.setdefault(holding.gpu_uuid, {})[f"claim {record.claim.namespace}/{record.claim.name}"] = (
                        None
                    )
        return Holders(
            claims={uuid: tuple(names) for uuid, names in claims.items()},
            pods=None if pods is None else _by_gpu(gpus, pods),
        )

    def _with_recent(self, holders: Holders, wanted: Mapping[str, Owner]) -> Holders:
        """Add those who hold a GPU, or may, without being listed yet."""
        now = self._clock()
        self._given = {uuid: at for uuid, at in self._given.items() if now - at < _UNLISTED}
        pods = None if holders.pods is None else dict(holders.pods)
        claims = dict(holders.claims)
        for uuid in self._given:
            if pods is not None:
                pods.setdefault(uuid, ("a container that was just given it",))
        for uuid, wanted_owner in wanted.items():
            leaves = self._settles(uuid, wanted_owner, now)
            if leaves is Owner.DRA:
                claims.setdefault(uuid, ("claims that were allocated before it was withdrawn",))
            elif leaves is Owner.DEVICE_PLUGIN and pods is not None:
                pods.setdefault(uuid, ("pods that were admitted before it was withdrawn",))
        return Holders(claims=claims, pods=pods)

    def _settles(self, uuid: str, wanted: Owner, now: float) -> Owner | None:
        """Return whom the GPU was withdrawn from just now."""
        before = self._known.get(uuid)
        if before is None or before.owner in (wanted, Owner.WITHHELD):
            self._withdrawn.pop(uuid, None)
            return None
        return before.owner if now - self._withdrawn.setdefault(uuid, now) < self._settle else None

    # --- telling -----------------------------------------------------------------------------------------------------

    def _waits(self) -> bool:
        return any(one.waiting_for for one in self._known.values())

    def _pause(self) -> float | None:
        """Return how long to wait for the next look, in seconds; None: until something happens."""
        if any(one.waiting_for == HANDING_OVER for one in self._known.values()):
            return 0.0
        return _LOOK if self._waits() else None

    def _note(self, gpus: Sequence[Gpu], found: Mapping[str, Ownership], problems: tuple[str, ...]) -> None:
        for gpu in gpus:
            self._note_one(gpu, self._known.get(gpu.uuid), found[gpu.uuid])
        for problem in problems:
            if problem not in self._problems:
                self._say("OwnershipProblem", problem, warning=True)
        self._problems = problems
        here = [found[gpu.uuid] for gpu in gpus]
        counts = {owner.value: sum(one.owner is owner for one in here) for owner in Owner}
        self._observer.owners(counts, sum(bool(one.waiting_for) for one in here))

    def _note_one(self, gpu: Gpu, before: Ownership | None, now: Ownership) -> None:
        if before == now:
            return
        name = f"{gpu.name} ({gpu.uuid})"
        if now.waiting_for and now.waiting_for != HANDING_OVER:
            if before is None or not before.waiting_for or before.wanted is not now.wanted:
                message = f"{name} is to go from {now.owner} to {now.wanted}, and waits for {now.waiting_for}"
                if now.owner is Owner.WITHHELD:
                    message = f"{name} is offered to nobody: it is to be {now.wanted}'s, but held by {now.waiting_for}"
                self._say("GPUOwnershipWaiting", message, warning=now.owner is Owner.WITHHELD)
        elif not now.waiting_for and (before is not None or now.owner is not Owner.DRA):
            self._say("GPUOwnerChanged", f"{name} is offered through {now.owner} now")

    def _say(self, reason: str, message: str, *, warning: bool = False) -> None:
        log.log(logging.WARNING if warning else logging.INFO, "%s: %s", reason, message)
        self._tell.emit(reason, message, warning=warning)

    # --- the file ----------------------------------------------------------------------------------------------------

    def _save(self, gpus: Sequence[Gpu], holders: Holders) -> None:
        entries = [_entry(gpu, self._known[gpu.uuid], holders) for gpu in gpus]
        listed = {gpu.uuid for gpu in gpus}
        absent = [_bare(uuid, one) for uuid, one in sorted(self._known.items()) if uuid not in listed]
        body = {"version": VERSION, "gpus": entries, "absent": absent, "problems": [*self._problems]}
        data = json.dumps(body, indent=1).encode() + b"\n"
        if data == self._written:
            return
        try:
            self._file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            files.write_atomic(self._file, data, mode=0o644)
            self._written = data
        except (StorageError, OSError) as exc:
            log.warning("who has which GPU can't be kept in %s: %s", self._file, exc)


def _but_dra(owners: Mapping[str, Ownership]) -> Mapping[str, Ownership]:
    return MappingProxyType({uuid: one for uuid, one in owners.items() if one != ALL_DRA})


def _by_gpu(gpus: Sequence[Gpu], pods: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for gpu in gpus:
        for uuid in (gpu.uuid, *(one.uuid for one in (gpu.mig.instances if gpu.mig is not None else ()))):
            for pod in pods.get(uuid, ()):
                found.setdefault(gpu.uuid, {})[f"pod {pod}" if "/" in pod else pod] = None
    return {uuid: tuple(names) for uuid, names in found.items()}


def _entry(gpu: Gpu, one: Ownership, holders: Holders) -> dict[str, Any]:
    pods = holders.pods.get(gpu.uuid, ()) if holders.pods is not None else ()
    held_by = [*holders.claims.get(gpu.uuid, ()), *pods]
    return {"name": gpu.name, "index": gpu.index, "product": gpu.product, **_bare(gpu.uuid, one), "heldBy": held_by}


def _bare(uuid: str, one: Ownership) -> dict[str, Any]:
    return {"uuid": uuid, "owner": one.owner.value, "wanted": one.wanted.value, "waitingFor": one.waiting_for}


def _load(file: Path) -> dict[str, Ownership]:
    """Return what a former process decided; nothing if there is no such file, or a bad one (holders still count)."""
    try:
        body = parse_json(file.read_bytes())
        entries = [*body["gpus"], *body["absent"]]
        return {
            str(one["uuid"]): Ownership(
                owner=Owner(one["owner"]), wanted=Owner(one["wanted"]), waiting_for=str(one["waitingFor"])
            )
            for one in entries
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError) as exc:
        log.warning("%s can't be read, going by who holds GPUs alone: %s", file, exc)
        return {}
