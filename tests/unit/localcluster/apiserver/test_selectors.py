from __future__ import annotations

import pytest

from driver.localcluster.apiserver import StatusError
from driver.localcluster.apiserver.resources import RESOURCES
from driver.localcluster.apiserver.selectors import compile_selectors, field_terms, required_value

POD = {
    "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "vllm", "tier": "gpu"}},
    "spec": {"nodeName": "n1", "hostNetwork": True},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("metadata.name=p", True),
        ("metadata.name==p", True),
        ("metadata.name!=p", False),
        ("metadata.namespace=ns,spec.nodeName=n1", True),
        ("metadata.namespace=ns,spec.nodeName=n2", False),
        ("status.phase!=Failed", True),
        ("spec.hostNetwork=true", True),
        ("status.podIP=", True),
        ("spec.nodeName=n1,", True),
    ],
)
def test_field_selectors(selector, matches):
    assert compile_selectors(RESOURCES["pods"], selector, "")(POD) is matches


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("app=vllm", True),
        ("app==vllm,tier=gpu", True),
        ("app!=vllm", False),
        ("other!=x", True),
        ("app in (vllm, triton)", True),
        ("app notin (vllm)", False),
        ("other notin (x)", True),
        ("app", True),
        ("!app", False),
        ("!other,app in (a,vllm),tier", True),
        ("example.com/x", False),
    ],
)
def test_label_selectors(selector, matches):
    assert compile_selectors(RESOURCES["pods"], "", selector)(POD) is matches


def test_no_selector_is_no_predicate():
    assert compile_selectors(RESOURCES["pods"], "", "") is None


@pytest.mark.parametrize("selector", ["spec.driver=x", "metadata.name", "nonsense"])
def test_a_field_that_can_not_be_selected_by_is_400(selector):
    with pytest.raises(StatusError) as caught:
        compile_selectors(RESOURCES["pods"], selector, "")
    assert caught.value.code == 400


@pytest.mark.parametrize("selector", ["a b", "app in vllm", "=x", "a=b=c"])
def test_a_label_selector_that_can_not_be_parsed_is_400(selector):
    with pytest.raises(StatusError) as caught:
        compile_selectors(RESOURCES["pods"], "", selector)
    assert caught.value.code == 400


def test_commas_can_be_escaped():
    assert field_terms(RESOURCES["pods"], r"metadata.name=a\,b") == (("metadata.name", True, "a,b"),)


def test_the_fields_of_a_slice():
    terms = "spec.driver=gpu.nvidia.com,spec.nodeName=n1"
    assert required_value(RESOURCES["resourceslices"], terms, "spec.nodeName") == "n1"
    assert required_value(RESOURCES["resourceslices"], "spec.nodeName!=n1", "spec.nodeName") is None
