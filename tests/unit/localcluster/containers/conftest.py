"""Runtimes in each mode that this machine allows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from driver.localcluster.containers.oci import ContainerRequest
from driver.localcluster.containers.runtime import ContainerRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from driver.localcluster.containers.process import Exit


_WORKS: dict[str, bool] = {}


class Bench:
    """A runtime under test."""

    def __init__(self, root: Path, mode: str) -> None:
        self.root, self.mode = root, mode
        self.cdi_dirs = (root / "etc" / "cdi", root / "run" / "cdi")
        self.runtime = ContainerRuntime(root / "containers", cdi_dirs=self.cdi_dirs, mode=mode)  # type: ignore[arg-type]
        self.log = root / "log"

    def request(self, *args: str, **more: Any) -> ContainerRequest:
        return ContainerRequest(
            pod_uid="u", pod_name="pod-1", namespace="default", name="c", args=args, log_path=self.log, **more
        )

    async def run(self, *args: str, **more: Any) -> tuple[Exit, str]:
        """Run to the end; return how it ended and its output."""
        container = await self.runtime.start(self.request(*args, **more))
        end = await container.wait()
        output = self.log.read_text(encoding="utf-8")
        self.log.write_bytes(b"")
        return end, output

    async def sh(self, script: str, **more: Any) -> str:
        end, output = await self.run("sh", "-c", script, **more)
        assert end.code == 0, output
        return output


@pytest.fixture(params=["root", "user", "plain"])
async def bench(request: pytest.FixtureRequest, short_tmp: Path) -> AsyncIterator[Bench]:
    """A runtime in one mode, skipped where the machine does not allow it."""
    bench = Bench(short_tmp, request.param)
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("only root gets a mount namespace without a user namespace")
    if request.param not in _WORKS:
        _WORKS[request.param] = await bench.runtime.works(request.param)
    if not _WORKS[request.param]:
        pytest.skip(f"the kernel or its policy does not allow containers of mode {request.param}")
    yield bench
    await bench.runtime.aclose()


@pytest.fixture
def isolated(bench: Bench) -> Bench:
    """The same, for tests that need a root file system of the container's own."""
    if bench.mode == "plain":
        pytest.skip("plain containers see the host's files")
    return bench
