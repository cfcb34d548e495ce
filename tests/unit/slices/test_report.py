from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from driver.errors import ApiForbiddenError, ApiInvalidError, ApiUnauthorizedError, ApiUnavailableError, DriverError
from driver.slices.dropped import Feature
from driver.slices.report import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable


class Ears:
    """Hears Events and counts, and is the clock."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.failures: list[str] = []
        self.now = 1000.0

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        assert warning
        self.events.append(f"{reason}: {message}")

    def slice_written(self, verb: str) -> None:
        raise AssertionError(verb)

    def publish_failed(self, error_type: str) -> None:
        self.failures.append(error_type)


@pytest.fixture
def ears() -> Ears:
    return Ears()


@pytest.fixture
def report(ears: Ears) -> Reporter:
    return Reporter(ears, ears, clock=lambda: ears.now)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ApiForbiddenError("PUT /x: 403", status=403), "PUT /x: 403"),
        (ApiInvalidError("PUT /x: 422", status=422), "tried again when the GPUs change"),
        (ApiUnauthorizedError("PUT /x: 401", status=401), "PUT /x: 401"),
        (ApiUnavailableError("PUT /x: 503", status=503), "PUT /x: 503"),
    ],
)
def test_a_failure_says_what_to_do_and_an_event_what_people_must_change(
    report: Reporter, ears: Ears, caplog: pytest.LogCaptureFixture, error: DriverError, advice: str
) -> None:
    report.failed(error)
    assert advice in report.state.error
    assert str(error) in warnings(caplog)[0]
    assert len(ears.events) == (1 if isinstance(error, (ApiForbiddenError, ApiInvalidError)) else 0)
    assert ears.failures == [type(error).__name__]


def test_the_same_failure_is_told_once_in_a_while_and_counted_always(
    report: Reporter, ears: Ears, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        report.failed(ApiInvalidError("no"))
        ears.now += 60
    assert len(warnings(caplog)) == len(ears.events) == 1
    assert len(ears.failures) == 5
    ears.now += 600
    report.failed(ApiInvalidError("no"))
    report.failed(ApiInvalidError("another"))
    assert len(ears.events) == 3


def test_the_state_follows(report: Reporter) -> None:
    assert not report.state.published
    report.succeeded(slices=2, devices=70, complete=True)
    report.failed(ApiUnavailableError("away"))
    assert report.state.published
    assert not report.state.complete
    report.succeeded(slices=2, devices=70, complete=True)
    assert (report.state.complete, report.state.error, report.state.devices) == (True, "", 70)
    report.pending()
    assert not report.state.complete


def test_a_missing_feature_is_told_with_what_follows_from_it(report: Reporter, ears: Ears) -> None:
    report.without(frozenset({Feature.TAINTS}))
    report.without(frozenset({Feature.TAINTS, Feature.PARTITIONS}), "the API server is v1.34.0")
    assert [event.partition(": ")[2] for event in ears.events] == [
        "the API server drops device taints, as that feature is off: "
        "unhealthy GPUs are withdrawn from the ResourceSlices instead of being tainted",
        "the API server is v1.34.0: MIG partitions are withdrawn; whole GPUs and existing MIG devices stay",
    ]
    assert report.state.without == {Feature.TAINTS, Feature.PARTITIONS}
    report.without(frozenset())
    assert not report.state.without


@pytest.mark.parametrize(
    ("tell", "words"),
    [
        (lambda report: report.differs(frozenset({"b", "a"})), "without a, b"),
        (lambda report: report.differs(frozenset()), "changed"),
    ],
)
def test_a_difference_is_told(report: Reporter, ears: Ears, tell: Callable[[Reporter], None], words: str) -> None:
    tell(report)
    assert words in ears.events[0]


def test_success_is_told_when_something_was_done_for_it(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    report = Reporter(ears, ears)

    def succeed() -> int:
        caplog.clear()
        report.pending()
        report.succeeded(slices=2, devices=70, complete=True)
        return sum("70 devices are published in 2" in message for message in caplog.messages)

    assert [succeed(), succeed(), succeed()] == [1, 0, 0]  # a claim that cuts a GPU changes no slice
    report.failed(ApiUnavailableError("PUT /x: 503", status=503))
    assert [succeed(), succeed()] == [1, 0]
    ears.slice_written = lambda verb: None  # type: ignore[method-assign]
    report.wrote("update")
    assert [succeed(), succeed()] == [1, 0]
