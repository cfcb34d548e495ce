"""Bytes to objects and back, in the version that the client speaks. Encodings are kept with the entry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver import protobuf, yaml_json
from driver.localcluster.apiserver.conversion import from_served, to_served
from driver.localcluster.apiserver.errors import bad_request, unsupported_media_type
from driver.localcluster.apiserver.repeated import from_pairs
from driver.localcluster.apiserver.schema import check

if TYPE_CHECKING:
    from driver.localcluster.apiserver.journal import Entry
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Served

_JSON: Final = ("", "application/json", "*/*")
_YAML: Final = ("application/yaml", "application/apply-patch+yaml")


def to_json(value: Any) -> bytes:
    """Encode compactly."""
    return json.dumps(value, separators=(",", ":")).encode()


def shown(served: Served, obj: Object) -> Object:
    """Return a stored object in the served version, its kind and version first."""
    view = to_served(served.api_version, served.resource.plural, obj)
    return {"kind": served.resource.kind, "apiVersion": served.api_version, **view}


def encoded(served: Served, entry: Entry) -> bytes:
    """Return an entry's JSON in the served version."""
    found = entry.encoded.get(served.api_version)
    if found is None:
        found = entry.encoded[served.api_version] = to_json(shown(served, entry.body))
    return found


def parse(raw: bytes, content_type: str, *, others: tuple[str, ...] = ()) -> Any:
    """Decode a request's body, JSON or YAML; `others` are further names of JSON that the endpoint takes.

    Keys that were sent more than once are remembered (`repeated`).

    :raises StatusError: 415 for another content type, 400 for what can't be parsed.
    """
    kind = content_type.split(";")[0].strip().lower()
    if kind == protobuf.CONTENT_TYPE:
        return protobuf.read(raw)
    if kind in _YAML:
        return _parse_yaml(raw)
    if kind not in _JSON and kind not in others:
        raise unsupported_media_type(kind, ("application/json", "application/yaml", *others))
    try:
        return json.loads(raw, parse_constant=_no_constant, object_pairs_hook=from_pairs)
    except ValueError as exc:
        raise bad_request(f"couldn't get version/kind; json parse error: {exc}") from exc


def _no_constant(name: str) -> Any:
    raise ValueError(f"invalid character in {name}")


def _parse_yaml(raw: bytes) -> Any:
    try:
        return yaml_json.load(raw)
    except ValueError as exc:
        raise bad_request(f"error converting YAML to JSON: {exc}") from exc


def decode(served: Served, body: Any, field_validation: str = "Warn") -> tuple[Object, list[str]]:
    """Return a body as the store holds such objects, and warnings about what it did not understand.

    :raises StatusError: 400 for another kind or version than the endpoint's, for values of a wrong type, and for
        unknown and repeated fields if `field_validation` is Strict.
    """
    if not isinstance(body, dict):
        raise bad_request(f"the request's body is not a {served.resource.kind} object")
    _check_kind(served, body)
    pruned, warnings = check(served.api_version, served.resource.kind, body, field_validation)
    stored = from_served(served.api_version, served.resource.plural, served.resource.api_version, pruned)
    return stored, warnings


def _check_kind(served: Served, body: Object) -> None:
    version = body.get("apiVersion") or served.api_version
    kind = body.get("kind") or served.resource.kind
    if version != served.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({served.api_version})"
        )
    if kind != served.resource.kind:
        raise bad_request(
            f'{kind} in version "{version}" cannot be handled as a {served.resource.kind}: '
            f"converting ({kind}) to ({served.resource.kind}): unknown conversion"
        )
