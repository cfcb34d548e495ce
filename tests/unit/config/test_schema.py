"""The schema that is shipped: made of the declarations that decode, and of one opinion with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.config.parameters import decode
from driver.config.schema import parameters_schema
from driver.errors import InvalidValueError
from tests.unit.config.test_parameters import DECODED, REFUSED, gpu, mig, mps, slicing

DEPLOYED = Path(__file__).parents[3] / "deploy" / "parameters.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(parameters_schema())

ONLY_DECODING_KNOWS = ("1023Ki", "1")
"""Limits below 1Mi, written as text: more than a pattern can say."""


def decodes(parameters: Any) -> bool:
    try:
        decode(parameters, "p")
    except InvalidValueError:
        return False
    return True


def test_the_shipped_schema_is_the_generated_one() -> None:
    assert json.loads(DEPLOYED.read_text()) == parameters_schema(), (
        f"renew it: gpu-dra parameters-schema >{DEPLOYED.name}"
    )


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(parameters_schema())


@pytest.mark.parametrize("parameters", DECODED)
def test_accepts_what_is_decoded(parameters: dict[str, Any]) -> None:
    VALIDATOR.validate(parameters)


@pytest.mark.parametrize("parameters", REFUSED)
def test_refuses_what_is_refused(parameters: dict[str, Any]) -> None:
    beyond = any(f'"{text}"' in json.dumps(parameters) for text in ONLY_DECODING_KNOWS)
    assert VALIDATOR.is_valid(parameters) == beyond


# What an author may write, each value with those beside it that are nearly right.
memory = st.sampled_from(
    ["10Gi", "1Mi", "1500M", "2e9", "+3Gi", ".5Gi", 1 << 20, (1 << 20) - 1, "10GiB", "", True, None]
)
mps_config = st.fixed_dictionaries(
    {},
    optional={
        "defaultActiveThreadPercentage": st.sampled_from([0, 50, 100, 101, -1, "50", True, None]),
        "defaultPinnedDeviceMemoryLimit": memory,
        "defaultPerDevicePinnedMemoryLimit": st.one_of(
            st.none(), st.dictionaries(st.sampled_from(["0", "15", "100", "x", f"GPU-{'0' * 36}"]), memory, max_size=2)
        ),
        "multiUser": st.sampled_from([True, False, None, "yes"]),
        "extra": st.just(1),
    },
)
slicing_config = st.fixed_dictionaries({}, optional={"interval": st.sampled_from(["Default", "Long", "long", None, 1])})
sharing = st.fixed_dictionaries(
    {},
    optional={
        "strategy": st.sampled_from(["MPS", "MPS", "TimeSlicing", "TimeSlicing", "mps", None]),
        "mpsConfig": st.one_of(st.none(), mps_config, st.just([])),
        "timeSlicingConfig": st.one_of(st.none(), slicing_config),
    },
)
parameters = st.builds(lambda make, value: make(value), st.sampled_from([gpu, mig]), sharing)


@given(parameters)
def test_the_schema_and_decoding_agree(content: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(content) == decodes(content)


@pytest.mark.parametrize("content", [gpu(mps(multiUser=None)), gpu(slicing({"interval": None})), gpu(slicing(None))])
def test_null_is_nothing_for_both(content: dict[str, Any]) -> None:
    assert decodes(content)
    assert VALIDATOR.is_valid(content)
