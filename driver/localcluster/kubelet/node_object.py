"""The Node object: what a kubelet says of its machine."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.objects import clone, metadata
from driver.localcluster.kubelet.pod_state import NODE_IP

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_LEASES = "kube-node-lease"
_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


class NodeObject:
    """Keeps one Node object up to date; nothing is written while nothing changes."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def register(self) -> None:
        """Create the object, or take over the one that is there."""
        if self._store.find("nodes", self._name) is None:
            machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
            labels = {
                "kubernetes.io/hostname": self._name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": machine,
                "beta.kubernetes.io/os": "linux",
                "beta.kubernetes.io/arch": machine,
            }
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._name, "labels": labels}, "spec": {}}
            self._store.create("nodes", node)
        self._take_lease()

    def _take_lease(self) -> None:
        """Write the lease that `kubectl describe node` shows. It is not renewed: an idle cluster writes nothing."""
        moment = self._store.now().replace("Z", ".000000Z")
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": 40, "renewTime": moment}
        if self._store.find("leases", self._name, _LEASES):
            self._store.patch("leases", self._name, {"spec": spec}, _LEASES)
        elif self._store.find("namespaces", _LEASES):
            node = metadata(self.get())
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": node["uid"]}
            about = {"name": self._name, "ownerReferences": [owner]}
            self._store.create("leases", {"metadata": about, "spec": spec}, _LEASES)

    def get(self) -> dict[str, Any]:
        """Return the object."""
        return self._store.get("nodes", self._name)

    def update(self, extended: dict[str, tuple[int, int]], *, ready: bool) -> None:
        """Write the status: (capacity, allocatable) of extended resources, and whether the kubelet works."""
        found = self._store.find("nodes", self._name)
        if found is None:
            return
        node = clone(found)
        old = node.get("status") or {}
        base = _machine_resources()
        capacity = base | {name: str(counts[0]) for name, counts in extended.items()}
        allocatable = base | {name: str(counts[1]) for name, counts in extended.items()}
        node["status"] = {
            **old,
            "capacity": _keep_foreign(old.get("capacity"), capacity, extended),
            "allocatable": _keep_foreign(old.get("allocatable"), allocatable, extended),
            "conditions": self._conditions(old, ready),
            "addresses": [{"type": "InternalIP", "address": NODE_IP}, {"type": "Hostname", "address": self._name}],
            "nodeInfo": self._info(),
        }
        self._store.update_status("nodes", node)

    def _conditions(self, old: dict[str, Any], ready: bool) -> list[dict[str, Any]]:
        before = {condition["type"]: condition for condition in old.get("conditions") or ()}
        state = ("True", "KubeletReady", "kubelet is posting ready status")
        if not ready:
            state = ("False", "KubeletNotReady", "kubelet is stopped")
        wanted = [*_CONDITIONS, ("Ready", *state)]
        own = {type_ for type_, *_ in wanted}
        conditions = [condition for type_, condition in before.items() if type_ not in own]
        for type_, status, reason, message in wanted:
            known, now = before.get(type_), self._store.now()
            since = known["lastTransitionTime"] if known and known["status"] == status else now
            heartbeat = known["lastHeartbeatTime"] if known and since != now else now
            conditions.append(
                {
                    "type": type_,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": heartbeat,
                    "lastTransitionTime": since,
                }
            )
        return conditions

    def _info(self) -> dict[str, str]:
        return {
            "kubeletVersion": self._store.features.git_version,
            "containerRuntimeVersion": "localcluster://1",
            "operatingSystem": "linux",
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "kernelVersion": platform.release(),
            "osImage": "embedded cluster",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
            "kubeProxyVersion": "",
        }


def _keep_foreign(old: dict[str, str] | None, new: dict[str, str], own: dict[str, Any]) -> dict[str, str]:
    """Keep extended resources that somebody else advertised on the node."""
    foreign = {name: value for name, value in (old or {}).items() if "/" in name and name not in own}
    return new | foreign


def _machine_resources() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory}Ki",
        "pods": "110",
        "ephemeral-storage": "100Gi",
    }
