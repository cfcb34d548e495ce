from __future__ import annotations

import asyncio

from driver.localcluster import events
from driver.localcluster.controllers.controller import Controller
from driver.localcluster.informer import Informer
from tests.unit.localcluster.support import NAMESPACE, Running, make_store, node, pod, wait_for


def names(seen):
    return [(type_, obj["metadata"]["name"]) for type_, obj in seen]


async def test_what_exists_comes_first_then_every_change_once():
    store, seen, done = make_store(), [], asyncio.Event()

    def handle(type_, obj):
        seen.append((type_, obj))
        if type_ == "DELETED":
            done.set()

    store.create("nodes", node("a"))
    informer = Informer(store, {"nodes": handle})
    informer.load()
    store.create("nodes", node("b"))
    async with Running(informer), asyncio.timeout(10):
        store.patch("nodes", "a", {"metadata": {"labels": {"x": "y"}}})
        store.delete("nodes", "a")
        await done.wait()
    assert names(seen) == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_after_a_compaction_it_reads_again_and_misses_nothing():
    store, seen, done = make_store(), [], asyncio.Event()

    def handle(type_, obj):
        seen.append((type_, obj))
        if obj["metadata"]["name"] == "d":
            done.set()

    for name in ("a", "b"):
        store.create("nodes", node(name))
    informer = Informer(store, {"nodes": handle})
    informer.load()
    store.delete("nodes", "a")
    store.patch("nodes", "b", {"metadata": {"labels": {"x": "y"}}})
    store.create("nodes", node("c"))
    store.compact()
    async with Running(informer), asyncio.timeout(10):
        store.create("nodes", node("d"))
        await done.wait()
    assert sorted(names(seen)) == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("ADDED", "c"),
        ("ADDED", "d"),
        ("DELETED", "a"),
        ("MODIFIED", "b"),
    ]


async def test_a_handler_that_fails_costs_only_that_change(caplog):
    store, seen, done = make_store(), [], asyncio.Event()

    def handle(type_, obj):
        if obj["metadata"]["name"] == "bad":
            raise ValueError("no")
        seen.append((type_, obj))
        done.set()

    informer = Informer(store, {"nodes": handle})
    informer.load()
    async with Running(informer), asyncio.timeout(10):
        store.create("nodes", node("bad"))
        store.create("nodes", node("good"))
        await done.wait()
    assert names(seen) == [("ADDED", "good")]
    assert "nodes /bad could not be taken in" in caplog.text


async def test_a_controller_ends_when_the_store_closes_its_watches():
    store = make_store()
    controller = Controller(store, lambda key: None, {"nodes": lambda type_, obj: None})
    task = asyncio.create_task(controller.run())
    for _ in range(5):
        await asyncio.sleep(0)
    store.close_watches()
    async with asyncio.timeout(10):
        await task


async def test_a_failed_sync_is_tried_again_and_others_go_on(caplog):
    store, tries, done = make_store(), [], asyncio.Event()

    def sync(key):
        tries.append(key[2])
        if tries.count("bad") < 3 and key[2] == "bad":
            raise RuntimeError("not yet")
        if tries.count("bad") == 3:
            done.set()

    controller = Controller(
        store, sync, {"nodes": lambda type_, obj: controller.add(("nodes", "", obj["metadata"]["name"]))}
    )
    async with Running(controller), asyncio.timeout(10):
        store.create("nodes", node("bad"))
        store.create("nodes", node("good"))
        await done.wait()
    assert tries == ["bad", "good", "bad", "bad"]
    assert "nodes /bad could not be synced" in caplog.text


async def test_a_repeated_event_counts_up_and_a_long_one_is_cut():
    store = make_store()
    about = store.create("pods", pod("p"))
    for _ in range(3):
        events.record(store, "test", about, "Why", "x" * 2000, warning=True)
    (event,) = store.list("events", NAMESPACE)
    assert (event["count"], event["type"], len(event["message"])) == (3, "Warning", 1024)
    assert event["involvedObject"]["uid"] == about["metadata"]["uid"]


async def test_an_event_in_a_namespace_that_is_gone_is_dropped():
    store = make_store()
    about = store.create("pods", pod("p"))
    store.delete("namespaces", NAMESPACE)
    await wait_for(store, "pods", lambda pods: not pods)
    events.record(store, "test", about, "Why", "because")
    assert store.list("events") == []
