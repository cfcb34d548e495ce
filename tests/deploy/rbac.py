"""What a role permits against what is called. Calls are (verb, API group, resource, subresource, name)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Call(NamedTuple):
    """A call as RBAC sees it."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    name: str = ""


def permitted(rules: Iterable[dict[str, Any]]) -> set[Call]:
    """Return all that the rules permit. Wildcards are not expected in a role of ours."""
    found = set()
    for rule in rules:
        known = {"apiGroups", "resources", "verbs"}
        assert known <= set(rule) <= known | {"resourceNames"}, f"a rule with more than is understood here: {rule}"
        objects = rule.get("resourceNames", [""])
        assert objects, f"an empty list of names permits all: {rule}"
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                name, _, subresource = resource.partition("/")
                found |= {Call(verb, group, name, subresource, one) for verb in rule["verbs"] for one in objects}
    assert not [call for call in found if "*" in call], "a wildcard permits what nobody calls"
    return found


def missing(rules: Iterable[dict[str, Any]], calls: Iterable[Call]) -> set[Call]:
    """Return the calls that the rules forbid."""
    return set(calls) - permitted(rules)


def unused(rules: Iterable[dict[str, Any]], calls: Iterable[Call]) -> set[Call]:
    """Return what the rules permit and nobody calls."""
    return permitted(rules) - set(calls)
