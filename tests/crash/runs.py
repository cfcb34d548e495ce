"""One operation, again and again in processes that die one step later each time, until one survives."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_MOST = 60  # steps


def runs(program: str, *arguments: object, least: int) -> Iterator[int]:
    """Yield after each run of a module of this package, which is given the step before which it is to die.

    The last run is the one that survives; that it is no earlier than after `least` steps shows that there were any.
    """
    command = [sys.executable, "-m", f"{__package__}.{program}", *map(str, arguments)]
    for step in range(1, _MOST):
        status = subprocess.run([*command, str(step)], cwd=ROOT, check=False).returncode
        assert status in (0, -signal.SIGKILL)
        yield step
        if status == 0:
            assert step > least, "the operation was hardly interrupted"
            return
    raise AssertionError("the operation never ends")
