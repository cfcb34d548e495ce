"""Between the stored version of an object and the one that a client speaks. Pure; arguments stay as they are.

Shapes: `facts` of resource.k8s.io: v1beta2 is shaped like v1; v1beta1 wraps a slice's device fields in `basic` and
has a claim's exact request flat. events.k8s.io/v1 is another view of core/v1 events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.localcluster.apiserver.objects import Object

    Change = Callable[[Object], Object]


def _slice_to_v1beta1(obj: Object) -> Object:
    def wrap(device: Object) -> Object:
        rest = {key: value for key, value in device.items() if key != "name"}
        return {"name": device.get("name"), "basic": rest}

    return _devices_changed(obj, wrap)


def _slice_from_v1beta1(obj: Object) -> Object:
    def unwrap(device: Object) -> Object:
        rest = {key: value for key, value in device.items() if key != "basic"}
        return rest | (device.get("basic") or {})

    return _devices_changed(obj, unwrap)


def _devices_changed(obj: Object, change: Change) -> Object:
    spec = obj.get("spec") or {}
    if "devices" not in spec:
        return obj
    return {**obj, "spec": {**spec, "devices": [change(device) for device in spec["devices"] or ()]}}


def _flatten(request: Object) -> Object:
    if "exactly" not in request:
        return request
    return {key: value for key, value in request.items() if key != "exactly"} | (request["exactly"] or {})


def _nest(request: Object) -> Object:
    outer: Object = {key: request[key] for key in ("name", "firstAvailable") if key in request}
    inner = {key: value for key, value in request.items() if key not in outer}
    return {**outer, "exactly": inner} if inner else outer


def _requests_changed(spec: Object, change: Change) -> Object:
    devices = spec.get("devices") or {}
    if "requests" not in devices:
        return spec
    requests = [change(request) for request in devices["requests"] or ()]
    return {**spec, "devices": {**devices, "requests": requests}}


def _claim(change: Change) -> Change:
    return lambda obj: {**obj, "spec": _requests_changed(obj.get("spec") or {}, change)} if "spec" in obj else obj


def _template(change: Change) -> Change:
    inner = _claim(change)
    return lambda obj: {**obj, "spec": inner(obj["spec"])} if isinstance(obj.get("spec"), dict) else obj


_EVENT_NAMES: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_EVENT_NAMES_BACK: Final = {new: old for old, new in _EVENT_NAMES.items()}


def _event_to_events(obj: Object) -> Object:
    return {_EVENT_NAMES.get(key, key): value for key, value in obj.items()}


def _event_from_events(obj: Object) -> Object:
    return {_EVENT_NAMES_BACK.get(key, key): value for key, value in obj.items()}


_TO: Final[Mapping[tuple[str, str], Change]] = {
    ("resource.k8s.io/v1beta1", "resourceslices"): _slice_to_v1beta1,
    ("resource.k8s.io/v1beta1", "resourceclaims"): _claim(_flatten),
    ("resource.k8s.io/v1beta1", "resourceclaimtemplates"): _template(_flatten),
    ("events.k8s.io/v1", "events"): _event_to_events,
}
_FROM: Final[Mapping[tuple[str, str], Change]] = {
    ("resource.k8s.io/v1beta1", "resourceslices"): _slice_from_v1beta1,
    ("resource.k8s.io/v1beta1", "resourceclaims"): _claim(_nest),
    ("resource.k8s.io/v1beta1", "resourceclaimtemplates"): _template(_nest),
    ("events.k8s.io/v1", "events"): _event_from_events,
}


def to_served(api_version: str, plural: str, obj: Object) -> Object:
    """Return a stored object as a version of its API shows it."""
    if obj.get("apiVersion") == api_version:
        return obj
    change = _TO.get((api_version, plural))
    return {**(change(obj) if change else obj), "apiVersion": api_version}


def from_served(api_version: str, plural: str, stored_version: str, obj: Object) -> Object:
    """Return what a client sent in a version of the API as the store holds it."""
    change = _FROM.get((api_version, plural))
    return {**(change(obj) if change else obj), "apiVersion": stored_version}
