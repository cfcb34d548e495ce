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
from tests.conformance.here import DriverHere
from tests.conformance.node import NodeFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

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


class EmbeddedCluster(DriverHere):
    """One node, with the driver as a process."""

    capabilities = frozenset(cluster.WHY_NOT)
    patience = 30.0

    def __init__(self, *, gpus: str, kubernetes: str) -> None:
        # Unix sockets need a short path, so it is not below whatever TMPDIR says.
        self.root = Path(tempfile.mkdtemp(prefix="gc", dir="/tmp"))
        self._cluster = LocalCluster(self.root, nodes=(NODE,), kubernetes=kubernetes, times=TIMES)
        node = self._cluster.node(NODE)
        super().__init__(
            self._cluster.kubeconfig,
            None,
            driver=DriverProcess(self._cluster.agent_command(NODE, gpus=gpus)[1:], self.root / "driver.log"),
            node_name=NODE,
            files=NodeFiles(node.kubelet_root, node.cdi_dirs[1]),
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="embedded cluster", daemon=True)
        self._kubelet, self._kubelet_runs = node.kubelet, True

    def start(self) -> None:
        """Start the cluster, install the device classes, start the driver."""
        self._thread.start()
        self._call(self._cluster.start())
        if self._call(self._kubelet.runtime.mode()) == "plain":
            self.capabilities -= {cluster.MOUNTS}
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
        """Start the kubelet and the driver if they do not run."""
        stopped = []
        if not self._kubelet_runs:
            stopped.append("the kubelet was stopped")
            await self.start_kubelet()
        driver = await super().heal()
        return " and ".join([*stopped, *([driver] if driver else [])])

    async def stop_kubelet(self) -> None:
        """End the kubelet; containers run on."""
        await self._within(self._kubelet.kill())
        self._kubelet_runs = False

    async def start_kubelet(self) -> None:
        """Start the kubelet."""
        await self._within(self._kubelet.start())
        self._kubelet_runs = True

    @contextlib.asynccontextmanager
    async def claims_unreadable(self, status: int = 503) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Let every read of a single claim fail; the suite itself only lists and watches them."""

        async def reached() -> None:
            await fault.reached.wait()

        faults = self._cluster.apiserver.faults
        fault = faults.add(Fault.on("get", "resourceclaims", status=status, message="a fault to order"))
        try:
            yield lambda: self._within(reached())
        finally:
            faults.remove(fault)

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _within(self, work: Coroutine[Any, Any, Any]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
