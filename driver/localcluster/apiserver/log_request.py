"""What a client wants of a container's log: the query of `pods/log`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.errors import Cause, StatusError, bad_request
from driver.localcluster.apiserver.objects import name_of
from driver.localcluster.apiserver.validation.common import forbidden, invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from driver.localcluster.apiserver.objects import Object

_POSITIVE = ("sinceSeconds", "limitBytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """Which part of which container's log; `pod` is the object, `container` is never empty."""

    pod: Object
    container: str
    follow: bool = False
    previous: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None
    timestamps: bool = False


def log_request(pod: Object, container: str, query: Mapping[str, str], now: datetime) -> LogRequest:
    """Read a query; `now` is what `sinceSeconds` counts back from.

    :raises StatusError: 400 for what can't be read, 422 for values that are not allowed.
    """
    numbers = {name: _number(query, name) for name in (*_POSITIVE, "tailLines")}
    causes = list(_errors(numbers, query))
    if causes:
        text = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
        raise StatusError(422, "Invalid", f'PodLogOptions "{name_of(pod)}" is invalid: {text}')
    seconds = numbers["sinceSeconds"]
    return LogRequest(
        pod=pod,
        container=container,
        follow=_switch(query, "follow"),
        previous=_switch(query, "previous"),
        tail_lines=numbers["tailLines"],
        since=_time(query) if seconds is None else _before(now, seconds),
        limit_bytes=numbers["limitBytes"],
        timestamps=_switch(query, "timestamps"),
    )


def _errors(numbers: Mapping[str, int | None], query: Mapping[str, str]) -> Iterator[Cause]:
    tail = numbers["tailLines"]
    if tail is not None and tail < 0:
        yield invalid("tailLines", tail, "must be greater than or equal to 0")
    for name in _POSITIVE:
        value = numbers[name]
        if value is not None and value < 1:
            yield invalid(name, value, "must be greater than 0")
    if numbers["sinceSeconds"] is not None and "sinceTime" in query:
        yield forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified")


def _switch(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in ("true", "1")


def _number(query: Mapping[str, str], name: str) -> int | None:
    text: Any = query.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as exc:
        raise bad_request(f'{name}: Invalid value: "{text}": a whole number is needed') from exc


def _before(now: datetime, seconds: int) -> datetime:
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _time(query: Mapping[str, str]) -> datetime | None:
    text = query.get("sinceTime")
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise bad_request(f'sinceTime: Invalid value: "{text}": a time such as 2026-01-02T15:04:05Z is needed') from exc
    return found if found.tzinfo else found.replace(tzinfo=UTC)
