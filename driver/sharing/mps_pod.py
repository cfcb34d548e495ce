"""MPS: one control daemon per claim, each as a pod on this node; a `MpsControl`.

The kubelet runs the daemon, so it lives on when the agent ends, without the host's control groups, and its memory is
accounted to a pod that people see. The agent creates the pod, waits until the daemon answers, watches it, and deletes
it. All else is as with child processes (`driver.sharing.mps`): the program, its directories, the limits.

The price: a claim with MPS can be prepared and released only while the API server and the kubelet answer.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.errors import ApiConflictError, DriverError, GpuToolError, SettingNotSupportedError
from driver.sharing.base import client_edits
from driver.sharing.daemon_files import DaemonRoot
from driver.sharing.daemons import Daemons, tag_of
from driver.sharing.mps_client import MpsClient
from driver.sharing.mps_ready import configure_when_ready
from driver.sharing.pod_manifest import (
    DAEMON_LABEL,
    TAG_ANNOTATION,
    Command,
    HostPath,
    Image,
    manifest,
    own_image,
    pod_name,
    trouble,
)
from driver.sharing.pods import PodLife, has_ended

if TYPE_CHECKING:
    from pathlib import Path

    from driver.model.json_object import JsonObject
    from driver.sharing.base import ClientEdits, MpsSpec
    from driver.sharing.daemon_files import DaemonFiles
    from driver.sharing.pods import PodApi, Pods
    from driver.sharing.tools import Tool, Tools

_SHM = "/dev/shm"  # noqa: S108


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """How pods are run. Times are in seconds: from creation to answer, for asking to end, for being gone.

    `image` is empty for that of the agent's own pod, which has `pod_uid`. `driver_root` is where the driver is, as this
    process sees it and the pod shall, `host_driver_root` as the host does.
    """

    root: Path
    shm_root: Path
    node: str
    driver_root: Path
    host_driver_root: Path
    image: str = ""
    pod_uid: str = ""
    ready_timeout: float = 10.0
    quit_timeout: float = 3.0
    gone_timeout: float = 20.0


class MpsPods(Daemons[PodLife]):
    """Starts, adopts, watches and stops the pods. What it does to one daemon, it does one after another."""

    def __init__(self, tools: Tools, pods: Pods, api: PodApi, options: PodOptions) -> None:
        super().__init__(DaemonRoot(options.root, options.shm_root), tools)
        self._pods = pods
        self._api = api
        self._options = options

    def edits(self, daemon_id: str) -> ClientEdits:
        """Return what the containers get, as `MpsControl.edits`."""
        files = self._files.usable(daemon_id)
        return client_edits(str(files.pipe), str(files.shm))

    async def aclose(self) -> None:
        """Stop watching; the pods live on."""
        await super().aclose()
        await self._pods.aclose()

    async def _launch(self, daemon_id: str, files: DaemonFiles, spec: MpsSpec) -> None:
        client = MpsClient(daemon_id, files, self._tools)
        command = self._command(client, files, client.tool(), spec)
        image = await self._image()
        node = await self._api.get(f"/api/v1/nodes/{self._options.node}")
        files.make()
        try:
            life = await self._create(manifest(daemon_id, tag_of(spec), command, image, node))
            try:
                await configure_when_ready(client, files, life, spec, self._options.ready_timeout)
            except GpuToolError as exc:
                pod = await self._pods.get(pod_name(daemon_id))
                raise GpuToolError(f"{exc}; its pod: {trouble(pod) if pod else 'gone'}") from exc
        except BaseException:
            with suppress(DriverError):  # what is left is swept, or replaced by the next try
                await self._pods.delete(pod_name(daemon_id), self._options.gone_timeout)
            raise
        self._watch(daemon_id, files, life, spec)

    async def _create(self, body: JsonObject) -> PodLife:
        try:
            return await self._pods.create(body)
        except ApiConflictError:  # one that the watch has not told of yet
            if not await self._pods.delete(body["metadata"]["name"], self._options.gone_timeout):
                raise
            return await self._pods.create(body)

    async def _adopt(self, daemon_id: str, files: DaemonFiles, spec: MpsSpec) -> bool:
        pod = await self._pods.get(pod_name(daemon_id))
        if pod is None or "deletionTimestamp" in pod["metadata"] or has_ended(pod):
            return False
        if pod["metadata"].get("annotations", {}).get(TAG_ANNOTATION) != tag_of(spec):
            return False
        life = self._pods.life(pod)
        return await self._take_over(daemon_id, files, life, spec)

    async def _end(self, daemon_id: str, files: DaemonFiles) -> None:
        """End a pod: by asking the daemon, then by deleting it; return when nothing of it runs."""
        daemon = self._daemons.get(daemon_id)
        if daemon is not None:
            daemon.stopping = True
            with suppress(DriverError):
                quitting = MpsClient(daemon_id, files, self._tools).ask("quit", limit=self._options.quit_timeout)
                await daemon.life.unless_ended(quitting)
        if not await self._pods.delete(pod_name(daemon_id), self._options.gone_timeout):
            raise GpuToolError(
                f"MPS control daemon {daemon_id}: its pod {self._pods.path}/{pod_name(daemon_id)} is not gone "
                f"{self._options.gone_timeout:g} s after it was deleted: is the kubelet well?"
            )
        self._daemons.pop(daemon_id, None)

    async def _exists(self, daemon_id: str, files: DaemonFiles) -> bool:
        return files.exist() or await self._pods.get(pod_name(daemon_id)) is not None

    async def _known(self) -> frozenset[str]:
        labels = [pod["metadata"].get("labels") or {} for pod in (await self._pods.known()).values()]
        return self._files.ids() | {one[DAEMON_LABEL] for one in labels if DAEMON_LABEL in one}

    async def _image(self) -> Image:
        if self._options.image:
            return Image(name=self._options.image)
        pods = await self._pods.known()
        mine = next((pod for pod in pods.values() if pod["metadata"]["uid"] == self._options.pod_uid), None)
        if mine is None:
            raise SettingNotSupportedError(
                f"there is no pod of the agent's own with uid {self._options.pod_uid!r} at {self._pods.path}, whose "
                "image MPS daemons could have: set mps_image, or mps_namespace to the agent's namespace"
            )
        return own_image(mine)

    def _command(self, client: MpsClient, files: DaemonFiles, tool: Tool, spec: MpsSpec) -> Command:
        binds = [*client.binds(tool), *([(_SHM, _SHM)] if tool.root else [])]
        argv = tool.argv("-f", *(["-multiuser-server"] if spec.multi_user else []), binds=binds)
        env = {**tool.env, **client.env(tool), "CUDA_VISIBLE_DEVICES": ",".join(spec.devices)}
        options = self._options
        driver = HostPath(
            name="driver", host=str(options.host_driver_root), path=str(options.driver_root), read_only=True
        )
        paths = (
            driver,
            HostPath(name="dev", host="/dev", path="/dev"),
            HostPath(name="shm", host=str(files.shm), path=_SHM),
            HostPath(name="daemon", host=str(files.directory), path=str(files.directory)),
        )
        return Command(argv=argv, env=env, paths=paths)
