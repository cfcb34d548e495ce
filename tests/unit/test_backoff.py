from __future__ import annotations

import pytest

from driver.backoff import Backoff, Repairs
from driver.errors import ApiUnavailableError


def test_pauses_double_up_to_the_longest_and_start_again_after_a_success() -> None:
    backoff = Backoff(1.0, 10.0)
    pauses = [backoff.next() for _ in range(6)]
    for pause, ceiling in zip(pauses, (1, 2, 4, 8, 10, 10), strict=True):
        assert ceiling / 2 <= pause <= ceiling
    backoff.reset()
    assert backoff.next() <= 1
    for _ in range(5000):
        assert backoff.next() <= 10


@pytest.mark.parametrize(("asked", "least"), [(None, 0.5), (0.0, 0.5), (60.0, 60.0)])
def test_the_server_may_ask_for_a_longer_pause(asked: float | None, least: float) -> None:
    error = ApiUnavailableError("busy", status=429)
    error.retry_after = asked
    assert Backoff(1.0, 10.0).next(error) >= least


def test_repairs_are_made_at_once_until_somebody_keeps_at_it() -> None:
    repairs = Repairs()
    assert [repairs.pause(now) for now in range(12)] == [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 30, 30]
    assert repairs.pause(11 + 61) == 0


def test_rare_repairs_are_always_made_at_once() -> None:
    repairs = Repairs()
    assert {repairs.pause(100.0 * number) for number in range(50)} == {0}
