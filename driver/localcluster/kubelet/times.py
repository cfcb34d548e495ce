"""The kubelet's times, as recorded; waits can be scaled, deadlines that a plugin sees can't."""

from __future__ import annotations

from dataclasses import dataclass, replace

from driver.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """All in seconds."""

    dial: float = 10.0
    get_info: float = 1.0
    notify: float = 5.0
    prepare: float = 45.0
    pre_start: float = 30.0

    register_retry: float = 0.5
    register_retry_max: float = 122.0
    sync_retry: tuple[float, float] = (70.0, 85.0)
    """After a failed prepare, admission or volume the pod is looked at again so much later."""
    unprepare_retry: float = 10.0
    wipe_after: float = 30.0
    """A driver whose last plugin has been away for so long loses its slices."""
    health_reopen: float = 5.0
    health_timeout: float = 30.0
    crash_backoff: float = 10.0
    crash_backoff_max: float = 300.0
    crash_forgotten: float = 600.0
    grace: float = 1.0
    """Factor on a pod's grace period, its deadline, the intervals of its probes and the sleeps of its hooks."""

    def scaled(self, scale: float) -> Times:
        """Return these times with every wait multiplied by `scale`.

        :raises InvalidValueError: a scale that is not above 0.
        """
        if scale <= 0:
            raise InvalidValueError("time_scale", scale, "a number above 0")
        return replace(
            self,
            register_retry=self.register_retry * scale,
            register_retry_max=self.register_retry_max * scale,
            sync_retry=(self.sync_retry[0] * scale, self.sync_retry[1] * scale),
            unprepare_retry=self.unprepare_retry * scale,
            wipe_after=self.wipe_after * scale,
            health_reopen=self.health_reopen * scale,
            health_timeout=self.health_timeout * scale,
            crash_backoff=self.crash_backoff * scale,
            crash_backoff_max=self.crash_backoff_max * scale,
            crash_forgotten=self.crash_forgotten * scale,
            grace=self.grace * scale,
        )
