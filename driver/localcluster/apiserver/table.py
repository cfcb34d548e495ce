"""Tables: what `kubectl get` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.localcluster.apiserver.codec import shown
from driver.localcluster.apiserver.objects import metadata

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Served


def wants(accept: str) -> str:
    """Return the view that an Accept header asks for: Table, PartialObjectMetadata(List), or nothing."""
    for part in accept.split(","):
        fields = part.replace(" ", "").split(";")
        if fields[0] not in ("application/json", "*/*", "application/*"):
            continue
        return next((field[3:] for field in fields if field.startswith("as=")), "")
    return ""


def as_table(served: Served, objects: list[Object], meta: Object) -> Object:
    """Return a Table."""
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "columnDefinitions": [], "rows": []}


def partial(served: Served, objects: list[Object], meta: Object | None, *, single: bool) -> Object:
    """Return objects with their metadata only."""
    kind = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    items = [{**kind, "metadata": metadata(shown(served, obj))} for obj in objects]
    if single:
        return items[0]
    return {**kind, "kind": "PartialObjectMetadataList", "metadata": meta or {}, "items": items}
