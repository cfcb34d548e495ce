"""Words for people: numbers with their nouns, texts that fit, times. Pure."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, `1 GPU` or `8 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cut(text: str, limit: int) -> str:
    """Cut to `limit` bytes of UTF-8, at a character's end."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore")


def timestamp(moment: datetime) -> str:
    """Write a moment as Kubernetes' objects carry it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
