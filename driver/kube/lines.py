"""A byte stream cut into lines, however long they are and wherever the chunks end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.errors import ApiUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable

LONGEST_LINE = 16 << 20  # bytes; etcd takes objects of 1.5 MiB


async def split(chunks: AsyncIterable[bytes], longest: int = LONGEST_LINE) -> AsyncGenerator[bytes]:
    """Yield the lines without their ends, empty ones left out; a last line without an end is not complete and dropped.

    :raises ApiUnavailableError: a line is longer than `longest`.
    """
    pieces: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            line = b"".join((*pieces, piece)).strip()
            pieces.clear()
            size = 0
            if line:
                yield line
        pieces.append(rest)
        size += len(rest)
        if size > longest:
            raise ApiUnavailableError(f"a watch event is longer than {longest} bytes")
