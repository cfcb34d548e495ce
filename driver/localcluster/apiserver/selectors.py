"""Label and field selectors: parse once, match often. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from driver.localcluster.apiserver.errors import bad_request
from driver.localcluster.apiserver.objects import Object, lookup, metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.localcluster.apiserver.resources import Resource

_ALWAYS = ("metadata.name", "metadata.namespace")
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "events": (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
        "reportingComponent", "source", "type",
    ),
    "resourceslices": ("spec.driver", "spec.nodeName"),
    "replicasets": ("status.replicas",),
    "jobs": ("status.successful",),
}  # fmt: skip
_SPLIT = re.compile(r"(?<!\\),")
_FIELD_TERM = re.compile(r"([^=!]+?)(==|!=|=)(.*)", re.DOTALL)
_LABEL_SET = re.compile(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)")
_LABEL_SPLIT = re.compile(r",(?![^(]*\))")
_LABEL_TERM = re.compile(r"([^\s=!]+)\s*(==|!=|=)\s*([^\s=!]*)")
_KEY = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")


@lru_cache(maxsize=512)
def field_terms(resource: Resource, selector: str) -> tuple[tuple[str, bool, str], ...]:
    """Parse a field selector into (path, must be equal, value).

    :raises StatusError: 400 if it can't be parsed or the resource has no such field to select by.
    """
    allowed = (*_ALWAYS, *_FIELDS.get(resource.plural, ()))
    terms = []
    for text in filter(None, _SPLIT.split(selector)):
        match = _FIELD_TERM.fullmatch(text)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
        path, operator, value = match.groups()
        path = path.replace("regarding.", "involvedObject.", 1)  # as events.k8s.io calls it
        if path not in allowed:
            raise bad_request(f'field label not supported: "{path}" (supported: {", ".join(sorted(allowed))})')
        terms.append((path, operator != "!=", re.sub(r"\\([,=\\])", r"\1", value)))
    return tuple(terms)


def _field_matcher(term: tuple[str, bool, str]) -> Callable[[Object], bool]:
    path, equal, value = term

    def matches(obj: Object) -> bool:
        found = lookup(obj, path)
        text = "" if found is None else ("true" if found else "false") if isinstance(found, bool) else str(found)
        return (text == value) is equal

    return matches


@lru_cache(maxsize=512)
def label_terms(selector: str) -> tuple[tuple[str, str, frozenset[str]], ...]:
    """Parse a label selector into (key, operator, values); operators are in, notin, exists and absent.

    :raises StatusError: 400 if it can't be parsed.
    """
    terms = []
    for text in filter(None, (part.strip() for part in _LABEL_SPLIT.split(selector))):
        key, operator, values = _label_term(text)
        if not _KEY.fullmatch(key):
            raise bad_request(f"unable to parse requirement: <nil>: Invalid value: \"{key}\" in '{selector}'")
        terms.append((key, operator, values))
    return tuple(terms)


def _label_term(text: str) -> tuple[str, str, frozenset[str]]:
    if match := _LABEL_SET.fullmatch(text):
        return match[1], match[2], frozenset(value.strip() for value in match[3].split(","))
    if match := _LABEL_TERM.fullmatch(text):
        return match[1], "notin" if match[2] == "!=" else "in", frozenset([match[3]])
    if text.startswith("!"):
        return text[1:].strip(), "absent", frozenset()
    return text, "exists", frozenset()


def matches_labels(terms: tuple[tuple[str, str, frozenset[str]], ...], labels: Mapping[str, str]) -> bool:
    """Say whether labels satisfy all terms of a parsed label selector."""
    return all(_label_matches(labels, *term) for term in terms)


def _label_matches(labels: Mapping[str, str], key: str, operator: str, values: frozenset[str]) -> bool:
    if operator == "in":
        return labels.get(key) in values
    if operator == "notin":
        return labels.get(key) not in values
    return (key in labels) is (operator == "exists")


@lru_cache(maxsize=512)
def compile_selectors(resource: Resource, fields: str, labels: str) -> Callable[[Object], bool] | None:
    """Return a predicate for both selectors, None if everything matches.

    :raises StatusError: 400 for a selector that can't be parsed.
    """
    tests = [_field_matcher(term) for term in field_terms(resource, fields)]
    wanted = label_terms(labels)
    if wanted:
        tests.append(lambda obj: matches_labels(wanted, metadata(obj).get("labels") or {}))
    if not tests:
        return None
    return lambda obj: all(test(obj) for test in tests)


def required_value(resource: Resource, fields: str, path: str) -> str | None:
    """Return the value that a field selector requires of a path, None if it requires none."""
    return next((value for found, equal, value in field_terms(resource, fields) if found == path and equal), None)
