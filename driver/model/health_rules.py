"""From facts to a verdict, by a table of rules. Pure: the same facts in any order give the same verdict.

| severity | what it means | how an XID of it is cleared; all other facts are as the last check found them |
|---|---|---|
| notice (application) | told, the GPU stays in service | by a check that passes after some quiet time |
| reset | out of service | the GPU came back from a reset, or says for some quiet time that it needs none |
| fatal | out of service | the GPU came back from a reset |

What an earlier agent saw may be cleared as if it were of the class reset: its reset may have been while no agent ran.

The XIDs are those that NVIDIA's own tools skip as an application's fault (13, 31, 43, 45, 68, 109), and others by
NVIDIA's Xid catalog. One that is not here is serious until the GPU says otherwise (H1).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.model.decode import Fields, suggestion
from driver.model.health import HEALTHY, MAX_TAINTS, Effect, Health, Severity, Taint, ordered, shorten
from driver.model.health_facts import Kind
from driver.model.names import DRIVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.model.health_facts import Fact

MAX_XID = 9999
"""The driver's numbers are far below; what is above is no XID."""

_WORDS = {
    "ignore": Severity.IGNORED,
    "application": Severity.NOTICE,
    "notice": Severity.NOTICE,
    "reset": Severity.RESET,
    "fatal": Severity.FATAL,
}
_NAMES = {Kind.LOST: "gpu-lost"}  # taints' names where the peer's differ from ours


@dataclass(frozen=True, slots=True)
class Rule:
    """How bad a fact is, and the effect of its taint; None: by its severity. `meaning` is for people."""

    severity: Severity
    effect: Effect | None = None
    meaning: str = ""


