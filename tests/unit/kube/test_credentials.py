from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from driver.errors import ApiUnauthorizedError
from driver.kube.credentials import FileToken, FixedToken, NoToken

if TYPE_CHECKING:
    from pathlib import Path


async def test_no_token_and_a_fixed_one() -> None:
    assert await NoToken().bearer() is None
    fixed = FixedToken("abc")
    fixed.refused()
    assert await fixed.bearer() == "abc"


async def test_a_file_is_read_again_when_replaced(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    token = FileToken(path)
    assert await token.bearer() == "one"
    (tmp_path / "next").write_text("two")
    os.replace(tmp_path / "next", path)
    assert await token.bearer() == "two"


async def test_a_refused_token_is_read_again_even_if_the_file_looks_the_same(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    token = FileToken(path)
    await token.bearer()
    before = path.stat()
    with path.open("r+") as file:  # the same inode, size and time
        file.write("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    token.refused()
    assert await token.bearer() == "two"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff"])
async def test_a_bad_token_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ApiUnauthorizedError, match=str(path)):
        await FileToken(path).bearer()
