"""The embedded cluster, in a thread with an event loop of its own, so that it runs whatever the tests do."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.faults import Fault
from driver.localcluster.cluster import LocalCluster
from driver.localcluster.kubelet.times import Times
from tests.conformance import cluster, install
from tests.conformance.driver_process import DriverProcess
from tests.conformance.node import NodeFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
    from contextlib import AbstractAsyncContextManager

NODE = "node-a"
TIMES = Times(
    register_retry=0.1,
    sync_retry=(0.5, 0.7),
    unprepare_retry=0.2,
    health_reopen=0.2,
    crash_backoff=0.1,
    crash_backoff_max=0.5,
    grace=0.1,
)
"""A kubelet's waits, shortened; a driver that is away loses its slices after 30 s, as on a real one."""


class EmbeddedCluster(cluster.Cluster):
    """One node, with the driver as a process."""

    capabilities = frozenset(cluster.WHY_NOT)
    patience = 30.0

    def __init__(self, *, gpus: str, kubernetes: str) -> None:
        # Unix sockets need a short path, so it is not below whatever TMPDIR says.
        self.root = Path(tempfile.mkdtemp(prefix="gc", dir="/tmp"))
        self._cluster = LocalCluster(self.root, nodes=(NODE,), kubernetes=kubernetes, times=TIMES)
        super().__init__(self._cluster.kubeconfig)
        self._driver = DriverProcess(self._cluster.agent_command(NODE, gpus=gpus)[1:], self.root / "driver.log")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="embedded cluster", daemon=True)
        node = self._cluster.node(NODE)
        self._kubelet, self._kubelet_runs = node.kubelet, True
        self._files = NodeFiles(node.kubelet_root, node.cdi_dirs[1])

    def start(self) -> None:
        """Start the cluster, install the device classes, start the driver."""
        self._thread.start()
        self._call(self._cluster.start())
        asyncio.run(install.classes(self.kubeconfig))
        self._driver.start()

    def stop(self) -> None:
        """End the driver and the cluster, and remove its files."""
        self._driver.end(signal.SIGKILL)
        if self._thread.is_alive():
            self._call(self._cluster.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        shutil.rmtree(self.root, ignore_errors=True)

    async def heal(self) -> str:
        """Start the driver and the kubelet if they do not run."""
        stopped = []
        if not self._kubelet_runs:
            stopped.append("the kubelet was stopped")
            await self.start_kubelet()
        if not self._driver.runs:
            stopped.append("the driver had ended")
            self._driver.start()
        return " and ".join(stopped)

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
        await self._driver.ended(signal.SIGKILL)

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
            await install.remove_slices(self.kubeconfig, None, NODE)
            self._driver.settings = dict(settings)
            self._driver.start()

    async def stop_kubelet(self) -> None:
        """End the kubelet; containers run on."""
        await self._within(self._kubelet.kill())
        self._kubelet_runs = False

    async def start_kubelet(self) -> None:
        """Start the kubelet."""
        await self._within(self._kubelet.start())
        self._kubelet_runs = True

    @contextlib.asynccontextmanager
    async def claims_unreadable(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Let every read of a single claim fail; the suite itself only lists and watches them."""

        async def reached() -> None:
            await fault.reached.wait()

        faults = self._cluster.apiserver.faults
        fault = faults.add(Fault.on("get", "resourceclaims", status=503, message="etcd is away (a fault to order)"))
        try:
            yield lambda: self._within(reached())
        finally:
            faults.remove(fault)

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _within(self, work: Coroutine[Any, Any, Any]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
