from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from driver.localcluster.apiserver import StatusError
from driver.localcluster.apiserver.log_request import log_request

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
POD = {"metadata": {"name": "p"}}


def read(**query):
    return log_request(POD, "c", query, NOW)


def test_a_query_is_read():
    found = read(follow="true", timestamps="1", tailLines="0", limitBytes="7", sinceSeconds="60")
    assert (found.follow, found.previous, found.timestamps) == (True, False, True)
    assert (found.tail_lines, found.limit_bytes, found.since) == (0, 7, NOW - timedelta(minutes=1))


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("2026-01-02T03:04:05Z", NOW),
        ("2026-01-02T04:04:05.5+01:00", NOW + timedelta(seconds=0.5)),
        ("2026-01-02T03:04:05", NOW),
    ],
)
def test_since_a_time(text, since):
    assert read(sinceTime=text).since == since


def test_since_ever():
    assert read(sinceSeconds="999999999999").since == datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ({"tailLines": "-1"}, 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ({"limitBytes": "0"}, 422, "limitBytes: Invalid value: 0: must be greater than 0"),
        ({"sinceSeconds": "0"}, 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ({"sinceSeconds": "1", "sinceTime": "2026-01-02T03:04:05Z"}, 422, "at most one of `sinceTime`"),
        ({"tailLines": "-1", "limitBytes": "-1"}, 422, "[tailLines: Invalid value: -1: "),
        ({"tailLines": "x"}, 400, 'tailLines: Invalid value: "x"'),
        ({"sinceTime": "yesterday"}, 400, 'sinceTime: Invalid value: "yesterday"'),
    ],
)
def test_what_makes_no_sense_is_refused(query, code, message):
    with pytest.raises(StatusError) as caught:
        read(**query)
    assert (caught.value.code, message in caught.value.message) == (code, True)
