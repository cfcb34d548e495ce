"""The columns of `kubectl get`, per resource. Pure; ages are relative to a given moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.objects import Object, lookup, metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_NONE: Final = "<none>"
_UNKNOWN: Final = "<unknown>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column; `wide` shows only with `-o wide`."""

    name: str
    value: Callable[[Object, datetime], Any]
    type: str = "string"
    wide: bool = False


def age(moment: str | None, now: datetime) -> str:
    """Write how long ago a moment was, as kubectl does."""
    if not moment:
        return _UNKNOWN
    seconds = int((now - datetime.fromisoformat(moment).astimezone(UTC)).total_seconds())
    return duration(max(seconds, 0))


def duration(seconds: int) -> str:
    """Write a duration with two units while the smaller one still tells something."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    steps: Sequence[tuple[bool, str, int, str]] = (
        (seconds < 120, f"{seconds}s", 0, ""),
        (minutes < 10, f"{minutes}m", seconds % 60, "s"),
        (minutes < 180, f"{minutes}m", 0, ""),
        (hours < 8, f"{hours}h", minutes % 60, "m"),
        (hours < 48, f"{hours}h", 0, ""),
        (days < 8, f"{days}d", hours % 24, "h"),
        (days < 730, f"{days}d", 0, ""),
        (True, f"{days // 365}y", days % 365, "d"),
    )
    first, rest, unit = next((text, rest, unit) for fits, text, rest, unit in steps if fits)
    return f"{first}{rest}{unit}" if rest else first


def _at(name: str, path: str, default: Any = _NONE, *, wide: bool = False, type_: str = "string") -> Column:
    def value(obj: Object, now: datetime) -> Any:
        found = lookup(obj, path)
        return default if found is None or found == "" else found

    return Column(name=name, value=value, wide=wide, type=type_)


def _of(name: str, value: Callable[[Object], Any], *, wide: bool = False, type_: str = "string") -> Column:
    return Column(name=name, value=lambda obj, now: value(obj), wide=wide, type=type_)


NAME: Final = Column(name="Name", value=lambda obj, now: metadata(obj)["name"])
AGE: Final = Column(name="Age", value=lambda obj, now: age(metadata(obj).get("creationTimestamp"), now))


def _conditions(obj: Object) -> dict[str, str]:
    return {c.get("type", ""): c.get("status", "") for c in lookup(obj, "status.conditions") or ()}


def _node_status(obj: Object) -> str:
    ready = {"True": "Ready", "False": "NotReady"}.get(_conditions(obj).get("Ready", ""), "Unknown")
    return f"{ready},SchedulingDisabled" if lookup(obj, "spec.unschedulable") else ready


def _node_roles(obj: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = metadata(obj).get("labels") or {}
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or _NONE


def _node_ip(obj: Object) -> str:
    addresses = lookup(obj, "status.addresses") or ()
    return next((a["address"] for a in addresses if a.get("type") == "InternalIP"), _NONE)


def _statuses(pod: Object, field: str = "containerStatuses") -> list[Object]:
    return lookup(pod, f"status.{field}") or []


def _pod_ready(pod: Object) -> str:
    ready = sum(bool(status.get("ready")) for status in _statuses(pod))
    return f"{ready}/{len(lookup(pod, 'spec.containers') or ())}"


def _pod_status(pod: Object) -> str:
    reason = lookup(pod, "status.reason") or _waiting_reason(pod) or lookup(pod, "status.phase") or "Pending"
    if metadata(pod).get("deletionTimestamp"):
        return "Terminating"
    gates = lookup(pod, "spec.schedulingGates")
    return "SchedulingGated" if gates and reason == "Pending" else str(reason)


def _waiting_reason(pod: Object) -> str:
    inits = _statuses(pod, "initContainerStatuses")
    for at, status in enumerate(inits):
        state = status.get("state") or {}
        if "terminated" in state and not state["terminated"].get("exitCode"):
            continue
        reason = (state.get("waiting") or {}).get("reason") or (state.get("terminated") or {}).get("reason")
        return f"Init:{reason}" if reason and reason != "PodInitializing" else f"Init:{at}/{len(inits)}"
    for status in _statuses(pod):
        state = status.get("state") or {}
        reason = (state.get("waiting") or state.get("terminated") or {}).get("reason")
        if reason:
            return str(reason)
    return ""


def _pod_restarts(pod: Object) -> int:
    return sum(int(status.get("restartCount", 0)) for status in _statuses(pod))


def _counts(name: str, path: str) -> Column:
    return _at(name, path, 0, type_="integer")


def _ready_of(obj: Object) -> str:
    return f"{lookup(obj, 'status.readyReplicas') or 0}/{lookup(obj, 'spec.replicas') or 0}"


def _images(obj: Object) -> str:
    containers = lookup(obj, "spec.template.spec.containers") or ()
    return ",".join(str(container.get("image", "")) for container in containers)


def _job_status(job: Object) -> str:
    conditions = _conditions(job)
    for type_, word in (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended")):
        if conditions.get(type_) == "True":
            return word
    return "Running"


def _job_duration(job: Object, now: datetime) -> str:
    start, end = lookup(job, "status.startTime"), lookup(job, "status.completionTime")
    if not start:
        return ""
    return age(start, datetime.fromisoformat(end) if end else now)


def _job_completions(job: Object) -> str:
    return f"{lookup(job, 'status.succeeded') or 0}/{lookup(job, 'spec.completions') or 1}"


def _claim_state(claim: Object) -> str:
    states = [
        metadata(claim).get("deletionTimestamp") and "deleted",
        lookup(claim, "status.allocation") and "allocated",
    ]
    states.append(lookup(claim, "status.reservedFor") and "reserved")
    return ",".join(filter(None, states)) or "pending"


def _claim_devices(claim: Object) -> str:
    results = lookup(claim, "status.allocation.devices.results") or ()
    return ",".join(f"{result['pool']}/{result['device']}" for result in results) or _NONE


def _claim_users(claim: Object) -> str:
    return ",".join(str(user.get("name")) for user in lookup(claim, "status.reservedFor") or ()) or _NONE


def _slice_node(obj: Object) -> str:
    if lookup(obj, "spec.allNodes"):
        return "<all>"
    return lookup(obj, "spec.nodeName") or ("<selected>" if lookup(obj, "spec.nodeSelector") else _NONE)


def _slice_taints(obj: Object) -> int:
    return sum(bool(device.get("taints")) for device in lookup(obj, "spec.devices") or ())


def _event_age(event: Object, now: datetime) -> str:
    moment = event.get("lastTimestamp") or event.get("eventTime") or metadata(event).get("creationTimestamp")
    return age(moment, now)


def _event_object(event: Object) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _ports(service: Object) -> str:
    ports = lookup(service, "spec.ports") or ()
    return ",".join(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports) or _NONE


def _size(path: str) -> Column:
    return _of("Data", lambda obj: len(lookup(obj, path) or ()), type_="integer")


_SCALED: Final = (NAME, _of("Ready", _ready_of))
COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "namespaces": (NAME, _at("Status", "status.phase", "Active"), AGE),
    "nodes": (
        NAME, _of("Status", _node_status), _of("Roles", _node_roles), AGE,
        _at("Version", "status.nodeInfo.kubeletVersion", ""), _of("Internal-IP", _node_ip, wide=True),
        _at("Container-Runtime", "status.nodeInfo.containerRuntimeVersion", _UNKNOWN, wide=True),
    ),
    "pods": (
        NAME, _of("Ready", _pod_ready), _of("Status", _pod_status), _of("Restarts", _pod_restarts, type_="integer"),
        AGE, _at("IP", "status.podIP", wide=True), _at("Node", "spec.nodeName", wide=True),
    ),
    "events": (
        Column(name="Last Seen", value=_event_age), _at("Type", "type", ""), _at("Reason", "reason", ""),
        _of("Object", _event_object), _at("Message", "message", ""), _at("Count", "count", 1, wide=True),
        _of("Name", lambda obj: metadata(obj)["name"], wide=True),
    ),
    "configmaps": (NAME, _size("data"), AGE),
    "secrets": (NAME, _at("Type", "type", "Opaque"), _size("data"), AGE),
    "services": (
        NAME, _at("Type", "spec.type", "ClusterIP"), _at("Cluster-IP", "spec.clusterIP"), _of("Port(s)", _ports), AGE,
    ),
    "deployments": (
        *_SCALED, _counts("Up-to-date", "status.updatedReplicas"), _counts("Available", "status.availableReplicas"),
        AGE, _of("Images", _images, wide=True),
    ),
    "statefulsets": (*_SCALED, AGE, _of("Images", _images, wide=True)),
    "replicasets": (
        NAME, _counts("Desired", "spec.replicas"), _counts("Current", "status.replicas"),
        _counts("Ready", "status.readyReplicas"), AGE, _of("Images", _images, wide=True),
    ),
    "daemonsets": (
        NAME, _counts("Desired", "status.desiredNumberScheduled"), _counts("Current", "status.currentNumberScheduled"),
        _counts("Ready", "status.numberReady"), _counts("Available", "status.numberAvailable"), AGE,
        _of("Images", _images, wide=True),
    ),
    "jobs": (
        NAME, _of("Status", _job_status), _of("Completions", _job_completions),
        Column(name="Duration", value=_job_duration), AGE, _of("Images", _images, wide=True),
    ),
    "rolebindings": (NAME, _at("Role", "roleRef.name"), AGE),
    "clusterrolebindings": (NAME, _at("Role", "roleRef.name"), AGE),
    "priorityclasses": (NAME, _at("Value", "value", 0, type_="integer"), AGE),
    "leases": (NAME, _at("Holder", "spec.holderIdentity", ""), AGE),
    "deviceclasses": (
        NAME, _at("Extended-Resource", "spec.extendedResourceName", wide=True), AGE,
    ),
    "resourceclaims": (
        NAME, _of("State", _claim_state), _of("Devices", _claim_devices), AGE,
        _of("Reserved-For", _claim_users, wide=True),
    ),
    "resourceslices": (
        NAME, _of("Node", _slice_node), _at("Driver", "spec.driver"), _at("Pool", "spec.pool.name"),
        _of("Devices", lambda obj: len(lookup(obj, "spec.devices") or ()), type_="integer"), AGE,
        _of("Tainted", _slice_taints, wide=True, type_="integer"),
        _at("Generation", "spec.pool.generation", 0, wide=True, type_="integer"),
    ),
}  # fmt: skip
"""Those with more than name and age."""
