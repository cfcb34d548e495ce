"""The HTTP side: one handler that says who asks, for what, whether it is allowed, and passes it on.

No router and no middleware: a GET of an object is two dictionary lookups and a write of bytes that are there already.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aiohttp import web

from driver.localcluster.apiserver import answers
from driver.localcluster.apiserver.audit import Call
from driver.localcluster.apiserver.errors import StatusError, bad_request, method_not_allowed
from driver.localcluster.apiserver.faults import ConnectionDroppedError
from driver.localcluster.apiserver.identity import ANONYMOUS, User
from driver.localcluster.apiserver.impersonation import acting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driver.localcluster.apiserver.audit import AuditLog
    from driver.localcluster.apiserver.authorization import Authorizer
    from driver.localcluster.apiserver.discovery import Discovery
    from driver.localcluster.apiserver.faults import Faults
    from driver.localcluster.apiserver.identity import Tokens
    from driver.localcluster.apiserver.registry import Registry, Target
    from driver.localcluster.apiserver.verbs import Verbs

_LOG = logging.getLogger(__name__)
_ONE: Final[Mapping[str, str]] = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_MANY: Final[Mapping[str, str]] = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OPEN: Final = ("/healthz", "/livez", "/readyz", "/version")
"""What a client may read without credentials."""


class Handler:
    """Answers requests; every part of it is given."""

    def __init__(
        self,
        *,
        registry: Registry,
        verbs: Verbs,
        discovery: Discovery,
        tokens: Tokens,
        authorizer: Authorizer,
        audit: AuditLog,
        faults: Faults,
    ) -> None:
        self._registry = registry
        self._verbs = verbs
        self._discovery = discovery
        self._tokens = tokens
        self._authorizer = authorizer
        self._audit = audit
        self._faults = faults

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; whatever goes wrong is an answer, too."""
        user = self._user(request)
        call = Call(user=user.name, verb=request.method.lower(), path=request.path)
        try:
            user = acting(request.headers, user, self._authorizer)
            call = replace(call, user=user.name)
            target = self._target(request)
            if target is not None:
                call = _described(request, user, target)
            if self._faults:
                await self._faults.strike(call)
            self._check(user, call, request.path)
            if call.verb == "watch":
                return await self._watch(request, call, target, user)
            response = await self._answer(request, call, target, user)
            self._audit.record(replace(call, code=response.status))
        except StatusError as error:
            return self._refused(call, error)
        except ConnectionDroppedError:
            self._audit.record(call)
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        except web.HTTPRequestEntityTooLarge:
            return self._refused(call, StatusError(413, "RequestEntityTooLarge", "the request's body is too large"))
        except RecursionError:
            return self._refused(call, bad_request("the request's body is nested too deeply"))
        except Exception:
            _LOG.exception("%s %s failed", request.method, request.path)
            return self._refused(call, StatusError(500, "InternalError", "an error of the embedded API server"))
        return response

    async def _watch(
        self, request: web.BaseRequest, call: Call, target: Target | None, user: User
    ) -> web.StreamResponse:
        """Answer a watch, which may last, and end with its client or this server: it is recorded when it starts."""
        self._audit.record(call)
        try:
            return await self._answer(request, call, target, user)
        except StatusError as error:
            return answers.refusal(error)

    def _refused(self, call: Call, error: StatusError) -> web.StreamResponse:
        self._audit.record(replace(call, code=error.code))
        return answers.refusal(error)

    def _user(self, request: web.BaseRequest) -> User:
        header = request.headers.get("Authorization", "")
        found = self._tokens.authenticate(header[7:]) if header.startswith("Bearer ") else None
        return found or ANONYMOUS

    def _target(self, request: web.BaseRequest) -> Target | None:
        path = request.path
        if path.startswith("/api/v1/") or (path.startswith("/apis/") and path.count("/") > 3):
            return self._registry.target(path)
        return None

    def _check(self, user: User, call: Call, path: str) -> None:
        if user is ANONYMOUS and path not in _OPEN:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        self._authorizer.check(user, call)

    async def _answer(
        self, request: web.BaseRequest, call: Call, target: Target | None, user: User
    ) -> web.StreamResponse:
        if target is None:
            return self._discovery.answer(request)
        return await self._verbs.answer(request, call.verb, target, user)


def _described(request: web.BaseRequest, user: User, target: Target) -> Call:
    verb = (_ONE if target.name else _MANY).get(request.method)
    served = target.served
    everywhere = served.resource.namespaced and not target.namespace  # such a path is for lists and watches only
    if verb is None or (everywhere and verb != "list") or (verb == "create" and target.name and not target.subresource):
        raise method_not_allowed()
    if verb == "list" and request.query.get("watch") in ("1", "true"):
        verb = "watch"
    return Call(
        user=user.name,
        verb=verb,
        group=served.group,
        version=served.version,
        resource=served.resource.plural,
        subresource=target.subresource,
        namespace=target.namespace or (target.name if served.resource.plural == "namespaces" else ""),
        name=target.name,
    )
