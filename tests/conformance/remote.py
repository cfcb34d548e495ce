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
from tests.conformance.here import DriverHere
from tests.conformance.node import NodeFiles

if TYPE_CHECKING:
    from tests.conformance.options import Options


class InstalledCluster(cluster.Cluster):
    """The driver runs in it already."""

    def __init__(self, options: Options) -> None:
        assert options.kubeconfig is not None
        super().__init__(options.kubeconfig, options.context)
        if options.disruptive:
            self.capabilities |= {cluster.DISRUPT}


class ProcessCluster(DriverHere):
    """The driver runs here, for a node of the cluster."""

    def __init__(self, options: Options) -> None:
        assert options.kubeconfig is not None
        self._directory = Path(tempfile.mkdtemp(prefix="gpu-dra-conformance-"))
        super().__init__(
            options.kubeconfig,
            options.context,
            driver=DriverProcess(_arguments(options), self._directory / "driver.log"),
            node_name=options.node,
            files=NodeFiles(options.kubelet_root, options.cdi_dir),
        )
        if options.disruptive:
            self.capabilities |= {cluster.DISRUPT}
        self._made: list[str] = []

    def start(self) -> None:
        """Install the device classes if there are none, start the driver; its slices are the sign that it is up."""
        self._made = asyncio.run(install.classes(self.kubeconfig, self.context))
        asyncio.run(install.remove_slices(self.kubeconfig, self.context, self._node_name))
        self._driver.start()

    def stop(self) -> None:
        """End the driver, remove the device classes that the suite made."""
        self._driver.end()
        asyncio.run(self._remove())
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _remove(self) -> None:
        async with Api.from_kubeconfig(self.kubeconfig, self.context) as api:
            for path in self._made:
                await api.delete(path)
        await install.remove_slices(self.kubeconfig, self.context, self._node_name)


def _arguments(options: Options) -> list[str]:
    context = ["--context", options.context] if options.context else []
    return [
        "run", "--node-name", options.node, "--kubeconfig", str(options.kubeconfig), *context,
        "--kubelet-root", str(options.kubelet_root), "--cdi-dir", str(options.cdi_dir),
        "--gpus", options.gpus, "--http-address=",
    ]  # fmt: skip
