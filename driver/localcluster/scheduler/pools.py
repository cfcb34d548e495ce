"""The pools of the cluster by node, kept as ResourceSlices come and go; a bad slice costs its pool only."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from driver.errors import InvalidValueError
from driver.localcluster.scheduler import nodes
from driver.localcluster.scheduler.devices import Pool, make_pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Object = Mapping[str, Any]

log = logging.getLogger(__name__)

_Key = tuple[str, str]


class PoolIndex:
    """Knows which pools may serve a node without looking at those of other nodes."""

    def __init__(self) -> None:
        self._slices: dict[_Key, dict[str, Object]] = {}
        self._pools: dict[_Key, Pool] = {}
        self._local: dict[str, set[_Key]] = {}
        self._shared: set[_Key] = set()

    def put(self, obj: Object) -> None:
        """Add or replace a slice."""
        self.remove(obj)
        key = _key(obj)
        self._slices.setdefault(key, {})[nodes.name_of(obj)] = obj
        node = obj["spec"].get("nodeName")
        if node:
            self._local.setdefault(node, set()).add(key)
        else:
            self._shared.add(key)

    def remove(self, obj: Object) -> None:
        """Remove a slice; unknown ones are fine."""
        key = _key(obj)
        self._pools.pop(key, None)
        slices = self._slices.get(key, {})
        old = slices.pop(nodes.name_of(obj), None)
        if old is None:
            return
        left = [item["spec"].get("nodeName") for item in slices.values()]
        if not slices:
            del self._slices[key]
        node = old["spec"].get("nodeName")
        if node and node not in left:
            self._local[node].discard(key)
        elif not node and None not in left:
            self._shared.discard(key)

    def for_node(self, node: str) -> list[Pool]:
        """Return the pools that may serve a node, by driver and name."""
        keys = sorted(self._local.get(node, set()) | self._shared)
        return list(self._made(keys))

    def _made(self, keys: list[_Key]) -> Iterator[Pool]:
        for key in keys:
            if key not in self._pools:
                self._pools[key] = _make(key, list(self._slices[key].values()))
            yield self._pools[key]


def _make(key: _Key, slices: list[Object]) -> Pool:
    try:
        return make_pool(*key, slices)
    except (InvalidValueError, ValueError, KeyError, TypeError) as exc:
        log.warning("pool %s of driver %s can't be used: %s", key[1], key[0], exc)
        return Pool(driver=key[0], name=key[1], devices=(), counters={}, problem=f"a slice can't be read: {exc}")


def _key(obj: Object) -> _Key:
    return obj["spec"]["driver"], obj["spec"]["pool"]["name"]
