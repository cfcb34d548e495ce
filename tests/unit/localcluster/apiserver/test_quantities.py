from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import InvalidValueError
from driver.localcluster.apiserver.quantities import canonical
from driver.model.quantity import parse


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("81559Mi", "81559Mi"),
        ("1024Mi", "1Gi"),
        ("0.5Gi", "512Mi"),
        ("1.5Gi", "1536Mi"),
        ("80G", "80G"),
        ("1000", "1k"),
        ("1000000", "1M"),
        ("1.5", "1500m"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("0", "0"),
        ("0Gi", "0"),
        ("-1", "-1"),
        ("100Ki", "100Ki"),
        ("0.5Ki", "512"),
        ("1e3", "1e3"),
        ("12e2", "1200"),
        ("0.1n", "1n"),
        (" 5 ", "5"),
    ],
)
def test_canonical(text, stored):
    assert canonical(text) == stored


@given(st.integers(-(10**12), 10**12), st.sampled_from(["", "k", "M", "G", "m", "Ki", "Mi", "Gi"]))
def test_the_value_stays(number, suffix):
    text = f"{number}{suffix}"
    assert parse(canonical(text)) == parse(text)
    assert canonical(canonical(text)) == canonical(text)


@pytest.mark.parametrize("text", ["", "x", "80GiB", "1.2.3", "--1", "1 Gi"])
def test_what_is_no_quantity(text):
    with pytest.raises(InvalidValueError):
        canonical(text)
