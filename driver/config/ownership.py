"""Rules of ownership, as the setting and its file say them. Pure.

In one line: `dra`, or `dra;device-plugin:index=0,1;withheld:uuid=GPU-…`. A word alone is who has the GPUs that no rule
names; a rule has one selector: `index`, `uuid`, `pci`, `product` (a pattern with `*`), or `count`. As a file:

```yaml
default: dra
rules:
  - {owner: device-plugin, index: [0, 1]}
  - {owner: withheld, product: "*L4*"}
  - {owner: device-plugin, count: 2}
```
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from driver.errors import InvalidValueError
from driver.model import names
from driver.model.decode import Fields, integer, text
from driver.model.ownership import Owner, Rule, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

OWNERS = tuple(owner.value for owner in Owner)
SELECTORS = ("index", "uuid", "pci", "product", "count")
_MOST = 1 << 10
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def parse_rules(line: str, source: str) -> Rules:
    """Return the rules that one line says.

    :raises InvalidValueError: naming `source`.
    """
    default: Owner | None = None
    rules = []
    for part in (part.strip() for part in line.split(";")):
        owner, colon, selector = part.partition(":")
        if not colon:
            if default is not None:
                raise InvalidValueError(source, line, "only one owner can have the GPUs that no rule names")
            default = _owner(owner, source)
        else:
            rules.append(_parse_rule(_owner(owner, source), selector, f"{source}: {part}"))
    return _checked(Rules(default=default or Owner.DRA, rules=tuple(rules)), source)


def decode_rules(document: object, source: str) -> Rules:
    """Return the rules that a YAML document says; an empty one (None) gives all GPUs to DRA.

    :raises InvalidValueError: naming `source` and the path in it.
    """
    fields = Fields({} if document is None else document, source, separator=": ")
    default = _owner(fields.take("default", Owner.DRA.value), fields.at("default"))
    rules = tuple(_decode_rule(item, path) for item, path in fields.items("rules", []))
    fields.done()
    return _checked(Rules(default=default, rules=rules), source)


def _owner(value: object, path: str) -> Owner:
    if value not in OWNERS:
        raise InvalidValueError(path, value, f"must be one of {', '.join(OWNERS)}")
    return Owner(str(value))


def _parse_rule(owner: Owner, selector: str, source: str) -> Rule:
    kind, equals, values = selector.partition("=")
    if not equals or kind not in SELECTORS:
        raise InvalidValueError(source, selector, f"must be OWNER:SELECTOR=VALUES with one of {', '.join(SELECTORS)}")
    items: list[object] = [value.strip() for value in values.split(",")]
    if kind in ("index", "count"):
        items = [int(str(item)) if str(item).isdecimal() else item for item in items]
    return _rule(owner, kind, items[0] if kind == "count" and len(items) == 1 else items, source)


def _decode_rule(item: object, path: str) -> Rule:
    fields = Fields(item, path)
    owner = _owner(fields.take("owner"), fields.at("owner"))
    given = {kind: value for kind in SELECTORS if (value := fields.take(kind, None)) is not None}
    fields.done()
    if len(given) != 1:
        raise InvalidValueError(path, sorted(given), f"must have exactly one of {', '.join(SELECTORS)}")
    ((kind, value),) = given.items()
    return _rule(owner, kind, value, path)


def _rule(owner: Owner, kind: str, value: object, path: str) -> Rule:
    if kind == "count":
        return Rule(owner=owner, count=integer(value, f"{path}.count", 1, _MOST), source=path)
    where = f"{path}.{kind}"
    items = value if isinstance(value, list) else [value]
    if not items:
        raise InvalidValueError(where, value, "names no GPU: give at least one")
    checks = {"index": _index, "uuid": _uuid, "pci": _pci, "product": text}
    found: tuple[Any, ...] = tuple(checks[kind](item, where) for item in items)
    fields = {"index": "indices", "uuid": "uuids", "pci": "pci_ids", "product": "products"}
    selector: dict[str, Any] = {fields[kind]: found}
    return Rule(owner=owner, source=path, **selector)


def _index(value: object, path: str) -> int:
    return integer(value, path, 0, _MOST)


def _uuid(value: object, path: str) -> str:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise InvalidValueError(path, value, "must be a GPU's UUID, GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")
    return value


def _pci(value: object, path: str) -> str:
    found = names.pci_bus_id(value) if isinstance(value, str) else ""
    if not _PCI.fullmatch(found):
        raise InvalidValueError(path, value, "must be a PCI bus id such as 0000:65:00.0 (in quotes)")
    return found


def _checked(rules: Rules, source: str) -> Rules:
    """Refuse a GPU that is named twice for different owners; what only a node can tell is told there."""
    seen: dict[tuple[str, object], Owner] = {}
    for rule in rules.rules:
        for key in _keys(rule):
            if seen.setdefault(key, rule.owner) is not rule.owner:
                raise InvalidValueError(source, key[1], f"is given to both {seen[key]} and {rule.owner}; name it once")
    return rules


def _keys(rule: Rule) -> Iterator[tuple[str, object]]:
    for kind in ("indices", "uuids", "pci_ids", "products"):
        for value in getattr(rule, kind):
            yield kind, value
