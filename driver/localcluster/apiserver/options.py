"""The parameters of requests: paging, dry run, field validation, how to delete."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

from driver.localcluster.apiserver import errors
from driver.localcluster.apiserver.codec import parse
from driver.localcluster.apiserver.objects import metadata
from driver.localcluster.apiserver.schema import check
from driver.localcluster.apiserver.validation.common import unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from driver.localcluster.apiserver.journal import Entry
    from driver.localcluster.apiserver.objects import Object

_PROPAGATIONS: Final = ("Background", "Foreground", "Orphan")


def dry_run(query: Mapping[str, str]) -> bool:
    """Say whether nothing is to be stored.

    :raises StatusError: 400.
    """
    given = query.get("dryRun", "")
    if given not in ("", "All"):
        raise errors.bad_request(f'dryRun: Unsupported value: "{given}": supported values: "All"')
    return given == "All"


def field_validation(query: Mapping[str, str]) -> str:
    """Return what to do about unknown and repeated fields; that it is one of the three is checked where it is used."""
    return query.get("fieldValidation") or "Warn"


def page(entries: list[Entry], query: Mapping[str, str], revision: int) -> tuple[list[Entry], Object]:
    """Cut a list at `limit` and begin it after `continue`; return it with the metadata of the list.

    :raises StatusError: 400.
    """
    meta: Object = {"resourceVersion": str(revision)}
    if token := query.get("continue"):
        after = _after(token)
        entries = [entry for entry in entries if _place(entry) > after]
    limit = _number("limit", query.get("limit") or "0")
    if 0 < limit < len(entries):
        last = json.dumps(_place(entries[limit - 1])).encode()
        meta["continue"] = base64.urlsafe_b64encode(last).decode()
        meta["remainingItemCount"] = len(entries) - limit
        entries = entries[:limit]
    return entries, meta


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise errors.bad_request(f'{name}: Invalid value: "{text}": a whole number of at least 0')
    return int(text)


def _place(entry: Entry) -> list[str]:
    meta = metadata(entry.body)
    return [meta.get("namespace", ""), meta["name"]]


def _after(token: str) -> list[str]:
    try:
        namespace, name = json.loads(base64.urlsafe_b64decode(token))
    except (ValueError, TypeError) as exc:
        raise errors.bad_request(f"continue key is not valid: {token}") from exc
    return [str(namespace), str(name)]


async def delete_options(request: web.BaseRequest) -> Object:
    """Return the DeleteOptions of a request: its body, and over it its query.

    :raises StatusError: 400 if they can't be understood, 422 if a value is not allowed.
    """
    raw = await request.read()
    body = parse(raw, request.headers.get("Content-Type", "")) if raw else {}
    if not isinstance(body, dict):
        raise errors.bad_request("the request's body is not DeleteOptions")
    options, _ = check("meta.k8s.io/v1", "DeleteOptions", body)
    query = request.query
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = _number("gracePeriodSeconds", query["gracePeriodSeconds"])
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    if dry_run(query):
        options["dryRun"] = ["All"]
    policy = options.get("propagationPolicy")
    if policy is not None and policy not in _PROPAGATIONS:
        cause = unsupported("propagationPolicy", policy, _PROPAGATIONS)
        raise errors.StatusError(422, "Invalid", f'DeleteOptions.meta.k8s.io "" is invalid: {cause}')
    return options
