"""Metadata that every object has. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.objects import metadata
from driver.localcluster.apiserver.validation import common
from driver.localcluster.apiserver.validation.common import Raw, invalid

if TYPE_CHECKING:
    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.resources import Resource

_LABEL_NAMED: Final = ("namespaces", "services")
_PATH_NAMED: Final = ("roles", "rolebindings", "clusterroles", "clusterrolebindings")
_MOST_ANNOTATION_BYTES: Final = 256 << 10


def metadata_errors(kind: Resource, obj: Object) -> list[Cause]:
    """Return everything that is wrong with an object's metadata."""
    meta = metadata(obj)
    found = _name(kind, meta["name"])
    for key, value in (meta.get("labels") or {}).items():
        found += common.qualified_name("metadata.labels", key)
        found += common.label_value("metadata.labels", value)
    annotations = meta.get("annotations") or {}
    for key in annotations:
        found += common.qualified_name("metadata.annotations", key.lower())
    if sum(len(key) + len(value) for key, value in annotations.items()) > _MOST_ANNOTATION_BYTES:
        found.append(common.too_long("metadata.annotations", _MOST_ANNOTATION_BYTES))
    for finalizer in meta.get("finalizers") or ():
        found += common.qualified_name("metadata.finalizers", finalizer)
    return found + _owners(meta.get("ownerReferences") or [])


def _name(kind: Resource, name: str) -> list[Cause]:
    if kind.plural in _PATH_NAMED:
        bad = name in (".", "..") or "/" in name or "%" in name
        return [invalid("metadata.name", name, "may not be '.' or '..' or contain '/' or '%'")] if bad else []
    check = common.dns_label if kind.plural in _LABEL_NAMED else common.dns_subdomain
    return check("metadata.name", name)


def _owners(owners: list[Any]) -> list[Cause]:
    found = []
    for at, owner in enumerate(owners):
        path = f"metadata.ownerReferences[{at}]"
        missing = [name for name in ("apiVersion", "kind", "name", "uid") if not owner.get(name)]
        found += [invalid(f"{path}.{name}", "", f"{name} must not be empty") for name in missing]
    controllers = [owner.get("name") for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        text = f"Only one reference can have Controller set to true. Found: {', '.join(map(str, controllers))}"
        found.append(invalid("metadata.ownerReferences", Raw("[...]"), text))
    return found
