"""What a driver installation has for containers: libraries, programs, firmware and settings, of one version.

What the container gets must fit the loaded kernel module exactly, or CUDA fails with 'driver/library version mismatch'.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.cdi.spec import Mount
from driver.errors import DeviceNotReadyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from driver.root import Root

_LIBRARY_DIRS = (
    "/usr/lib64",
    "/usr/lib/{arch}-linux-gnu",
    "/usr/lib/{arch}-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/{arch}-linux-gnu",
    "/lib/{arch}-linux-gnu/nvidia/current",
)
_LAST_LIBRARY_DIRS = ("/usr/lib",)  # 32-bit libraries, where there are others
_SUBDIRS = ("", "/vdpau")
_REQUIRED = ("libcuda.so", "libnvidia-ml.so")
_BINARY_DIRS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin")
_BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_FIRMWARE_DIRS = ("/lib/firmware/nvidia", "/usr/lib/firmware/nvidia")
_DATA_DIRS = ("/usr/share", "/etc")
_DATA_FILES = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "nvidia/nvoptix.bin",
)
_VERSION = r"\d+\.\d+(?:\.\d+)?"
_KERNEL_MODULE = re.compile(rf"Kernel Module.*?\s({_VERSION})\s")
_LIBRARY_VERSION = re.compile(rf"libnvidia-ml\.so\.({_VERSION})")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """The files of one driver version, as mounts. Paths in `folders` and `links` are the container's.

    `links` are further names of the libraries, as (link, library). `watched` are the directories which change when an
    answer would.
    """

    version: str
    mounts: tuple[Mount, ...]
    folders: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    watched: tuple[Path, ...]


def loaded_version(proc: Path) -> str | None:
    """Return the version of the loaded kernel module; None where it can't be told."""
    try:
        text = (proc / "driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    match = _KERNEL_MODULE.search(text)
    return match[1] if match else None


def find_driver_files(root: Root, loaded: str | None, *, machine: str | None = None) -> DriverFiles:
    """Find what the driver brought under `root`, of the `loaded` version if that is known.

    :raises DeviceNotReadyError: the libraries are not there (yet), or only those of another version (C2).
    """
    arch = machine or platform.machine()
    candidates = [f"{folder.format(arch=arch)}{sub}" for folder in _LIBRARY_DIRS for sub in _SUBDIRS]
    folders = _distinct(root, candidates)
    if not _versions(root, folders):
        folders = _distinct(root, [*_LAST_LIBRARY_DIRS])
    version = _choose_version(root, folders, loaded)
    libraries = {folder: _libraries(root, folder, version) for folder in folders}
    _require(root, libraries, version)
    others = [*_programs(root), *_firmware(root, version), *_data(root)]
    paths = [path for found in libraries.values() for path in found]
    return DriverFiles(
        version=version,
        mounts=tuple(_mounts(root, [*paths, *others])),
        folders=tuple(folder for folder, found in libraries.items() if found),
        links=tuple(link for folder, found in libraries.items() for link in _links(root, folder, found)),
        watched=_watched(root, [*candidates, *_LAST_LIBRARY_DIRS, *_other_folders(version)]),
    )


def _choose_version(root: Root, folders: list[str], loaded: str | None) -> str:
    found = _versions(root, folders)
    if not found:
        raise DeviceNotReadyError(
            f"no GPU driver libraries (libnvidia-ml.so.<version>) under {root} (yet); is the driver root the right one?"
        )
    if loaded is None:
        return max(found, key=lambda version: [int(part) for part in version.split(".")])
    if loaded not in found:
        raise DeviceNotReadyError(
            f"the loaded kernel module is {loaded}, but under {root} there are only the libraries of"
            f" {', '.join(sorted(found))}; reload the driver or reboot the node after an upgrade"
        )
    return loaded


def _versions(root: Root, folders: list[str]) -> set[str]:
    every = (name for folder in folders for name in root.names(folder))
    return {match[1] for name in every if (match := _LIBRARY_VERSION.fullmatch(name))}


def _require(root: Root, libraries: dict[str, list[str]], version: str) -> None:
    names = {path.rpartition("/")[2] for found in libraries.values() for path in found}
    missing = [name for library in _REQUIRED if (name := f"{library}.{version}") not in names]
    if missing:
        raise DeviceNotReadyError(f"the GPU driver under {root} lacks {', '.join(missing)} (yet)")


def _distinct(root: Root, candidates: list[str]) -> list[str]:
    """Return the directories that are there, each once however many names it has."""
    chosen: dict[str, str] = {}
    for candidate in candidates:
        resolved = root.resolve(candidate)
        if resolved is not None and root.seen_path(resolved).is_dir():
            chosen.setdefault(resolved, candidate)
    return list(chosen.values())


def _libraries(root: Root, folder: str, version: str) -> list[str]:
    return [f"{folder}/{name}" for name in root.names(folder) if name.endswith(f".so.{version}")]


def _links(root: Root, folder: str, libraries: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the other names of the libraries in their directory (libcuda.so.1), as ldconfig made them."""
    stems = {path.rpartition("/")[2].partition(".so.")[0] for path in libraries}
    targets = {root.resolve(path): path for path in libraries}
    for name in root.names(folder):
        stem, sign, _ = name.partition(".so")
        link = f"{folder}/{name}"
        if sign and stem in stems and link not in libraries:
            target = targets.get(root.resolve(link))
            if target is not None:
                yield link, target


def _programs(root: Root) -> Iterator[str]:
    for binary in _BINARIES:
        paths = (f"{folder}/{binary}" for folder in _BINARY_DIRS)
        found = next((path for path in paths if root.resolve(path) is not None), None)
        if found is not None:
            yield found


def _firmware(root: Root, version: str) -> Iterator[str]:
    for folder in _distinct(root, [f"{folder}/{version}" for folder in _FIRMWARE_DIRS]):
        for name in root.names(folder):
            if name.startswith("gsp") and name.endswith(".bin"):
                yield f"{folder}/{name}"


def _other_folders(version: str) -> list[str]:
    firmware = [f"{folder}{end}" for folder in _FIRMWARE_DIRS for end in ("", f"/{version}")]
    return [*_BINARY_DIRS, *firmware, *(path.rpartition("/")[0] for path in _data_paths())]


def _data(root: Root) -> Iterator[str]:
    return (path for path in _data_paths() if root.resolve(path) is not None)


def _data_paths() -> list[str]:
    return [f"{folder}/{name}" for folder in _DATA_DIRS for name in _DATA_FILES]


def _mounts(root: Root, paths: list[str]) -> Iterator[Mount]:
    for path in paths:
        resolved = root.resolve(path)
        if resolved is not None:
            yield Mount(host_path=root.host_path(resolved), container_path=path)


def _watched(root: Root, folders: list[str]) -> tuple[Path, ...]:
    """Return the directories by their names and, where links lead elsewhere, by their real names."""
    resolved = (root.resolve(folder) for folder in folders)
    every = [*folders, *(folder for folder in resolved if folder is not None)]
    return tuple(root.seen_path(folder) for folder in dict.fromkeys(every))
