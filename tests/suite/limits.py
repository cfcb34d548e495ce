"""A plugin that tells how long the collected cases may take."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    limits = {mark.args[0] for item in session.items for mark in item.iter_markers("timeout")}
    sys.stdout.write(f"limits of the cases: {', '.join(f'{limit:g}' for limit in sorted(limits))}\n")
