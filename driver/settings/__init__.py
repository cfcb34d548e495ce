"""The settings of the agent and its tools: each once, here. Defaults < YAML file < environment < flags.

Paths that follow from others (the kubelet's sockets and directories) are properties, so that each is derived in one
place.
"""

# ruff: noqa: RUF009 - `option` makes a `dataclasses.field`, and is called once

from __future__ import annotations

import dataclasses
import os
import platform
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.model import names
from driver.model.choice import GpuChoice
from driver.model.health import Effect
from driver.model.shares import Shares
from driver.settings import options
from driver.settings.device_plugin import DevicePluginSettings
from driver.settings.options import Address, Kind, option

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Collection, Mapping
    from pathlib import Path

_NODE, _GPUS, _PATHS, _API, _SERVICE = "node and kubelet", "GPUs", "driver files", "Kubernetes API", "process"
_SHARING = "sharing of GPUs"
_LABELS = "node labels"
_HEALTH = "health"

LONGEST_SOCKET = f"/plugins_registry/{names.DRIVER}-12345678-reg.sock"
"""Below the kubelet root, in its shortest form (`kubelet.sockets` shortens the pod UID)."""

_NODE_NAME = options.checked(
    "NAME", lambda text: text == "" or names.is_dns_subdomain(text), "must be a Kubernetes node name (a DNS subdomain)"
)


def _is_uid(text: str) -> bool:
    try:
        return text == "" or bool(names.check_uid(text))
    except InvalidValueError:
        return False


_CHOICE = Kind(parse=GpuChoice.parse, metavar="off|all|GPUS", choices=("off", "all"))
_SHARES = Kind(parse=Shares.parse, metavar="disabled|memory|unlimited|N", choices=("disabled", "memory", "unlimited"))
_POD_UID = options.checked("UID", _is_uid, "must be a pod's UID (letters, digits, '-', '_', single '.')")


def _effect(value: object) -> Effect:
    return Effect(_SERIOUS.parse(value))


