"""The verbs on resources: from a request to the store and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver import answers, errors
from driver.localcluster.apiserver.codec import decode, encoded, parse, shown, to_json
from driver.localcluster.apiserver.gate import Gate
from driver.localcluster.apiserver.objects import Object, metadata, name_of, namespace_of
from driver.localcluster.apiserver.options import delete_options, dry_run, field_validation, page
from driver.localcluster.apiserver.patching import PATCH_TYPES, apply_patch
from driver.localcluster.apiserver.streams import known_revision, watch
from driver.localcluster.apiserver.table import as_table, partial, wants

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aiohttp import web

    from driver.localcluster.apiserver.authorization import Authorizer
    from driver.localcluster.apiserver.identity import User
    from driver.localcluster.apiserver.journal import Entry
    from driver.localcluster.apiserver.registry import Served, Target
    from driver.localcluster.apiserver.reviews import Reviews
    from driver.localcluster.apiserver.store import Store
    from driver.localcluster.apiserver.subresources import Subresources


_CREATED: Final = 201


class Verbs:
    """Answers requests that name a resource."""

    def __init__(self, store: Store, subresources: Subresources, reviews: Reviews, authorizer: Authorizer) -> None:
        self._store = store
        self._subresources = subresources
        self._reviews = reviews
        self._authorizer = authorizer
        self._verbs: Mapping[str, Callable[[web.BaseRequest, Target], Awaitable[web.StreamResponse]]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
        }
        self._writes: Mapping[str, Callable[[web.BaseRequest, Target, Gate], Awaitable[web.StreamResponse]]] = {
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def answer(self, request: web.BaseRequest, verb: str, target: Target, user: User) -> web.StreamResponse:
        """Answer one request.

        :raises StatusError: for every refusal.
        """
        if not target.served.resource.stored:
            if verb != "create":
                raise errors.method_not_allowed()
            body = parse(await request.read(), request.headers.get("Content-Type", ""))
            return self._reviews.answer(target, decode(target.served, body)[0], user)
        if target.subresource not in ("", "status", "finalize"):
            return await self._subresources.answer(request, verb, target)
        if verb not in self._writes:
            return await self._verbs[verb](request, target)
        dry = dry_run(request.query)
        gate = Gate(self._store, self._authorizer, verb=verb, target=target, user=user, dry_run=dry)
        return await self._writes[verb](request, target, gate)

    async def _get(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        entry = self._store.entry(target.served.resource.plural, target.name, target.namespace)
        view = wants(request.headers.get("Accept", ""))
        if view:
            return answers.json_answer(_viewed(request, view, target.served, [entry.body], None))
        return answers.raw(encoded(target.served, entry))

    async def _list(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        served, query = target.served, request.query
        known_revision(query.get("resourceVersion", ""), self._store.revision)
        entries = self._entries(request, target)
        entries, meta = page(entries, query, self._store.revision)
        view = wants(request.headers.get("Accept", ""))
        if view:
            return answers.json_answer(_viewed(request, view, served, [entry.body for entry in entries], meta))
        head = {"kind": served.resource.list_kind, "apiVersion": served.api_version, "metadata": meta}
        items = b",".join(encoded(served, entry) for entry in entries)
        return answers.raw(to_json(head)[:-1] + b',"items":[' + items + b"]}")

    def _entries(self, request: web.BaseRequest, target: Target) -> list[Entry]:
        plural, query = target.served.resource.plural, request.query
        fields, labels = query.get("fieldSelector", ""), query.get("labelSelector", "")
        return self._store.entries(plural, self._store.interest(plural, target.namespace, fields, labels))

    async def _watch(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        return await watch(self._store, request, target)

    async def _create(self, request: web.BaseRequest, target: Target, gate: Gate) -> web.StreamResponse:
        body = parse(await request.read(), request.headers.get("Content-Type", ""))
        obj, warnings = decode(target.served, body, field_validation(request.query))
        created = self._store.create(
            target.served.resource.plural, obj, target.namespace or None, dry_run=dry_run(request.query), admit=gate
        )
        return self._written(target.served, created, status=201, warnings=[*warnings, *gate.warnings])

    async def _update(self, request: web.BaseRequest, target: Target, gate: Gate) -> web.StreamResponse:
        body = parse(await request.read(), request.headers.get("Content-Type", ""))
        obj, warnings = decode(target.served, body, field_validation(request.query))
        _check_place(obj, target)
        updated = self._store.update(
            target.served.resource.plural,
            obj,
            subresource=target.subresource,
            dry_run=dry_run(request.query),
            admit=gate,
        )
        return self._written(target.served, updated, warnings=[*warnings, *gate.warnings])

    async def _patch(self, request: web.BaseRequest, target: Target, gate: Gate) -> web.StreamResponse:
        content_type = request.headers.get("Content-Type", "").split(";")[0].strip()
        if content_type not in PATCH_TYPES:
            raise errors.unsupported_media_type(content_type, PATCH_TYPES)
        patch = parse(await request.read(), content_type, others=PATCH_TYPES)
        options = dict(request.query)
        patched, created, warnings = apply_patch(
            self._store, target, content_type, patch, options, dry_run=dry_run(request.query), admit=gate
        )
        return self._written(
            target.served, patched, status=201 if created else 200, warnings=[*warnings, *gate.warnings]
        )

    def _written(
        self, served: Served, obj: Object, *, status: int = 200, warnings: list[str] | None = None
    ) -> web.StreamResponse:
        said = list(warnings or ())
        if served.resource.inert and status == _CREATED:
            said.append(f"the embedded cluster stores a {served.resource.kind}, and nothing acts on it")
        return answers.raw(to_json(shown(served, obj)), status=status, warnings=said)

    async def _delete(self, request: web.BaseRequest, target: Target, gate: Gate) -> web.StreamResponse:
        options = await delete_options(request)
        obj = self._delete_one(target.served, target.name, target.namespace, options, gate)
        if metadata(obj).get("deletionTimestamp") or target.served.resource.plural == "pods":
            return self._written(target.served, obj)
        return answers.success(target.served, target.name, metadata(obj)["uid"])

    def _delete_one(self, served: Served, name: str, namespace: str, options: Mapping[str, Any], gate: Gate) -> Object:
        conditions = options.get("preconditions") or {}
        return self._store.delete(
            served.resource.plural,
            name,
            namespace,
            uid=conditions.get("uid"),
            resource_version=conditions.get("resourceVersion"),
            propagation=options.get("propagationPolicy"),
            grace_seconds=options.get("gracePeriodSeconds"),
            dry_run=bool(options.get("dryRun")),
            admit=gate,
        )

    async def _delete_collection(self, request: web.BaseRequest, target: Target, gate: Gate) -> web.StreamResponse:
        options = await delete_options(request)
        entries = self._entries(request, target)
        for entry in entries:
            self._delete_one(target.served, name_of(entry.body), namespace_of(entry.body), options, gate)
        head = {"kind": target.served.resource.list_kind, "apiVersion": target.served.api_version}
        items = [shown(target.served, entry.body) for entry in entries]
        return answers.json_answer({**head, "metadata": {"resourceVersion": str(self._store.revision)}, "items": items})


def _viewed(request: web.BaseRequest, view: str, served: Served, objects: list[Object], meta: Object | None) -> Object:
    if view == "Table":
        return as_table(served, objects, meta or {}, request.query.get("includeObject") or "Metadata")
    return partial(objects, meta)


def _check_place(obj: Object, target: Target) -> None:
    meta = obj.setdefault("metadata", {})
    if meta.setdefault("name", target.name) != target.name:
        raise errors.bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL ({target.name})"
        )
    if target.namespace and meta.setdefault("namespace", target.namespace) != target.namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
