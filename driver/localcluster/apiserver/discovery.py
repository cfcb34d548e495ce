"""What is served here: groups, versions, resources, health; in the plain and in the aggregated form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver import answers
from driver.localcluster.apiserver.errors import method_not_allowed, no_such_path
from driver.localcluster.apiserver.openapi import OpenApi

if TYPE_CHECKING:
    from aiohttp import web

    from driver.localcluster.apiserver.features import Features
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Registry, Served

_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUB_VERBS: Final = {
    "status": ["get", "patch", "update"],
    "scale": ["get", "patch", "update"],
    "finalize": ["update"],
    "log": ["get"],
    "attach": ["create", "get"],
    "exec": ["create", "get"],
    "portforward": ["create", "get"],
    "binding": ["create"],
    "eviction": ["create"],
    "token": ["create"],
}
_SUB_KINDS: Final = {
    "scale": ("autoscaling", "v1", "Scale"),
    "attach": ("", "v1", "PodAttachOptions"),
    "exec": ("", "v1", "PodExecOptions"),
    "portforward": ("", "v1", "PodPortForwardOptions"),
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
_AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


_SWAGGER_PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


class Discovery:
    """Answers every GET that names no resource."""

    def __init__(self, registry: Registry, features: Features) -> None:
        self._registry = registry
        self._features = features
        self._openapi = OpenApi(registry)

    def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request.

        :raises StatusError: 404 for an unknown path, 405 for anything but GET.
        """
        if request.method != "GET":
            raise method_not_allowed()
        path = request.path.rstrip("/") or "/"
        if path in ("/healthz", "/livez", "/readyz"):
            return answers.raw(b"ok", content_type="text/plain")
        if path == "/version":
            return answers.json_answer(self._version())
        if path == "/openapi/v2":
            return _openapi_v2(request.headers.get("Accept", ""))
        if path == "/openapi/v3":
            return answers.json_answer(self._openapi.index())
        if path.startswith("/openapi/v3/"):
            return answers.raw(self._openapi.document(path.removeprefix("/openapi/v3/")))
        steps = path.strip("/").split("/")
        if steps[0] in ("api", "apis") and len(steps) <= 3:
            return self._api(steps, request.headers.get("Accept", ""))
        raise no_such_path()

    def _version(self) -> Object:
        return {
            "major": "1",
            "minor": str(self._features.minor),
            "gitVersion": self._features.git_version,
            "gitCommit": "",
            "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "none",
            "compiler": "none",
            "platform": "embedded",
        }

    def _api(self, steps: list[str], accept: str) -> web.StreamResponse:
        if len(steps) == 1 and "as=APIGroupDiscoveryList" in accept.replace(" ", "") and "v=v2" in accept:
            groups = [group for group in self._registry.groups if bool(group) is (steps[0] == "apis")]
            return answers.json_answer(
                {
                    "kind": "APIGroupDiscoveryList",
                    "apiVersion": "apidiscovery.k8s.io/v2",
                    "metadata": {},
                    "items": [self._aggregated(group) for group in groups],
                },
                content_type=_AGGREGATED,
            )
        return answers.json_answer(self._core(steps) if steps[0] == "api" else self._groups(steps))

    def _core(self, steps: list[str]) -> Object:
        if len(steps) == 1:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        if steps[1] != "v1" or len(steps) > 2:
            raise no_such_path()
        return self._resources("", "v1")

    def _groups(self, steps: list[str]) -> Object:
        if len(steps) == 1:
            groups = [_group(group, versions) for group, versions in self._registry.groups.items() if group]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        group = steps[1]
        if len(steps) == 3:
            return self._resources(group, steps[2])
        if group not in self._registry.groups:
            raise no_such_path()
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, self._registry.groups[group])}

    def _resources(self, group: str, version: str) -> Object:
        resources: list[Object] = []
        for served in self._registry.resources(group, version):
            resources += _plain(served)
        name = f"{group}/{version}" if group else version
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources}

    def _aggregated(self, group: str) -> Object:
        versions = [
            {
                "version": version,
                "freshness": "Current",
                "resources": [_discovered(served) for served in self._registry.resources(group, version)],
            }
            for version in self._registry.groups[group]
        ]
        return {"metadata": {"name": group} if group else {}, "versions": versions}


def _openapi_v2(accept: str) -> web.StreamResponse:
    """Answer with a document without content: clients fall back to it, and then ask discovery about kinds."""
    if "protobuf" in accept:
        return answers.raw(b"\x0a\x032.0", content_type=_SWAGGER_PROTOBUF)
    info = {"title": "Kubernetes (embedded)", "version": "v1"}
    return answers.json_answer({"swagger": "2.0", "info": info, "paths": {}, "definitions": {}})


def _group(group: str, versions: list[str]) -> Object:
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[0]}


def _plain(served: Served) -> list[Object]:
    resource = served.resource
    main: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _VERBS if resource.stored else ["create"],
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    if resource.categories:
        main["categories"] = list(resource.categories)
    return [main, *(_plain_sub(served, name) for name in resource.subresources)]


def _plain_sub(served: Served, name: str) -> Object:
    resource = served.resource
    entry: dict[str, Any] = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
    if name in _SUB_KINDS:
        entry["group"], entry["version"], entry["kind"] = _SUB_KINDS[name]
    else:
        entry["kind"] = resource.kind
    return {**entry, "verbs": _SUB_VERBS[name]}


def _discovered(served: Served) -> Object:
    resource = served.resource
    kind = {"group": served.group, "version": served.version, "kind": resource.kind}
    found: Object = {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": _VERBS if resource.stored else ["create"],
    }
    if resource.short_names:
        found["shortNames"] = list(resource.short_names)
    if resource.categories:
        found["categories"] = list(resource.categories)
    if resource.subresources:
        found["subresources"] = [_discovered_sub(name, kind) for name in resource.subresources]
    return found


def _discovered_sub(name: str, kind: Object) -> Object:
    if name in _SUB_KINDS:
        group, version, sub_kind = _SUB_KINDS[name]
        kind = {"group": group, "version": version, "kind": sub_kind}
    return {"subresource": name, "responseKind": kind, "verbs": _SUB_VERBS[name]}
