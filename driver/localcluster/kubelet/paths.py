"""Where a node of the embedded cluster keeps its things: the kubelet's root and the container runtime's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodePaths:
    """The paths below one node's directory; sockets need it short."""

    root: Path

    @property
    def kubelet_root(self) -> Path:
        """What is `/var/lib/kubelet` on a real node."""
        return self.root / "kubelet"

    @property
    def cdi_dirs(self) -> tuple[Path, Path]:
        """What is `/etc/cdi` and `/var/run/cdi` on a real node; the later wins."""
        return self.root / "etc-cdi", self.root / "run-cdi"

    @property
    def plugins_registry(self) -> Path:
        """Where plugins put their registration sockets."""
        return self.kubelet_root / "plugins_registry"

    @property
    def plugins(self) -> Path:
        """Where DRA plugins put their service sockets and state."""
        return self.kubelet_root / "plugins"

    @property
    def device_plugins(self) -> Path:
        """Where device plugins put their sockets, and the kubelet its registration socket for them."""
        return self.kubelet_root / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """Where the pod-resources socket is."""
        return self.kubelet_root / "pod-resources"

    @property
    def pods(self) -> Path:
        """Volumes and logs, by pod UID."""
        return self.kubelet_root / "pods"

    @property
    def claims_checkpoint(self) -> Path:
        """The claims that pods of this node use, so that they are unprepared after a restart too."""
        return self.kubelet_root / "dra_manager_state"

    @property
    def devices_checkpoint(self) -> Path:
        """The device plugins' devices that pods of this node hold."""
        return self.device_plugins / "kubelet_internal_checkpoint"

    @property
    def containers(self) -> Path:
        """The container runtime's bundles."""
        return self.root / "containers"

    def make(self) -> None:
        """Create the directories, as the installation of a node does."""
        for path in (
            *self.cdi_dirs,
            self.plugins_registry,
            self.plugins,
            self.device_plugins,
            self.pod_resources,
            self.pods,
            self.containers,
        ):
            path.mkdir(parents=True, exist_ok=True)
