"""A cluster whose driver the suite has started itself, on a node that it is on, too."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.conformance import cluster, install
from tests.conformance.connections import connections_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.conformance.connections import Connections
    from tests.conformance.driver_process import DriverProcess
    from tests.conformance.node import NodeFiles


class DriverHere(cluster.Cluster):
    """The driver is a process of the suite's."""

    capabilities = frozenset({cluster.RESTART_DRIVER, cluster.CONFIGURE_DRIVER, cluster.SEE_NODE, cluster.MOUNTS})

    def __init__(
        self, kubeconfig: Path, context: str | None, *, driver: DriverProcess, node_name: str, files: NodeFiles
    ) -> None:
        super().__init__(kubeconfig, context)
        self._driver, self._node_name, self._files = driver, node_name, files

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

    def connections(self) -> Connections:
        """Return the driver's connections as they are now."""
        return connections_of(self._driver.pid, self._files.sockets)

    async def stop_driver(self) -> None:
        """End the driver with SIGTERM."""
        status = await self._driver.ended()
        assert status == 0, f"the driver ended with status {status} on SIGTERM:\n{self.about()}"

    async def kill_driver(self) -> None:
        """End the driver with SIGKILL."""
        await self._driver.ended(signal.SIGKILL)

    async def start_driver(self) -> None:
        """Start the driver."""
        self._driver.start()

    async def driver_says(self, text: str) -> None:
        """Wait until the driver's log has this text since its start."""
        await self._driver.says(text, self.patience)

    def another_driver(self, settings: Mapping[str, str]) -> AbstractAsyncContextManager[DriverProcess]:
        """Run another instance beside the driver."""
        return self._driver.beside(settings)

    async def configure_driver(self, settings: Mapping[str, str]) -> None:
        """Start the driver anew if it has other settings."""
        if self._driver.settings != settings:
            await self.stop_driver()
            await install.remove_slices(self.kubeconfig, self.context, self._node_name)
            self._driver.settings = dict(settings)
            self._driver.start()
