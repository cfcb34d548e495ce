"""Subresources other than status: a pod's log, binding and eviction, a service account's token, scale."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from driver.localcluster.apiserver import answers, errors
from driver.localcluster.apiserver.codec import parse
from driver.localcluster.apiserver.execution import ExecRequest, ExecSource, serve
from driver.localcluster.apiserver.log_request import LogRequest, log_request
from driver.localcluster.apiserver.objects import lookup, metadata
from driver.model.wording import timestamp

if TYPE_CHECKING:
    from driver.localcluster.apiserver.identity import Tokens
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Target
    from driver.localcluster.apiserver.store import Store

_SUCCESS: Final = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

LogSource = Callable[[LogRequest], AsyncIterator[bytes]]
"""Yields a log's bytes; ends when the log ends, or never for one that is followed. May raise `StatusError`."""


class Subresources:
    """Answers requests for them."""

    def __init__(self, store: Store, tokens: Tokens) -> None:
        self._store = store
        self._tokens = tokens
        self.log_source: LogSource | None = None
        self.exec_source: ExecSource | None = None

    async def answer(self, request: web.BaseRequest, verb: str, target: Target) -> web.StreamResponse:
        """Answer one request.

        :raises StatusError: for every refusal.
        """
        name, post = target.subresource, verb == "create"
        if name == "log" and verb == "get":
            return await self._log(request, target)
        if name == "exec":
            wanted = _exec_request(self._store.get("pods", target.name, target.namespace), request.query)
            return await serve(request, self.exec_source, wanted)
        if name in ("attach", "portforward"):
            text = f"the embedded cluster has no {name} to pods: it has logs and exec"
            raise errors.StatusError(501, "NotImplemented", text)
        if name == "scale" and verb in ("get", "update", "patch"):
            return await self._scale(request, verb, target)
        if not post or name not in ("binding", "eviction", "token"):
            raise errors.method_not_allowed()
        body = parse(await request.read(), request.headers.get("Content-Type", ""))
        if not isinstance(body, dict):
            raise errors.bad_request("the request's body is not an object")
        if name == "token":
            return self._token(target, body)
        return self._bind(target, body) if name == "binding" else self._evict(target, body)

    async def _log(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        pod = self._store.get("pods", target.name, target.namespace)
        log = log_request(pod, _container(pod, request.query), request.query, datetime.now(UTC))
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        if self.log_source is None:
            raise errors.StatusError(501, "NotImplemented", "this cluster keeps no logs of containers")
        source = self.log_source(log)
        first = await anext(source, b"")  # what can't be read is refused with a status, not within the stream
        await response.prepare(request)
        await response.write(first)
        async for chunk in source:
            await response.write(chunk)
        await response.write_eof()
        return response

    def _bind(self, target: Target, body: Object) -> web.StreamResponse:
        node = lookup(body, "target.name")
        if not node:
            raise errors.bad_request("target.name: Required value")
        self._store.bind(target.name, target.namespace, str(node))
        return answers.json_answer(_SUCCESS, status=201)

    def _evict(self, target: Target, body: Object) -> web.StreamResponse:
        options = body.get("deleteOptions") or {}
        self._store.delete("pods", target.name, target.namespace, grace_seconds=options.get("gracePeriodSeconds"))
        return answers.json_answer(_SUCCESS, status=201)

    def _token(self, target: Target, body: Object) -> web.StreamResponse:
        account = self._store.get("serviceaccounts", target.name, target.namespace)
        spec = body.get("spec") or {}
        ask: dict[str, Any] = {"expires": spec.get("expirationSeconds"), "audiences": spec.get("audiences")}
        bound = spec.get("boundObjectRef") or {}
        if bound.get("kind") == "Pod":
            ask |= self._bound(target.namespace, str(bound.get("name")))
        elif bound.get("kind") == "Node":
            ask["node"] = {"name": bound.get("name"), "uid": bound.get("uid", "")}
        token, expires = self._tokens.issue_bound(target.namespace, metadata(account), ask)
        status = {"token": token, "expirationTimestamp": timestamp(datetime.fromtimestamp(expires, UTC))}
        answer = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        about = {"name": target.name, "namespace": target.namespace, "creationTimestamp": self._store.now()}
        return answers.json_answer({**answer, "metadata": about, "spec": spec, "status": status}, status=201)

    def _bound(self, namespace: str, name: str) -> dict[str, Any]:
        pod = self._store.get("pods", name, namespace)
        bound: dict[str, Any] = {"pod": {"name": name, "uid": metadata(pod)["uid"]}}
        node = self._store.find("nodes", (pod.get("spec") or {}).get("nodeName") or "")
        if node is not None:
            bound["node"] = {"name": metadata(node)["name"], "uid": metadata(node)["uid"]}
        return bound

    async def _scale(self, request: web.BaseRequest, verb: str, target: Target) -> web.StreamResponse:
        plural = target.served.resource.plural
        if verb != "get":
            body = parse(
                await request.read(), request.headers.get("Content-Type", ""), others=("application/merge-patch+json",)
            )
            replicas = lookup(body, "spec.replicas") if isinstance(body, dict) else None
            if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
                raise errors.bad_request("spec.replicas: a whole number of at least 0 is required")
            self._store.patch(plural, target.name, {"spec": {"replicas": replicas}}, target.namespace)
        return answers.json_answer(_scale_of(self._store.get(plural, target.name, target.namespace)))


def _scale_of(obj: Object) -> Object:
    meta = {key: metadata(obj)[key] for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")}
    labels = lookup(obj, "spec.selector.matchLabels") or {}
    status = {
        "replicas": lookup(obj, "status.replicas") or 0,
        "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
    }
    spec = {"replicas": lookup(obj, "spec.replicas") or 0}
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta, "spec": spec, "status": status}


def _exec_request(pod: Object, query: Any) -> ExecRequest:
    command = tuple(query.getall("command", ()))
    if not command:
        raise errors.bad_request("you must specify at least 1 command for the container")
    return ExecRequest(
        pod=pod,
        container=_container(pod, query),
        command=command,
        stdin=query.get("stdin") == "true",
        tty=query.get("tty") == "true",
    )


def _container(pod: Object, query: Any) -> str:
    """Return the container that is asked for, or the only one.

    :raises StatusError: 400: there is none of that name, or several and no name.
    """
    names = [
        container["name"]
        for field in ("initContainers", "containers", "ephemeralContainers")
        for container in pod["spec"].get(field) or ()
    ]
    main = [container["name"] for container in pod["spec"].get("containers") or ()]
    container = query.get("container") or (main[0] if len(main) == 1 else "")
    pod_name = metadata(pod)["name"]
    if not container:
        shown = f"choose one of: [{' '.join(names)}]"
        raise errors.bad_request(f"a container name must be specified for pod {pod_name}, {shown}")
    if container not in names:
        raise errors.bad_request(f"container {container} is not valid for pod {pod_name}")
    return str(container)
