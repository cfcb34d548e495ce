"""Which parameters apply to each allocated device. Pure.

Low to high: nothing, class configs, claim configs; of two that apply the later wins, as the API's documentation says
(KEP-4381). A config that names requests must fit their devices' type, else the author would wait for an effect that
never comes; one that names none applies to the devices of its type. A request `gpus` means its subrequests
(`gpus/large`) too.

What weakens the walls between claims is the administrator's to choose, so it comes from a class only: `multiUser` for
shares of a device, whose MPS server then runs the processes of several claims as one user. For a device that one claim
has to itself it is that claim's own business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.config.parameters import DeviceConfig, GpuConfig, MigDeviceConfig, Mps, decode
from driver.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from driver.config.parameters import OpaqueConfig


def effective(
    configs: Sequence[OpaqueConfig], requests: Mapping[str, str], shared: Collection[str] = ()
) -> dict[str, DeviceConfig]:
    """Return what applies to each request; `requests` maps a request as allocated to its type, `gpu` or `mig`.

    `shared` are the requests that got a share of a device.

    :raises InvalidValueError: a config is malformed, names a request whose device is of another type, or is a claim's
        and sets what only a class may.
    """
    chosen: dict[str, tuple[OpaqueConfig, DeviceConfig]] = {}
    for config in configs:
        decoded = decode(config.parameters, config.path)
        for request, kind in requests.items():
            if _applies(config, decoded, request, kind):
                chosen[request] = config, decoded
    for request in shared:
        if request in chosen:
            _check_origin(*chosen[request])
    return {request: decoded for request, (_, decoded) in chosen.items()}


def _applies(config: OpaqueConfig, decoded: DeviceConfig, request: str, kind: str) -> bool:
    """Say whether a config is for a request: by its type if it names none; one that is named has to be of the type."""
    fits = isinstance(decoded, GpuConfig if kind == "gpu" else MigDeviceConfig)
    if not config.requests:
        return fits
    if not _named(request, config.requests):
        return False
    if not fits:
        raise InvalidValueError(
            f"{config.path}.kind", type(decoded).__name__, f"request {request} got a device of type {kind}"
        )
    return True


def _check_origin(config: OpaqueConfig, decoded: DeviceConfig) -> None:
    if isinstance(decoded.sharing, Mps) and decoded.sharing.multi_user and not config.from_class:
        raise InvalidValueError(
            f"{config.path}.sharing.mpsConfig.multiUser",
            True,
            "for a share of a device only a DeviceClass may set it, as it makes several claims' processes one user's",
        )


def _named(request: str, among: tuple[str, ...]) -> bool:
    return request in among or request.partition("/")[0] in among
