"""Quantities as the API server writes them back: one canonical spelling per value and notation. Pure."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from driver.model.quantity import parse

PATTERN = r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
"""What the server's own message says that a quantity must match."""

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_EXPONENT = re.compile(r"[eE][+-]?\d+$")


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """Return the spelling that a real server stores: `1024Mi` is `1Gi`, `1.5` is `1500m`, `1000` is `1k`.

    :raises InvalidValueError: if it is no quantity.
    """
    value = parse(text.strip())
    if text.strip().endswith("i") and abs(value) >= 1024:
        return _binary(_ceil(value))
    power = _power(value)
    mantissa = _ceil(value / Fraction(10) ** power)
    if _EXPONENT.search(text):
        return f"{mantissa}e{power}" if power else str(mantissa)
    return f"{mantissa}{_DECIMAL[power // 3 + 3]}"


def _ceil(value: Fraction) -> int:
    """Round away from zero, as Kubernetes rounds what is too fine."""
    whole = -(-abs(value.numerator) // value.denominator)
    return whole if value >= 0 else -whole


def _binary(value: int) -> str:
    power = 0
    while power < len(_BINARY) - 1 and value % 1024 == 0:
        value, power = value // 1024, power + 1
    return f"{value}{_BINARY[power]}"


def _power(value: Fraction) -> int:
    """Return the highest power of 1000 (as one of ten) that leaves a whole number; at the least nano."""
    if value == 0:
        return 0
    power = 18
    while power > -9 and (value / Fraction(10) ** power).denominator != 1:
        power -= 3
    return power
