from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from driver.errors import ApiUnavailableError
from driver.kube.lines import split

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


async def chunks(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        ([], []),
        ([b"a\n"], [b"a"]),
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b", b"\n", b"c\n"], [b"ab", b"c"]),
        ([b"a\r\n", b"\n", b"\r\n", b"b\n"], [b"a", b"b"]),
        ([b"a\nb"], [b"a"]),
        ([b"a\n\nb\nc", b"d\n"], [b"a", b"b", b"cd"]),
    ],
)
async def test_lines_are_whole_wherever_the_chunks_end(parts: list[bytes], lines: list[bytes]) -> None:
    assert [line async for line in split(chunks(parts))] == lines


async def test_a_line_without_end_is_refused_before_it_fills_memory() -> None:
    with pytest.raises(ApiUnavailableError, match="longer than 10 bytes"):
        [line async for line in split(chunks([b"a\n", b"123456", b"789012"]), longest=10)]
