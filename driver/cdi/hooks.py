"""Hooks of NVIDIA's container toolkit: programs that the runtime runs to finish a container's file system.

The toolkit is optional. A hook that is missing, or that its program does not know, would stop every container.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.cdi.spec import Hook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from driver.cdi.libraries import DriverFiles
    from driver.root import Root

_STAGE = "createContainer"
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/toolkit", "/opt/nvidia/toolkit")
_NAMES = ("nvidia-cdi-hook", "nvidia-ctk")
_DEVELOPMENT_LINKS = {  # what programs open, and no ldconfig makes: link and the name that it leads to
    "libcuda.so": "libcuda.so.1",
    "libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookProgram:
    """The toolkit's hook program: its path on the host, and where this process can read it, if it can."""

    host_path: str
    seen: Path | None = None

    def hook(self, command: str, *arguments: str) -> Hook:
        """Return the hook that runs a command of the program."""
        name = self.host_path.rpartition("/")[2]
        prefix = (name,) if "cdi-hook" in name else (name, "hook")
        return Hook(name=_STAGE, path=self.host_path, args=(*prefix, command, *arguments))

    def knows(self, command: str) -> bool:
        """Say whether the program has a command: older ones lack the later ones.

        The program can't be asked, as it need not run in the agent's container; but its commands' names are in it.
        """
        if self.seen is None:
            return True
        try:
            with self.seen.open("rb") as program, mmap.mmap(program.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(command.encode()) >= 0
        except (OSError, ValueError):
            return False


def find_program(root: Root, configured: Path | None = None) -> HookProgram | None:
    """Find the program: at the `configured` path of the host, else under the driver root, else elsewhere on the host.

    A driver in a container of its own (GPU operator) has no toolkit: that is on the host. None if there is none.
    """
    if configured:
        seen = configured if root.host else root.seen_path(str(configured))
        return HookProgram(host_path=str(configured), seen=seen if seen.is_file() else None)
    found = (_find(where) for where in _places(root))
    return next((program for program in found if program is not None), None)


def _places(root: Root) -> tuple[Root, ...]:
    host = root.of_host()
    return (root, host) if host is not None else (root,)


def _find(root: Root) -> HookProgram | None:
    for name in _NAMES:
        for folder in _FOLDERS:
            resolved = root.resolve(f"{folder}/{name}")
            if resolved is not None:
                path = root.seen_path(resolved)
                return HookProgram(host_path=root.host_path(f"{folder}/{name}"), seen=path)
    return None


def watched(root: Root) -> tuple[Path, ...]:
    """Return the directories that change when another program would be found."""
    return tuple(where.seen_path(folder) for where in _places(root) for folder in _FOLDERS)


def hooks_for(program: HookProgram, files: DriverFiles) -> tuple[Hook, ...]:
    """Return the hooks that make the mounted driver usable: links, CUDA's compatibility, the loader's cache."""
    links = tuple(argument for link in _link_arguments(files) for argument in ("--link", link))
    folders = tuple(argument for folder in files.folders for argument in ("--folder", folder))
    wanted = (
        ("create-symlinks", links),
        ("enable-cuda-compat", (f"--host-driver-version={files.version}",)),
        ("update-ldcache", folders),
        ("disable-device-node-modification", ()),
    )
    return tuple(program.hook(command, *arguments) for command, arguments in wanted if program.knows(command))


def _link_arguments(files: DriverFiles) -> Iterator[str]:
    """Yield `<target>::<link>` for what programs open by its bare name."""
    mounted = {mount.container_path for mount in files.mounts}
    for folder in files.folders:
        for link, target in _DEVELOPMENT_LINKS.items():
            if f"{folder}/{link}.{files.version}" in mounted:
                yield f"{target}::{folder}/{link}"
        if f"{folder}/libGLX_nvidia.so.{files.version}" in mounted:
            yield f"libGLX_nvidia.so.{files.version}::{folder}/libGLX_indirect.so.0"
