"""OpenAPI v3 documents from the table of types, as far as kubectl uses them.

`kubectl apply` and `create` look there for the `fieldValidation` parameter, so that they leave validation to the
server; `kubectl explain` shows the fields.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.codec import to_json
from driver.localcluster.apiserver.errors import no_such_path
from driver.localcluster.apiserver.fields import OPEN, Field, fields_of, type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Registry, Served

_DESCRIPTION: Final = (
    "The embedded cluster knows names and types of fields, and nothing of what they mean. For that see "
    "https://kubernetes.io/docs/reference/kubernetes-api/."
)
_PREFIX: Final = "#/components/schemas/"
_PRIMITIVES: Final[Mapping[str, Object]] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer", "format": "int64"},
    "number": {"type": "number"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"type": "string"},
    "intstr": {"x-kubernetes-int-or-string": True},
    OPEN: {"x-kubernetes-preserve-unknown-fields": True},
}
_PATCHES: Final = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")
_WRITES: Final = ("post", "put", "patch")
_ACTIONS: Final = {"get": "get", "post": "post", "put": "put", "patch": "patch", "delete": "delete"}


class OpenApi:
    """The documents of the served groups and versions, made when somebody asks."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.document = lru_cache(maxsize=64)(self._document)
        """Return the document at a path such as `apis/apps/v1`, encoded. Raises `StatusError` 404."""

    def index(self) -> Object:
        """Return where the documents are."""
        paths = []
        for group, versions in self._registry.groups.items():
            paths += [f"apis/{group}/{version}" if group else f"api/{version}" for version in versions]
        return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}

    def _document(self, path: str) -> bytes:
        steps = path.split("/")
        if steps[0] not in ("api", "apis") or len(steps) != (2 if steps[0] == "api" else 3):
            raise no_such_path()
        group, version = ("", steps[1]) if steps[0] == "api" else (steps[1], steps[2])
        schemas: dict[str, Object] = {}
        paths: dict[str, Object] = {}
        for served in self._registry.resources(group, version):
            type_ = type_name(served.api_version, served.resource.kind)
            if type_ is not None:
                _collect(type_, schemas)
                schemas[type_] |= {"description": _DESCRIPTION, "x-kubernetes-group-version-kind": [_gvk(served)]}
                paths.update(_paths(f"/{path}", served, type_))
        info = {"title": "Kubernetes (embedded)", "version": "v1"}
        return to_json({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}})


def _gvk(served: Served) -> Object:
    return {"group": served.group, "version": served.version, "kind": served.resource.kind}


def _collect(type_: str, schemas: dict[str, Object]) -> None:
    """Add a type and all that it refers to."""
    if type_ in schemas:
        return
    properties: dict[str, Object] = {}
    schemas[type_] = {"type": "object", "properties": properties}
    if "metadata" in fields_of(type_):
        properties |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    for name, field in fields_of(type_).items():
        properties[name] = _schema(field)
        if field.is_message:
            _collect(field.type, schemas)


def _schema(field: Field) -> Object:
    inner: dict[str, Any] = dict(_PRIMITIVES.get(field.type, {}))
    if field.is_message:
        inner = {"allOf": [{"$ref": _PREFIX + field.type.replace("/", "~1")}], "default": {}}
    if field.shape == "map":
        return {"type": "object", "additionalProperties": inner}
    if field.shape == "list":
        keys = {"x-kubernetes-list-map-keys": list(field.keys), "x-kubernetes-list-type": "map"} if field.keys else {}
        return {"type": "array", "items": inner, **keys}
    return inner


def _paths(base: str, served: Served, type_: str) -> dict[str, Object]:
    resource = served.resource
    if resource.namespaced:
        base = f"{base}/namespaces/{{namespace}}"
    many, one = f"{base}/{resource.plural}", f"{base}/{resource.plural}/{{name}}"
    return {
        many: {verb: _operation(verb, served, type_) for verb in ("get", "post")},
        one: {verb: _operation(verb, served, type_) for verb in ("get", "put", "patch", "delete")},
    }


def _operation(verb: str, served: Served, type_: str) -> Object:
    content = {"application/json": {"schema": {"$ref": _PREFIX + type_.replace("/", "~1")}}}
    operation: Object = {
        "operationId": f"{verb}_{served.api_version}_{served.resource.kind}",
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": _ACTIONS[verb],
        "x-kubernetes-group-version-kind": _gvk(served),
    }
    if verb in _WRITES:
        names = ("dryRun", "fieldManager", "fieldValidation")
        operation["parameters"] = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]
        kinds = _PATCHES if verb == "patch" else ("application/json", "application/yaml")
        operation["requestBody"] = {"content": {kind: {"schema": {"type": "object"}} for kind in kinds}}
    return operation
