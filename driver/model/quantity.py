"""Kubernetes quantities: parse exactly, write canonically.

Source of the grammar: `k8s.io/apimachinery/pkg/api/resource.Quantity` (its documentation, not its code).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from driver.errors import InvalidValueError

MI, GI = 1 << 20, 1 << 30

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
PATTERN = r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?[0-9]{1,3}|)"
"""The grammar, as a regular expression that JSON Schema knows, too."""

_QUANTITY = re.compile(PATTERN)
_ALLOWED = "a quantity such as 10Gi, 40G, 512Mi or 1500m"


def parse(text: str, path: str = "quantity") -> Fraction:
    """Return the exact value of a quantity.

    :raises InvalidValueError: naming `path`.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidValueError(path, text, _ALLOWED)
    number, suffix = match.groups()
    value = Fraction(number)
    if suffix in _BINARY:
        return value * Fraction(1 << 10 * _BINARY[suffix])
    if suffix in _DECIMAL:
        return value * Fraction(f"1e{_DECIMAL[suffix]}")
    return value * Fraction(f"1e{suffix[1:]}")


def parse_bytes(text: str, path: str = "quantity") -> int:
    """Return a quantity as whole bytes, rounded up as Kubernetes does.

    :raises InvalidValueError: naming `path`.
    """
    value = parse(text, path)
    return -(-value.numerator // value.denominator)


@lru_cache(maxsize=1024)  # the slices of a large node write few amounts very often
def binary_si(value: int) -> str:
    """Write bytes or a count in canonical BinarySI form: the largest suffix that divides it (`81559Mi`)."""
    for suffix, power in reversed(_BINARY.items()):
        unit = 1024**power
        if value and value % unit == 0:
            return f"{value // unit}{suffix}"
    return str(value)
