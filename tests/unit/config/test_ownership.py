from __future__ import annotations

import pytest

from driver.config.ownership import decode_rules, parse_rules
from driver.errors import InvalidValueError
from driver.model.ownership import Owner, Rule, Rules

UUID = "GPU-35b94161-286f-53e8-8a75-ade40dbb2355"


@pytest.mark.parametrize(
    ("line", "default", "rules"),
    [
        ("dra", Owner.DRA, ()),
        ("device-plugin", Owner.DEVICE_PLUGIN, ()),
        ("device-plugin:index=0,1", Owner.DRA, ({"owner": Owner.DEVICE_PLUGIN, "indices": (0, 1)},)),
        ("withheld:pci=00000000:1B:00.0", Owner.DRA, ({"owner": Owner.WITHHELD, "pci_ids": ("0000:1b:00.0",)},)),
        (
            f"device-plugin; dra:uuid={UUID};withheld:count=1",
            Owner.DEVICE_PLUGIN,
            ({"owner": Owner.DRA, "uuids": (UUID,)}, {"owner": Owner.WITHHELD, "count": 1}),
        ),
        ("device-plugin:product=*L4*", Owner.DRA, ({"owner": Owner.DEVICE_PLUGIN, "products": ("*L4*",)},)),
    ],
)
def test_one_line(line, default, rules):
    found = parse_rules(line, "--ownership")
    assert found.default is default
    assert found.rules == tuple(Rule(**rule, source=one.source) for rule, one in zip(rules, found.rules, strict=True))
    assert all(rule.source.startswith("--ownership: ") for rule in found.rules)


def test_a_file():
    document = {
        "default": "device-plugin",
        "rules": [{"owner": "dra", "index": 0}, {"owner": "withheld", "product": ["*L4*", "*T4*"]}],
    }
    found = decode_rules(document, "o.yaml")
    assert found.default is Owner.DEVICE_PLUGIN
    assert [(rule.indices, rule.products) for rule in found.rules] == [((0,), ()), ((), ("*L4*", "*T4*"))]
    assert found.rules[1].source == "o.yaml: rules[1]"
    assert decode_rules(None, "o.yaml") == Rules()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gpu", "must be one of dra, device-plugin, withheld"),
        ("", "must be one of"),
        ("dra;device-plugin", "only one owner"),
        ("dra:0", "must be OWNER:SELECTOR=VALUES"),
        ("dra:minor=0", "with one of index, uuid, pci, product, count"),
        ("dra:index=", "must be a whole number"),
        ("dra:index=-1", "must be a whole number"),
        ("dra:uuid=GPU-1", "must be a GPU's UUID"),
        ("dra:pci=1b", "must be a PCI bus id"),
        ("dra:count=0", "from 1"),
        ("dra:count=1,2", "must be a whole number"),
        ("dra:product=", "not empty"),
        ("dra:index=0;device-plugin:index=0", "is given to both dra and device-plugin"),
    ],
)
def test_bad_lines(line, words):
    with pytest.raises(InvalidValueError, match="--ownership") as caught:
        parse_rules(line, "--ownership")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "a mapping"),
        ({"defaults": "dra"}, "did you mean 'default'?"),
        ({"default": True}, "o.yaml: default"),
        ({"rules": {}}, "o.yaml: rules"),
        ({"rules": ["dra"]}, "o.yaml: rules[0]"),
        ({"rules": [{"owner": "dra"}]}, "must have exactly one of"),
        ({"rules": [{"owner": "dra", "index": 0, "count": 1}]}, "must have exactly one of"),
        ({"rules": [{"owner": "dra", "index": []}]}, "names no GPU"),
        ({"rules": [{"owner": "dra", "index": True}]}, "o.yaml: rules[0].index"),
        ({"rules": [{"owner": "dra", "count": "2"}]}, "o.yaml: rules[0].count"),
        ({"rules": [{"owner": "dra", "uuid": 7}]}, "must be a GPU's UUID"),
        ({"rules": [{"index": 0}]}, "o.yaml: rules[0].owner"),
        ({"rules": [{"owner": "dra", "index": 0, "gpu": 1}]}, "o.yaml: rules[0].gpu"),
    ],
)
def test_bad_files(document, words):
    with pytest.raises(InvalidValueError) as caught:
        decode_rules(document, "o.yaml")
    assert words in str(caught.value)
