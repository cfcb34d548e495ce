from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from driver.offering.peer_plugin import PeerPlugin
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def served(path: Path) -> Iterator[None]:
    """Have a socket that is served; it stays behind, as that of a process that was killed."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.bind(str(path))
        peer.listen()
        yield


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nvidia-gpu.sock", True),
        ("nvidia-gpu-0a1b2c3d.sock", True),
        ("nvidia-mig-1g.10gb.sock", True),
        ("rdma.sock", False),
        ("kubelet.sock", False),
    ],
)
def test_whose_sockets_count(short_tmp: Path, name: str, found: bool) -> None:
    with served(short_tmp / name):
        assert PeerPlugin(short_tmp).look() == (short_tmp / name if found else None)


def test_what_nobody_serves_does_not_count(short_tmp: Path) -> None:
    with served(short_tmp / "nvidia-gpu.sock"):
        pass
    (short_tmp / "nvidia-gpu-note.sock").touch()
    assert PeerPlugin(short_tmp).look() is None
    assert PeerPlugin(short_tmp / "absent").look() is None


def test_one_that_goes_may_be_back_soon(short_tmp: Path) -> None:
    now = 100.0
    peer = PeerPlugin(short_tmp, clock=lambda: now)
    path = short_tmp / "nvidia-gpu.sock"
    with served(path):
        assert peer.look() == path
    path.unlink()
    now += 29
    assert peer.look() == path
    now += 2
    assert peer.look() is None


async def test_one_that_comes_is_told_of_and_one_that_dies_is_looked_after(short_tmp: Path, monkeypatch) -> None:
    monkeypatch.setattr("driver.offering.peer_plugin._LOOK", 0.01)
    looks: list[Path | None] = []
    peer = PeerPlugin(short_tmp)
    task = asyncio.create_task(peer.run(lambda: looks.append(peer.look())))
    await until(lambda: looks == [None])
    with served(short_tmp / "nvidia-gpu.sock"):
        await until(lambda: looks[-1] is not None)
    before = len(looks)
    await until(lambda: len(looks) > before + 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
