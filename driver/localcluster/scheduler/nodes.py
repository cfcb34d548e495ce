"""Which nodes a selector chooses: node selectors, terms with expressions and fields. Pure.

Source: the API's description of `NodeSelector`: terms are ORed, requirements within a term are ANDed, an empty term
matches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Object = Mapping[str, Any]


def labels_of(node: Object) -> Mapping[str, str]:
    """Return a node's labels."""
    return (node.get("metadata") or {}).get("labels") or {}


def name_of(node: Object) -> str:
    """Return a node's name."""
    return str((node.get("metadata") or {}).get("name") or "")


def selector_matches(selector: Object, node: Object) -> bool:
    """Say whether a `NodeSelector` chooses the node."""
    return any(_term_matches(term, node) for term in selector.get("nodeSelectorTerms") or ())


def affinity_matches(pod_spec: Object, node: Object) -> bool:
    """Say whether the pod's `nodeSelector` and its required node affinity allow the node."""
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in (pod_spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or selector_matches(required, node)


def _term_matches(term: Object, node: Object) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_requirement_matches(requirement, labels_of(node)) for requirement in expressions) and all(
        _requirement_matches(requirement, {"metadata.name": name_of(node)}) for requirement in fields
    )


def _requirement_matches(requirement: Object, labels: Mapping[str, str]) -> bool:
    key, operator = str(requirement.get("key")), requirement.get("operator")
    values: Sequence[str] = requirement.get("values") or ()
    value = labels.get(key)
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator == "NotIn":
        return value is None or value not in values
    if value is None:
        return False
    return value in values if operator == "In" else _compares(operator, value, values)


def _compares(operator: Any, value: str, values: Sequence[str]) -> bool:
    try:
        left, right = int(value), int(values[0])
    except (ValueError, IndexError):
        return False
    return {"Gt": left > right, "Lt": left < right}.get(operator, False)
