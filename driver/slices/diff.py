"""Wanted slices against those that exist: the fewest writes that make a pool right. Pure.

Deletions come first, then updates, then creations, so that a pool is never complete with a mixture: a reader takes the
slices of the highest generation, and only if as many of them are there as each says (`pool.resourceSliceCount`).
The generation stays if one slice changes in place; otherwise it rises and all slices carry it.

A taint keeps the time since which it is there: whoever tolerates it for some seconds counts from then, and the server
would date it anew with each write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from driver.slices.normal import normal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from driver.model.json_object import JsonObject

API_VERSION = "resource.k8s.io/v1"
_Since = dict[tuple[Any, ...], Any]  # times by device and taint

_PREFIX_LIMIT = 200  # characters; with index and random suffix a name stays within 253


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose slices these are: of one driver on one node. The node's UID is None until it is known."""

    driver: str
    node_name: str
    node_uid: str | None = None

    def owns(self, item: Mapping[str, Any]) -> bool:
        """Say whether a slice is this driver's on this node; others are never touched."""
        spec = item.get("spec") or {}
        return bool(spec.get("driver") == self.driver and spec.get("nodeName") == self.node_name)

    def generate_name(self, index: int) -> str:
        """Return the `generateName` of a slice.

        Readers take slices in the order of their names, so the index comes first, padded.
        """
        return f"{index:02d}-{self._suffix}"

    def index_of(self, item: Mapping[str, Any]) -> int | None:
        """Return the index that a slice was created with, None if it was not made and named by this rule."""
        metadata = item.get("metadata") or {}
        match = re.fullmatch(rf"(\d{{1,6}})-{re.escape(self._suffix)}", metadata.get("generateName") or "", re.ASCII)
        if match is None or not str(metadata.get("name")).startswith(f"{match[1]}-"):
            return None
        return int(match[1])

    @property
    def reference(self) -> JsonObject:
        """The ownerReference: with the Node, its slices go."""
        return {"apiVersion": "v1", "kind": "Node", "name": self.node_name, "uid": self.node_uid, "controller": True}

    @property
    def _suffix(self) -> str:
        return f"{self.driver}-{self.node_name}"[:_PREFIX_LIMIT].rstrip("-.") + "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A slice to delete, if it still is exactly this one."""

    name: str
    uid: str | None
    resource_version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The writes, in the order in which they must be done."""

    deletions: tuple[Deletion, ...] = ()
    updates: tuple[JsonObject, ...] = ()
    creations: tuple[JsonObject, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletions or self.updates or self.creations)


def same_content(wanted: Mapping[str, Any], observed: Mapping[str, Any]) -> bool:
    """Say whether two specs mean the same, the generation aside."""
    return normal(wanted) == normal(observed)


def diff(
    wanted: Sequence[JsonObject],
    observed: Iterable[JsonObject],
    owner: Owner,
    same: Callable[[JsonObject, JsonObject], bool] = same_content,
) -> Plan:
    """Return the fewest writes after which the owner's slices are `wanted`, given as specs by index.

    `observed` are v1 slices and may hold others' too. `same(wanted spec, observed spec)` compares contents.
    """
    own = [item for item in observed if owner.owns(item)]
    chosen, obsolete = _match(wanted, own, owner, same)
    deletions = tuple(_deletion(item) for item in obsolete)
    changed = [index for index, item in chosen.items() if not _right(wanted[index], item, owner, same)]
    missing = [index for index in range(len(wanted)) if index not in chosen]
    generations = {_generation(item) for item in chosen.values()}
    if not missing and len(changed) <= 1 and len(generations) == 1:
        generation = generations.pop()
    else:
        generation = max((_generation(item) for item in own), default=0) + 1
        changed = list(chosen)
    since = _since(own) if changed or missing else {}
    specs = {index: _at(wanted[index], generation, since) for index in (*changed, *missing)}
    return Plan(
        deletions=deletions,
        updates=tuple(_update(chosen[index], specs[index], owner) for index in changed),
        creations=tuple(_creation(index, specs[index], owner) for index in missing),
    )


def _match(
    wanted: Sequence[JsonObject],
    own: Sequence[JsonObject],
    owner: Owner,
    same: Callable[[JsonObject, JsonObject], bool],
) -> tuple[dict[int, JsonObject], list[JsonObject]]:
    """Choose one slice per index, in the order of the indices; the rest is obsolete."""
    by_index: dict[int, list[JsonObject]] = {}
    obsolete = []
    for item in sorted(own, key=_name):  # two instances of the driver must choose alike
        index = owner.index_of(item)
        if index is None or index >= len(wanted) or _pool(item) != _pool({"spec": wanted[index]}):
            obsolete.append(item)
        else:
            by_index.setdefault(index, []).append(item)
    chosen = {}
    for index in sorted(by_index):
        first, *others = by_index[index]
        if others:
            first, *others = sorted(by_index[index], key=partial(_preference, wanted[index], owner, same))
        chosen[index] = first
        obsolete.extend(others)
    return chosen, obsolete


def _preference(
    wanted: JsonObject, owner: Owner, same: Callable[[JsonObject, JsonObject], bool], item: JsonObject
) -> tuple[bool, int, str]:
    """Sort duplicates: the one that needs no write, then the newest generation, then the first name."""
    return not _right(wanted, item, owner, same), -_generation(item), _name(item)


def _right(wanted: JsonObject, item: JsonObject, owner: Owner, same: Callable[[JsonObject, JsonObject], bool]) -> bool:
    return _owned(item, owner) and same(wanted, item["spec"])


def _owned(item: JsonObject, owner: Owner) -> bool:
    """Say whether the Node, and not a former one of the same name, owns the slice."""
    references = item["metadata"].get("ownerReferences") or ()
    return owner.node_uid is None or any(one.get("uid") == owner.node_uid for one in references)


def _pool(item: JsonObject) -> str:
    """Return the pool's name, which the API lets nobody change."""
    return str((item["spec"].get("pool") or {}).get("name") or "")


