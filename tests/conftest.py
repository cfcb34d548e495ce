"""Fixtures for all tests."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.examples import register

if TYPE_CHECKING:
    from collections.abc import Iterator

register()


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory whose path is short enough for Unix sockets within it."""
    path = Path(tempfile.mkdtemp(prefix="g", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
