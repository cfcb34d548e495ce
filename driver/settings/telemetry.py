"""The settings of what the agent tells about devices: use, claims' status, metadata in containers."""

from __future__ import annotations

from dataclasses import dataclass

from driver.settings import options
from driver.settings.options import option

_TELLING = "what is told about devices"
_SWITCH = options.choice("on", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """A part of `Settings`. Times are in seconds."""

    telemetry: str = option(
        _SWITCH, "on", "whether /metrics has the use of GPUs and MIG devices, under DCGM's names", group=_TELLING
    )
    telemetry_interval: float = option(
        options.seconds(1, 600), "10s", "how often the use is looked at, while somebody scrapes", group=_TELLING
    )
    claim_status: str = option(
        _SWITCH, "on", "whether claims are told about their devices and their health, in status.devices", group=_TELLING
    )
    device_metadata: str = option(
        _SWITCH,
        "off",
        "whether containers get files with the attributes of their devices, below "
        "/var/run/kubernetes.io/dra-device-attributes (KEP-5304)",
        group=_TELLING,
    )
