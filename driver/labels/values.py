"""Label keys and values. Pure."""

from __future__ import annotations

import re

PREFIX = "nvidia.com/"
GPU = f"{PREFIX}gpu"
MAX = 63
"""Characters of a label's value, and of its name without the prefix."""

MIG_INVALID = "MIG-INVALID"
SHARED = "SHARED"


def label_value(text: str, limit: int = MAX) -> str:
    """Make a label value of any text: foreign characters go, blanks become `-`, the ends are alphanumeric (A15)."""
    kept = re.sub(r"[^A-Za-z0-9-_.\s]", "", text, flags=re.ASCII)
    return "-".join(kept.split()).lstrip("-_.")[:limit].rstrip("-_.")


def with_suffix(text: str, suffix: str, default: str) -> str:
    """Make a label value that ends in a suffix, if there is one, whatever has to be cut before it."""
    room = MAX - (len(suffix) + 1 if suffix else 0)
    name = label_value(text, max(room, 1)) or default
    return label_value(f"{name}-{suffix}" if suffix else name)


def joined(names: list[str]) -> str:
    """Join names with `_`; if that is too long, without a leading `NVIDIA-`, and as many whole ones as fit."""
    if len(text := "_".join(names)) <= MAX:
        return text
    short = [name.removeprefix("NVIDIA-") for name in names]
    for kept in range(len(short), 0, -1):
        if len(text := "_".join(short[:kept]) + _more(len(short) - kept)) <= MAX:
            return text
    more = _more(len(short) - 1)
    return label_value(short[0], MAX - len(more)) + more


def flag(value: bool) -> str:
    """Write a truth as labels do."""
    return "true" if value else "false"


def _more(count: int) -> str:
    return f"_and-{count}-more" if count else ""
