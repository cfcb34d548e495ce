"""Registration with the kubelet: its plugin watcher finds our socket, asks who we are, and tells how it went.

The kubelet dials up to 10 s, asks within 1 s and tells within 5 s; after a failure it comes back by itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from driver._pb import pluginregistration_pb2 as pb
from driver._pb import pluginregistration_pb2_grpc as pb_grpc
from driver.model.names import DRIVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import grpc.aio

log = logging.getLogger(__name__)

DRA_V1 = "v1.DRAPlugin"
DRA_V1BETA1 = "v1beta1.DRAPlugin"


class Registration(pb_grpc.RegistrationServicer):
    """Answers the kubelet's registration calls.

    `versions` are service names; the kubelet takes the first that it knows, so the newest comes first. `told` hears of
    each outcome: an empty string for success, else the kubelet's reason.
    """

    def __init__(self, endpoint: Path, versions: Sequence[str], *, told: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._versions = tuple(versions)
        self._told = told
        self.registered = asyncio.Event()
        self.error = ""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add this service to a server."""
        pb_grpc.add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def GetInfo(self, request: pb.InfoRequest, context: Any) -> pb.PluginInfo:  # noqa: N802 (the wire's name)
        """Say who we are and where we serve."""
        return pb.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._endpoint), supported_versions=self._versions
        )

    async def NotifyRegistrationStatus(  # noqa: N802 (the wire's name)
        self, request: pb.RegistrationStatus, context: Any
    ) -> pb.RegistrationStatusResponse:
        """Take note. Never an error in answer: the kubelet would deregister us for it."""
        if request.plugin_registered:
            self.error = ""
            self.registered.set()
            log.info("registered with the kubelet as %s", DRIVER)
        else:
            self.error = " ".join(request.error.split()) or "no reason given"
            self.registered.clear()
            log.error("the kubelet did not register the driver: %s; it will try again by itself", self.error)
        self._told(self.error)
        return pb.RegistrationStatusResponse()
