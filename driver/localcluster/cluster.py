"""The embedded cluster: API server, scheduler, controllers and one kubelet per node, in one process.

It knows the agent as a real cluster does: by the sockets below a node's kubelet root, by CDI files and by the API.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driver.errors import InvalidValueError
from driver.localcluster.apiserver import ApiServer, Features, LogRequest
from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.objects import lookup, name_of
from driver.localcluster.kubelet.kubelet import Kubelet
from driver.localcluster.kubelet.paths import NodePaths
from driver.localcluster.kubelet.times import Times
from driver.model.names import UNIX_PATH_MAX, is_dns_subdomain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from driver.localcluster.apiserver import Store
    from driver.localcluster.apiserver.execution import ExecRequest
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.containers.execution import Execution

_LONG_SOCKET = "gpu.nvidia.com-reg.sock"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node of the cluster."""

    name: str
    kubelet: Kubelet

    @property
    def kubelet_root(self) -> Path:
        """What is `/var/lib/kubelet` on a real node."""
        return self.kubelet.paths.kubelet_root

    @property
    def cdi_dirs(self) -> tuple[Path, Path]:
        """What is `/etc/cdi` and `/var/run/cdi` on a real node."""
        return self.kubelet.paths.cdi_dirs


class LocalCluster:
    """An embedded cluster below `root`, whose path must be short: Unix sockets are in there.

    `time_scale` shortens the waits between retries, grace periods and probes; deadlines of calls stay.

    :raises InvalidValueError: a node name, version, feature gate or scale that can't be.
    """

    def __init__(
        self,
        root: Path,
        *,
        nodes: Sequence[str] = ("node-a",),
        kubernetes: str = "1.36",
        feature_gates: Mapping[str, bool] | None = None,
        time_scale: float = 1.0,
        times: Times | None = None,
        port: int = 0,
    ) -> None:
        _check_nodes(nodes)
        _check_root(root, nodes)
        self.root = root
        features = Features(kubernetes=kubernetes, gates=dict(feature_gates or {}))
        self.apiserver = ApiServer(root, features, port=port, authorization=True)
        self.apiserver.log_source = self._log
        self.apiserver.exec_source = self._exec
        times = (times or Times()).scaled(time_scale)
        self.nodes = {
            name: LocalNode(name, Kubelet(name, self.store, NodePaths(root / name), times=times)) for name in nodes
        }
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def store(self) -> Store:
        """All objects."""
        return self.apiserver.store

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.apiserver.kubeconfig

    def node(self, name: str) -> LocalNode:
        """Return a node.

        :raises InvalidValueError: there is none of that name.
        """
        if name not in self.nodes:
            raise InvalidValueError("node", name, f"one of {', '.join(self.nodes)}")
        return self.nodes[name]

    def agent_command(self, name: str, *, gpus: str = "h100:8") -> list[str]:
        """Return the command line that runs the agent for a node, with fake GPUs."""
        node = self.node(name)
        return [
            "gpu-dra", "run", "--node-name", name, "--kubeconfig", str(self.kubeconfig),
            "--kubelet-root", str(node.kubelet_root), "--cdi-dir", str(node.cdi_dirs[1]),
            "--gpus", gpus, "--http-address=",
        ]  # fmt: skip

    async def start(self) -> None:
        """Start everything; when it returns the API is served and all nodes are Ready."""
        await self.apiserver.start()
        for run in _controllers(self.store):
            self._tasks.append(asyncio.create_task(_keep(run), name=type(run).__name__))
        await asyncio.gather(*(node.kubelet.start() for node in self.nodes.values()))

    async def stop(self) -> None:
        """Stop everything; containers end, files stay."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await asyncio.gather(*(node.kubelet.stop() for node in self.nodes.values()))
        await self.apiserver.stop()

    async def __aenter__(self) -> LocalCluster:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def _log(self, request: LogRequest) -> AsyncIterator[bytes]:
        async for chunk in self._kubelet_of(request.pod).log(request):
            yield chunk

    async def _exec(self, request: ExecRequest) -> Execution:
        return await self._kubelet_of(request.pod).exec(request)

    def _kubelet_of(self, pod: Object) -> Kubelet:
        node = self.nodes.get(str(lookup(pod, "spec.nodeName") or ""))
        if node is None:
            raise StatusError(400, "BadRequest", f"pod {name_of(pod)} does not have a host assigned")
        return node.kubelet


def _controllers(store: Store) -> list[Any]:
    """Make the scheduler and the controllers; their libraries are an extra, so they are imported only here."""
    from driver.localcluster.controllers.claims import ClaimController
    from driver.localcluster.controllers.deployments import DeploymentController
    from driver.localcluster.controllers.evictions import EvictionController
    from driver.localcluster.controllers.jobs import JobController
    from driver.localcluster.controllers.replicasets import ReplicaSetController
    from driver.localcluster.scheduler import cel
    from driver.localcluster.scheduler.scheduler import Scheduler

    store.cel = cel.check
    kinds = (Scheduler, ClaimController, DeploymentController, ReplicaSetController, JobController, EvictionController)
    return [kind(store) for kind in kinds]


async def _keep(part: Any) -> None:
    """Run a part of the cluster; a failure is logged and the part starts anew."""
    while True:
        try:
            await part.run()
        except Exception:
            _log.exception("%s failed, and starts again", type(part).__name__)
            await asyncio.sleep(1)
        else:
            return


def _check_root(root: Path, nodes: Sequence[str]) -> None:
    """Refuse a root below which a kubelet's or a driver's sockets would have paths that are too long for sockets."""
    longest = max(len(os.fsencode(NodePaths(root / name).plugins_registry / _LONG_SOCKET)) for name in nodes)
    if longest > UNIX_PATH_MAX:
        allowed = f"a path that is shorter by {longest - UNIX_PATH_MAX} bytes: Unix sockets are below it"
        raise InvalidValueError("root", str(root), allowed)


def _check_nodes(nodes: Sequence[str]) -> None:
    if not nodes or len(set(nodes)) != len(nodes):
        raise InvalidValueError("nodes", list(nodes), "at least one name, and none twice")
    for name in nodes:
        if not is_dns_subdomain(name):
            raise InvalidValueError("nodes", name, "a node's name is a DNS subdomain")
