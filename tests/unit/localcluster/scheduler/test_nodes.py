from __future__ import annotations

import pytest

from driver.localcluster.scheduler import nodes, taints

NODE = {"metadata": {"name": "a", "labels": {"zone": "x", "gpus": "8", "word": "big"}}}


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        (("zone", "In", ["x", "y"]), True),
        (("zone", "In", ["y"]), False),
        (("nope", "In", ["x"]), False),
        (("zone", "NotIn", ["y"]), True),
        (("nope", "NotIn", ["y"]), True),
        (("zone", "NotIn", ["x"]), False),
        (("zone", "Exists", None), True),
        (("nope", "Exists", None), False),
        (("nope", "DoesNotExist", None), True),
        (("zone", "DoesNotExist", None), False),
        (("gpus", "Gt", ["4"]), True),
        (("gpus", "Gt", ["8"]), False),
        (("gpus", "Lt", ["9"]), True),
        (("gpus", "Lt", ["8"]), False),
        (("word", "Gt", ["4"]), False),
        (("nope", "Gt", ["4"]), False),
        (("gpus", "Gt", []), False),
        (("zone", "Nonsense", ["x"]), False),
    ],
)
def test_requirements(requirement, matches):
    key, operator, values = requirement
    expression = {"key": key, "operator": operator, **({} if values is None else {"values": values})}
    assert nodes.selector_matches({"nodeSelectorTerms": [{"matchExpressions": [expression]}]}, NODE) is matches


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        ([], False),
        ([{}], False),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}], True),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}], False),
        ([{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}], True),
        (
            [
                {
                    "matchExpressions": [
                        {"key": "zone", "operator": "Exists"},
                        {"key": "nope", "operator": "Exists"},
                    ]
                }
            ],
            False,
        ),
    ],
)
def test_terms_are_ored_and_requirements_anded(terms, matches):
    assert nodes.selector_matches({"nodeSelectorTerms": terms}, NODE) is matches


def test_selector_and_affinity_both_have_to_match():
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpus", "operator": "Gt", "values": ["4"]}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert nodes.affinity_matches({}, NODE)
    assert nodes.affinity_matches({"nodeSelector": {"zone": "x"}, "affinity": affinity}, NODE)
    assert not nodes.affinity_matches({"nodeSelector": {"zone": "y"}, "affinity": affinity}, NODE)
    assert not nodes.affinity_matches(
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}, NODE
    )


TAINT = taints.Taint(key="k", value="v", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k"}, False),
        ({"key": "l", "operator": "Exists"}, False),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({}, False),
        ({"value": "v"}, False),
    ],
)
def test_tolerations(toleration, covers):
    assert taints.tolerates(toleration, TAINT) is covers


def test_taints_are_written_as_kubectl_does():
    assert [
        str(item)
        for item in taints.read([{"key": "k", "value": "v", "effect": "NoExecute"}, {"key": "l", "effect": "None"}])
    ] == [
        "k=v:NoExecute",
        "l:None",
    ]
