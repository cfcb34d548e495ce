from __future__ import annotations

import pytest

from driver.errors import InvalidValueError
from driver.inventory.fake_spec import decode_node, load_node, parse_node
from driver.inventory.profiles import Wiring, load_products

PRODUCTS = load_products()


def groups(text: str) -> list[tuple[str, int, Wiring]]:
    return [(one.product.name, one.count, one.wiring) for one in parse_node(text, PRODUCTS).groups]


def plan(text: str) -> list[tuple[str, int]]:
    mig = parse_node(text, PRODUCTS).groups[0].mig
    assert mig is not None
    return [(profile.name, placement.start) for profile, placement in mig]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h100:8", [("h100", 8, Wiring.NVSWITCH)]),
        ("h100", [("h100", 1, Wiring.NVSWITCH)]),
        ("a100-80:4, l4:2", [("a100-80", 4, Wiring.NVSWITCH), ("l4", 2, Wiring.NONE)]),
        ("a100-80:4@pairs", [("a100-80", 4, Wiring.BRIDGE)]),
        ("h100:2@none", [("h100", 2, Wiring.NONE)]),
        ("a30:2", [("a30", 2, Wiring.BRIDGE)]),
        ("h100-pcie:4@nvswitch", [("h100-pcie", 4, Wiring.NVSWITCH)]),
        ("h100:1,h100:2@mig=1g.10gb@none", [("h100", 1, Wiring.NVSWITCH), ("h100", 2, Wiring.NONE)]),
    ],
)
def test_groups(text, expected):
    assert groups(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h100@mig", []),
        ("h100@mig=1g.10gb", [("1g.10gb", 0)]),
        ("h100@mig=1g.10gb*3", [("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2)]),
        ("h100@mig=1g.10gb+me+1g.10gb", [("1g.10gb+me", 0), ("1g.10gb", 1)]),
        ("h100@mig=1g.10gb+3g.40gb", [("1g.10gb", 0), ("3g.40gb", 4)]),
        ("h100@mig=1g.10gb+4g.40gb", [("1g.10gb", 4), ("4g.40gb", 0)]),  # 4g starts at 0 only
        ("h100@mig=3g.40gb+2g.20gb*2", [("3g.40gb", 4), ("2g.20gb", 0), ("2g.20gb", 2)]),  # 2g never starts at 6
        ("h100@mig=3g.40gb:4", [("3g.40gb", 4)]),
        ("h100@mig=1g.20gb:6", [("1g.20gb", 6)]),
        ("rtx-pro-6000@mig=1g.24gb*2+2g.48gb", [("1g.24gb", 0), ("1g.24gb", 3), ("2g.48gb", 6)]),
    ],
)
def test_mig_plans(text, expected):
    assert plan(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be PRODUCT"),
        (",", "must be PRODUCT"),
        ("h100:8,", "must be PRODUCT"),
        (":8", "must be PRODUCT"),
        ("h100 :8", "must be PRODUCT"),
        ("h10:8", "did you mean 'h100'"),
        ("H100:8", "did you mean 'h100'"),
        ("voodoo2", "no such product; known: a10"),
        ("h100:0", "whole number from 1 to 1024"),
        ("h100:-1", "whole number from 1 to 1024"),
        ("h100:1.5", "whole number from 1 to 1024"),
        ("h100:", "whole number from 1 to 1024"),
        ("h100:1025", "whole number from 1 to 1024"),
        ("h100:٣", "whole number from 1 to 1024"),  # a digit, but not one of ours
        ("h100:600,l4:600", "1 to 1024 GPUs"),
        ("h100@ring", "no such option"),
        ("h100@", "no such option"),
        ("h100@pairs=2", "no such option"),
        ("h100@mig=", "no such option"),
        ("l4@pairs", "l4 has no NVLink"),
        ("l4@mig=1g.10gb", "no MIG"),
        ("h100@mig=1g.5gb", "did you mean '1g.*known: 1g.10gb, 1g.10gb.me"),
        ("h100@mig=1g.10gb*8", "at most 7 of it"),
        ("h100@mig=1g.10gb*0", "a MIG device is PROFILE"),
        ("h100@mig=3g.40gb:2", "3g.40gb starts at 0, 4"),
        ("h100@mig=4g.40gb+3g.40gb:0", "don't fit on one h100"),
        ("h100@mig=3g.40gb*2+1g.10gb", "don't fit on one h100"),
    ],
)
def test_a_bad_specification_says_what_is_allowed(text, message):
    with pytest.raises(InvalidValueError, match=message) as caught:
        parse_node(text, PRODUCTS, "--gpus")
    assert caught.value.path == "--gpus"


def test_a_file_says_the_same_and_more(tmp_path):
    file = tmp_path / "node.yaml"
    file.write_text("""
driver_version: "570.169"
gpus:
- product: a100-80
  count: 2
  nvlink: pairs
- product: h100
  mig: [1g.10gb*2, "3g.40gb:4"]
- product: h100
  mig: []
- product: l4
""")
    node = load_node(str(file), PRODUCTS)
    assert [(one.product.name, one.count, one.wiring) for one in node.groups] == [
        ("a100-80", 2, Wiring.BRIDGE),
        ("h100", 1, Wiring.NVSWITCH),
        ("h100", 1, Wiring.NVSWITCH),
        ("l4", 1, Wiring.NONE),
    ]
    assert [one.mig is not None and len(one.mig) for one in node.groups] == [False, 3, 0, False]
    assert (node.versions.driver, node.versions.cuda) == ("570.169", "13.0")


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "node.yaml"),
        ({}, "node.yaml: gpus"),
        ({"gpus": "h100:8"}, "node.yaml: gpus"),
        ({"gpus": []}, "node.yaml: gpus"),
        ({"gpus": ["h100"]}, "node.yaml: gpus[0]"),
        ({"gpus": [{"count": 1}]}, "node.yaml: gpus[0].product"),
        ({"gpus": [{"product": "h1000000"}]}, "node.yaml: gpus[0].product"),
        ({"gpus": [{"product": "h100"}, {"product": "h100", "count": True}]}, "node.yaml: gpus[1].count"),
        ({"gpus": [{"product": "h100", "nvlink": "ring"}]}, "node.yaml: gpus[0].nvlink"),
        ({"gpus": [{"product": "h100", "mig": "1g.10gb"}]}, "node.yaml: gpus[0].mig"),
        ({"gpus": [{"product": "h100", "mig": ["9g.10gb"]}]}, "node.yaml: gpus[0].mig"),
        ({"gpus": [{"product": "h100", "mig": [3]}]}, "node.yaml: gpus[0].mig[0]"),
        ({"gpus": [{"product": "l4", "nvlink": "pairs"}]}, "node.yaml: gpus[0].nvlink"),
        ({"gpus": [{"product": "h100", "cuont": 8}]}, "node.yaml: gpus[0].cuont"),
        ({"gpus": [{"product": "h100"}], "cuda_version": 13.0}, "node.yaml: cuda_version"),
        ({"gpus": [{"product": "h100"}], "nodes": 2}, "node.yaml: nodes"),
    ],
)
def test_a_bad_file_names_the_field(value, field):
    with pytest.raises(InvalidValueError) as caught:
        decode_node(value, PRODUCTS, "node.yaml")
    assert caught.value.path == field


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidValueError, match=r"none\.yaml: .*No such file"):
        load_node(str(tmp_path / "none.yaml"), PRODUCTS)