def _generation(item: JsonObject) -> int:
    return int((item["spec"].get("pool") or {}).get("generation") or 0)


def _name(item: JsonObject) -> str:
    return str(item["metadata"].get("name") or "")


def _deletion(item: JsonObject) -> Deletion:
    metadata = item["metadata"]
    return Deletion(name=_name(item), uid=metadata.get("uid"), resource_version=metadata.get("resourceVersion"))


def _update(item: JsonObject, spec: JsonObject, owner: Owner) -> JsonObject:
    """Keep what others put into the metadata; replace the content."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    if not _owned(item, owner):
        metadata["ownerReferences"] = [owner.reference]
    return {**item, "metadata": metadata, "spec": spec}


def _creation(index: int, spec: JsonObject, owner: Owner) -> JsonObject:
    metadata: JsonObject = {"generateName": owner.generate_name(index)}
    if owner.node_uid is not None:
        metadata["ownerReferences"] = [owner.reference]
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": spec,
    }


def _at(wanted: JsonObject, generation: int, since: _Since) -> JsonObject:
    spec = {**wanted, "pool": {**wanted["pool"], "generation": generation}}
    if since and "devices" in wanted:
        spec["devices"] = [_dated(device, since) for device in wanted["devices"]]
    return spec


def _since(own: Iterable[JsonObject]) -> _Since:
    """Return since when devices have their taints."""
    devices = (device for item in own for device in item["spec"].get("devices") or ())
    found = ((device, taint) for device in devices for taint in device.get("taints") or ())
    return {_taint_key(device, taint): taint["timeAdded"] for device, taint in found if taint.get("timeAdded")}


def _dated(device: JsonObject, since: _Since) -> JsonObject:
    taints = device.get("taints")
    if not taints:
        return device
    times = [since.get(_taint_key(device, taint)) for taint in taints]
    dated = [{**taint, "timeAdded": time} if time else taint for taint, time in zip(taints, times, strict=True)]
    return {**device, "taints": dated}


def _taint_key(device: JsonObject, taint: JsonObject) -> tuple[Any, ...]:
    return device.get("name"), taint.get("key"), taint.get("value") or "", taint.get("effect")
