"""Finding the driver's files below a driver root, and what to watch while they are not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from driver.inventory.driver_root import BINARY_DIRECTORIES, LIBRARY_DIRECTORIES, DriverRoot

OWN = Path("/proc/self/exe")


def library(root: Path, directory: str = "usr/lib64", name: str = "libnvidia-ml.so.1") -> Path:
    """Put a whole ELF file of our architecture there: this interpreter."""
    path = root / directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(OWN.read_bytes())
    return path


def found(root: Path) -> Path | None:
    file = DriverRoot(root).library()
    return file.path if file else None


@pytest.mark.parametrize("directory", LIBRARY_DIRECTORIES)
def test_each_library_directory(tmp_path: Path, directory: str) -> None:
    assert found(tmp_path) is None
    path = library(tmp_path, directory)
    assert found(tmp_path) == path


def test_the_first_directory_wins(tmp_path: Path) -> None:
    library(tmp_path, "usr/lib")
    first = library(tmp_path, "usr/lib64")
    assert found(tmp_path) == first


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"\x7fELF",
        lambda data: b"#!/bin/sh\n" * 20,
        lambda data: data[:4] + b"\x01" + data[5:],  # 32 bit
        lambda data: data[:18] + b"\xff\xff" + data[20:],  # another machine
        lambda data: data[:-1],  # not yet whole
        lambda data: data[: len(data) // 2],
    ],
)
def test_what_is_no_library_of_ours_is_passed_over(tmp_path: Path, spoil: object) -> None:
    assert callable(spoil)
    bad = library(tmp_path, "usr/lib64")
    bad.write_bytes(spoil(OWN.read_bytes()))
    assert (found(tmp_path), DriverRoot(tmp_path).unfit_library()) == (None, bad)
    good = library(tmp_path, "usr/lib")
    assert found(tmp_path) == good


def test_a_directory_or_a_dangling_link_is_no_library(tmp_path: Path) -> None:
    assert DriverRoot(tmp_path).unfit_library() is None
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").mkdir(parents=True)
    (tmp_path / "usr/lib").mkdir()
    (tmp_path / "usr/lib/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580")
    assert found(tmp_path) is None


def test_a_replaced_file_is_another_file(tmp_path: Path) -> None:
    path = library(tmp_path)
    root = DriverRoot(tmp_path)
    before = root.library()
    assert before == root.library()
    library(tmp_path, name="new").rename(path)
    assert root.library() != before


def test_links_are_followed_within_the_root(tmp_path: Path) -> None:
    real = library(tmp_path, "opt/nvidia", "libnvidia-ml.so.580.105.08")
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/lib64").symlink_to("/opt/nvidia")
    (tmp_path / "opt/nvidia/libnvidia-ml.so.1").symlink_to("../../../../opt/./nvidia/libnvidia-ml.so.580.105.08")
    assert found(tmp_path) == real


@pytest.mark.parametrize("directory", BINARY_DIRECTORIES)
def test_a_program(tmp_path: Path, directory: str) -> None:
    root = DriverRoot(tmp_path)
    assert root.binary("nvidia-smi") is None
    path = tmp_path / directory / "nvidia-smi"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    assert root.binary("nvidia-smi") is None  # not executable
    path.chmod(0o755)
    assert root.binary("nvidia-smi") == path


def test_watched_directories_of_a_root_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("usr/lib64")
    watched = DriverRoot(tmp_path).watched()
    assert watched[tmp_path / "usr/lib64"] == {"libnvidia-ml.so"}
    assert watched[tmp_path / "usr"] == {"lib", "local"}
    assert watched[tmp_path] == {"lib", "run"}


def test_other_programs_and_the_libraries_directory(tmp_path: Path) -> None:
    root = DriverRoot(tmp_path)
    assert (root.binary("nvidia-cuda-mps-control"), root.library_directory()) == (None, None)
    program = tmp_path / "usr/bin/nvidia-cuda-mps-control"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    file = library(tmp_path)
    assert root.binary("nvidia-cuda-mps-control") == program
    assert root.library_directory() == file.parent


def test_watched_directories_of_a_root_that_is_missing(tmp_path: Path) -> None:
    assert DriverRoot(tmp_path / "nvidia/driver").watched() == {tmp_path: {"nvidia"}}


def test_a_relative_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert DriverRoot(Path("driver")).watched() == {tmp_path: {"driver"}}
    library(tmp_path / "driver")
    assert found(Path("driver")) == Path("driver/usr/lib64/libnvidia-ml.so.1")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_root_that_may_not_be_read(tmp_path: Path) -> None:
    library(tmp_path)
    (tmp_path / "usr").chmod(0)
    try:
        assert found(tmp_path) is None
    finally:
        (tmp_path / "usr").chmod(0o755)
