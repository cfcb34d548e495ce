"""The PATCH verb: which patch, applied to the object in the version that the client speaks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver import errors, repeated
from driver.localcluster.apiserver.apply import Applied, apply_configuration
from driver.localcluster.apiserver.codec import decode, shown, to_json
from driver.localcluster.apiserver.objects import clone, metadata
from driver.localcluster.apiserver.options import field_validation
from driver.localcluster.apiserver.patch import json_patch, merge_patch
from driver.localcluster.apiserver.schema import strict_error
from driver.localcluster.apiserver.strategic import strategic_patch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driver.localcluster.apiserver.admission import Gate
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Target
    from driver.localcluster.apiserver.store import Store

_MERGE: Final = "application/merge-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_JSON: Final = "application/json-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
PATCH_TYPES: Final = (_JSON, _MERGE, _STRATEGIC, _APPLY)
"""The content types of patches."""


def apply_patch(
    store: Store,
    target: Target,
    content_type: str,
    patch: Any,
    options: Mapping[str, str],
    *,
    dry_run: bool,
    admit: Gate | None = None,
) -> tuple[Object, bool, list[str]]:
    """Patch the target; return it as stored, whether it is new (only by apply), and warnings.

    :raises StatusError: as `Store.update` and `Store.create`, and for a patch that can't be applied.
    """
    if content_type == _APPLY:
        return _apply(store, target, patch, options, dry_run=dry_run, admit=admit)
    warnings: list[str] = []

    def change(old: Object) -> Object:
        before = shown(target.served, old)
        after = _patched(target, content_type, before, patch)
        mode = field_validation(options)
        stored, unknown = decode(target.served, after, "Warn" if mode == "Strict" else mode)
        found = [*_repeated_in(content_type, patch), *unknown] if mode != "Ignore" else []
        if found and mode == "Strict":
            raise _not_strict(patch if content_type == _STRATEGIC else after, found)
        warnings.extend(found)
        return stored

    plural = target.served.resource.plural
    obj = store.modify(
        plural, target.name, target.namespace, change, subresource=target.subresource, dry_run=dry_run, admit=admit
    )
    return obj, False, warnings


def _repeated_in(content_type: str, patch: Any) -> list[str]:
    return list(repeated.in_operations(patch) if content_type == _JSON else repeated.anywhere(patch))


def _not_strict(value: Any, found: list[str]) -> errors.StatusError:
    """Return the refusal of a strict client's patch; a real server names no object, and shows what it refuses."""
    text = f"Invalid value: {json.dumps(to_json(value).decode())}: {strict_error(found)}"
    details = {"causes": [{"reason": "FieldValueInvalid", "message": text, "field": "patch"}]}
    return errors.StatusError(422, "Invalid", f' "" is invalid: patch: {text}', details=details)


def _patched(target: Target, content_type: str, before: Object, patch: Any) -> Any:
    if content_type == _JSON:
        return json_patch(before, patch)
    if not isinstance(patch, dict):
        raise errors.bad_request("the patch is not an object")
    if content_type == _MERGE:
        return merge_patch(before, patch)
    return strategic_patch(target.served.api_version, target.served.resource.kind, before, patch)


def _apply(
    store: Store, target: Target, config: Any, options: Mapping[str, str], *, dry_run: bool, admit: Gate | None
) -> tuple[Object, bool, list[str]]:
    manager = options.get("fieldManager", "")
    if not manager:
        raise errors.bad_request(
            "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for apply patch"
        )
    mode, lines = field_validation(options), repeated.as_error(repeated.lines(config))
    if lines and mode == "Strict":
        raise errors.bad_request(f"error strict decoding YAML: error converting YAML to JSON: {lines[0]}")
    checked, warnings = decode(target.served, config, mode)
    meta = checked.setdefault("metadata", {})
    if meta.setdefault("name", target.name) != target.name:
        raise errors.bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL ({target.name})"
        )
    if metadata(checked).get("managedFields"):
        raise errors.bad_request("metadata.managedFields must be nil")
    plural = target.served.resource.plural
    old = store.find(plural, target.name, target.namespace)
    _check_uid(target, meta.pop("uid", None), old)
    applied = Applied(
        config=shown(target.served, checked),
        manager=manager,
        subresource=target.subresource,
        force=options.get("force") in ("1", "true"),
        now=store.now(),
    )
    before = clone(shown(target.served, old)) if old is not None else {}
    after, _ = decode(target.served, apply_configuration(target.served, before, applied), "Ignore")
    if old is None:
        if target.subresource:
            raise errors.not_found(target.served.resource, target.name)
        created = store.create(plural, after, target.namespace or None, dry_run=dry_run, admit=admit)
        return created, True, warnings
    return store.update(plural, after, subresource=target.subresource, dry_run=dry_run, admit=admit), False, warnings


def _check_uid(target: Target, uid: object, old: Object | None) -> None:
    """Refuse an apply to an object that was, and is gone or another one by now."""
    is_now = metadata(old).get("uid") if old is not None else None
    if uid and uid != is_now:
        what = f"the UID in the object meta: {is_now}" if is_now else "no existing object was found"
        raise errors.conflict(target.served.resource, target.name, f"uid mismatch: {uid} was provided, but {what}")
