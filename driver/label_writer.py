"""Keeps the node's labels as the Snapshot says, wherever they are written; writes nothing while they are right."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from driver.backoff import Backoff, Repairs
from driver.errors import ApiForbiddenError, ApiNotFoundError, DriverError, PermanentError
from driver.labels import LabelOptions, labels
from driver.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from driver.config.device_plugin import PluginConfig
    from driver.inventory.host import Host
    from driver.model.snapshot import Snapshot
    from driver.teller import Teller

log = logging.getLogger(__name__)

_NOT_WATCHED = "NodeLabelsNotWatched"
_AFTER_BUG = 60.0  # seconds
_SETTLE = 0.05  # seconds in which a burst of changes is awaited


class Place(Protocol):
    """Where labels are written: the Node (kube.node_labels) or a file (feature_file).

    With `timestamp`, each write says when it was made.
    """

    timestamp: bool

    @property
    def where(self) -> str:
        """Where that is, for messages."""
        ...

    @property
    def known(self) -> bool:
        """Whether it is known what is there now."""
        ...

    def differing(self, labels: Mapping[str, str]) -> list[str]:
        """Return the keys that are not there as they should be."""
        ...

    def managers(self, key: str) -> list[str]:
        """Return who else has set a key."""
        ...

    async def apply(self, labels: Mapping[str, str]) -> None:
        """Make these our labels, all of them."""
        ...

    async def remove(self) -> None:
        """Take all our labels away."""
        ...

    async def follow(self, changed: Callable[[], None], failed: Callable[[DriverError], None]) -> None:
        """Tell of changes until cancelled."""
        ...


class LabelObserver(Protocol):
    """Who counts (metrics)."""

    def labels_written(self, error_type: str = "") -> None:
        """Count a write; the type of its error if it failed."""
        ...


class LabelWriter:
    """Writes labels to one place. `publish` and `configure` only note what is; `run` does the work once it has both.

    Labels stay when the process ends, as slices do, unless `remove_at_end`.
    """

    def __init__(
        self,
        place: Place,
        host: Host,
        *,
        tell: Teller,
        observer: LabelObserver,
        timestamp: bool = True,
        remove_at_end: bool = False,
    ) -> None:
        self._place = place
        self._host = host
        self._tell = tell
        self._observer = observer
        self._timestamp = timestamp
        self._remove_at_end = remove_at_end
        self._snapshot: Snapshot | None = None
        self._config: PluginConfig | None = None
        self._wanted: dict[str, str] | None = None
        self._written: dict[str, str] | None = None
        self._look = asyncio.Event()  # something may have changed
        self._news = asyncio.Event()  # other labels are wanted: no pause is right any more
        self._pause = Backoff(0.5, 30.0)
        self._long_pause = Backoff(10.0, 600.0)
        self._repairs = Repairs()
        self._told: dict[str, str] = {}  # reasons by message: each is told once, until labels are written

    def publish(self, snapshot: Snapshot) -> None:
        """Label what this Snapshot has. One that knows nothing of any GPU changes nothing."""
        if snapshot.gpus or not snapshot.unavailable:
            self._snapshot = snapshot
            self._want()

    def configure(self, config: PluginConfig) -> None:
        """Label it as this config says."""
        self._config = config
        self._place.timestamp = self._timestamp and not config.flags.gfd.get("no_timestamp")
        self._want()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="labels: watch")
            tasks.create_task(self._keep(), name="labels: write")

    async def stop(self) -> None:
        """Remove the labels, if so set."""
        if not self._remove_at_end:
            return
        try:
            await self._place.remove()
        except DriverError as exc:
            log.warning("the labels of %s stay: %s", self._place.where, exc)

    def _want(self) -> None:
        if self._snapshot is None or self._config is None:
            return
        options = LabelOptions(
            config=self._config,
            machine=self._host.machine(str(self._config.flags.gfd.get("machine_type_file") or "")),
            modes=self._host.modes(self._snapshot.gpus),
            host_driver=self._host.hypervisor_driver(self._snapshot.gpus),
        )
        wanted = labels(self._snapshot, options)
        if wanted != self._wanted:
            self._wanted = wanted
            self._news.set()
            self._look.set()

    async def _follow(self) -> None:
        while True:
            try:
                await self._place.follow(self._look.set, self._not_watched)
            except Exception:  # a bug may cost labels, not the claims that the process serves
                log.exception("internal error while watching %s", self._place.where)
                await asyncio.sleep(_AFTER_BUG)

    async def _keep(self) -> None:
        while True:
            await self._look.wait()
            await asyncio.sleep(_SETTLE)
            self._look.clear()
            self._news.clear()
            if self._wanted is None or not self._place.known:
                continue
            try:
                await self._round(self._wanted)
            except DriverError as exc:
                self._observer.labels_written(type(exc).__name__)
                self._failed(exc)
                await happens(self._news, self._after(exc))
                self._look.set()
            except Exception:  # as above
                log.exception("internal error while labelling %s", self._place.where)
                await happens(self._news, _AFTER_BUG)
            else:
                self._pause.reset()
                self._long_pause.reset()

    async def _round(self, wanted: dict[str, str]) -> None:
        wrong = self._place.differing(wanted)
        if not wrong:
            self._written = wanted
            return
        if wanted == self._written and await happens(self._news, self._pause_of_repair(wrong)):
            return
        await self._place.apply(wanted)
        self._written = wanted
        self._told = {message: reason for message, reason in self._told.items() if reason == _NOT_WATCHED}
        self._observer.labels_written()
        log.info("wrote %d labels to %s, of which changed: %s", len(wanted), self._place.where, _shown(wrong))

    def _pause_of_repair(self, wrong: Sequence[str]) -> float:
        pause = self._repairs.pause(asyncio.get_running_loop().time())
        if pause:
            others = sorted({name for key in wrong for name in self._place.managers(key)})
            by = f" by {', '.join(others)}" if others else ""
            message = (
                f"labels of {self._place.where} are changed{by} again and again ({_shown(wrong)}): only one program "
                "may write them; stop the other one, or set labels to off"
            )
            self._say("NodeLabelsContested", message)
        return pause

    def _after(self, error: DriverError) -> float:
        """Return the seconds to the next try. A Node that is not there yet soon will be."""
        lasting = isinstance(error, PermanentError) and not isinstance(error, ApiNotFoundError)
        return (self._long_pause if lasting else self._pause).next(error)

    def _failed(self, error: DriverError) -> None:
        self._say("NodeLabelsNotWritten", f"labels of {self._place.where} can't be written: {error}{_hint(error)}")

    def _not_watched(self, error: DriverError) -> None:
        what = f"{self._place.where} can't be watched, so labels are repaired late: {error}{_hint(error)}"
        self._say(_NOT_WATCHED, what)

    def _say(self, reason: str, message: str) -> None:
        if message not in self._told:
            self._told[message] = reason
            log.warning("%s", message)
            self._tell.emit(reason, message, warning=True)


def _hint(error: DriverError) -> str:
    if not isinstance(error, ApiForbiddenError):
        return ""
    return "; if this node is to have no labels, set labels to off"


def _shown(keys: Sequence[str], most: int = 5) -> str:
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + more
