"""Which writes a policy, or its binding, is about: `matchConstraints` and `matchResources`. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.objects import Object, metadata
from driver.localcluster.apiserver.selectors import matches_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.localcluster.apiserver.registry import Served

_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A write: of what, through which version, and the objects in the stored version (None where there is none)."""

    served: Served
    operation: str
    namespace: str
    name: str
    subresource: str
    new: Object | None
    old: Object | None
    namespace_object: Object | None


def matched(constraints: Mapping[str, Any], subject: Subject) -> Served | None:
    """Return the version in which the expressions see the objects; None if they are not concerned.

    An equivalent version of a resource matches, too, unless `matchPolicy` is `Exact`.
    """
    exact = constraints.get("matchPolicy") == "Exact"
    if _first(constraints.get("excludeResourceRules") or (), subject, exact=exact):
        return None
    if not _selected(constraints, subject):
        return None
    rules = constraints.get("resourceRules")
    return subject.served if rules is None else _first(rules, subject, exact=exact)


def _first(rules: Iterable[Mapping[str, Any]], subject: Subject, *, exact: bool) -> Served | None:
    return next((found for rule in rules if (found := _version(rule, subject, exact=exact))), None)


def _version(rule: Mapping[str, Any], subject: Subject, *, exact: bool) -> Served | None:
    served = subject.served
    versions = rule.get("apiVersions") or ()
    names, scope = rule.get("resourceNames"), rule.get("scope") or "*"
    fits = (
        _has(rule.get("apiGroups"), served.group)
        and _has(rule.get("operations"), subject.operation)
        and any(_names(pattern, subject) for pattern in rule.get("resources") or ())
        and (not names or subject.name in names)
        and scope in ("*", "Namespaced" if served.resource.namespaced else "Cluster")
    )
    if not fits:
        return None
    if _has(versions, served.version):
        return served
    return None if exact or not versions else replace(served, version=versions[0])


def _names(pattern: str, subject: Subject) -> bool:
    plural = subject.served.resource.plural
    if not subject.subresource:
        return pattern in ("*", "*/*", plural)
    return pattern in ("*/*", f"{plural}/*", f"*/{subject.subresource}", f"{plural}/{subject.subresource}")


def _has(values: Iterable[str] | None, wanted: str) -> bool:
    return bool(values) and ("*" in values or wanted in values)  # type: ignore[operator]


def _selected(constraints: Mapping[str, Any], subject: Subject) -> bool:
    by_object, by_namespace = constraints.get("objectSelector"), constraints.get("namespaceSelector")
    if by_object and not any(_matches(by_object, obj) for obj in (subject.new, subject.old) if obj is not None):
        return False
    is_namespace = subject.served.resource.plural == "namespaces"
    holder = (subject.new or subject.old) if is_namespace else subject.namespace_object
    return not by_namespace or holder is None or _matches(by_namespace, holder)


def _matches(selector: Mapping[str, Any], obj: Object) -> bool:
    terms = [(key, "in", frozenset([value])) for key, value in (selector.get("matchLabels") or {}).items()]
    terms += [
        (each["key"], _OPERATORS[each["operator"]], frozenset(each.get("values") or ()))
        for each in selector.get("matchExpressions") or ()
    ]
    return matches_labels(tuple(terms), metadata(obj).get("labels") or {})
