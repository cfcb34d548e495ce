"""JSON as data: what it has for an object, as Kubernetes' objects are read and written, and how it is read. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

JsonObject = dict[str, Any]


def parse_json(data: bytes | str) -> Any:
    """Return what JSON says.

    :raises ValueError: it is no JSON. So is what `json` would take, or end with another error for: numbers that are
        not finite (`NaN`, `1e999`), lists and objects that are nested deeper than the interpreter can follow.
    """
    try:
        return _DECODER.decode(data.decode() if isinstance(data, bytes) else data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
