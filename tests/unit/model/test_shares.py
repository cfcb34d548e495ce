from __future__ import annotations

import pytest

from driver.model.shares import EXCLUSIVE, ShareMode, Shares


@pytest.mark.parametrize("text", ["disabled", "memory", "unlimited", "1", "8", "1000"])
def test_what_is_said_comes_back(text: str) -> None:
    assert str(Shares.parse(text)) == text
    assert bool(Shares.parse(text)) is (text != "disabled")


def test_values() -> None:
    assert Shares.parse("disabled") == EXCLUSIVE
    assert Shares.parse(4) == Shares.parse(" 4 ") == Shares(ShareMode.COUNTED, 4)


@pytest.mark.parametrize("value", ["", "0", "-1", "1001", "1e3", "Memory", "counted", "4.0", True, False, None, [4]])
def test_anything_else_is_refused_with_what_is_allowed(value: object) -> None:
    with pytest.raises(ValueError, match="disabled, memory, unlimited, or a number of shares from 1 to 1000"):
        Shares.parse(value)
