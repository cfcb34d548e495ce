"""Fields of features that are off: a server drops them silently, unless the old object has them already. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from driver.localcluster.apiserver.features import Features
    from driver.localcluster.apiserver.objects import Object

_SLICE: Final = {"DRAPartitionableDevices": ("sharedCounters", "perDeviceNodeSelection")}
_DEVICE: Final = {
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRADeviceTaints": ("taints",),
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRADeviceBindingConditions": ("bindsToNode", "bindingConditions", "bindingFailureConditions"),
}
_REQUEST: Final = {
    "DRAAdminAccess": ("adminAccess",),
    "DRADeviceTaints": ("tolerations",),
    "DRAConsumableCapacity": ("capacity",),
}
_RESULT: Final = {
    "DRAAdminAccess": ("adminAccess",),
    "DRADeviceTaints": ("tolerations",),
    "DRAConsumableCapacity": ("shareID", "consumedCapacity"),
    "DRADeviceBindingConditions": ("bindingConditions", "bindingFailureConditions"),
}
_CLASS: Final = {"DRAExtendedResource": ("extendedResourceName",)}


def _drop(
    features: Features, table: Mapping[str, tuple[str, ...]], new: Iterable[Object], old: Iterable[Object]
) -> None:
    for gate, names in table.items():
        if features.enabled(gate):
            continue
        kept = {name for obj in old for name in names if name in obj}
        for obj in new:
            for name in names:
                if not kept:
                    obj.pop(name, None)


def drop_from_slice(spec: Object, old: Object, features: Features) -> None:
    """Drop from a slice's spec what is off."""
    devices, had = spec.get("devices") or [], old.get("devices") or []
    _drop(features, _SLICE, [spec], [old])
    _drop(features, _DEVICE, devices, had)
    if not features.enabled("DRAConsumableCapacity"):
        for capacity in _capacities(devices):
            capacity.pop("requestPolicy", None)
    if not features.enabled("DRAListTypeAttributes"):
        for attribute in (a for device in devices for a in (device.get("attributes") or {}).values()):
            for name in ("ints", "bools", "strings", "versions"):
                attribute.pop(name, None)


def _capacities(devices: Iterable[Object]) -> Iterator[Object]:
    for device in devices:
        yield from (device.get("capacity") or {}).values()


def drop_from_claim(spec: Object, old: Object, features: Features) -> None:
    """Drop from a claim's spec what is off."""
    requests, had = (spec.get("devices") or {}).get("requests") or [], (old.get("devices") or {}).get("requests") or []
    if not features.enabled("DRAPrioritizedList") and not any("firstAvailable" in request for request in had):
        for request in requests:
            request.pop("firstAvailable", None)
    _drop(features, _REQUEST, list(_asked(requests)), list(_asked(had)))
    if not features.enabled("DRAConsumableCapacity"):
        for constraint in (spec.get("devices") or {}).get("constraints") or ():
            constraint.pop("distinctAttribute", None)


def _asked(requests: Iterable[Object]) -> Iterator[Object]:
    for request in requests:
        if request.get("exactly"):
            yield request["exactly"]
        yield from request.get("firstAvailable") or ()


def drop_from_claim_status(status: Object, old: Object, features: Features) -> None:
    """Drop from a claim's status what is off."""
    if not features.enabled("DRAResourceClaimDeviceStatus") and "devices" not in old:
        status.pop("devices", None)
    _drop_deallocated(status, old)
    _drop(features, _RESULT, list(_results(status)), list(_results(old)))


def _drop_deallocated(status: Object, old: Object) -> None:
    """Drop what drivers said about devices that the claim no longer has: who deallocates need not know of it."""
    lost = {_key(one) for one in _results(old)} - {_key(one) for one in _results(status)}
    devices = status.get("devices")
    if not lost or not isinstance(devices, list):
        return
    kept = [one for one in devices if _key(one) not in lost]
    if kept:
        status["devices"] = kept
    else:
        del status["devices"]


def _key(device: Object) -> tuple[object, ...]:
    return tuple(device.get(name) for name in ("driver", "pool", "device", "shareID"))


def _results(status: Object) -> Iterator[Object]:
    yield from ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()


def drop_from_class(spec: Object, old: Object, features: Features) -> None:
    """Drop from a class's spec what is off."""
    _drop(features, _CLASS, [spec], [old])


def drop_from_pod_status(status: Object, features: Features) -> None:
    """Drop from a pod's status what is off."""
    if features.enabled("ResourceHealthStatus"):
        return
    for container in status.get("containerStatuses") or ():
        container.pop("allocatedResourcesStatus", None)
