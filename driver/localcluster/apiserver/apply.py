"""Server-side apply: merge a configuration, remember who set which field, refuse to take another's. Pure.

Only managers that apply are tracked; plain updates own nothing here, so they cause no conflicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver import fieldset
from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.fields import Field, fields_of, type_name
from driver.localcluster.apiserver.objects import clone, metadata

if TYPE_CHECKING:
    from driver.localcluster.apiserver.fieldset import FieldSet, Path
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Served

_UNOWNED: Final = {("f:apiVersion",), ("f:kind",), ("f:metadata", "f:name"), ("f:metadata", "f:namespace")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a client applies, and how."""

    config: Object
    manager: str
    subresource: str
    force: bool
    now: str


def apply_configuration(served: Served, before: Object, applied: Applied) -> Object:
    """Return the object after the apply; `before` is empty if there is none yet.

    :raises StatusError: 409 if another manager applied another value to a field and `force` is not set.
    """
    type_ = type_name(served.api_version, served.resource.kind)
    wanted = [path for path in fieldset.paths(fieldset.of(type_, applied.config)) if path not in _UNOWNED]
    entries = list(metadata(before).get("managedFields") or ())
    mine = next((entry for entry in entries if _is_mine(entry, applied)), None)
    others = [entry for entry in entries if entry is not mine]
    conflicts = _conflicts(type_, before, applied.config, wanted, others)
    if conflicts and not applied.force:
        raise _conflict(conflicts)
    others = [_without(entry, {path for _, path in conflicts}) for entry in others]
    after = _merged(type_, before, applied.config)
    for path in _abandoned(mine, wanted, others):
        fieldset.remove(type_, after, path)
    metadata(after)["managedFields"] = [*filter(None, others), _entry(served, applied, mine, wanted)]
    return after


def _is_mine(entry: Object, applied: Applied) -> bool:
    key = (applied.manager, applied.subresource, "Apply")
    return (entry.get("manager"), entry.get("subresource", ""), entry.get("operation")) == key


def _owned(entry: Object) -> set[Path]:
    return set(fieldset.paths(entry.get("fieldsV1") or {}))


def _conflicts(
    type_: str | None, before: Object, config: Object, wanted: list[Path], others: list[Object]
) -> list[tuple[str, Path]]:
    found = []
    for entry in others:
        owned = _owned(entry)
        for path in wanted:
            if path in owned and path[-1] != fieldset.SELF:
                is_now, asked = fieldset.lookup(type_, before, path), fieldset.lookup(type_, config, path)
                if not fieldset.is_missing(is_now) and is_now != asked:
                    found.append((str(entry.get("manager")), path))
    return found


def _conflict(conflicts: list[tuple[str, Path]]) -> StatusError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": _shown(path)}
        for manager, path in conflicts
    ]
    first = f'conflict with "{conflicts[0][0]}": {causes[0]["field"]}'
    many = f"Apply failed with {len(causes)} conflict{'s' if len(causes) > 1 else ''}: "
    text = first if len(causes) == 1 else "conflicts: " + ", ".join(f"{c['message']}: {c['field']}" for c in causes)
    return StatusError(409, "Conflict", many + text, details={"causes": causes})


def _shown(path: Path) -> str:
    return "".join(f".{step[2:]}" if step.startswith("f:") else f"[{step[2:]}]" for step in path)


def _without(entry: Object, taken: set[Path]) -> Object | None:
    left = [path for path in fieldset.paths(entry.get("fieldsV1") or {}) if path not in taken]
    return {**entry, "fieldsV1": fieldset.from_paths(left)} if left else None


def _abandoned(mine: Object | None, wanted: list[Path], others: list[Object | None]) -> list[Path]:
    """Return what this manager set before, sets no more, and nobody else sets.

    Whole elements come first: without the fields that are its key, an element is not found any more.
    """
    if mine is None:
        return []
    kept = set(wanted).union(*(_owned(entry) for entry in others if entry))
    return sorted(_owned(mine) - kept, key=lambda path: (path[-1] != fieldset.SELF, -len(path), path))


def _entry(served: Served, applied: Applied, mine: Object | None, wanted: list[Path]) -> Object:
    fields: FieldSet = fieldset.from_paths(wanted)
    if mine is not None and mine.get("fieldsV1") == fields:
        return mine
    entry: Object = {
        "manager": applied.manager,
        "operation": "Apply",
        "apiVersion": served.api_version,
        "time": applied.now,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return entry | ({"subresource": applied.subresource} if applied.subresource else {})


def _merged(type_: str | None, target: Any, config: Object) -> Object:
    result: Object = dict(target)
    fields = fields_of(type_) if type_ else {}
    for key, value in config.items():
        result[key] = _merged_field(fields.get(key), result.get(key), value)
    return result


def _merged_field(field: Field | None, target: Any, value: Any) -> Any:
    inner = field.type if field is not None and field.is_message else None
    if isinstance(value, dict) and isinstance(target, dict):
        if field is not None and field.shape == "map":
            new = {key: _merged(inner, target.get(key) or {}, item) if inner else item for key, item in value.items()}
            return {**target, **new}
        return _merged(inner, target, value)
    if isinstance(value, list) and isinstance(target, list) and field is not None and (field.keys or field.is_set):
        return _merged_list(field, target, value)
    return clone(value)


def _merged_list(field: Field, target: list[Any], config: list[Any]) -> list[Any]:
    places = {fieldset.element(field, item): at for at, item in enumerate(target)}
    result = list(target)
    for item in config:
        at = places.get(fieldset.element(field, item))
        if at is None:
            result.append(clone(item))
        elif field.keys:
            result[at] = _merged(field.type if field.is_message else None, result[at], item)
    return result
