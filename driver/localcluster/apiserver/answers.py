"""HTTP answers of the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from driver.localcluster.apiserver.codec import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.localcluster.apiserver.errors import StatusError
    from driver.localcluster.apiserver.registry import Served

_JSON = "application/json"


def raw(data: bytes, *, status: int = 200, content_type: str = _JSON, warnings: Iterable[str] = ()) -> web.Response:
    """Answer with encoded JSON."""
    response = web.Response(body=data, status=status, headers={"Content-Type": content_type})
    for warning in warnings:
        text = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{text}"')
    return response


def json_answer(value: Any, *, status: int = 200, content_type: str = _JSON) -> web.Response:
    """Answer with a value."""
    return raw(to_json(value), status=status, content_type=content_type)


def refusal(error: StatusError) -> web.Response:
    """Answer with a `Status`."""
    response = json_answer(error.status(), status=error.code)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def success(served: Served, name: str, uid: str) -> web.Response:
    """Answer a deletion that is complete."""
    details = {"name": name, "kind": served.resource.plural, "uid": uid}
    if served.group:
        details["group"] = served.group
    return json_answer({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
