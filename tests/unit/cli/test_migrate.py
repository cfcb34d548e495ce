from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from driver.claims.allocation import ClaimRef
from driver.claims.holding import Holding
from driver.claims.record import Record, RecordedDevice, encode
from driver.cli import FAILED, OK, USAGE, main
from driver.offering.offering import STATUS_FILE

if TYPE_CHECKING:
    from pathlib import Path

GPU = {"name": "gpu-0", "index": 0, "product": "L4", "uuid": "GPU-0", "owner": "dra", "wanted": "dra"}


@pytest.fixture
def state(short_tmp: Path) -> Path:
    (short_tmp / "claims").mkdir()
    return short_tmp


def show(capsys, state: Path, *arguments: str) -> tuple[int, str, str]:
    code = main(["migrate", "--state-dir", str(state), "--kubelet-root", str(state), *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def write(state: Path, *gpus: dict[str, object], problems: tuple[str, ...] = ()) -> None:
    (state / STATUS_FILE).write_text(json.dumps({"version": 1, "gpus": gpus, "absent": [], "problems": problems}))


def test_all_is_where_it_shall_be(capsys, state):
    write(state, {**GPU, "waitingFor": "", "heldBy": []}, problems=("rule 1 names nothing",))
    code, out, _ = show(capsys, state, "--status")
    assert code == OK
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["GPU", "UUID", "OWNER", "WANTED", "HELD", "BY", "WAITING", "FOR"]
    assert lines[1] == ["gpu-0", "GPU-0", "dra", "dra", "-", "-"]
    assert out.splitlines()[2] == "problem: rule 1 names nothing"


def test_what_waits_and_who_holds_it_at_this_moment(capsys, state):
    device = RecordedDevice(request="r", pool="n", kind="gpu", holding=Holding(device="gpu-0", gpu_uuid="GPU-0"))
    record = Record(claim=ClaimRef(namespace="ns", name="c", uid="u"), boot_id="b", devices=(device,))
    (state / "claims/u.json").write_bytes(encode(record))
    (state / "claims/broken.json").write_text("{")
    write(state, {**GPU, "wanted": "device-plugin", "waitingFor": "claim ns/c", "heldBy": ["claim ns/old"]})
    code, out, _ = show(capsys, state, "--status", "-o", "json")
    assert code == FAILED
    (gpu,) = json.loads(out)["gpus"]
    assert (gpu["owner"], gpu["wanted"], gpu["heldBy"]) == ("dra", "device-plugin", ["claim ns/c"])
    assert yaml.safe_load(show(capsys, state, "--status", "-o", "yaml")[1])["gpus"] == [gpu]


@pytest.mark.parametrize(
    ("content", "arguments", "code", "words"),
    [
        (None, ["--status"], USAGE, "no agent has run on this node"),
        ("{", ["--status"], FAILED, "cannot read"),
        ("[]", ["--status"], FAILED, "cannot read"),
        ("{}", [], USAGE, "give --status"),
    ],
)
def test_what_can_not_be_told(capsys, state, content, arguments, code, words):
    if content is not None:
        (state / STATUS_FILE).write_text(content)
    found, _, err = show(capsys, state, *arguments)
    assert found == code
    assert words in err
