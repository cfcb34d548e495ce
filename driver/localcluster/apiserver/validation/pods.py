"""Pods and templates of pods, as far as this cluster runs them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from driver.localcluster.apiserver.objects import clone
from driver.localcluster.apiserver.validation import common
from driver.localcluster.apiserver.validation.common import forbidden, invalid, required
from driver.localcluster.apiserver.validation.resources import resource_errors

if TYPE_CHECKING:
    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.strategy import Rules

_RESTARTS: Final = ("Always", "Never", "OnFailure")
_MUTABLE: Final = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates")
_MOST_SECONDS: Final = 2**31 - 1
_MUTABLE_TEXT: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def pod_errors(obj: Object, old: Object | None, rules: Rules) -> list[Cause]:
    """Return everything that is wrong with a pod but its status."""
    spec = obj.get("spec") or {}
    found = spec_errors("spec", spec)
    if old is not None and _fixed(spec) != _fixed(old.get("spec") or {}):
        found.append(forbidden("spec", _MUTABLE_TEXT))
    return found


def _fixed(spec: Object) -> Object:
    fixed: Object = {key: clone(value) for key, value in spec.items() if key not in _MUTABLE}
    for field in ("initContainers", "containers"):
        for container in fixed.get(field) or ():
            container.pop("image", None)
    return fixed


def spec_errors(path: str, spec: Object) -> list[Cause]:
    """Return everything that is wrong with a pod's spec."""
    found = _claims(f"{path}.resourceClaims", spec.get("resourceClaims") or [])
    claims = {claim.get("name") for claim in spec.get("resourceClaims") or ()}
    found += _names(f"{path}.volumes", spec.get("volumes") or [])
    if not spec.get("containers"):
        found.append(required(f"{path}.containers"))
    for field in ("initContainers", "containers"):
        containers = spec.get(field) or []
        found += _names(f"{path}.{field}", containers)
        for at, container in enumerate(containers):
            found += _container(f"{path}.{field}[{at}]", container, claims, spec)
    found += _deadline(path, spec)
    restart = spec.get("restartPolicy", "Always")
    if restart not in _RESTARTS:
        found.append(common.unsupported(f"{path}.restartPolicy", restart, _RESTARTS))
    return found


def _deadline(path: str, spec: Object) -> list[Cause]:
    seconds = spec.get("activeDeadlineSeconds")
    if seconds is None or 1 <= seconds <= _MOST_SECONDS:
        return []
    return [invalid(f"{path}.activeDeadlineSeconds", seconds, f"must be between 1 and {_MOST_SECONDS}, inclusive")]


def _hooks(path: str, lifecycle: Object) -> list[Cause]:
    found: list[Cause] = []
    for name in ("postStart", "preStop"):
        handler, where = lifecycle.get(name), f"{path}.{name}"
        if handler is None:
            continue
        if not handler:
            found.append(required(where, "must specify a handler type"))
        found += [forbidden(f"{where}.{more}", "may not specify more than 1 handler type") for more in [*handler][1:]]
        if "exec" in handler and not handler["exec"].get("command"):
            found.append(required(f"{where}.exec.command"))
    return found


def _names(path: str, items: list[Object]) -> list[Cause]:
    found: list[Cause] = []
    seen = set()
    for at, item in enumerate(items):
        name, where = item.get("name", ""), f"{path}[{at}].name"
        found += common.dns_label(where, name) if name else [required(where)]
        if name and name in seen:
            found.append(common.duplicate(where, name))
        seen.add(name)
    return found


def _container(path: str, container: Object, claims: set[str | None], spec: Object) -> list[Cause]:
    found = [] if container.get("image") else [required(f"{path}.image")]
    found += resource_errors(f"{path}.resources", container.get("resources") or {})
    found += _hooks(f"{path}.lifecycle", container.get("lifecycle") or {})
    for at, used in enumerate((container.get("resources") or {}).get("claims") or ()):
        where, name = f"{path}.resources.claims[{at}]", used.get("name", "")
        if not name:
            found.append(required(f"{where}.name"))
        elif name not in claims:
            found.append(common.not_found(where, name))
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    for at, mount in enumerate(container.get("volumeMounts") or ()):
        where = f"{path}.volumeMounts[{at}]"
        if mount.get("name") not in volumes:
            found.append(common.not_found(f"{where}.name", str(mount.get("name", ""))))
        if not mount.get("mountPath"):
            found.append(required(f"{where}.mountPath"))
    return found


def _claims(path: str, claims: list[Object]) -> list[Cause]:
    found = _names(path, claims)
    for at, claim in enumerate(claims):
        sources = [field for field in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(field)]
        if len(sources) == 1:
            found += common.dns_subdomain(f"{path}[{at}].{sources[0]}", claim[sources[0]])
        else:
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            if sources:
                text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            found.append(invalid(f"{path}[{at}]", claim.get("name", ""), text))
    return found


def template_errors(obj: Object, old: Object | None, rules: Rules) -> list[Cause]:
    """Return everything that is wrong with a workload: its template, and that its selector selects it."""
    spec = obj.get("spec") or {}
    template = spec.get("template") or {}
    found = spec_errors("spec.template.spec", template.get("spec") or {})
    wanted = (spec.get("selector") or {}).get("matchLabels")
    labels = (template.get("metadata") or {}).get("labels") or {}
    if obj.get("kind") != "Job" and spec.get("selector") is None:
        found.append(required("spec.selector"))
    if wanted and not wanted.items() <= labels.items():
        found.append(invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
    if old is not None and spec.get("selector") != (old.get("spec") or {}).get("selector"):
        found.append(invalid("spec.selector", spec.get("selector"), "field is immutable"))
    return found
