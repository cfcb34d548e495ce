from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import InvalidValueError
from driver.model import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("81559Mi", 81559 << 20),
        ("80Gi", 80 << 30),
        ("80G", 80 * 10**9),
        ("1500m", Fraction(3, 2)),
        ("0.5Gi", 1 << 29),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("-1Ki", -1024),
        ("+2k", 2000),
        ("1e3", 1000),
        ("1E", 10**18),
        ("12E6", 12 * 10**6),
        ("1Ei", 1 << 60),
        ("3n", Fraction(3, 10**9)),
    ],
)
def test_parses_exactly(text: str, value: Fraction) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize("text", ["", "80GiB", "G", "1 Gi", "1KI", "0x10", "1e", "--1", "1.2.3", "٣", "1Gi\n", "∞"])
def test_refuses_what_is_no_quantity_and_says_where(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"spec\.x: invalid value .*: a quantity such as 10Gi"):
        quantity.parse(text, "spec.x")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1, "1"), (1023, "1023"), (81559 << 20, "81559Mi"), (80 << 30, "80Gi"), (-1024, "-1Ki")],
)
def test_writes_the_canonical_binary_form(value: int, text: str) -> None:
    assert quantity.binary_si(value) == text


@given(st.integers(-(1 << 70), 1 << 70))
def test_what_is_written_parses_to_the_same(value: int) -> None:
    assert quantity.parse(quantity.binary_si(value)) == value


def test_a_fraction_of_a_byte_is_rounded_up() -> None:
    assert quantity.parse_bytes("1500m") == 2
    assert quantity.parse_bytes("1Ki") == 1024


def test_two_spellings_are_the_same_and_a_board_of_80_gb_is_no_80gi() -> None:
    assert quantity.parse("1Gi") == quantity.parse("1024Mi")
    assert quantity.parse("81559Mi") < quantity.parse("80Gi")
    assert quantity.parse("81559Mi") > quantity.parse("80G")