_KINDS: Mapping[Kind, Rule] = MappingProxyType(
    {
        Kind.LOST: Rule(Severity.FATAL),
        Kind.XID: Rule(Severity.RESET, meaning="an error that this driver does not know"),
        Kind.RESET_REQUIRED: Rule(Severity.RESET),
        Kind.REBOOT_REQUIRED: Rule(Severity.FATAL),
        Kind.REMAP_PENDING: Rule(Severity.RESET),
        Kind.REMAP_FAILED: Rule(Severity.FATAL),
        Kind.ECC: Rule(Severity.RESET),
        Kind.FABRIC: Rule(Severity.NOTICE),
        Kind.FABRIC_FAILED: Rule(Severity.RESET),
        Kind.NVLINK_DOWN: Rule(Severity.NOTICE),
        Kind.NVLINK_ERRORS: Rule(Severity.NOTICE),
        Kind.TEMPERATURE: Rule(Severity.RESET),
        Kind.MPS: Rule(Severity.RESET),
        Kind.PROBE: Rule(Severity.RESET),
        Kind.UNMONITORED: Rule(Severity.NOTICE),
    }
)
_APPLICATION, _RESET, _FATAL = Severity.NOTICE, Severity.RESET, Severity.FATAL
_XIDS: Mapping[int, Rule] = MappingProxyType(
    {
        13: Rule(_APPLICATION, meaning="graphics engine exception, by an application"),
        31: Rule(_APPLICATION, meaning="memory page fault, by an application"),
        43: Rule(_APPLICATION, meaning="an application's channel stopped"),
        45: Rule(_APPLICATION, meaning="an application's channels were cleaned up"),
        68: Rule(_APPLICATION, meaning="video decoder exception, by an application"),
        109: Rule(_APPLICATION, meaning="context switch timeout, by an application"),
        46: Rule(_RESET, meaning="the GPU stopped processing"),
        48: Rule(_RESET, meaning="uncorrectable memory error"),
        62: Rule(_RESET, meaning="internal microcontroller halt"),
        63: Rule(_RESET, meaning="a memory row is to be remapped"),
        64: Rule(_FATAL, meaning="a memory row could not be remapped"),
        74: Rule(_RESET, meaning="NVLink error"),
        79: Rule(_FATAL, meaning="the GPU has fallen off the bus"),
        94: Rule(_RESET, meaning="contained memory error"),
        95: Rule(_RESET, meaning="uncontained memory error"),
        119: Rule(_RESET, meaning="the GPU system processor does not answer"),
        120: Rule(_RESET, meaning="error of the GPU system processor"),
        140: Rule(_RESET, meaning="unrecovered memory error"),
        154: Rule(_RESET, meaning="the recovery that the GPU needs has changed"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The table. `serious` is the taint effect of what takes a GPU out of service, unless a rule has its own."""

    kinds: Mapping[Kind, Rule] = field(default_factory=lambda: _KINDS)
    xids: Mapping[int, Rule] = field(default_factory=lambda: _XIDS)
    serious: Effect = Effect.NO_SCHEDULE

    def of(self, fact: Fact) -> Rule:
        """Return the rule that a fact falls under."""
        if fact.kind is Kind.XID and fact.code in self.xids:
            return self.xids[fact.code]
        return self.kinds[fact.kind]

    def of_xid(self, xid: int) -> Rule:
        """Return the rule of an XID."""
        return self.xids.get(xid, self.kinds[Kind.XID])

    def effect_of(self, rule: Rule) -> Effect:
        """Return the effect of a rule's taint."""
        if rule.effect is not None:
            return rule.effect
        return Effect.NONE if rule.severity <= Severity.NOTICE else self.serious


DEFAULT_RULES = Rules()


def judge(facts: Iterable[Fact], rules: Rules = DEFAULT_RULES) -> Health:
    """Return the verdict on a GPU of which exactly these facts are known; the worst comes first and stands (H3)."""
    ruled = {(rules.of(fact), fact) for fact in facts}
    counted = sorted((entry for entry in ruled if entry[0].severity > Severity.IGNORED), key=_badness)
    if not counted:
        return HEALTHY
    return Health(
        healthy=counted[0][0].severity <= Severity.NOTICE,
        reason=shorten("; ".join(dict.fromkeys(_told(rule, fact) for rule, fact in counted))),
        taints=_taints(counted, rules),
    )


def _badness(entry: tuple[Rule, Fact]) -> tuple[int, Fact]:
    return -entry[0].severity, entry[1]


def _told(rule: Rule, fact: Fact) -> str:
    if fact.kind is not Kind.XID:
        return fact.detail or str(fact.kind)
    where = f" in {fact.detail}" if fact.detail else ""
    return f"XID {fact.code}{where}: {rule.meaning}"


def _taints(counted: list[tuple[Rule, Fact]], rules: Rules) -> tuple[Taint, ...]:
    """Return one taint per key and value, with its heaviest effect; of too many, those that weigh most."""
    heaviest: dict[tuple[str, str], Effect] = {}
    for rule, fact in counted:
        key = f"{DRIVER}/{_NAMES.get(fact.kind, fact.kind)}"
        value = str(fact.code) if fact.kind is Kind.XID else ""
        effect = rules.effect_of(rule)
        heaviest[key, value] = max(heaviest.get((key, value), effect), effect, key=lambda one: one.weight)
    taints = [Taint(key, value, effect) for (key, value), effect in heaviest.items()]  # the worst facts first
    taints.sort(key=lambda one: -one.effect.weight)
    return ordered(set(taints[:MAX_TAINTS]))


# --- a file of rules -------------------------------------------------------------------------------------------------


def decode_rules(value: object, path: str, base: Rules = DEFAULT_RULES) -> Rules:
    """Return `base` as changed by a rules file's content; an empty one changes nothing.

    ```yaml
    xids:
      94: application                               # or reset, fatal, ignore
      999: {severity: fatal, effect: NoExecute}
      other: application                            # those that nobody knows
    facts:
      nvlink-down: reset
      temperature: {severity: notice, effect: None}
    ```

    :raises InvalidValueError: naming the field.
    """
    if value is None:
        return base
    fields = Fields(value, path, separator=": ")
    xids = _entries(fields.take("xids", None), fields.at("xids"))
    facts = _entries(fields.take("facts", None), fields.at("facts"))
    fields.done()
    kinds, numbers = dict(base.kinds), dict(base.xids)
    for key, entry in xids.items():
        at = f"{fields.at('xids')}.{key}"
        if key == "other":
            kinds[Kind.XID] = _rule(entry, at, base.kinds[Kind.XID])
        else:
            number = _number(key, at)
            numbers[number] = _rule(entry, at, base.of_xid(number))
    for key, entry in facts.items():
        at = f"{fields.at('facts')}.{key}"
        kind = _kind(key, at)
        kinds[kind] = _rule(entry, at, base.kinds[kind])
    return replace(base, kinds=MappingProxyType(kinds), xids=MappingProxyType(numbers))


def _entries(value: object, path: str) -> dict[object, object]:
    if value is not None and not isinstance(value, dict):
        raise InvalidValueError(path, value, "must be a mapping to severities")
    return value or {}


def _number(key: object, path: str) -> int:
    if isinstance(key, bool) or not isinstance(key, int) or not 1 <= key <= MAX_XID:
        raise InvalidValueError(path, key, f"must be an XID, a number from 1 to {MAX_XID}, or 'other'")
    return key


def _kind(key: object, path: str) -> Kind:
    words = [str(kind) for kind in Kind if kind is not Kind.XID]
    if key not in words:
        raise InvalidValueError(path, key, f"no such fact; {suggestion(str(key), words)}")
    return Kind(str(key))


def _rule(value: object, path: str, before: Rule) -> Rule:
    if isinstance(value, str):
        return replace(before, severity=_severity(value, path), effect=None)
    fields = Fields(value, path)
    severity = _severity(fields.take("severity"), fields.at("severity"))
    effect = fields.choice("effect", list(Effect)) if "effect" in fields else None
    fields.take("effect", None)
    fields.done()
    return replace(before, severity=severity, effect=Effect(effect) if effect else None)


def _severity(value: object, path: str) -> Severity:
    if not isinstance(value, str) or value not in _WORDS:
        raise InvalidValueError(path, value, f"must be one of {', '.join(_WORDS)}")
    return _WORDS[value]
