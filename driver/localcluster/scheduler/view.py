"""What the scheduler knows of the cluster, kept by its informer: nodes and what runs there, pools, holds, classes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from driver.localcluster.scheduler import fit, nodes
from driver.localcluster.scheduler.pools import PoolIndex
from driver.localcluster.scheduler.state import AllocatedState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    Object = Mapping[str, Any]

_FINISHED = ("Succeeded", "Failed")


class ClusterView:
    """Every change says whether it could help a pod that did not fit before."""

    def __init__(self, *, extended: bool = True) -> None:
        self.extended = extended
        """Can classes back extended resources?"""
        self.nodes: dict[str, Object] = {}
        self.classes: dict[str, Object] = {}
        self.pools = PoolIndex()
        self.state = AllocatedState()
        self._allocatable: dict[str, Mapping[str, Fraction]] = {}
        self._running: dict[str, tuple[str, Mapping[str, Fraction]]] = {}
        self._used: dict[str, Counter[str]] = {}
        self._count: Counter[str] = Counter()

    def node(self, type_: str, obj: Object) -> bool:
        """Take in a node."""
        name = nodes.name_of(obj)
        before = self.nodes.pop(name, None)
        self._allocatable.pop(name, None)
        if type_ == "DELETED":
            return False
        self._allocatable[name] = fit.allocatable(obj)
        self.nodes[name] = obj
        return before is None or _placing_facts(before) != _placing_facts(obj)

    def device_class(self, type_: str, obj: Object) -> bool:
        """Take in a DeviceClass."""
        self.classes.pop(nodes.name_of(obj), None)
        if type_ != "DELETED":
            self.classes[nodes.name_of(obj)] = obj
        return type_ != "DELETED"

    def resource_slice(self, type_: str, obj: Object) -> bool:
        """Take in a ResourceSlice; even one that goes can help: it may have kept its pool incomplete."""
        if type_ == "DELETED":
            self.pools.remove(obj)
        else:
            self.pools.put(obj)
        return True

    def claim(self, type_: str, obj: Object) -> bool:
        """Take in a ResourceClaim; one that is freed gives its devices back."""
        if type_ == "DELETED":
            return self.state.drop(obj["metadata"]["uid"])
        return self.state.put(obj)

    def pod(self, type_: str, obj: Object) -> bool:
        """Take in a pod: where it runs and what it takes there."""
        uid = obj["metadata"]["uid"]
        before = self._running.pop(uid, None)
        if before:
            self._account(*before, -1)
        node = (obj.get("spec") or {}).get("nodeName")
        if type_ == "DELETED" or not node or (obj.get("status") or {}).get("phase") in _FINISHED:
            return before is not None
        self._running[uid] = before if before and before[0] == node else (node, fit.amounts(obj["spec"]))
        self._account(*self._running[uid], +1)
        return False

    def allocatable(self, node: str) -> Mapping[str, Fraction]:
        """Return what a node can give in all."""
        return self._allocatable.get(node, {})

    def used(self, node: str) -> Mapping[str, Fraction]:
        """Return what the pods of a node take."""
        return self._used.get(node, Counter())  # type: ignore[return-value]  # holds fractions

    def pods_on(self, node: str) -> int:
        """Return how many pods run on a node."""
        return self._count[node]

    def _account(self, node: str, amounts: Mapping[str, Fraction], sign: int) -> None:
        self._count[node] += sign
        used = self._used.setdefault(node, Counter())
        for name, amount in amounts.items():
            used[name] += sign * amount  # type: ignore[assignment]


def _placing_facts(node: Object) -> tuple[Any, ...]:
    """Return what of a node decides about placing: not its heartbeat."""
    status = node.get("status") or {}
    ready = [c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"]
    spec = node.get("spec") or {}
    return nodes.labels_of(node), spec.get("taints"), spec.get("unschedulable"), status.get("allocatable"), ready
