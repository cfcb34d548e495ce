"""Objects of one resource, what happened to them lately, and who watches.

An `Entry` is one immutable version of an object with its encodings, so that a GET or a watch of an object that was
encoded before writes bytes and computes nothing. Runs on one event loop; takes no locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driver.localcluster.apiserver.errors import StatusError, gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from driver.localcluster.apiserver.objects import Object

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""


class Entry:
    """One version of one object. `body` must never be changed."""

    __slots__ = ("body", "encoded", "revision")

    def __init__(self, body: Object, revision: int) -> None:
        self.body = body
        self.revision = revision
        self.encoded: dict[str, bytes] = {}
        """JSON per API version, filled by whoever encodes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One event: `entry` is the object after it (for DELETED: its last state, at the revision of the deletion)."""

    type: str
    entry: Entry
    before: Entry | None
    key: Key


@dataclass(frozen=True, slots=True)
class Interest:
    """What a watcher wants to hear of."""

    namespace: str | None = None
    matches: Callable[[Object], bool] | None = None
    node: str | None = None
    """If the selector asks for one `spec.nodeName`: only events of that node are looked at at all."""

    def view(self, change: Change) -> tuple[str, Entry] | None:
        """Return the change as this watcher sees it: an object that starts to match is ADDED to its world."""
        if self.namespace is not None and change.key[0] != self.namespace:
            return None
        if self.matches is None:
            return change.type, change.entry
        now = change.type != "DELETED" and self.matches(change.entry.body)
        was = change.before is not None and self.matches(change.before.body)
        if now:
            return ("MODIFIED" if was else "ADDED"), change.entry
        return ("DELETED", change.entry) if was else None


class Subscription:
    """A watcher's queue. Iterate it with `next`; a watcher that lags `limit` events behind is cut off with 410."""

    def __init__(self, interest: Interest, close: Callable[[Subscription], None], limit: int = 100_000) -> None:
        self.interest = interest
        self.served = False
        """Does a client watch, over HTTP?"""
        self._events: deque[tuple[str, Entry]] = deque()
        self._wake = asyncio.Event()
        self._close = close
        self._limit = limit
        self._error: StatusError | None = None
        self._closed = False

    def push(self, change: Change) -> None:
        """Queue a change if the watcher wants it."""
        view = self.interest.view(change)
        if view is not None:
            self.push_view(*view)

    def push_view(self, type_: str, entry: Entry) -> None:
        """Queue an event as the watcher is to see it."""
        if len(self._events) >= self._limit:
            self.fail(gone(entry.revision, entry.revision))
            return
        self._events.append((type_, entry))
        self._wake.set()

    def fail(self, error: StatusError | None = None) -> None:
        """End the watch, with an error if there is one."""
        self._error, self._closed = error, True
        self._wake.set()
        self._close(self)

    def close(self) -> None:
        """Stop listening."""
        self.fail()

    async def next(self) -> list[tuple[str, Entry]]:
        """Wait for events and return all that are there; an empty list is the end.

        :raises StatusError: 410 if the watcher was too slow.
        """
        while not self._events and not self._closed:
            self._wake.clear()
            await self._wake.wait()
        if self._error is not None:
            raise self._error
        return self.pending()

    def pending(self) -> list[tuple[str, Entry]]:
        """Return the events that are there now, without waiting."""
        events = list(self._events)
        self._events.clear()
        return events


@dataclass(slots=True)
class Journal:
    """The objects of one resource in order of their keys, its recent changes, and its watchers."""

    history: int
    entries: dict[Key, Entry] = field(default_factory=dict)
    compacted: int = 0
    """The revision up to which changes are forgotten."""
    _by_namespace: dict[str, dict[str, Entry]] = field(default_factory=dict)
    _by_node: dict[str, dict[Key, None]] = field(default_factory=dict)
    _changes: deque[Change] = field(default_factory=deque)
    _watchers: dict[str | None, dict[Subscription, None]] = field(default_factory=dict)

    @property
    def watchers(self) -> int:
        """The number of subscriptions."""
        return sum(len(watchers) for watchers in self._watchers.values())

    def get(self, key: Key) -> Entry | None:
        """Return the present version of an object."""
        return self.entries.get(key)

    def select(self, interest: Interest) -> Iterator[Entry]:
        """Yield the entries that match, ordered by namespace and name."""
        if interest.node is not None:
            yield from self._select_of_node(interest)
            return
        spaces = sorted(self._by_namespace) if interest.namespace is None else [interest.namespace]
        for space in spaces:
            objects = self._by_namespace.get(space, {})
            for name in sorted(objects):
                if interest.matches is None or interest.matches(objects[name].body):
                    yield objects[name]

    def _select_of_node(self, interest: Interest) -> Iterator[Entry]:
        for key in sorted(self._by_node.get(interest.node or "", ())):
            entry = self.entries[key]
            if interest.namespace in (None, key[0]) and (interest.matches is None or interest.matches(entry.body)):
                yield entry

    def record(self, type_: str, key: Key, entry: Entry) -> None:
        """Put, replace or remove an object and tell the watchers."""
        before = self.entries.get(key)
        space = self._by_namespace.setdefault(key[0], {})
        self._index(key, _node(before), None if type_ == "DELETED" else _node(entry))
        if type_ == "DELETED":
            self.entries.pop(key, None)
            space.pop(key[1], None)
        else:
            self.entries[key] = space[key[1]] = entry
        change = Change(type_, entry, before, key)
        self._changes.append(change)
        if len(self._changes) > self.history:
            self.compacted = self._changes.popleft().entry.revision
        self._publish(change)

    def _index(self, key: Key, was: str | None, is_now: str | None) -> None:
        if was is not None and was != is_now:
            self._by_node[was].pop(key, None)
        if is_now is not None:
            self._by_node.setdefault(is_now, {})[key] = None

    def _publish(self, change: Change) -> None:
        nodes = {None, _node(change.entry), _node(change.before)}
        for node in nodes:
            for watcher in list(self._watchers.get(node, ())):
                watcher.push(change)

    def compact(self, revision: int) -> None:
        """Forget the changes up to `revision`: a watch from before it is answered with 410."""
        while self._changes and self._changes[0].entry.revision <= revision:
            self._changes.popleft()
        self.compacted = max(self.compacted, revision)

    def subscribe(self, interest: Interest, since: int | None) -> Subscription:
        """Start to listen: from the present state, as ADDED events, or from the changes after `since`.

        :raises StatusError: 410 if the changes after `since` are no longer all known.
        """
        if since is not None and since < self.compacted:
            raise gone(since, self.compacted)
        watcher = Subscription(interest, self._forget)
        if since is None:
            for entry in self.select(interest):
                watcher.push_view("ADDED", entry)
        else:
            for change in self._changes:
                if change.entry.revision > since:
                    watcher.push(change)
        self._watchers.setdefault(interest.node, {})[watcher] = None
        return watcher

    def _forget(self, watcher: Subscription) -> None:
        watchers = self._watchers.get(watcher.interest.node, {})
        watchers.pop(watcher, None)
        if not watchers:
            self._watchers.pop(watcher.interest.node, None)

    def close_watches(self, *, only_served: bool = False) -> None:
        """End every watch, or every one over HTTP."""
        for watchers in list(self._watchers.values()):
            for watcher in list(watchers):
                if watcher.served or not only_served:
                    watcher.close()


def _node(entry: Entry | None) -> str | None:
    spec = entry.body.get("spec") if entry is not None else None
    node = spec.get("nodeName") if isinstance(spec, dict) else None
    return node if isinstance(node, str) else None
