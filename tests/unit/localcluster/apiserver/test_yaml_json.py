from __future__ import annotations

import pytest

from driver.localcluster.apiserver import yaml_json
from tests.unit.localcluster.apiserver.conftest import CONFIGMAPS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        ("2026-01-01: 2026-01-01T00:00:00Z", {"2026-01-01": "2026-01-01T00:00:00Z"}),
        ("{2: a, true: b, ~: c, 1.5: d}", {"2": "a", "true": "b", "null": "c", "1.5": "d"}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
        ("", None),
    ],
)
def test_values_become_jsons(text, value):
    assert yaml_json.load(text.encode()) == value


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: .nan",
        "a: .inf",
        "a: !!binary aGk=",
        "a: !!set {b}",
        "? [a]\n: b",
        "!!python/object:os.system {}",
        BOMB,
        "&a [*a]",
        "[" * 5000,
    ],
    ids=range(10),
)
def test_what_json_has_not_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        yaml_json.load(text.encode())


@pytest.mark.parametrize(
    ("body", "kind"),
    [(BOMB.encode(), "yaml"), (b"a: .nan", "yaml"), (b"NaN", "json"), (b'{"data": {"a": Infinity}}', "json"),
     (b"\xff", "json"), (b'{"metadata": {"name": "x"}, "data": ' + b'{"a":' * 500 + b"1" + b"}" * 501, "json")],
    ids=range(6),
)  # fmt: skip
async def test_such_bodies_are_400(client, body, kind):
    found = await client.ask("POST", CONFIGMAPS, body, **{"Content-Type": f"application/{kind}"})
    assert found.status == 400


@pytest.mark.parametrize("depth", [5_000, 100_000])  # too deep for what handles them, and for the parser
async def test_parameters_that_are_nested_too_deeply_are_400(client, depth):
    parameters = b'{"a":' * depth + b"1" + b"}" * depth
    body = (
        b'{"metadata":{"name":"c"},"spec":{"config":[{"opaque":{"driver":"d.io","parameters":' + parameters + b"}}]}}"
    )
    found = await client.ask(
        "POST", "/apis/resource.k8s.io/v1/deviceclasses", body, **{"Content-Type": "application/json"}
    )
    assert (found.status, found.body["message"]) == (400, "the request's body is nested too deeply")
