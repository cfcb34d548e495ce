"""The objects of the cluster: the one place where anything is created, changed or deleted.

The HTTP side and the cluster's own parts (scheduler, controllers, kubelets) use the same methods, so the same rules
hold for both. Everything is synchronous and runs on one event loop: a call sees and leaves a consistent state.

**Objects that come out of here are shared: never change them; `clone` one to work on it.** They are in the stored
version of their API (`v1`). `resourceVersion` is one counter for all resources.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver import deletion, errors
from driver.localcluster.apiserver.admission import STANDARD, Admission, Gate, check_deletion
from driver.localcluster.apiserver.collector import Collector
from driver.localcluster.apiserver.features import Features
from driver.localcluster.apiserver.journal import Entry, Interest, Journal, Key, Subscription
from driver.localcluster.apiserver.objects import Object, clone, metadata, name_of, namespace_of
from driver.localcluster.apiserver.patch import json_patch, merge_patch
from driver.localcluster.apiserver.resources import RESOURCES, Resource
from driver.localcluster.apiserver.schema import check
from driver.localcluster.apiserver.selectors import compile_selectors, required_value
from driver.localcluster.apiserver.strategies import strategy_of
from driver.localcluster.apiserver.strategy import CelChecker, Rules
from driver.localcluster.apiserver.validation.metadata import metadata_errors
from driver.localcluster.apiserver.writing import carry_over, check_preconditions, prepare_metadata
from driver.model.wording import timestamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable


class Store:
    """All objects of one cluster. See the module for what its callers may rely on."""

    def __init__(
        self,
        features: Features | None = None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        cel: CelChecker | None = None,
        admission: Iterable[Admission] = (),
        history: int = 10_000,
    ) -> None:
        self.features = features or Features()
        self.cel = cel
        self.admission = [*STANDARD, *admission]
        self.revision = 1
        self.writes = 0
        """How many changes were stored: what an idle cluster must not raise."""
        self._clock = clock
        self._journals = {plural: Journal(history) for plural in RESOURCES}
        self._collector = Collector(self)

    # --- reading -----------------------------------------------------------------------------------------------------

    def entry(self, resource: str, name: str, namespace: str | None = None) -> Entry:
        """Return an object with its encodings.

        :raises StatusError: 404.
        """
        entry = self._journals[resource].get((namespace or "", name))
        if entry is None:
            raise errors.not_found(RESOURCES[resource], name)
        return entry

    def get(self, resource: str, name: str, namespace: str | None = None) -> Object:
        """Return an object.

        :raises StatusError: 404.
        """
        return self.entry(resource, name, namespace).body

    def find(self, resource: str, name: str, namespace: str | None = None) -> Object | None:
        """Return an object, None if there is none."""
        entry = self._journals[resource].get((namespace or "", name))
        return entry.body if entry else None

    def entries(self, resource: str, interest: Interest) -> list[Entry]:
        """Return what matches, ordered by namespace and name."""
        return list(self._journals[resource].select(interest))

    def list(
        self, resource: str, namespace: str | None = None, *, field_selector: str = "", label_selector: str = ""
    ) -> list[Object]:
        """Return the objects of one namespace, or of all, that the selectors match, ordered by namespace and name.

        :raises StatusError: 400 for a selector that can't be parsed.
        """
        interest = self.interest(resource, namespace, field_selector, label_selector)
        return [entry.body for entry in self._journals[resource].select(interest)]

    def interest(self, resource: str, namespace: str | None, fields: str = "", labels: str = "") -> Interest:
        """Compile what a list or a watch asks for.

        :raises StatusError: 400 for a selector that can't be parsed.
        """
        kind = RESOURCES[resource]
        node = required_value(kind, fields, "spec.nodeName") or None  # empty asks for what is on no node
        return Interest(namespace or None, compile_selectors(kind, fields, labels), node)

    # --- watching ----------------------------------------------------------------------------------------------------

    def subscribe(self, resource: str, interest: Interest, since: int | None = None) -> Subscription:
        """Listen to changes; close the subscription when done.

        :raises StatusError: 410 if the history no longer reaches back to `since`.
        """
        return self._journals[resource].subscribe(interest, since)

    async def watch(
        self,
        resource: str,
        namespace: str | None = None,
        since: int | str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield (ADDED, MODIFIED or DELETED, object): first the present state as ADDED, or what came after `since`.

        :raises StatusError: 410 if the history no longer reaches back to `since`; 400 for a bad selector.
        """
        interest = self.interest(resource, namespace, field_selector, label_selector)
        watcher = self.subscribe(resource, interest, None if since is None else int(since))
        try:
            while events := await watcher.next():
                for type_, entry in events:
                    yield type_, entry.body
        finally:
            watcher.close()

    def watchers(self, resource: str) -> int:
        """Return how many watch a resource now."""
        return self._journals[resource].watchers

    def close_watches(self, *, only_served: bool = False) -> None:
        """End all watches, or those over HTTP, as a server that shuts down does."""
        for journal in self._journals.values():
            journal.close_watches(only_served=only_served)

    def compact(self) -> None:
        """Forget all history: watches from an earlier revision get 410, as after an etcd compaction."""
        for journal in self._journals.values():
            journal.compact(self.revision)

    # --- writing -----------------------------------------------------------------------------------------------------

    def create(
        self,
        resource: str,
        obj: Object,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        admit: Gate | None = None,
    ) -> Object:
        """Store a new object and return it as stored; `admit` may refuse it.

        :raises StatusError: 409 if it exists, 422 if it is not valid, 404 or 403 by admission.
        """
        kind = RESOURCES[resource]
        new, _ = check(kind.api_version, kind.kind, obj)
        rules = self._rules()
        prepare_metadata(kind, new, namespace, rules.now)
        key = (namespace_of(new), name_of(new))
        strategy = strategy_of(kind)
        strategy.prepare(new, None, rules)
        if causes := [*metadata_errors(kind, new), *strategy.validate(new, None, rules)]:
            raise errors.invalid(kind, key[1], causes)
        self._admit(kind, new, None, admit)
        if self._journals[resource].get(key):
            raise errors.already_exists(kind, key[1])
        metadata(new)["uid"] = str(uuid.uuid4())
        self._put("ADDED", kind, key, new, dry_run=dry_run)
        if not dry_run:
            self._collector.created(kind, new)
        return new

    def update(
        self,
        resource: str,
        obj: Object,
        *,
        subresource: str = "",
        dry_run: bool = False,
        admit: Gate | None = None,
    ) -> Object:
        """Replace an object (or only its status) and return it as stored; nothing changed, nothing stored.

        `admit` may refuse the write: it gets the new and the old object.

        :raises StatusError: 404; 409 if `metadata.resourceVersion` or `uid` is another; 422 if it is not valid.
        """
        kind, key = RESOURCES[resource], (namespace_of(obj), name_of(obj))
        old = self.get(resource, key[1], key[0])
        check_preconditions(kind, old, metadata(obj).get("uid"), metadata(obj).get("resourceVersion"))
        new, _ = check(kind.api_version, kind.kind, obj)
        carry_over(kind, new, old, subresource)
        rules = self._rules()
        strategy = strategy_of(kind)
        strategy.prepare(new, old, rules)
        validate = strategy.validate_status if subresource == "status" else strategy.validate
        if causes := [*metadata_errors(kind, new), *validate(new, old, rules)]:
            raise errors.invalid(kind, key[1], causes)
        self._admit(kind, new, old, admit)
        if new == old:
            return old
        if kind.generation and new.get("spec") != old.get("spec"):
            metadata(new)["generation"] = metadata(old).get("generation", 0) + 1
        if deletion.is_complete(new):
            return self._remove(kind, key, new, dry_run=dry_run)
        return self._put("MODIFIED", kind, key, new, dry_run=dry_run)

    def update_status(self, resource: str, obj: Object) -> Object:
        """Replace only the status of an object; see `update`."""
        return self.update(resource, obj, subresource="status")

    def delete(
        self,
        resource: str,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str | None = None,
        grace_seconds: int | None = None,
        dry_run: bool = False,
        admit: Gate | None = None,
    ) -> Object:
        """Delete an object, or mark it as to be deleted while finalizers or a pod's kubelet hold it.

        `propagation` is Background (the default), Foreground or Orphan; `admit` may refuse the deletion.

        :raises StatusError: 404; 409 if `uid` or `resource_version` is another.
        """
        kind, key = RESOURCES[resource], (namespace or "", name)
        old = self.get(resource, name, namespace)
        check_deletion(kind, name)
        check_preconditions(kind, old, uid, resource_version)
        if admit is not None:
            admit(None, old)
        foreground = propagation == "Foreground" and self._collector.has_dependents(old)
        new = deletion.marked(kind, old, self._clock(), grace_seconds, foreground=foreground)
        if dry_run:
            return new
        if deletion.is_complete(new):
            last = new if metadata(old).get("deletionTimestamp") else clone(old)
            return self._remove(kind, key, last, orphan=propagation == "Orphan")
        if new != old:
            self._put("MODIFIED", kind, key, new)
        self._collector.marked(kind, new)
        return self.find(resource, name, namespace) or new

    def modify(
        self,
        resource: str,
        name: str,
        namespace: str | None,
        change: Callable[[Object], Object],
        *,
        subresource: str = "",
        dry_run: bool = False,
        admit: Gate | None = None,
    ) -> Object:
        """Apply a function to a copy of an object and store the result; what a patch is made of.

        :raises StatusError: as `update`, and whatever `change` raises.
        """
        old = self.get(resource, name, namespace)
        new = change(clone(old))
        meta = metadata(new)
        if meta.get("name") != name or (meta.get("namespace") or None) != (namespace or None):
            raise errors.bad_request("the name and the namespace of an object can't be changed by a patch")
        return self.update(resource, new, subresource=subresource, dry_run=dry_run, admit=admit)

    def patch(
        self, resource: str, name: str, patch: Any, namespace: str | None = None, *, subresource: str = ""
    ) -> Object:
        """Apply a JSON merge patch (a dict) or a JSON patch (a list of operations).

        :raises StatusError: as `update`; 422 if the patch can't be applied.
        """
        apply = json_patch if isinstance(patch, list) else merge_patch
        return self.modify(resource, name, namespace, lambda old: apply(old, patch), subresource=subresource)

    def bind(self, name: str, namespace: str, node: str) -> Object:
        """Bind a pod to a node, as the scheduler does through the `binding` subresource.

        :raises StatusError: 404; 409 if the pod is bound already.
        """
        old = self.get("pods", name, namespace)
        if (old.get("spec") or {}).get("nodeName"):
            raise errors.conflict(RESOURCES["pods"], name, f"pod {name} is already assigned to node")
        new = clone(old)
        new["spec"]["nodeName"] = node
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.now()}
        status = new.setdefault("status", {})
        others = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
        status["conditions"] = [*others, condition]
        return self._put("MODIFIED", RESOURCES["pods"], (namespace, name), new)

    def now(self) -> str:
        """Return the present moment as objects carry it."""
        return timestamp(self._clock())

    # --- private -----------------------------------------------------------------------------------------------------

    def _rules(self) -> Rules:
        return Rules(features=self.features, now=self.now(), cel=self.cel)

    def _admit(self, kind: Resource, new: Object, old: Object | None, last: Gate | None) -> None:
        for admission in self.admission:
            admission(self, kind, new, old)
        if last is not None:
            last(new, old)

    def _put(self, type_: str, kind: Resource, key: Key, obj: Object, *, dry_run: bool = False) -> Object:
        if dry_run:
            return obj
        entry = self._next(obj)
        before = self._journals[kind.plural].get(key)
        self._journals[kind.plural].record(type_, key, entry)
        self._collector.recorded(kind, key, before.body if before else None, obj)
        return obj

    def _remove(self, kind: Resource, key: Key, obj: Object, *, orphan: bool = False, dry_run: bool = False) -> Object:
        if dry_run:
            return obj
        before = self._journals[kind.plural].entries[key]
        self._journals[kind.plural].record("DELETED", key, self._next(obj))
        self._collector.recorded(kind, key, before.body, None)
        self._collector.removed(obj, orphan=orphan)
        return obj

    def _next(self, obj: Object) -> Entry:
        self.revision += 1
        self.writes += 1
        metadata(obj)["resourceVersion"] = str(self.revision)
        return Entry(obj, self.revision)
