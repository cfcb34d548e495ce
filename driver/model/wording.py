"""Words for people: numbers with their nouns, texts that fit. Pure."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, `1 GPU` or `8 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cut(text: str, limit: int) -> str:
    """Cut to `limit` bytes of UTF-8, at a character's end."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore")
