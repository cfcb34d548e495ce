"""Whatever cluster a kubeconfig points at, with the driver in it, or started here as one of its nodes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance import cluster, install
from tests.conformance.api import Api
from tests.conformance.driver_process import DriverProcess
from tests.conformance.node import NodeFiles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from tests.conformance.options import Options


class InstalledCluster(cluster.Cluster):
    """The driver runs in it already."""

    def __init__(self, options: Options) -> None:
        assert options.kubeconfig is not None
        super().__init__(options.kubeconfig, options.context)
        if options.disruptive:
            self.capabilities = frozenset({cluster.DISRUPT})


class ProcessCluster(InstalledCluster):
    """The driver runs here, for a node of the cluster."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.capabilities |= {cluster.RESTART_DRIVER, cluster.CONFIGURE_DRIVER, cluster.SEE_NODE}
        self._files = NodeFiles(options.kubelet_root, options.cdi_dir)
        self._directory = Path(tempfile.mkdtemp(prefix="gpu-dra-conformance-"))
        self._driver = DriverProcess(self._arguments(options), self._directory / "driver.log")
        self._node = options.node
        self._made: list[str] = []

    def start(self) -> None:
        """Install the device classes if there are none, start the driver."""
        self._made = asyncio.run(install.classes(self.kubeconfig, self.context))
        self._driver.start()

    def stop(self) -> None:
        """End the driver, remove the device classes that the suite made."""
        self._driver.end()
        asyncio.run(self._remove())
        shutil.rmtree(self._directory, ignore_errors=True)

    async def heal(self) -> str:
        """Start the driver if it does not run."""
        if self._driver.runs:
            return ""
        self._driver.start()
        return "the driver had ended"

    def about(self) -> str:
        """Return the end of the driver's log."""
        return self._driver.tail()

    @property
    def node(self) -> NodeFiles:
        """The node's files."""
        return self._files

    async def stop_driver(self) -> None:
        """End the driver with SIGTERM."""
        status = await self._driver.ended()
        assert status == 0, f"the driver ended with status {status} on SIGTERM:\n{self.about()}"

    async def kill_driver(self) -> None:
        """End the driver with SIGKILL."""
        await self._driver.ended(9)

    async def start_driver(self) -> None:
        """Start the driver."""
        self._driver.start()

    def another_driver(self, settings: Mapping[str, str]) -> AbstractAsyncContextManager[DriverProcess]:
        """Run another instance beside the driver."""
        return self._driver.beside(settings)

    async def configure_driver(self, settings: Mapping[str, str]) -> None:
        """Start the driver anew if it has other settings."""
        if self._driver.settings != settings:
            await self.stop_driver()
            await install.remove_slices(self.kubeconfig, self.context, self._node)
            self._driver.settings = dict(settings)
            self._driver.start()

    def _arguments(self, options: Options) -> list[str]:
        context = ["--context", options.context] if options.context else []
        return [
            "run", "--node-name", options.node, "--kubeconfig", str(options.kubeconfig), *context,
            "--kubelet-root", str(options.kubelet_root), "--cdi-dir", str(options.cdi_dir),
            "--gpus", options.gpus, "--http-address=",
        ]  # fmt: skip

    async def _remove(self) -> None:
        async with Api.from_kubeconfig(self.kubeconfig, self.context) as api:
            for path in self._made:
                await api.delete(path)
        await install.remove_slices(self.kubeconfig, self.context, self._node)