_SERIOUS = options.choice(Effect.NO_SCHEDULE, Effect.NO_EXECUTE)
_EFFECT = dataclasses.replace(_SERIOUS, parse=_effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(DevicePluginSettings):
    """All settings, validated. Times are in seconds; made by `load_settings`."""

    node_name: str = option(_NODE_NAME, "", "name of this node; the host's name if empty", group=_NODE)
    kubelet_root: Path = option(
        options.PATH, "/var/lib/kubelet", "the kubelet's root directory; its sockets are looked for below", group=_NODE
    )
    state_dir: Path | None = option(
        options.OPTIONAL_PATH,
        "",
        f"directory of the driver's state; <kubelet-root>/plugins/{names.DRIVER} if empty",
        group=_NODE,
    )
    cdi_dir: Path = option(options.PATH, "/var/run/cdi", "directory for the CDI files of prepared claims", group=_NODE)
    pod_uid: str = option(
        _POD_UID, "", "UID of the agent's pod; makes its sockets its own, for rolling updates", group=_NODE
    )
    container_runtime_configs: tuple[Path, ...] = option(
        options.PATHS,
        "/etc/containerd/config.toml,/etc/crio/crio.conf",
        "the container runtime's configuration files, looked at once to warn if CDI is off",
        group=_NODE,
    )

    inventory: str = option(
        options.choice("auto", "nvml", "fake"),
        "auto",
        "where GPUs come from; auto is fake if --gpus is given, else nvml",
        group=_GPUS,
    )
    gpus: str = option(
        options.text("SPEC|FILE"),
        "",
        "fake GPUs, such as h100:8,l4:2 or a100-80:4@pairs or h100@mig=1g.10gb*3, or a YAML file's path",
        group=_GPUS,
    )
    profiles_dir: Path | None = option(
        options.USER_PATH, "", "directory with more product profiles for fake GPUs", group=_GPUS
    )
    faults_file: Path | None = option(
        options.USER_PATH, "", "faults of fake GPUs; <state-dir>/faults.yaml if empty", group=_GPUS
    )
    nvml_timeout: float = option(options.seconds(0.01, 600), "10s", "time limit of a call into NVML", group=_GPUS)
    resync_interval: float = option(
        options.seconds(1, 86400), "1m", "how often everything is read again, whatever was notified", group=_GPUS
    )

    health_interval: float = option(
        options.seconds(1, 3600), "30s", "how often the GPUs' health is checked, beside events", group=_HEALTH
    )
    health_rules: Path | None = option(
        options.USER_PATH,
        "",
        "YAML file that changes how bad XIDs (xids: {94: application}) and facts (facts: {nvlink-down: reset}) are",
        group=_HEALTH,
    )
    unhealthy_effect: Effect = option(
        _EFFECT,
        "NoSchedule",
        "taint effect of what takes a GPU out of service; NoExecute also evicts the pods that use it",
        group=_HEALTH,
    )
    xid_quiet_time: float = option(
        options.seconds(1, 86400),
        "5m",
        "how long an XID must not come again before a good check may clear it, unless a reset was seen",
        group=_HEALTH,
    )
    health_timeout: float = option(
        options.seconds(1, 3600),
        "30s",
        "how long the kubelet may rely on what it was told of devices' health; it is told thrice as often",
        group=_HEALTH,
    )

    labels: str = option(
        options.choice("node", "nfd", "off"),
        "node",
        "where the labels of GPU feature discovery are written: to the Node, to a file for node-feature-discovery, or "
        "nowhere",
        group=_LABELS,
    )
    labels_file: Path = option(
        options.PATH,
        "/etc/kubernetes/node-feature-discovery/features.d/gpu-dra",
        "the file, where labels is nfd",
        group=_LABELS,
    )
    labels_at_exit: str = option(
        options.choice("keep", "remove"), "keep", "whether labels stay when the agent ends", group=_LABELS
    )
    labels_timestamp: str = option(
        options.choice("on", "off"),
        "on",
        "whether gfd.timestamp tells when a label last changed; never written for its own sake",
        group=_LABELS,
    )

    dynamic_mig: GpuChoice = option(
        _CHOICE,
        "off",
        "GPUs whose MIG partitions are made for claims and removed after; others keep the MIG devices that they have; "
        "all, or some by index, UUID or product: 0,1 or *H100*",
        group=_GPUS,
    )
    shares: Shares = option(
        _SHARES,
        "disabled",
        "how claims share a device: by the memory that they ask for, without limit, or N at a time",
        group=_GPUS,
    )

    driver_root: Path = option(
        options.PATH, "/", "where the NVIDIA driver's files are, as this process sees them", group=_PATHS
    )
    dev_root: Path | None = option(
        options.OPTIONAL_PATH, "", "where /dev with the device nodes is; the driver root if empty", group=_PATHS
    )
    host_driver_root: Path | None = option(
        options.OPTIONAL_PATH, "", "the driver root as the host names it, if that differs", group=_PATHS
    )
    host_dev_root: Path | None = option(
        options.OPTIONAL_PATH, "", "the device root as the host names it, if that differs", group=_PATHS
    )
    cdi_hook: Path | None = option(
        options.OPTIONAL_PATH,
        "",
        "the host's nvidia-cdi-hook or nvidia-ctk, if it is not below the driver root",
        group=_PATHS,
    )
    sys_root: Path = option(options.PATH, "/sys", "where sysfs is mounted", group=_PATHS)
    proc_root: Path = option(options.PATH, "/proc", "where procfs is mounted", group=_PATHS)
    boot_id_file: Path | None = option(
        options.OPTIONAL_PATH,
        "",
        "file that tells one boot from another; <proc-root>/sys/kernel/random/boot_id if empty",
        group=_PATHS,
    )

    mps: str = option(
        options.choice("child", "pod", "off"),
        "child",
        "how MPS control daemons run: as children of the agent, each as a pod on this node, or not at all",
        group=_SHARING,
    )
    mps_image: str = option(
        options.text("IMAGE"), "", "image of MPS daemons' pods; that of the agent's own pod if empty", group=_SHARING
    )
    mps_namespace: str = option(
        options.checked("NAME", names.is_dns_label, "must be a namespace (a DNS label)"),
        "gpu-dra",
        "namespace of MPS daemons' pods",
        group=_SHARING,
    )
    mps_ready_timeout: float = option(
        options.seconds(0.1, 600), "10s", "how long a new MPS control daemon may take until it answers", group=_SHARING
    )
    mps_shm_dir: Path = option(
        options.PATH,
        "/dev/shm/gpu-dra",  # noqa: S108 - it has to be memory, and is root's
        "directory, in the host's /dev/shm, for the shared memory of MPS daemons and their clients",
        group=_SHARING,
    )
    mps_cgroup: Path | None = option(
        options.OPTIONAL_PATH,
        "",
        "directory of a control group outside the agent's, so that MPS daemons outlive its container; made if missing",
        group=_SHARING,
    )
    nvidia_smi: Path | None = option(
        options.OPTIONAL_PATH, "", "nvidia-smi, if it is not found below the driver root", group=_SHARING
    )
    mps_control: Path | None = option(
        options.OPTIONAL_PATH, "", "nvidia-cuda-mps-control, if it is not found below the driver root", group=_SHARING
    )
    tool_timeout: float = option(
        options.seconds(0.1, 600), "10s", "time limit of one run of nvidia-smi", group=_SHARING
    )

    kubeconfig: Path | None = option(
        options.USER_PATH, "", "kubeconfig of the cluster; the pod's service account if empty", group=_API
    )
    context: str = option(options.text("NAME"), "", "context of the kubeconfig; its current one if empty", group=_API)
    api_timeout: float = option(
        options.seconds(0.1, 600), "10s", "time limit of one request to the API server", group=_API
    )

    http_address: Address | None = option(
        options.ADDRESS, ":8080", "where /healthz, /readyz and /metrics are served; empty for nowhere", group=_SERVICE
    )
    log_level: str = option(
        options.choice("debug", "info", "warning", "error"), "info", "what is logged", group=_SERVICE
    )
    log_format: str = option(options.choice("text", "json"), "text", "how it is logged", group=_SERVICE)
    shutdown_timeout: float = option(
        options.seconds(0.1, 60), "1.5s", "how long calls under way may take to end on SIGTERM", group=_SERVICE
    )

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Where the settings that were set come from, by name."""

    def source(self, name: str) -> str:
        """Return what an error about a setting names: `--gpus`, `environment variable GPU_DRA_GPUS`, a file's key."""
        return self.sources.get(name, name)

    @property
    def fake(self) -> bool:
        """Whether the GPUs are made up."""
        return self.inventory == "fake" or (self.inventory == "auto" and bool(self.gpus))

    @property
    def serves_device_plugin(self) -> bool:
        """Whether the legacy device-plugin API may be served."""
        if self.device_plugin != "auto":
            return self.device_plugin == "on"
        return bool(self.device_plugin_config or self.ownership_file or "device-plugin" in self.ownership)

    @property
    def plugins_dir(self) -> Path:
        """The kubelet's directory of plugins and their service sockets."""
        return self.kubelet_root / "plugins"

    @property
    def registry_dir(self) -> Path:
        """The directory in which the kubelet looks for registration sockets."""
        return self.kubelet_root / "plugins_registry"

    @property
    def device_plugins_dir(self) -> Path:
        """The directory of the legacy device-plugin API's sockets."""
        return self.kubelet_root / "device-plugins"

    @property
    def pod_resources_socket(self) -> Path:
        """The socket at which the kubelet tells which pod holds what."""
        return self.kubelet_root / "pod-resources" / "kubelet.sock"

    @property
    def state(self) -> Path:
        """The directory of the driver's state: records, lock."""
        return self.state_dir or self.plugins_dir / names.DRIVER

    @property
    def faults(self) -> Path:
        """The file with the faults of fake GPUs."""
        return self.faults_file or self.state / "faults.yaml"

    @property
    def status_socket(self) -> Path:
        """The socket at which `gpu-dra status` asks."""
        return self.state / "status.sock"

    @property
    def metadata_dir(self) -> Path:
        """The directory of the files with devices' attributes that containers get."""
        return self.state / "metadata"

    @property
    def mps_dir(self) -> Path:
        """The directory of the MPS control daemons' sockets and logs."""
        return self.state / "mps"

    @property
    def boot_id(self) -> Path:
        """The file that tells one boot from another."""
        return self.boot_id_file or self.proc_root / "sys/kernel/random/boot_id"


def add_flags(parser: ArgumentParser, only: Collection[str] = ()) -> None:
    """Add a flag for each setting, or for some."""
    options.add_flags(parser, Settings, only)


def load_settings(flags: Mapping[str, str | None] | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of this process.

    :raises InvalidValueError: one is bad or unknown; the message names its source, the value and what is allowed.
    :raises SettingsError: several are; the message has a line of each.
    """
    values, sources = options.load(Settings, flags=flags or {}, environ=environ, read=_read_yaml)
    values["node_name"] = values.get("node_name") or _host_name()
    settings = Settings(**values, sources=MappingProxyType(sources))
    _check(settings)
    return settings


def describe(settings: Settings) -> dict[str, str]:
    """Return what is not as by default, for the log."""
    known = options.options(Settings)
    values = {one.name: getattr(settings, one.name) for one in known}
    return {one.name: _shown(values[one.name]) for one in known if values[one.name] != one.kind.parse(one.default)}


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _check(settings: Settings) -> None:
    """Refuse what doesn't go together."""

    def refuse(name: str, allowed: str) -> None:
        raise InvalidValueError(settings.source(name), str(getattr(settings, name)), allowed)

    if settings.inventory == "nvml" and settings.gpus:
        refuse("gpus", "fake GPUs don't go with inventory nvml; leave out one of them")
    if settings.inventory == "fake" and not settings.gpus:
        refuse("inventory", "needs to know which: give --gpus, such as h100:8")
    if settings.mps == "pod" and not settings.fake and str(settings.driver_root) == "/":
        refuse("mps", "pods find the driver by --driver-root, where the agent has the host's mounted: not /")
    if settings.context and settings.kubeconfig is None:
        refuse("context", "a context needs a kubeconfig")
    if settings.device_plugin == "off" and ("device-plugin" in settings.ownership or settings.device_plugin_config):
        refuse("device_plugin", "a config or an owner for it needs the device plugin; leave out one of them")
    longest = names.UNIX_PATH_MAX - len(LONGEST_SOCKET)
    if len(bytes(settings.kubelet_root)) > longest:
        refuse("kubelet_root", f"at most {longest} bytes, as a Unix socket's path holds {names.UNIX_PATH_MAX} in all")


def _host_name() -> str:
    """Return the host's name as a kubelet makes a node name of it."""
    name = platform.node().strip().lower()
    if not names.is_dns_subdomain(name):
        raise InvalidValueError("host name", name, "is no Kubernetes node name: give --node-name")
    return name


def _read_yaml(file: Path) -> object:
    from driver.yaml_file import load_yaml, read_text  # YAML is loaded only where there is a file

    return load_yaml(read_text(file), str(file))
