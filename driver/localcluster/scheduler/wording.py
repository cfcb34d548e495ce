"""How the reasons for people are worded: values, and how two of them differ. Pure."""

from __future__ import annotations

import json
from typing import Any

from driver._pb import cel_values_pb2 as pb
from driver.localcluster.scheduler import celvalues


def show(value: Any) -> str:
    """Write a CEL value: quantities in their shortest spelling, strings quoted."""
    if isinstance(value, pb.Quantity):
        return celvalues.show(celvalues.fraction(value))
    if isinstance(value, pb.Semver):
        return value.exact
    return json.dumps(value) if isinstance(value, (str, bool)) else str(value)


def relation(function: str, a: Any, b: Any) -> str:
    """Say how `a` fails `a <function> b`: `is below 80Gi by 361Mi`."""
    wanted = show(b)
    if function in ("_>=_", "_>_"):
        return f"is not above {wanted}" if a == b else f"is below {wanted}{_by(a, b)}"
    return f"is not below {wanted}" if a == b else f"is above {wanted}{_by(a, b)}"


def _by(a: Any, b: Any) -> str:
    if isinstance(a, pb.Quantity) and isinstance(b, pb.Quantity):
        return f" by {celvalues.show(abs(celvalues.fraction(a) - celvalues.fraction(b)))}"
    return f" by {abs(a - b)}" if isinstance(a, int) and isinstance(b, int) else ""


def difference(a: Any, b: Any) -> str:
    """Say by how much a quantity misses the wanted one: ` (below it by 361Mi)`; nothing for other values."""
    if not isinstance(a, pb.Quantity) or not isinstance(b, pb.Quantity):
        return ""
    word = "below" if celvalues.fraction(a) < celvalues.fraction(b) else "above"
    return f" ({word} it{_by(a, b)})"
