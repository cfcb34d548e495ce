"""Which parameters apply to each allocated device. Pure.

Low to high: nothing, class configs, claim configs; of two that apply the later wins, as the API's documentation says
(KEP-4381). A config that names requests must fit their devices' type, else the author would wait for an effect that
never comes; one that names none applies to the devices of its type. A request `gpus` means its subrequests
(`gpus/large`) too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.config.parameters import DeviceConfig, GpuConfig, MigDeviceConfig, decode
from driver.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from driver.config.parameters import OpaqueConfig


def effective(configs: Sequence[OpaqueConfig], requests: Mapping[str, str]) -> dict[str, DeviceConfig]:
    """Return what applies to each request; `requests` maps a request as allocated to its type, `gpu` or `mig`.

    :raises InvalidValueError: a config is malformed, or names a request whose device is of another type.
    """
    chosen: dict[str, DeviceConfig] = {}
    for config in configs:
        decoded = decode(config.parameters, config.path)
        for request, kind in requests.items():
            if not config.requests:
                if _fits(decoded, kind):
                    chosen[request] = decoded
            elif _named(request, config.requests):
                if not _fits(decoded, kind):
                    raise InvalidValueError(
                        f"{config.path}.kind", type(decoded).__name__, f"request {request} got a device of type {kind}"
                    )
                chosen[request] = decoded
    return chosen


def _named(request: str, among: tuple[str, ...]) -> bool:
    return request in among or request.partition("/")[0] in among


def _fits(config: DeviceConfig, kind: str) -> bool:
    return isinstance(config, GpuConfig if kind == "gpu" else MigDeviceConfig)
