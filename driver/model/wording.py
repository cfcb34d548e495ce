"""Numbers in sentences. Pure."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, `1 GPU` or `8 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
