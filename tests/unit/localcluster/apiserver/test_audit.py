from __future__ import annotations

import json

from driver.localcluster.apiserver.audit import AuditLog, Call
from tests.unit.localcluster.apiserver.conftest import CLAIMS, PODS, claim
from tests.unit.localcluster.apiserver.test_streams import watching


async def test_every_call_is_recorded_in_the_words_of_rbac(client):
    await client.ask("POST", CLAIMS, claim())
    await client.ask("GET", f"{CLAIMS}/nope")
    await client.ask("GET", CLAIMS)
    await client.patch(f"{CLAIMS}/c/status", {"status": {}})
    await client.ask("DELETE", CLAIMS)
    await client.ask("GET", "/version")
    found = [(c.verb, c.resource, c.subresource, c.name, c.code) for c in client.server.audit.by("admin")]
    assert found == [
        ("create", "resourceclaims", "", "", 201),
        ("get", "resourceclaims", "", "nope", 404),
        ("list", "resourceclaims", "", "", 200),
        ("patch", "resourceclaims", "status", "c", 200),
        ("deletecollection", "resourceclaims", "", "", 200),
        ("get", "", "", "", 200),
    ]
    call = client.server.audit.calls[0]
    assert (call.group, call.version, call.namespace) == ("resource.k8s.io", "v1", "default")


async def test_a_watch_is_recorded_once_when_it_starts(client):
    async with watching(client, f"{PODS}?watch=true"):
        found = [(call.verb, call.resource, call.code) for call in client.server.audit.by("admin")]
        assert found == [("watch", "pods", 0)]
    await client.ask("GET", PODS)
    assert [call.verb for call in client.server.audit.by("admin")] == ["watch", "list"]


async def test_requests_and_writes_are_counted(client):
    audit = client.server.audit
    await client.ask("POST", CLAIMS, claim())
    await client.ask("GET", PODS)
    await client.ask("GET", PODS)
    assert (audit.requests, audit.writes) == (3, 1)
    assert audit.counts["list", "pods"] == 2
    audit.clear()
    assert (audit.requests, list(audit.calls)) == (0, [])


def test_a_file_gets_a_line_per_call(tmp_path):
    log = AuditLog(file=tmp_path / "audit.jsonl")
    log.record(Call(user="u", verb="get", resource="pods", code=200))
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["user"], line["verb"], line["resource"], line["code"]) for line in lines] == [
        ("u", "get", "pods", 200)
    ]


def test_only_the_last_calls_are_kept():
    log = AuditLog(keep=2)
    for verb in ("get", "list", "watch"):
        log.record(Call(user="u", verb=verb))
    assert [call.verb for call in log.calls] == ["list", "watch"]
    assert log.requests == 3
