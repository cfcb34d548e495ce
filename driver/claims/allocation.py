"""A claim as the API server has it, decoded: only what is this driver's, and only what preparing needs. Pure.

Other drivers' results and configs are skipped (M11). Everything is checked: the object may be anything that a newer
API server, a bug, or somebody with access to `resourceclaims/status` left there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from driver.claims.toleration import Toleration
from driver.config.parameters import OpaqueConfig
from driver.errors import ClaimRefusedError, InvalidValueError
from driver.model import names
from driver.model.decode import boolean

MAX_RESULTS: Final = 32
"""Most results of an allocation (`AllocationResultsMaxSize` of resource.k8s.io)."""

POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"

_RESULTS: Final = "status.allocation.devices.results"
_CONFIG: Final = "status.allocation.devices.config"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """What the kubelet names a claim by."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> tuple[str, str]:
        """What the kubelet's pod-resources API names a claim by: namespace and name."""
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (uid {self.uid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One device that the scheduler allocated to a request."""

    request: str  # as allocated: `gpus`, or `gpus/large` for a chosen subrequest
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None
    consumed_capacity: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What a claim gives this driver to prepare."""

    claim: ClaimRef
    results: tuple[Result, ...]
    configs: tuple[OpaqueConfig, ...] = ()
    pod_claim: str = ""  # what the pod calls a claim that was made of a template


def check_ref(ref: ClaimRef) -> None:
    """Check what becomes a path or a URL.

    :raises InvalidValueError: it is not safe as one.
    """
    names.check_uid(ref.uid)
    if not names.is_dns_label(ref.namespace):
        raise InvalidValueError("namespace", ref.namespace, "a namespace is a DNS label")
    if not names.is_dns_subdomain(ref.name):
        raise InvalidValueError("name", ref.name, "a claim's name is a DNS subdomain")


def decode(claim: Mapping[str, Any], ref: ClaimRef) -> Allocation:
    """Return this driver's part of a claim's allocation.

    :raises ClaimRefusedError: the claim is another one, not allocated, or has nothing of this driver.
    :raises InvalidValueError: a field has a wrong type or value; names its path.
    """
    found = _text(_object(claim, "metadata", ""), "uid", "metadata")
    if found != ref.uid:
        raise ClaimRefusedError(
            f"claim {ref} was replaced by another one of the same name (uid {found}): "
            "the pod belongs to the old claim; delete the pod"
        )
    allocation = _object(_object(claim, "status", "", optional=True), "allocation", "status", optional=True)
    if not allocation:
        raise ClaimRefusedError(f"claim {ref} is not allocated: wait for the scheduler, or see `kubectl describe pod`")
    devices = _object(allocation, "devices", "status.allocation", optional=True)
    return Allocation(claim=ref, results=_results(devices, ref), configs=_configs(devices), pod_claim=_pod_claim(claim))


def _pod_claim(claim: Mapping[str, Any]) -> str:
    """Return the annotation of the controller that makes claims of templates; anybody's own is passed over."""
    annotations = _object(claim, "metadata", "").get("annotations")
    name = annotations.get(POD_CLAIM_ANNOTATION) if isinstance(annotations, Mapping) else None
    return name if isinstance(name, str) and names.is_dns_label(name) else ""


def _results(devices: Mapping[str, Any], ref: ClaimRef) -> tuple[Result, ...]:
    items = _list(devices, "results", _RESULTS)
    if len(items) > MAX_RESULTS:
        raise InvalidValueError(_RESULTS, len(items), f"at most {MAX_RESULTS} results")
    drivers = [_text(item, "driver", f"{_RESULTS}[{index}]") for index, item in enumerate(items)]
    if names.DRIVER not in drivers:
        others = ", ".join(sorted(set(drivers))) or "none"
        raise ClaimRefusedError(f"claim {ref} has no device of {names.DRIVER}: its results are of {others}")
    return tuple(
        _result(item, f"{_RESULTS}[{index}]")
        for index, (item, driver) in enumerate(zip(items, drivers, strict=True))
        if driver == names.DRIVER
    )


def _result(item: Mapping[str, Any], path: str) -> Result:
    device = _text(item, "device", path)
    if not names.is_dns_label(device):
        raise InvalidValueError(f"{path}.device", device, "a device name is a DNS label of at most 63 characters")
    share = item.get("shareID")
    if share is not None:
        share = names.check_share_id(_text(item, "shareID", path), f"{path}.shareID")
    return Result(
        request=_text(item, "request", path),
        pool=_text(item, "pool", path),
        device=device,
        admin_access=boolean(item.get("adminAccess") or False, f"{path}.adminAccess"),
        share_id=share,
        consumed_capacity=_object(item, "consumedCapacity", path, optional=True),
        tolerations=tuple(_toleration(one) for one in _list(item, "tolerations", f"{path}.tolerations")),
    )


def _toleration(item: Mapping[str, Any]) -> Toleration:
    """Return a toleration; what the API server would not have stored tolerates nothing."""
    return Toleration(
        key=str(item.get("key") or ""),
        value=str(item.get("value") or ""),
        exists=item.get("operator") == "Exists",
        effect=str(item.get("effect") or ""),
    )


def _configs(devices: Mapping[str, Any]) -> tuple[OpaqueConfig, ...]:
    found = []
    for index, item in enumerate(_list(devices, "config", _CONFIG)):
        path = f"{_CONFIG}[{index}]"
        opaque = _object(item, "opaque", path, optional=True)
        if opaque.get("driver") != names.DRIVER:
            continue
        requests = item.get("requests") or []
        if not isinstance(requests, list) or not all(isinstance(name, str) for name in requests):
            raise InvalidValueError(f"{path}.requests", requests, "a list of request names")
        found.append(
            OpaqueConfig(
                path=f"{path}.opaque.parameters",
                from_class=item.get("source") == "FromClass",
                requests=tuple(requests),
                parameters=_object(opaque, "parameters", f"{path}.opaque"),
            )
        )
    return tuple(found)


def _object(parent: Mapping[str, Any], key: str, path: str, *, optional: bool = False) -> Mapping[str, Any]:
    value = parent.get(key)
    if value is None and optional:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidValueError(f"{path}.{key}".lstrip("."), value, "an object")
    return value


def _list(parent: Mapping[str, Any], key: str, path: str) -> list[Mapping[str, Any]]:
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidValueError(path, value, "a list")
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise InvalidValueError(f"{path}[{index}]", item, "an object")
    return value


def _text(parent: Mapping[str, Any], key: str, path: str) -> str:
    value = parent.get(key)
    if not isinstance(value, str) or not value or not value.isprintable():  # half a surrogate pair is no text
        raise InvalidValueError(f"{path}.{key}", value, "a non-empty string of printable characters")
    return value
