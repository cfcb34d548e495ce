"""What NVIDIA's device plugin is told about health, in its config file and by its variables, as rules of ours. Pure.

A GPU has one verdict, whichever API offers it, so these wishes hold for the node. What they make harmless is told like
an application's fault, and the GPU stays in service. A GPU that does not answer stays out of it, whatever is wished:
nobody could use it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.model.decode import boolean, integer
from driver.model.health import Severity
from driver.model.health_facts import Kind
from driver.model.health_rules import MAX_XID, Rule, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from driver.model.decode import Fields

DISABLE, ENABLE = "DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"
XID_EVENT, ECC_EVENT = "EventTypeXidCriticalError", "EventTypeDoubleBitEccError"
EVENT_TYPES = (XID_EVENT, ECC_EVENT, "EventTypeSingleBitEccError")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFlags:
    """The wishes. `disabled` is about all checks; `ignored_xids` come on top of those that applications cause.

    `critical_xids` None: all others. `enabled_xids` are critical whatever the rest says; None: all are.
    """

    disabled: bool = False
    ignored_xids: tuple[int, ...] = ()
    critical_xids: tuple[int, ...] | None = None
    enabled_xids: tuple[int, ...] | None = ()
    event_types: tuple[str, ...] = ()


NO_WISHES = HealthFlags()


def decode_health(fields: Fields | None, environ: Mapping[str, str]) -> HealthFlags:
    """Return what the file's section `health` says, and the variables over it.

    :raises InvalidValueError: naming the path or the variable.
    """
    found = _from_file(fields) if fields is not None else NO_WISHES
    if environ.get(DISABLE):
        found = _disabled(found, environ[DISABLE])
    if environ.get(ENABLE):
        words, source = _words(environ[ENABLE]), f"environment variable {ENABLE}"
        enabled = None if {"all", "xids"} & set(words) else tuple(_numbers(words, source))
        found = replace(found, enabled_xids=enabled)
    return found


def plugin_rules(rules: Rules, flags: HealthFlags) -> Rules:
    """Return the rules as the flags wish to have them."""
    if flags == NO_WISHES:
        return rules
    kinds = dict(rules.kinds)
    for kind, rule in rules.kinds.items():
        if kind is not Kind.LOST and (flags.disabled or _is_unwatched(kind, flags)):
            kinds[kind] = _harmless(rule)
    kinds[Kind.XID] = _wished(None, rules.kinds[Kind.XID], flags)
    named = {*flags.ignored_xids, *(flags.critical_xids or ()), *(flags.enabled_xids or ())}
    numbers = sorted({*rules.xids, *named})
    xids = {number: _wished(number, rules.of_xid(number), flags) for number in numbers}
    return replace(rules, kinds=MappingProxyType(kinds), xids=MappingProxyType(xids))


def _is_unwatched(kind: Kind, flags: HealthFlags) -> bool:
    return kind is Kind.ECC and bool(flags.event_types) and ECC_EVENT not in flags.event_types


def _wished(number: int | None, rule: Rule, flags: HealthFlags) -> Rule:
    """Return the rule of an XID, or (None) of those that nobody names."""
    if flags.enabled_xids is None or number in flags.enabled_xids:
        return _critical(rule)
    if flags.disabled or number in flags.ignored_xids or (flags.event_types and XID_EVENT not in flags.event_types):
        return _harmless(rule)
    if flags.critical_xids is None:
        return rule
    return _critical(rule) if number in flags.critical_xids else _harmless(rule)


def _harmless(rule: Rule) -> Rule:
    return replace(rule, severity=min(rule.severity, Severity.NOTICE), effect=None)


def _critical(rule: Rule) -> Rule:
    return replace(rule, severity=max(rule.severity, Severity.RESET))


# --- the file --------------------------------------------------------------------------------------------------------


def _from_file(fields: Fields) -> HealthFlags:
    disabled = fields.take("disabled", None)
    off = disabled is not None and boolean(disabled, fields.at("disabled"))
    ignored = _xids(fields, "ignoredXIDs")
    critical = _xids(fields, "criticalXIDs", word="all")
    events = tuple(_event_type(item, path) for item, path in fields.items("eventTypes", []))
    fields.done()
    both = sorted(set(ignored or ()) & set(critical or ()))
    if both:
        raise InvalidValueError(fields.at("criticalXIDs"), both, "must not be in ignoredXIDs too")
    return HealthFlags(disabled=off, ignored_xids=ignored or (), critical_xids=critical, event_types=events)


def _xids(fields: Fields, key: str, word: str = "") -> tuple[int, ...] | None:
    value = fields.take(key, None)
    if value is None or (word and isinstance(value, str) and value.lower() == word):
        return None
    if not isinstance(value, list):
        raise InvalidValueError(fields.at(key), value, f"must be a list of XIDs{f' or {word}' if word else ''}")
    return tuple(integer(item, f"{fields.at(key)}[{position}]", 1, MAX_XID) for position, item in enumerate(value))


def _event_type(value: object, path: str) -> str:
    if value not in EVENT_TYPES:
        raise InvalidValueError(path, value, f"must be one of {', '.join(EVENT_TYPES)}")
    return str(value)


# --- the variables ---------------------------------------------------------------------------------------------------


def _disabled(found: HealthFlags, value: str) -> HealthFlags:
    """Return the wishes with what DP_DISABLE_HEALTHCHECKS says: `all`, `xids`, or XIDs."""
    words = _words(value)
    if "all" in words:
        return replace(found, disabled=True)
    if "xids" in words:
        return replace(found, critical_xids=())
    more = _numbers(words, f"environment variable {DISABLE}")
    return replace(found, ignored_xids=tuple(dict.fromkeys((*found.ignored_xids, *more))))


def _words(value: str) -> list[str]:
    return [word for word in (part.strip().lower() for part in value.split(",")) if word]


def _numbers(words: list[str], source: str) -> Iterator[int]:
    for word in words:
        if not word.isdecimal():
            raise InvalidValueError(source, word, "must be all, xids, or XIDs separated by commas")
        yield integer(int(word), source, 1, MAX_XID)
