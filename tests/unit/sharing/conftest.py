"""A driver root with fake tools, and MPS daemons that end with the test."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from driver.sharing.daemon_files import MARK
from driver.sharing.mps import MpsDaemons, MpsOptions
from tests.fakes.install import FakeDriver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator

    from driver.sharing.tools import Tools

GPU, OTHER = "GPU-11111111-1111-4111-8111-111111111111", "GPU-22222222-2222-4222-8222-222222222222"


@pytest.fixture
def driver(short_tmp: Path) -> FakeDriver:
    """Fake tools under a driver root."""
    return FakeDriver(short_tmp / "driver")


class Node:
    """A node on which MPS daemons run, whoever watches them."""

    def __init__(self, directory: Path, driver: FakeDriver) -> None:
        self.driver = driver
        self.root = directory / "mps"
        self.shm_root = Path(f"/dev/shm/gpu-dra-test-{secrets.token_hex(4)}")
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.deaths: list[tuple[str, str]] = []

    def agent(self, tools: Tools | None = None, **options: Any) -> MpsDaemons:
        """What a newly started agent has."""
        wanted = {"root": self.root, "shm_root": self.shm_root, "boot_id": self.boot_id, "ready_timeout": 20.0}
        daemons = MpsDaemons(tools or self.driver.tools(), MpsOptions(**{**wanted, "private_shm": False, **options}))
        daemons.on_death = lambda name, message: self.deaths.append((name, message))
        return daemons

    def processes(self) -> list[int]:
        """All live processes of daemons below the root."""
        mark = f"{MARK}={self.root}".encode()
        return [
            int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and mark in _environ(entry)
        ]

    def leftovers(self) -> list[str]:
        """Everything that a daemon left."""
        directories = [str(path) for root in (self.root, self.shm_root) if root.exists() for path in root.iterdir()]
        return [*directories, *map(str, self.processes())]


def _environ(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def node(short_tmp: Path, driver: FakeDriver) -> Iterator[Node]:
    """A node; nothing of it lives longer than the test."""
    node = Node(short_tmp, driver)
    yield node
    for pid in node.processes():
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(node.shm_root, ignore_errors=True)


def keeping(*daemons: str) -> Callable[[], Awaitable[Collection[str]]]:
    """Return what `MpsControl.sweep` asks which daemons to keep."""

    async def keep() -> Collection[str]:
        return daemons

    return keep
