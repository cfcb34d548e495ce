from __future__ import annotations

import json

import pytest

from driver.errors import ApiInvalidError, ApiNotFoundError, ApiUnavailableError
from driver.kube.failures import from_answer, from_status


def test_a_status_gives_its_reason_and_message() -> None:
    body = json.dumps({"reason": "Invalid", "message": "spec.a: Required value"}).encode()
    error = from_answer("POST /x", 422, body, {})
    assert isinstance(error, ApiInvalidError)
    assert str(error) == "POST /x: 422 Invalid: spec.a: Required value"
    assert (error.status, error.reason) == (422, "Invalid")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"404 page not found\n", "404 page not found"),
        (b"", "no further words"),
        (b"\xff\xfe", "\N{REPLACEMENT CHARACTER}"),
        (b"[1, 2]", "[1, 2]"),
        (b'{"message": null, "reason": 7}', "no further words"),
        (b"[" * 100_000, "["),
    ],
)
def test_anything_else_is_shown_as_it_is(body: bytes, words: str) -> None:
    error = from_answer("GET /x", 404, body, {})
    assert isinstance(error, ApiNotFoundError)
    assert error.reason == ""
    assert words in str(error)
    assert len(str(error)) < 2100


@pytest.mark.parametrize(
    ("details", "reason"),
    [({"name": "c", "kind": "resourceclaims"}, "NotFound"), ({"kind": "x"}, ""), ({}, ""), (None, ""), ([], "")],
)
def test_a_404_has_a_reason_only_if_an_object_is_missing(details: object, reason: str) -> None:
    body = json.dumps({"reason": "NotFound", "message": "not found", "details": details}).encode()
    assert from_answer("GET /x", 404, body, {}).reason == reason


ROLE = "; a role has to permit it: apply those of deploy/base, and of the components in use"


@pytest.mark.parametrize(
    ("status", "words", "advice"),
    [
        (401, "Unauthorized", "; the credentials are not accepted: if it lasts, check the node's clock, and "),
        (
            403,
            'resourceclaims.resource.k8s.io "c" is forbidden: User "system:serviceaccount:gpu-dra:gpu-dra" cannot get '
            'resource "resourceclaims" in API group "resource.k8s.io" in the namespace "default"',
            ROLE,
        ),
        (403, 'forbidden: User "u" cannot get path "/version"', ROLE),
        # A role for whoever comes would be a hole; and the others are no matter of roles.
        (403, 'nodes "n" is forbidden: User "system:anonymous" cannot get resource "nodes" in API group ""', ""),
        (403, "nodes \"n\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no", ""),
        (403, 'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1', ""),
        (409, "the object has been modified", ""),
    ],
)
def test_what_to_do_is_said_where_it_is_certain(status: int, words: str, advice: str) -> None:
    said = str(from_answer("GET /x", status, json.dumps({"message": words}).encode(), {}))
    assert said.startswith(f"GET /x: {status}: {words}{advice}")
    assert bool(advice) == (said != f"GET /x: {status}: {words}")


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("3", {}, 3),
        (None, {"retryAfterSeconds": 4}, 4),
        ("3", {"retryAfterSeconds": 4}, 3),
        ("-1", {}, 0),
        ("1e9", {}, 3600),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        (None, {"retryAfterSeconds": []}, None),
        (None, [], None),
        (None, None, None),
    ],
)
def test_retry_after_comes_from_the_header_or_the_status(header: str, details: object, seconds: float | None) -> None:
    headers = {} if header is None else {"Retry-After": header}
    error = from_answer("GET /x", 503, json.dumps({"details": details}).encode(), headers)
    assert isinstance(error, ApiUnavailableError)
    assert error.retry_after == seconds


@pytest.mark.parametrize("status", [{}, {"code": "410"}, {"code": 500}])
def test_an_unknown_failure_in_a_watch_may_pass(status: dict[str, object]) -> None:
    assert isinstance(from_status("watch /x", status), ApiUnavailableError)
