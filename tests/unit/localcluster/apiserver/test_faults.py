from __future__ import annotations

import asyncio

import aiohttp
import pytest

from driver.localcluster.apiserver import Fault
from driver.localcluster.apiserver.audit import Call
from driver.localcluster.apiserver.faults import Faults
from tests.unit.localcluster.apiserver.conftest import CLAIMS, PODS, claim


@pytest.mark.parametrize("status", [400, 401, 403, 409, 410, 422, 429, 500, 503])
async def test_a_status_is_answered(client, status):
    client.server.faults.add(Fault(status=status, retry_after=2 if status == 429 else None))
    found = await client.ask("GET", CLAIMS)
    assert (found.status, found.body["code"], found.body["message"]) == (status, status, "injected fault")
    assert found.headers.get("Retry-After") == ("2" if status == 429 else None)


async def test_a_fault_hits_what_it_is_for(client):
    fault = client.server.faults.add(Fault.on("get", "resourceclaims", "admin", status=500))
    assert (await client.ask("GET", PODS)).status == 200
    assert (await client.ask("GET", CLAIMS)).status == 200
    assert (await client.ask("GET", f"{CLAIMS}/c")).status == 500
    assert fault.reached.is_set()
    client.server.faults.remove(fault)
    client.server.faults.remove(fault)
    assert (await client.ask("GET", f"{CLAIMS}/c")).status == 404


async def test_a_fault_may_hit_a_few_times_only(client):
    fault = client.server.faults.add(Fault(status=500, times=2))
    assert [(await client.ask("GET", PODS)).status for _ in range(3)] == [500, 500, 200]
    assert fault.hits == 2


async def test_a_refused_write_is_not_done(client):
    client.server.faults.add(Fault.on("create", status=409))
    await client.ask("POST", CLAIMS, claim())
    client.server.faults.clear()
    assert client.server.store.list("resourceclaims") == []


async def test_a_connection_is_dropped(client):
    client.server.faults.add(Fault(drop=True, times=1))
    with pytest.raises(aiohttp.ClientError):
        await client.ask("POST", PODS, {})
    assert (await client.ask("GET", PODS)).status == 200


async def test_a_call_hangs_until_it_is_let_go(client):
    gate = asyncio.Event()
    fault = client.server.faults.add(Fault(until=gate, delay=0.001))
    asked = asyncio.create_task(client.ask("GET", PODS))
    async with asyncio.timeout(10):
        await fault.reached.wait()
    assert not asked.done()
    gate.set()
    assert (await asked).status == 200


async def test_a_subresource_is_named_with_a_slash():
    faults = Faults()
    faults.add(Fault.on(resource="pods/status", status=500))
    await faults.strike(Call(user="u", verb="patch", resource="pods"))
    with pytest.raises(Exception, match="injected"):
        await faults.strike(Call(user="u", verb="patch", resource="pods", subresource="status"))
