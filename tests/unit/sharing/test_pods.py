"""Following pods by a watch: what happens when the API server is away, forgets, or is late."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import ApiError, ApiGoneError, ApiNotFoundError, ApiUnavailableError
from driver.sharing import pods as module
from driver.sharing.pods import Pods

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@dataclass(frozen=True)
class Event:
    type: str
    object: dict[str, Any]


def pod(uid: str, phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": uid, "resourceVersion": uid}, "status": {"phase": phase}}


class Api:
    """An API server by script: what lists give, and what watches say before they end."""

    def __init__(self) -> None:
        self.stored: list[dict[str, Any]] = []
        self.errors: list[ApiError] = []
        self.events: asyncio.Queue[Event | ApiError | None] = asyncio.Queue()
        self.kubelet_answers = True

    async def list(self, path: str, *, field_selector: str = "") -> dict[str, Any]:
        assert field_selector == "spec.nodeName=n"
        if self.errors:
            raise self.errors.pop(0)
        return {"items": list(self.stored), "metadata": {"resourceVersion": "1"}}

    async def get(self, path: str) -> dict[str, Any]:
        if not self.stored:
            raise ApiNotFoundError("gone", status=404)
        return self.stored[0]

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.stored = [body]
        return body

    async def delete(self, path: str, *, uid: str | None = None) -> dict[str, Any]:
        self.stored = []
        if self.kubelet_answers:
            self.events.put_nowait(Event("DELETED", pod(str(uid))))
        return {}

    async def watch(self, path: str, *, field_selector: str = "", resource_version: str = "") -> AsyncGenerator[Event]:
        while (event := await self.events.get()) is not None:
            if isinstance(event, ApiError):
                raise event
            yield event


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    return Api()


async def test_a_first_list_that_fails_is_the_callers(api: Api) -> None:
    api.errors = [ApiUnavailableError("away")]
    followed = Pods(api, "ns", "n")
    with pytest.raises(ApiUnavailableError):
        await followed.known()
    assert await followed.known() == {}
    await followed.aclose()


@pytest.mark.parametrize("end", [None, ApiGoneError("too old"), ApiUnavailableError("away")])
async def test_a_watch_that_ends_goes_on(api: Api, end: ApiError | None) -> None:
    api.stored = [pod("1")]
    followed = Pods(api, "ns", "n")
    found = await followed.get("p")
    assert found is not None
    life = followed.life(found)
    api.events.put_nowait(end)
    api.events.put_nowait(Event("BOOKMARK", {"metadata": {"resourceVersion": "7"}}))
    api.events.put_nowait(Event("MODIFIED", pod("1", "Failed")))
    assert await life.wait(5)
    assert "its pod is Failed" in life.ending()
    await followed.aclose()


async def test_what_vanished_while_nobody_watched_has_ended(api: Api) -> None:
    api.stored = [pod("1")]
    followed = Pods(api, "ns", "n")
    found = await followed.get("p")
    assert found is not None
    life = followed.life(found)
    api.stored = [pod("2")]  # another of the same name
    api.errors = [ApiUnavailableError("still away")]
    api.events.put_nowait(ApiUnavailableError("away"))
    assert await life.wait(5)
    assert life.ending() == "has lost its pod"
    await followed.aclose()


async def test_a_pod_is_known_before_the_watch_tells_of_it(api: Api) -> None:
    followed = Pods(api, "ns", "n")
    life = await followed.create(pod("1"))
    assert life.alive
    assert await followed.get("p") == pod("1")
    assert await followed.delete("p", 5)
    assert await life.wait(5)
    await followed.aclose()


async def test_a_pod_that_stays_is_told(api: Api) -> None:
    api.stored = [pod("1")]
    followed = Pods(api, "ns", "n")
    api.kubelet_answers = False
    assert not await followed.delete("p", 0.01)
    await followed.aclose()


async def test_deleting_what_is_gone_is_success(api: Api) -> None:
    followed = Pods(api, "ns", "n")
    assert await followed.delete("p", 5)
    await followed.aclose()
