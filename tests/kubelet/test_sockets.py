from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from driver.errors import InvalidValueError, ServeError
from driver.kubelet.sockets import DirectoryWatch, Peer, hidden_path, probe, registration_path, service_path, sweep

POD = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9fa"


def test_paths_of_a_single_instance() -> None:
    assert service_path(Path("/k/plugins")) == Path("/k/plugins/gpu.nvidia.com/dra.sock")
    assert registration_path(Path("/k/plugins_registry")) == Path("/k/plugins_registry/gpu.nvidia.com-reg.sock")


def test_paths_of_a_rolling_update() -> None:
    assert service_path(Path("/k/plugins"), POD) == Path(f"/k/plugins/gpu.nvidia.com/dra-{POD}.sock")
    assert registration_path(Path("/k/r"), POD) == Path(f"/k/r/gpu.nvidia.com-{POD}-reg.sock")


@pytest.mark.parametrize("make", [service_path, registration_path])
def test_paths_always_fit_and_stay_distinct(make: object) -> None:
    assert callable(make)
    for length in range(2, 70):
        directory = Path("/" + "d" * length)
        paths = [make(directory, pod) for pod in (POD, POD.replace("0", "1"), "")]
        assert len(set(paths)) == 3
        assert all(len(bytes(path)) <= 107 for path in paths)
        assert paths[0] == make(directory, POD)
        assert all(path.parent == paths[2].parent for path in paths)


def test_length_is_counted_in_bytes() -> None:
    directory = Path("/" + "é" * 35)
    assert len(bytes(registration_path(directory, POD))) <= 107


def test_a_path_that_cannot_fit_is_refused() -> None:
    with pytest.raises(ServeError, match=r"has 12\d bytes, but a Unix socket address holds 107: use a shorter kubelet"):
        service_path(Path("/" + "d" * 100))


def test_a_pod_uid_becomes_no_path() -> None:
    with pytest.raises(InvalidValueError, match="pod UID"):
        service_path(Path("/k"), "../../x")


async def test_probe(short_tmp: Path) -> None:
    path = short_tmp / "s"
    assert probe(path) is Peer.ABSENT
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(path))
        assert probe(path) is Peer.DEAD
        served.listen(0)
        for _ in range(8):
            assert probe(path) is Peer.LIVE
    assert probe(path) is Peer.DEAD
    path.unlink()
    path.symlink_to("/dev/null")
    assert probe(path) is Peer.FOREIGN
    path.unlink()
    path.mkdir()
    assert probe(path) is Peer.FOREIGN


@pytest.mark.parametrize("steps", ["create", "remove", "directory removed", "directory made", "parents made"])
async def test_watch_misses_nothing(short_tmp: Path, steps: str) -> None:
    directory = short_tmp / "a" / "b"
    if steps not in ("directory made", "parents made"):
        directory.mkdir(parents=True)
        if steps == "remove":
            (directory / "f").touch()
    elif steps == "directory made":
        directory.parent.mkdir()
    watch = DirectoryWatch(directory)
    watch.arm()
    match steps:
        case "create":
            (directory / "f").touch()
        case "remove":
            (directory / "f").unlink()
        case "directory removed":
            directory.rmdir()
        case _:
            directory.mkdir(parents=True)
    async with asyncio.timeout(5):
        await watch.changed()
    watch.close()


async def test_watch_does_not_wake_for_nothing(short_tmp: Path) -> None:
    (short_tmp / "f").touch()
    watch = DirectoryWatch(short_tmp)
    watch.arm()
    (short_tmp / "f").write_text("content is of no interest")
    (short_tmp / "f").read_text()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await watch.changed()
    watch.close()


async def test_without_inotify_instances_it_polls(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("asyncinotify.Inotify", refuse)
    monkeypatch.setattr("driver.kubelet.sockets._POLL_SECONDS", 0.01)
    watch = DirectoryWatch(short_tmp)
    watch.arm()
    async with asyncio.timeout(5):
        await watch.changed()
    assert "fs.inotify.max_user_instances" in caplog.text
    watch.close()


def test_hidden_names_are_no_longer_than_the_shortest_socket(short_tmp: Path) -> None:
    path = service_path(short_tmp)
    hidden = hidden_path(path)
    assert hidden.parent == path.parent
    assert hidden.name.startswith(".")
    assert len(hidden.name) <= len(path.name)


def test_sweep_takes_only_dead_hidden_sockets(short_tmp: Path) -> None:
    dead, live = hidden_path(short_tmp / "x.sock"), hidden_path(short_tmp / "x.sock")
    named, file = short_tmp / "abcdef", short_tmp / ".fedcba"
    file.write_text("")
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        one.bind(str(dead))
        two.bind(str(live))
        two.listen()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(named))
        sweep(short_tmp)
        assert sorted(short_tmp.iterdir()) == sorted([live, named, file])
