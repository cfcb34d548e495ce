"""A cluster under test: its kubeconfig, and what can be done to it beside its API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.conformance.connections import Connections
    from tests.conformance.driver_process import DriverProcess
    from tests.conformance.node import NodeFiles

RESTART_KUBELET = "restart-kubelet"
RESTART_DRIVER = "restart-driver"
CONFIGURE_DRIVER = "configure-driver"
API_FAULTS = "api-faults"
SEE_NODE = "see-node"
EXPLAIN = "explain"
DISRUPT = "disrupt"
MOUNTS = "mounts"

REGISTERED = "registered with the kubelet"
"""In the driver's log. A pod that comes sooner waits for more than a minute: the kubelet tries again only then."""

WHY_NOT = {
    RESTART_KUBELET: "the kubelet can be stopped and started only in the embedded cluster",
    RESTART_DRIVER: "the driver can be stopped and started only where the suite started it (see --driver process)",
    CONFIGURE_DRIVER: "the driver's settings can be chosen only where the suite started it (see --driver process)",
    API_FAULTS: "the API server can be made to fail only in the embedded cluster",
    SEE_NODE: "the node's files can be looked at only where the suite started the driver (see --driver process)",
    EXPLAIN: "only the embedded cluster's scheduler tells which device fails at what",
    MOUNTS: "containers of the embedded cluster get mounts only from root, or where users may make namespaces",
    DISRUPT: "others on this cluster would notice; allow it with --disruptive",
}
"""Every capability, and the reason for a skip where a cluster lacks it."""


class Cluster:
    """A cluster. What it can't do, it says by `can`; such methods may not be called then."""

    capabilities: frozenset[str] = frozenset({MOUNTS})
    patience: float = 180.0
    """Seconds that an expected event may take."""

    def __init__(self, kubeconfig: Path, context: str | None = None) -> None:
        self.kubeconfig = kubeconfig
        self.context = context

    def can(self, capability: str) -> bool:
        """Say whether the cluster has a capability of `WHY_NOT`."""
        return capability in self.capabilities

    def require(self, *capabilities: str) -> None:
        """Skip the test that needs what this cluster can't do."""
        for capability in capabilities:
            if not self.can(capability):
                pytest.skip(f"needs {capability}: {WHY_NOT[capability]}")

    def start(self) -> None:
        """Bring up what is not there yet."""

    def stop(self) -> None:
        """End what `start` brought up."""

    async def heal(self) -> str:
        """Start again what a case has left stopped; return what that was, if it was anything."""
        return ""

    def about(self) -> str:
        """Return what to show of the driver when a test failed."""
        return ""

    @property
    def node(self) -> NodeFiles:
        """The node's files (see-node)."""
        raise NotImplementedError

    async def stop_driver(self) -> None:
        """End the driver as a node does: SIGTERM (restart-driver)."""
        raise NotImplementedError

    async def kill_driver(self) -> None:
        """End the driver without a warning (restart-driver)."""
        raise NotImplementedError

    async def start_driver(self) -> None:
        """Start the driver again (restart-driver)."""
        raise NotImplementedError

    async def driver_says(self, text: str) -> None:
        """Wait until the driver's log has this text since its last start (restart-driver)."""
        raise NotImplementedError

    def connections(self) -> Connections:
        """Return the driver's connections (see-node)."""
        raise NotImplementedError

    def another_driver(self, settings: Mapping[str, str]) -> AbstractAsyncContextManager[DriverProcess]:
        """Run another instance of the driver beside it, as a rolling update does (restart-driver)."""
        raise NotImplementedError

    async def configure_driver(self, settings: Mapping[str, str]) -> None:
        """Have the driver run with these settings, by flag, beside its usual ones (configure-driver if there are any).

        If it ran with others it starts anew, and its slices with it.
        """
        if settings:
            raise NotImplementedError

    async def stop_kubelet(self) -> None:
        """End the kubelet's process; containers run on (restart-kubelet)."""
        raise NotImplementedError

    async def start_kubelet(self) -> None:
        """Start the kubelet again (restart-kubelet)."""
        raise NotImplementedError

    def claims_unreadable(self, status: int = 503) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """Let the API server fail whenever the driver reads a claim; the value waits until it has (api-faults).

        The driver tries again what may pass, as 503; what may not, as 403, fails the call.
        """
        raise NotImplementedError
