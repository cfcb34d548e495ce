from __future__ import annotations

import pytest

from driver.model.wording import counted


@pytest.mark.parametrize(("number", "text"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs")])
def test_one_is_no_plural(number: int, text: str) -> None:
    assert counted(number, "GPU") == text
