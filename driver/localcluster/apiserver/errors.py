"""The API server's refusals: what a client sees as a `Status` object.

Wording and reasons follow the answers of a real API server (`recordings: slice-validation`), so that clients which
look at them behave the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driver.errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from driver.localcluster.apiserver.resources import Resource


class StatusError(DriverError):
    """A request was refused. `code` is the HTTP status, `reason` the machine-readable word of the API."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})
        self.retry_after = retry_after

    def status(self) -> dict[str, Any]:
        """Return the `Status` object of this refusal."""
        details = dict(self.details)
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        return status | {"details": details} if details or self.code == 404 else status  # kubectl looks into a 404's


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One field that is wrong: `text` is the message without the field's path."""

    field: str
    reason: str
    text: str

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


def _object_details(resource: Resource, name: str, *, kind: str = "") -> dict[str, Any]:
    details = {"name": name, "group": resource.group, "kind": kind or resource.plural}
    return {key: value for key, value in details.items() if value}


def not_found(resource: Resource, name: str) -> StatusError:
    """404 for an object."""
    return StatusError(
        404, "NotFound", f'{resource.qualified} "{name}" not found', details=_object_details(resource, name)
    )


def no_such_path() -> StatusError:
    """404 for a path that no resource is served at."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: Resource, name: str) -> StatusError:
    """409 for a create of what exists."""
    text = f'{resource.qualified} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, details=_object_details(resource, name))


def conflict(resource: Resource, name: str, why: str = "") -> StatusError:
    """409 for a write that is based on an old object, or that fails a precondition."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    text = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return StatusError(409, "Conflict", text, details=_object_details(resource, name))


def forbidden(resource: Resource, name: str, why: str) -> StatusError:
    """403 of admission."""
    return StatusError(
        403,
        "Forbidden",
        f'{resource.qualified} "{name}" is forbidden: {why}',
        details=_object_details(resource, name),
    )


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def gone(since: int, oldest: int) -> StatusError:
    """410 for a watch or a list that goes back too far."""
    return StatusError(410, "Expired", f"too old resource version: {since} ({oldest})")


def method_not_allowed() -> StatusError:
    """405."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(given: str, supported: Sequence[str]) -> StatusError:
    """415."""
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(supported)}"
    return StatusError(415, "UnsupportedMediaType", f"{text} (got {given or 'none'})")


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> StatusError:
    """422 with every field that is wrong."""
    shown = [str(cause) for cause in causes]
    text = shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"
    details = _object_details(resource, name, kind=resource.kind)
    details["causes"] = [{"reason": c.reason, "message": c.text, "field": c.field} for c in causes]
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details=details)
