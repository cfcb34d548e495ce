"""The border at which the API server's failures become `driver.errors`."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from driver.errors import (
    ApiConflictError,
    ApiError,
    ApiForbiddenError,
    ApiGoneError,
    ApiInvalidError,
    ApiNotFoundError,
    ApiUnauthorizedError,
    ApiUnavailableError,
)
from driver.model.json_object import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

_BY_STATUS: dict[int, type[ApiError]] = {
    401: ApiUnauthorizedError,
    403: ApiForbiddenError,
    404: ApiNotFoundError,
    408: ApiUnavailableError,
    409: ApiConflictError,
    410: ApiGoneError,
    429: ApiUnavailableError,
}
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_UNPERMITTED = re.compile(r'User "(?!system:anonymous")[^"]*" cannot \S+ (resource|path) ')
"""How Kubernetes says that no role permits a call; admission and quotas, which answer 403 too, have other words."""

_LONGEST = 2000  # characters of the server's words that are kept
_LONGEST_WAIT = 3600.0  # seconds; a server that asks for more is not believed


def from_answer(operation: str, status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """Return the error for an HTTP answer; `operation` says what was asked (`GET /api/v1/nodes/a`)."""
    try:
        value = parse_json(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        value = {"message": body.decode(errors="replace")}
    error = _error(operation, status, value)
    if isinstance(error, ApiUnavailableError):
        error.retry_after = _retry_after(headers.get("Retry-After"), value)
    return error


def from_status(operation: str, status: Mapping[str, Any]) -> ApiError:
    """Return the error for a Status object that came inside a watch."""
    code = status.get("code")
    return _error(operation, code if isinstance(code, int) else 500, status)


def _error(operation: str, status: int, value: Mapping[str, Any]) -> ApiError:
    kind = _BY_STATUS.get(status, ApiUnavailableError if status >= 500 else ApiInvalidError)
    reason = _reason(status, value)
    words = " ".join(str(value.get("message") or "no further words").split())
    shown = words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."
    label = f"{status} {reason}".rstrip()
    return kind(f"{operation}: {label}: {shown}{_advice(status, words)}", status=status, reason=reason)


def _advice(status: int, words: str) -> str:
    """Say what to do, where that is certain."""
    if status == _UNAUTHORIZED:
        return (
            "; the credentials are not accepted: if it lasts, check the node's clock, and give the agent new ones: "
            "restart its pod, or renew its kubeconfig"
        )
    if status == _FORBIDDEN and _UNPERMITTED.search(words):
        return "; a role has to permit it: apply those of deploy/base, and of the components in use"
    return ""


def _reason(status: int, value: Mapping[str, Any]) -> str:
    """Return the server's reason. A 404 has one only if an object is missing: of a missing path it names no object."""
    reason, details = value.get("reason"), value.get("details")
    named = isinstance(details, dict) and bool(details.get("name"))
    return reason if isinstance(reason, str) and (named or status != 404) else ""


def _retry_after(header: str | None, value: Mapping[str, Any]) -> float | None:
    details = value.get("details")
    seconds = header if header is not None else details.get("retryAfterSeconds") if isinstance(details, dict) else None
    try:
        wait = float(seconds) if seconds is not None else math.nan
    except (TypeError, ValueError):
        return None  # an HTTP date: the caller's own backoff will do
    return None if math.isnan(wait) else min(max(wait, 0.0), _LONGEST_WAIT)
