"""Semantic versions as Kubernetes' CEL compares them (https://semver.org 2.0.0). Pure.

Build metadata takes no part in precedence, so it is not kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_NUMBER = r"(0|[1-9]\d*)"
_STRICT = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_LOOSE = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?([-+].*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Semver:
    """One version; `pre` holds the identifiers of its pre-release, none for a release."""

    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()

    @property
    def precedence(self) -> tuple[object, ...]:
        """Return a sort key: a release comes after its pre-releases, numbers before words."""
        words = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.pre)
        return (self.major, self.minor, self.patch, not self.pre, words)

    def __str__(self) -> str:
        core = f"{self.major}.{self.minor}.{self.patch}"
        return f"{core}-{'.'.join(self.pre)}" if self.pre else core


@lru_cache(maxsize=4096)
def parse(text: str) -> Semver:
    """Read a strict version.

    :raises ValueError: if `text` is none.
    """
    match = _STRICT.fullmatch(text)
    pre = tuple((match[4] or "").split(".")) if match and match[4] else ()
    if match is None or any(part.isdigit() and len(part) > 1 and part[0] == "0" for part in pre):
        raise ValueError(f"{text!r} is not a semantic version such as 1.2.3 or 1.2.3-rc.1")
    return Semver(int(match[1]), int(match[2]), int(match[3]), pre)


def normalize(text: str) -> str:
    """Make a strict version of a loose one: a leading `v` and leading zeros go, missing parts are 0."""
    match = _LOOSE.fullmatch(text.strip())
    if match is None:
        return text
    core = ".".join(str(int(part or 0)) for part in match.groups()[:3])
    return core + (match[4] or "")


def compare(left: Semver, right: Semver) -> int:
    """Return -1, 0 or 1."""
    a, b = left.precedence, right.precedence
    return (a > b) - (a < b)
