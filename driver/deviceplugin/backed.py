"""Which GPUs DRA can serve to pods that ask for extended resources, as DeviceClasses back those. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.deviceplugin.resources import name_of
from driver.errors import InvalidValueError
from driver.model.device import FullGpu, MigDevice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from driver.config.device_plugin import PluginConfig
    from driver.model.device import Gpu


def backed_gpus(gpus: Iterable[Gpu], config: PluginConfig, resources: Collection[str]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs of which all that pods may ask for is backed.

    What the config shares is not: a class knows no replicas.
    """
    shared = {one.name for one in config.sharing.resources}
    served = frozenset(resources) - shared
    return tuple(gpu.uuid for gpu in gpus if (names := _names(gpu, config)) and names <= served)


def _names(gpu: Gpu, config: PluginConfig) -> frozenset[str]:
    """Return the resources that a GPU is offered as; none if it is not, or what it is offered as is no name."""
    try:
        if gpu.mig is None or not gpu.mig.enabled:
            return frozenset({name_of(FullGpu(gpu=gpu), config)})
        if config.flags.mig_strategy == "none":
            return frozenset()
        return frozenset(name_of(MigDevice(gpu=gpu, instance=one), config) for one in gpu.mig.instances)
    except InvalidValueError:
        return frozenset()
