from __future__ import annotations

import asyncio

import pytest

from driver.claims import retry
from driver.claims.retry import Retry
from driver.errors import (
    ApiUnavailableError,
    ClaimRefusedError,
    DriverError,
    StateBusyError,
    StorageError,
    TemporaryError,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)


class Attempts:
    """Attempts that end as told, one after the other."""

    def __init__(self, *outcomes: str | DriverError) -> None:
        self.outcomes = list(outcomes)
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, DriverError):
            raise outcome
        return outcome


def soon(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def never() -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def test_what_may_pass_is_tried_again() -> None:
    attempts = Attempts(StorageError("full"), ApiUnavailableError("away"), "done")
    assert await Retry(str).until(soon(30), attempts) == "done"
    assert attempts.count == 3


async def test_what_can_not_pass_is_not() -> None:
    attempts = Attempts(ClaimRefusedError("no"), "done")
    with pytest.raises(ClaimRefusedError, match="no"):
        await Retry(str).until(soon(30), attempts)
    assert attempts.count == 1


async def test_no_try_is_begun_after_the_deadline_and_the_last_error_is_told() -> None:
    later = ApiUnavailableError("throttled")
    later.retry_after = 60.0
    attempts = Attempts(StorageError("full"), later, "done")
    with pytest.raises(ApiUnavailableError, match="throttled"):
        await Retry(str).until(soon(30), attempts)
    assert attempts.count == 2


@pytest.mark.parametrize(
    ("busy", "kind", "message"),
    [("another process holds the lock", StateBusyError, "holds the lock"), ("", TemporaryError, "no answer within")],
)
async def test_an_attempt_that_hangs_ends_with_what_it_waits_for(
    busy: str, kind: type[DriverError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        await Retry(lambda: busy).until(soon(0.01), never)


async def test_a_wake_ends_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 20.0)
    tries = Retry(str)
    attempts = Attempts(StorageError("full"), "done")
    call = asyncio.create_task(tries.until(soon(30), attempts))
    while not attempts.count:
        await asyncio.sleep(0)
    while not call.done():
        tries.wake()
        await asyncio.sleep(0)
    assert await call == "done"
