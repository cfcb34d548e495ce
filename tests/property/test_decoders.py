"""Whatever is written into a file, an object or a stream that the driver reads: it is read, or refused as what it is.

Samples that are right are damaged: as bytes (cut, overwritten, doubled), and as documents (a part replaced, left out,
added). Every decoder returns or raises a `DriverError`, whose message is one that can be shown.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from driver.cdi.store import CdiStore
from driver.claims import allocation, record
from driver.config import ownership, parameters
from driver.config.device_plugin import decode_config
from driver.errors import ApiError, DriverError
from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_mig_file import FakeMigFile
from driver.inventory.fake_spec import load_node
from driver.inventory.fake_usage import decode_loads
from driver.inventory.fault_file import read_names
from driver.inventory.faults import decode_faults
from driver.inventory.profiles import decode_product, load_products
from driver.kube import client, failures, kubeconfig, lines
from driver.kube.versions import from_version
from driver.localcluster.containers import cdi_spec
from driver.localcluster.kubelet.claim_cache import ClaimCache
from driver.localcluster.scheduler import cel
from driver.model.health_rules import decode_rules
from driver.monitor.health_memory import HealthMemory
from driver.settings import load_settings
from driver.yaml_file import load_yaml
from tests.unit.claims.helpers import claim, ref, result, uid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

GPUS = build_gpus(load_node("h100:2", load_products()), "node-a")
PROFILES = Path(record.__file__).parents[1] / "inventory/profiles"

# --- damage ----------------------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where parts of a document are."""
    inner: list[tuple[Any, ...]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        inner += places(part, (*at, key))
    return [at, *inner]


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A document with a part that is another, missing, or too much."""
    whole = [copy.deepcopy(document)]
    for _ in range(draw(st.integers(1, 3))):
        *path, key = draw(st.sampled_from([(0, *at) for at in places(whole[0])]))
        parent: Any = whole
        for step in path:
            parent = parent[step]
        match draw(st.sampled_from(["replace", "replace", "drop", "add", "double"])):
            case "drop" if path:
                del parent[key]
            case "add" if isinstance(parent[key], dict):
                parent[key][draw(st.text(max_size=5))] = draw(VALUES)
            case "double" if isinstance(parent[key], list):
                parent[key] = parent[key] * 2
            case _:
                parent[key] = draw(VALUES)
    return whole[0]


@st.composite
def damaged(draw: st.DrawFn, sample: bytes) -> bytes:
    """Bytes that are cut, overwritten or doubled somewhere, or altogether others."""
    start, end = sorted((draw(st.integers(0, len(sample))), draw(st.integers(0, len(sample)))))
    return draw(
        st.one_of(
            st.just(sample[:start]),
            st.just(sample[:start] + sample[end:]),
            st.just(sample[:end] + sample[start:]),
            st.binary(min_size=1, max_size=4).map(lambda new: sample[:start] + new + sample[start + len(new) :]),
            st.binary(max_size=40),
        )
    )


LINES = re.compile("[\\0-\\x08\\x0b-\\x1f\\x7f\\x85\u2028]")


def survives(decode: Callable[[], object]) -> None:
    try:
        decode()
    except DriverError as exc:
        message = str(exc)
    else:
        return
    assert message
    assert not LINES.search(message), "it would start a line of its own in a log"


# --- documents -------------------------------------------------------------------------------------------------------

ALLOCATED = claim(1, result("gpu-0", shareID=uid(7)), result("gpu-1", adminAccess=True), config=[
    {"source": "FromClaim", "requests": ["gpus"], "opaque": {"driver": "gpu.nvidia.com", "parameters": {
        "apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
        "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50,
                    "defaultPinnedDeviceMemoryLimit": "10Gi", "defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"}}}}}},
])  # fmt: skip
PLUGIN = {
    "version": "v1",
    "flags": {"migStrategy": "single", "plugin": {"deviceListStrategy": ["envvar", "cdi-cri"], "passDeviceSpecs": 1}},
    "resources": {"gpus": [{"pattern": "*A100*", "name": "nvidia.com/gpu"}], "mig": [{"pattern": "1g*", "name": "m"}]},
    "sharing": {"timeSlicing": {"failRequestsGreaterThanOne": True, "resources": [
        {"name": "nvidia.com/gpu", "rename": "shared", "devices": ["0", "GPU-1"], "replicas": 4}]}},
}  # fmt: skip
OWNERSHIP = {"default": "dra", "rules": [{"owner": "device-plugin", "index": 1}, {"owner": "dra", "uuid": "GPU-1"}]}
FAULTS = {"gpus": {"0": {"lost": True, "slow": 0.5}, "1": {"xids": [79], "not_supported": ["memory"]}}, "nvml": "down"}
LOADS = {"gpus": {"0": {"load": 50, "memory": 20, "devices": {"MIG-1": {"load": 1}}}}}
RULES = {"xids": {79: "fatal", 13: "ignored"}}
CDI = {"cdiVersion": "0.6.0", "kind": "k8s.gpu.nvidia.com/claim", "devices": [
    {"name": "a", "containerEdits": {"env": ["A=1"], "deviceNodes": [{"path": "/dev/null", "major": 1}],
     "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"]}],
     "hooks": [{"hookName": "createContainer", "path": "/bin/true", "args": ["x"]}]}}]}  # fmt: skip
SLICE = {"metadata": {"name": "s"}, "spec": {"devices": [{"name": "d", "basic": {"attributes": {"a": {"int": 1}}}}]}}
PRODUCT = yaml.safe_load((PROFILES / "h100.yaml").read_text())
STATUS = {"kind": "Status", "reason": "Expired", "code": 410, "message": "m", "details": {"retryAfterSeconds": 1}}

DOCUMENTS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "claim": (ALLOCATED, lambda value: allocation.decode(value, ref(1))),
    "parameters": (
        ALLOCATED["status"]["allocation"]["devices"]["config"][0]["opaque"]["parameters"],
        lambda value: parameters.decode(value, "parameters"),
    ),
    "device-plugin config": (PLUGIN, lambda value: decode_config(value, "config.yaml")),
    "ownership": (OWNERSHIP, lambda value: ownership.decode_rules(value, "ownership.yaml")),
    "faults": (FAULTS, lambda value: decode_faults(yaml.safe_dump(value), GPUS, "faults.yaml")),
    "loads": (LOADS, lambda value: decode_loads(yaml.safe_dump(value), GPUS, "usage.yaml")),
    "health rules": (RULES, lambda value: decode_rules(value, "rules.yaml")),
    "product": (PRODUCT, lambda value: decode_product(value, "h100.yaml")),
    "CDI spec": (CDI, cdi_spec.load),
    "slice of v1beta1": (SLICE, lambda value: from_version(value, "v1beta1")),
    "status": (STATUS, lambda value: failures.from_status("GET x", value)),
}
OBJECTS = {"claim", "parameters", "slice of v1beta1", "status"}
"""What comes as an object whatever somebody writes: the API server sees to that."""


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
def test_a_changed_document_is_read_or_refused(name: str, data: st.DataObject) -> None:
    document, decode = DOCUMENTS[name]
    survives(lambda: decode(document))
    value = data.draw(changed(document))
    if name not in OBJECTS or isinstance(value, dict):
        survives(lambda: decode(value))


# --- files -----------------------------------------------------------------------------------------------------------

SETTINGS = b"node_name: node-a\ngpus: h100:8\nkubelet_root: /var/lib/kubelet\nlog_level: info\napi_timeout: 5\n"
KUBECONFIG = yaml.safe_dump({
    "apiVersion": "v1", "kind": "Config", "current-context": "c",
    "clusters": [{"name": "k", "cluster": {"server": "https://h:1", "certificate-authority-data": "YQ=="}}],
    "users": [{"name": "u", "user": {"exec": {"command": "true", "args": ["a"], "env": [{"name": "A", "value": "1"}],
                                             "apiVersion": "client.authentication.k8s.io/v1"}}}],
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
}).encode()  # fmt: skip
MEMORY = json.dumps({"bootID": "b", "gpus": {"GPU-1": [{"xid": 79, "down": True, "instances": [1, 2]}]}}).encode()
NAMES = json.dumps({"gpus": [{"index": 0, "minor": 0, "uuid": "GPU-1", "product": "h100"}]}).encode()
MIG = json.dumps({"version": 1, "gpus": {GPUS[0].uuid: {"generation": 1, "base": "x"}}}).encode()
CACHE = json.dumps([{"uid": uid(1), "namespace": "n", "name": "c", "drivers": ["d"], "pods": ["p"], "devices": {}}])
RECORD = record.encode(record.Record(claim=ref(1), boot_id="boot", devices=(), effects=(), ready=True))

FILES: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "settings": ("s.yaml", SETTINGS, lambda path: load_settings({"config": str(path)}, {})),
    "kubeconfig": ("kubeconfig", KUBECONFIG, kubeconfig.load),
    "health memory": ("health.json", MEMORY, lambda path: HealthMemory(path, "b").load()),
    "GPU names": ("fake-gpus.json", NAMES, lambda path: read_names(path.with_name("faults.yaml"))),
    "fake MIG": ("mig.json", MIG, lambda path: FakeMigFile(GPUS, path, "b").boards()),
    "kubelet's claims": ("claims.json", CACHE.encode(), lambda path: ClaimCache(path).load()),
    "CDI file": (
        f"k8s.gpu.nvidia.com-claim_{uid(1)}.json",
        json.dumps(CDI).encode(),
        lambda path: CdiStore(path.parent).devices(uid(1)),
    ),
}


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    file, sample, decode = FILES[name]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, file)
        path.write_bytes(data.draw(damaged(sample)))
        survives(lambda: decode(path))


@given(damaged(RECORD))
def test_a_damaged_record_is_refused_or_was_not_damaged(data: bytes) -> None:
    try:
        again = record.decode(data, uid(1))
    except DriverError:
        record.salvage(data, uid(1))
    else:  # the damage is where nothing is
        assert again == record.decode(RECORD, uid(1))


@given(damaged(yaml.safe_dump(PLUGIN).encode()).map(lambda data: data.decode(errors="replace")) | st.text())
def test_any_text_is_yaml_or_refused(text: str) -> None:
    survives(lambda: load_yaml(text, "file.yaml"))


# --- streams and answers ---------------------------------------------------------------------------------------------

EVENT = json.dumps(
    {"type": "ADDED", "object": {"kind": "ResourceSlice", "metadata": {"resourceVersion": "7"}}}
).encode()
ERROR = json.dumps({"type": "ERROR", "object": STATUS}).encode()


@given(st.lists(st.sampled_from([EVENT, ERROR]).flatmap(damaged) | st.just(EVENT), max_size=4), st.data())
def test_any_stream_is_events_or_an_error(found: list[bytes], data: st.DataObject) -> None:
    stream = b"\n".join(found)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def chunks() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def whole() -> list[bytes]:
        return [line async for line in lines.split(chunks())]

    split = asyncio.run(whole())
    assert split == [line.strip() for line in stream.split(b"\n")[:-1] if line.strip()]
    for line in split:
        survives(lambda line=line: client._event("/x", line))


@given(st.integers(300, 599), damaged(json.dumps(STATUS).encode()), st.dictionaries(st.just("Retry-After"), st.text()))
def test_any_failure_is_an_api_error(status: int, body: bytes, headers: dict[str, str]) -> None:
    error = failures.from_answer("GET /x", status, body, headers)
    assert isinstance(error, ApiError)
    assert str(error).startswith("GET /x")
    wait = getattr(error, "retry_after", None)
    assert wait is None or wait >= 0


# --- CEL -------------------------------------------------------------------------------------------------------------

DEVICE = cel.variables(
    "gpu.nvidia.com",
    {"gpu.nvidia.com": {"productName": "NVIDIA H100", "index": 3, "mig": False}},
    {"gpu.nvidia.com": {}},
)
WORDS = st.sampled_from(
    """
    device driver attributes capacity . [ ] ( ) ' " 'gpu.nvidia.com' productName matches lowerAscii == != && || ! > < >=
    in + - * / % ? : , { } 1 2.5 'H100' 'x.*' true false null quantity('1Gi') semver('1.2.3') compareTo isGreaterThan
    has size exists all map filter x cel.bind optional.of orValue
    """.split()  # noqa: SIM905  # a list would be longer and say less
)
SELECTORS = (
    b"device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*h100.*$') && device.driver != ''",
    b"device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('80Gi')) >= 0 || has(device.attributes['x'].y)",
    b"[1, 2].exists(x, x == device.attributes['gpu.nvidia.com'].index) ? true : semver('1.2.3').isGreaterThan(v)",
)
EXPRESSIONS = st.lists(WORDS, max_size=14).map(" ".join) | st.sampled_from(SELECTORS).flatmap(damaged).map(
    lambda data: data.decode(errors="replace")
)


@given(EXPRESSIONS)
def test_any_selector_compiles_or_says_why(expression: str) -> None:
    why = cel.check(expression)
    if why is None:
        survives(lambda: cel.compile(expression).matches(DEVICE))
    else:
        assert why
