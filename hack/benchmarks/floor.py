"""The floor: what the unavoidable parts of a call cost on this machine, at this moment."""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import aiohttp
import yaml

from driver import files
from driver._pb import dra_v1_pb2 as dra
from hack.benchmarks.world import CLAIMS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from hack.benchmarks.world import World

RECORD = b"x" * 500
CDI = b"x" * 700


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    """Return how long a call takes, in ms."""
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


class Floor:
    """Measures the parts, one by one: a bare HTTPS GET, a durable write and removal, a plain file, an empty call."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._directory = world.root / "floor"
        self._directory.mkdir()
        self.get: list[float] = []
        self.rpc: list[float] = []
        self.durable_write: list[float] = []
        self.durable_remove: list[float] = []
        self.plain_write: list[float] = []
        self.plain_remove: list[float] = []
        self.at_once: list[float] = []
        config = yaml.safe_load(world.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._url = cluster["server"]
        self._context = _tls(cluster, user)
        self._headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Floor:
        connector = aiohttp.TCPConnector(ssl=self._context)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def measure(self, claim: dra.Claim) -> None:
        """Take one sample of each part: after one rest what a prepare takes, after another what an unprepare takes."""
        await self._world.rest()
        self.rpc.append(await timed(self._rpc))
        self.get.append(await timed(lambda: self._get(claim)))
        record, cdi = self._directory / f"{claim.uid}.json", self._world.cdi_dir / f"floor-{claim.uid}.json"
        self.durable_write.append(_timed(lambda: files.write_atomic(record, RECORD)))
        self.plain_write.append(_timed(lambda: files.write_atomic(cdi, CDI, durable=False)))
        await self._world.rest()
        self.rpc.append(await timed(self._rpc))
        self.plain_remove.append(_timed(lambda: files.remove(cdi, durable=False)))
        self.durable_remove.append(_timed(lambda: files.remove(record)))

    async def measure_at_once(self, claims: Sequence[dra.Claim]) -> None:
        """Take one sample of what eight calls at once can't do without: each part for all claims side by side."""
        records = {self._directory / f"{claim.uid}.json": RECORD for claim in claims}
        await self._world.rest()
        rpcs = await timed(lambda: asyncio.gather(*(self._rpc() for _ in claims)))
        gets = await timed(lambda: asyncio.gather(*(self._get(claim) for claim in claims)))
        writes = _timed(lambda: self._write_all(records))
        self.at_once.append(gets + rpcs + writes)
        files.remove_all(records)
        for record in records:
            files.remove(self._world.cdi_dir / record.name, durable=False)

    def _write_all(self, records: Mapping[Path, bytes]) -> None:
        files.write_all(records)
        for record in records:
            files.write_atomic(self._world.cdi_dir / record.name, CDI, durable=False)

    async def _get(self, claim: dra.Claim) -> None:
        async with self._session.get(f"{self._url}{CLAIMS}/{claim.name}") as response:
            await response.json()

    async def _rpc(self) -> None:
        await self._world.stub.NodePrepareResources(dra.NodePrepareResourcesRequest())


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def _tls(cluster: dict[str, str], user: dict[str, str]) -> ssl.SSLContext:
    authority = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"), cadata=b64decode(authority).decode() if authority else None
    )
    if "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    return context
