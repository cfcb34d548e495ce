"""The settings of ownership and of the legacy device-plugin API; a part of `driver.settings.Settings`."""

# ruff: noqa: RUF009 - `option` makes a `dataclasses.field`, and is called once

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.settings import options
from driver.settings.options import option
from driver.settings.telemetry import TelemetrySettings

if TYPE_CHECKING:
    from pathlib import Path

_PLUGIN = "device plugin"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePluginSettings(TelemetrySettings):
    """Who offers which GPU, and the device plugin's flags; those that NVIDIA's has too are empty where not given."""

    ownership: str = option(
        options.text("RULES"),
        "",
        "who offers which GPU: dra, device-plugin or withheld, with rules such as dra;device-plugin:index=0,1 "
        "(by index, uuid, pci, product or count); if empty dra, device-plugin if that is on, or withheld while "
        "another device plugin serves GPUs on this node",
        group=_PLUGIN,
    )
    ownership_file: Path | None = option(
        options.USER_PATH, "", "YAML file with such rules, which may be edited at any time", group=_PLUGIN
    )
    device_plugin: str = option(
        options.choice("auto", "on", "off"),
        "auto",
        "whether the legacy device-plugin API is served; auto is on if there is a config or an owner for it",
        group=_PLUGIN,
    )
    device_plugin_config: Path | None = option(
        options.USER_PATH,
        "",
        "config file of NVIDIA's device plugin, or a directory of them of which the node's label "
        "nvidia.com/device-plugin.config names one",
        group=_PLUGIN,
    )
    mig_strategy: str = option(
        options.text("none|single|mixed"),
        "",
        "how MIG devices are offered: not at all (if empty), as nvidia.com/gpu if all are alike, or by profile",
        group=_PLUGIN,
    )
    device_list_strategy: str = option(
        options.text("STRATEGY,…"),
        "",
        "how containers get devices: cdi-cri (if empty), cdi-annotations, envvar, volume-mounts",
        group=_PLUGIN,
    )
    device_id_strategy: str = option(
        options.text("uuid|index"), "", "what envvar and volume-mounts name devices by", group=_PLUGIN
    )
    pass_device_specs: str = option(
        options.BOOLEAN, "", "whether device nodes are passed to the kubelet too", group=_PLUGIN
    )
    shared_devices_allocation_policy: str = option(
        options.text("distributed|packed"), "", "which replicas a container gets", group=_PLUGIN
    )
    cdi_annotation_prefix: str = option(options.text("PREFIX/"), "", "prefix of CDI annotations", group=_PLUGIN)
