"""What the publisher tells: its state for readiness, log lines, Kubernetes Events, counts."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from driver.errors import ApiInvalidError, PermanentError
from driver.slices.dropped import Feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.teller import Teller

log = logging.getLogger(__name__)

_AGAIN = 600.0  # seconds after which the same is told once more

_CONSEQUENCE = {
    Feature.TAINTS: "unhealthy GPUs are withdrawn from the ResourceSlices instead of being tainted",
    Feature.NOTICES: "faults that leave a GPU in service are not shown in the ResourceSlices",
    Feature.SHARES: "each device goes to one claim at a time, although the setting lets claims share them",
    Feature.PARTITIONS: "MIG partitions are withdrawn; whole GPUs and existing MIG devices stay",
}


class PublishMetrics(Protocol):
    """What the publisher counts."""

    def slice_written(self, verb: str) -> None:
        """Count a write: create, update or delete."""
        ...

    def publish_failed(self, error_type: str) -> None:
        """Count a failure by the name of its type."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishState:
    """How far publishing is, for readiness and people."""

    published: bool = False  # a whole pool has been written or found at least once
    complete: bool = False  # and the slices are as wanted, as far as is known
    slices: int = 0
    devices: int = 0
    error: str = ""  # the last failure, empty after a success
    without: frozenset[Feature] = frozenset()  # what the API server can't store


class Reporter:
    """Keeps the state and tells each thing once as long as it lasts."""

    def __init__(self, events: Teller, metrics: PublishMetrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._told: dict[str, float] = {}
        self._unsaid = True  # something was written, or failed, since the last success
        self.state = PublishState()

    def pending(self) -> None:
        """Note that the slices are not as wanted."""
        self.state = replace(self.state, complete=False)

    def wrote(self, verb: str) -> None:
        """Count a write."""
        self._metrics.slice_written(verb)
        self._unsaid = True

    def succeeded(self, *, slices: int, devices: int, complete: bool) -> None:
        """Note that the slices are as built; `complete` if nothing newer is wanted by now.

        Claims that cut and mend GPUs make new snapshots of the same slices: no line for each.
        """
        if self._unsaid:
            log.info("%d devices are published in %d ResourceSlices", devices, slices)
            self._unsaid = False
        self.state = replace(self.state, published=True, complete=complete, slices=slices, devices=devices, error="")

    def failed(self, error: Exception) -> None:
        """Tell of a failure; an Event only of what people must change."""
        self._metrics.publish_failed(type(error).__name__)
        self._unsaid = True
        message = _advice(error)
        self.state = replace(self.state, complete=False, error=message)
        self._tell("ResourceSlicesNotPublished", message, event=isinstance(error, PermanentError))

    def without(self, features: frozenset[Feature], why: str = "") -> None:
        """Tell what the API server can't store and what follows; none if it can store all."""
        for feature in sorted(features - self.state.without):
            self._metrics.publish_failed("FieldsDropped")
            reason = why or f"the API server drops {feature}, as that feature is off"
            self._tell("ResourceSliceFieldsDropped", f"{reason}: {_CONSEQUENCE[feature]}")
        self.state = replace(self.state, without=features)

    def differs(self, lost: frozenset[str]) -> None:
        """Tell that the slices are not stored as asked, in a way that changes nothing for the driver."""
        self._metrics.publish_failed("FieldsDropped")
        what = f"without {', '.join(sorted(lost))}" if lost else "changed"
        self._tell("ResourceSliceFieldsDropped", f"the API server or a webhook stored ResourceSlices {what}; left so")

    def _tell(self, reason: str, message: str, *, event: bool = True) -> None:
        now = self._clock()
        if now - self._told.get(message, -_AGAIN) < _AGAIN:
            log.debug("still: %s", message)
            return
        self._told = {text: then for text, then in self._told.items() if now - then < _AGAIN}
        self._told[message] = now
        log.warning("%s", message)
        if event:
            self._events.emit(reason, message, warning=True)


def _advice(error: Exception) -> str:
    """Say what failed and what to do about it."""
    text = f"the ResourceSlices can't be kept up to date: {error}"
    if isinstance(error, ApiInvalidError):
        return f"{text} (tried again when the GPUs change, and now and then)"
    return text
