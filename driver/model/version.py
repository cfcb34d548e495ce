"""Versions: any raw string of a driver becomes valid semver 2.0.0.

The API server takes nothing else as a version attribute (`recordings: attr-version-*`), while drivers say
`580.105.08`, `570.169`, `13.0` or `6.19.14.31400000`.
"""

from __future__ import annotations

import re
from functools import lru_cache

_MAX_LENGTH = 64  # an attribute's value, in bytes
_MAX_PART = (1 << 64) - 1  # the API server parses each part as uint64
_NUMBERS = re.compile(r"\s*v?(\d+(?:\.\d+)*)(.*)", re.DOTALL | re.ASCII)


@lru_cache(maxsize=64)  # every device of a node bears the same few
def semver(raw: str) -> str:
    """Turn `raw` into semver: missing parts are 0, leading zeros go, further parts become build metadata.

    What has no number at all becomes `0.0.0`.
    """
    match = _NUMBERS.match(raw)
    if match is None:
        return _cut("0.0.0", "+", _identifiers(raw))
    parts = [min(int(part), _MAX_PART) for part in match[1][:_MAX_LENGTH].rstrip(".").split(".")]
    core = ".".join(str(part) for part in ([*parts, 0, 0])[:3])
    further = [str(part) for part in parts[3:]]
    return _cut(core, "+", ".".join([*further, *filter(None, [_identifiers(match[2])])]))


def cuda_version(number: int) -> str:
    """Turn NVML's CUDA version (13020) into `13.2`."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _identifiers(text: str) -> str:
    """Return what semver allows of `text` as dot-separated identifiers."""
    found = (part.strip("-") for part in re.findall(r"[0-9A-Za-z-]+", text, re.ASCII))
    return ".".join(filter(None, found))


def _cut(core: str, sign: str, suffix: str) -> str:
    whole = f"{core}{sign}{suffix}" if suffix else core
    return whole if len(whole) <= _MAX_LENGTH else whole[:_MAX_LENGTH].rstrip(".")
