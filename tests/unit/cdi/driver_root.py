"""A GPU driver's installation made of small files, with real device nodes where that may be done."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "580.105.08"
LIBRARIES = ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-opticalflow.so")


class DriverRoot:
    """`root` is what the driver's files and nodes are under; `proc` and `sys` stand for the kernel's."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.proc = base / "proc"
        self.sys = base / "sys"
        for path in (self.root, self.proc, self.sys):
            path.mkdir()

    def install(self, version: str = VERSION, *, folder: str = "usr/lib64", libraries: tuple[str, ...] = LIBRARIES):
        for library in libraries:
            self.file(f"{folder}/{library}.{version}")
            self.link(f"{folder}/{library}.1", f"{library}.{version}")
        self.file("usr/bin/nvidia-smi")
        self.file("usr/bin/nvidia-cuda-mps-control")
        self.file(f"lib/firmware/nvidia/{version}/gsp_ga10x.bin")
        self.file(f"lib/firmware/nvidia/{version}/other.txt")
        return self

    def load(self, version: str = VERSION):
        path = self.proc / "driver/nvidia/version"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (x)\n"
            "GCC version:  gcc version 13.3.0\n"
        )
        return self

    def nodes(self, *names: str):
        for minor, name in enumerate(names or ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia2")):
            path = self.root / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            make_node(path, minor)
        return self

    def file(self, inside: str, content: bytes = b"") -> Path:
        path = self.root / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def link(self, inside: str, target: str) -> None:
        path = self.root / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def mig_minors(self, text: str, *, major: int | None = 506) -> None:
        path = self.proc / "driver/nvidia-caps/mig-minors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        caps = "" if major is None else f"{major} nvidia-caps\n"
        self.devices(f"  1 mem\n195 nvidia\n{caps}")

    def devices(self, characters: str) -> None:
        (self.proc / "devices").write_text(f"Character devices:\n{characters}\nBlock devices:\n  8 nvidia-uvm\n")

    def settle(self) -> None:
        """Make all changes so far an hour old."""
        old = time.time() - 3600
        for folder, _, _ in os.walk(self.root):
            os.utime(folder, (old, old))


def make_node(path: Path, minor: int) -> None:
    """Make a character device, or what stat says is one."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o660, os.makedev(195, minor))
        path.chmod(0o666)
    except PermissionError:
        path.symlink_to("/dev/null")
