"""Put the fake programs into a directory that looks like a driver root, and read what they were asked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from driver.inventory.driver_root import DriverRoot
from driver.sharing.tools import Tools

_HERE = Path(__file__).parent
_PYTHON = os.path.realpath(sys.executable)  # not the one of a virtual environment below /tmp, which a daemon can't see
_PROGRAMS = {"nvidia-smi": "nvidia_smi.py", "nvidia-cuda-mps-control": "nvidia_cuda_mps_control.py"}


class FakeDriver:
    """A driver root with fake tools in it, or the one that is there already."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "usr/bin"
        self.state = self.bin / "state"
        self.state.mkdir(parents=True, exist_ok=True)
        for name, source in _PROGRAMS.items():
            program = self.bin / name
            program.write_text(f"#!{_PYTHON} -IS\n{(_HERE / source).read_text()}")
            program.chmod(0o755)

    def tools(self) -> Tools:
        """What runs them."""
        return Tools(DriverRoot(self.root))

    def uninstall(self) -> None:
        """Take the programs away, as a driver upgrade does for a while."""
        for name in _PROGRAMS:
            (self.bin / name).unlink()

    def control(self, **wanted: dict[str, Any]) -> None:
        """Say what goes wrong from now on; `nvidia_smi` or `mps`."""
        content = {name.replace("_", "-"): value for name, value in wanted.items()}
        (self.state / "control.json").write_text(json.dumps(content))

    def calls(self) -> list[dict[str, Any]]:
        """What was asked, in order."""
        file = self.state / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def commands(self) -> list[str]:
        """What MPS daemons were told, in order."""
        return [" ".join(call["command"]) for call in self.calls() if "command" in call]

    def daemons(self) -> list[dict[str, Any]]:
        """The daemons that were started, in order."""
        return [call for call in self.calls() if "daemon" in call]
