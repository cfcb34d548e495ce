"""Tables and metadata-only views: what `kubectl get` and metadata clients ask for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.codec import shown
from driver.localcluster.apiserver.columns import AGE, COLUMNS, NAME
from driver.localcluster.apiserver.objects import metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driver.localcluster.apiserver.columns import Column
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Served

_META_VERSION = "meta.k8s.io/v1"
_JSON = ("application/json", "application/*", "*/*")


def wants(accept: str) -> str:
    """Return the view that an Accept header asks for: Table, PartialObjectMetadata(List), or nothing."""
    if "as=" not in accept:
        return ""
    for part in accept.split(","):
        fields = part.replace(" ", "").split(";")
        if fields[0] in _JSON:
            return next((field[3:] for field in fields if field.startswith("as=")), "")
    return ""


def as_table(served: Served, objects: Sequence[Object], meta: Object, include: str = "Metadata") -> Object:
    """Return a Table; `include` says what each row carries of its object: None, Metadata or Object."""
    columns = COLUMNS.get(served.resource.plural, (NAME, AGE))
    now = datetime.now(UTC)
    return {
        "kind": "Table",
        "apiVersion": _META_VERSION,
        "metadata": meta,
        "columnDefinitions": [_definition(column) for column in columns],
        "rows": [_row(served, obj, columns, now, include) for obj in objects],
    }


def _definition(column: Column) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": "name" if column is NAME else "",
        "description": "",
        "priority": 1 if column.wide else 0,
    }


def _row(served: Served, obj: Object, columns: Sequence[Column], now: datetime, include: str) -> Object:
    row: dict[str, Any] = {"cells": [column.value(obj, now) for column in columns]}
    if include == "Object":
        row["object"] = shown(served, obj)
    elif include == "Metadata":
        row["object"] = _partial(obj)
    return row


def _partial(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": _META_VERSION, "metadata": metadata(obj)}


def partial(objects: Sequence[Object], meta: Object | None) -> Object:
    """Return objects with nothing but their metadata, as a list; without `meta` the only one of them."""
    items = [_partial(obj) for obj in objects]
    if meta is None:
        return items[0]
    return {"kind": "PartialObjectMetadataList", "apiVersion": _META_VERSION, "metadata": meta, "items": items}
