"""Does a pod fit a node, devices aside: taints, selectors, resources. Pure.

The reasons are worded as the scheduler's, without the count of nodes before them.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from driver.localcluster.scheduler import nodes, taints
from driver.model import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Object = Mapping[str, Any]
    Amounts = Mapping[str, Fraction]

_OPTIONAL = ("cpu", "memory", "ephemeral-storage", "pods")
"""Resources that a node may leave out of its allocatable and then has enough of."""
_UNSCHEDULABLE = taints.Taint(key="node.kubernetes.io/unschedulable", value="", effect="NoSchedule")
_NOT_READY = taints.Taint(key="node.kubernetes.io/not-ready", value="", effect="NoSchedule")


def is_extended(resource: str) -> bool:
    """Say whether a resource's name is that of an extended resource (`nvidia.com/gpu`)."""
    domain, slash, _ = resource.partition("/")
    return (bool(slash) and "kubernetes.io" not in domain) or domain == "deviceclass.resource.kubernetes.io"


def amounts(pod_spec: Object) -> dict[str, Fraction]:
    """Return what a pod requests: its containers together, or its largest init container if that is more.

    :raises InvalidValueError: if a quantity is none.
    """
    running: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    peak: dict[str, Fraction] = {}
    for container in pod_spec.get("initContainers") or ():
        wanted = container_amounts(container)
        if container.get("restartPolicy") == "Always":
            sidecars.update(wanted)
            wanted = {}
        for name, amount in wanted.items():
            peak[name] = max(peak.get(name, Fraction(0)), amount + sidecars[name])
    for container in pod_spec.get("containers") or ():
        running.update(container_amounts(container))
    overhead = _parsed(pod_spec.get("overhead") or {})
    names = {*running, *sidecars, *peak, *overhead}
    return {
        name: max(Fraction(running[name] + sidecars[name]), peak.get(name, Fraction(0))) + overhead.get(name, 0)
        for name in names
    }


def container_amounts(container: Object) -> dict[str, Fraction]:
    """Return a container's requests; a limit stands for a missing request."""
    resources = container.get("resources") or {}
    return _parsed({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def allocatable(node: Object) -> dict[str, Fraction]:
    """Return what a node can give to pods.

    :raises InvalidValueError: if a quantity is none.
    """
    status = node.get("status") or {}
    return _parsed(status.get("allocatable") or status.get("capacity") or {})


def why_not_node(pod_spec: Object, node: Object) -> str | None:
    """Return why the node's taints or the pod's selectors forbid it, None if they don't."""
    tolerations = pod_spec.get("tolerations") or ()
    if taints.untolerated(_node_taints(node), tolerations):
        taint = taints.untolerated(_node_taints(node), tolerations)
        if taint == _UNSCHEDULABLE:
            return "node(s) were unschedulable"
        return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}" if taint else None
    if not nodes.affinity_matches(pod_spec, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


def shortages(wanted: Amounts, used: Amounts, total: Amounts, pods: int) -> list[str]:
    """Return the resources that a node has too little of, each as a reason; `pods` run there already."""
    reasons = ["Too many pods"] if "pods" in total and pods + 1 > total["pods"] else []
    for name, amount in sorted(wanted.items()):
        if name in _OPTIONAL and name not in total:
            continue
        if amount and amount > total.get(name, Fraction(0)) - used.get(name, Fraction(0)):
            reasons.append(f"Insufficient {name}")
    return reasons


def _node_taints(node: Object) -> Iterable[taints.Taint]:
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        yield _UNSCHEDULABLE
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            yield _NOT_READY
    yield from taints.read(spec.get("taints"))


def _parsed(raw: Mapping[str, Any]) -> dict[str, Fraction]:
    return {name: quantity.parse(str(value), name) for name, value in raw.items()}
