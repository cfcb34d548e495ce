"""What a pod's worker may use of its node."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from driver.localcluster import events

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.store import Store
    from driver.localcluster.containers.runtime import ContainerRuntime
    from driver.localcluster.kubelet.claims import ClaimManager
    from driver.localcluster.kubelet.device_manager import DeviceManager
    from driver.localcluster.kubelet.health import HealthBoard
    from driver.localcluster.kubelet.paths import NodePaths
    from driver.localcluster.kubelet.times import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeServices:
    """The parts of one node, injected into each pod's worker."""

    node: str
    store: Store
    runtime: ContainerRuntime
    claims: ClaimManager
    devices: DeviceManager
    health: HealthBoard
    paths: NodePaths
    times: Times
    random: Random = field(default_factory=Random)

    def record(self, obj: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event about an object; never raises."""
        events.record(self.store, "kubelet", obj, reason, message, warning=warning, host=self.node)

    def finder(self, pod: Object) -> Any:
        """Return a function that reads config maps and secrets of the pod's namespace."""
        namespace = pod["metadata"]["namespace"]
        return lambda resource, name: self.store.find(resource, name, namespace)
