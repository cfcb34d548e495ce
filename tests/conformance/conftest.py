"""The suite's options and fixtures: one cluster and one namespace for a run, a `Case` for each test."""

from __future__ import annotations

import asyncio
import secrets
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from driver.errors import DriverError
from tests.conformance import manifests as m
from tests.conformance import options as suite_options
from tests.conformance.api import Api, collection
from tests.conformance.case import Case
from tests.conformance.cluster import CONFIGURE_DRIVER, Cluster
from tests.conformance.embedded import EmbeddedCluster
from tests.conformance.gpus import Gpus, is_complete
from tests.conformance.remote import InstalledCluster, ProcessCluster
from tests.conformance.waiting import NotSeenError, Waiter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.conformance.api import Object
    from tests.conformance.options import Options

_WAITS = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    suite_options.add(parser)


def pytest_configure(config: pytest.Config) -> None:
    suite_options.read(config)  # refuses what does not go together before anything starts
    if threading.current_thread() is threading.main_thread():
        # A run that is cancelled cleans up, too: as after Ctrl-C, for which asyncio cancels the case instead of raising
        # in the middle of it.
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    config.option.fold_skipped = False  # what was skipped is part of the result, by name
    config.addinivalue_line("markers", "gpus(count, pattern='', linked=False): what GPUs one node must have")
    config.addinivalue_line("markers", "driver(flag=value, ...): settings of the driver beside its usual ones")
    config.addinivalue_line("markers", "needs(capability, ...): what the cluster must be able to do, beside its API")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each case on a cluster of somebody's the time for several waits, each of which may take `--patience`."""
    options = suite_options.read(config)
    if options.kubeconfig is None or config.getoption("timeout") is not None:
        return
    limit = pytest.mark.timeout(_WAITS * (options.patience or Cluster.patience))
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(limit)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the end of the driver's log with a failure."""
    report = yield
    running = item.stash.get(CLUSTER, None)
    if report.failed and running is not None and running.about():
        report.sections.append(("the driver's log", running.about()))
    return report


CLUSTER = pytest.StashKey["Cluster"]()


@pytest.fixture(scope="session")
def options(pytestconfig: pytest.Config) -> Options:
    return suite_options.read(pytestconfig)


@pytest.fixture(scope="session")
def cluster(options: Options) -> Iterator[Cluster]:
    """The cluster under test, with the driver in it."""
    made = _cluster(options)
    made.patience = options.patience or made.patience
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def published(cluster: Cluster) -> Gpus:
    """The GPUs, as soon as the driver has published them."""
    return asyncio.run(_published(cluster))


@pytest.fixture(scope="session")
def namespace(cluster: Cluster, published: Gpus) -> Iterator[str]:
    """The run's namespace; deleted at the end, with all that may be left in it."""
    name = f"gpu-dra-conformance-{secrets.token_hex(3)}"
    asyncio.run(_make_namespace(cluster, name))
    try:
        yield name
    finally:
        asyncio.run(_remove_namespace(cluster, name))


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    async with Api.from_kubeconfig(cluster.kubeconfig, cluster.context) as client:
        yield client


@pytest.fixture
def driver_settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """The driver's settings for a test, as its marks say; a module may have its own fixture in place of this one."""
    return _settings(request.node)


@pytest.fixture
async def case(
    request: pytest.FixtureRequest,
    api: Api,
    cluster: Cluster,
    namespace: str,
    options: Options,
    driver_settings: dict[str, str],
) -> AsyncIterator[Case]:
    """What a test works with; afterwards all that it created is gone."""
    request.node.stash[CLUSTER] = cluster
    for mark in request.node.iter_markers("needs"):
        cluster.require(*mark.args)
    if driver_settings:
        cluster.require(CONFIGURE_DRIVER)
    await cluster.configure_driver(driver_settings)
    published = await _published(cluster)
    await _check_offered(api, driver_settings)
    for mark in request.node.iter_markers("gpus"):
        published.require(*mark.args, **mark.kwargs)
    made = Case(
        api=api, wait=Waiter(api, namespace, cluster.patience), cluster=cluster, gpus=published, image=options.image
    )
    try:
        yield made
    finally:
        stopped = await cluster.heal()
        await made.clean_up()
    assert not stopped, f"{stopped} when the case ended"


NEEDED = {
    "dynamic_mig": (36, "partitions", lambda device: "consumesCounters" in device),
    "shares": (36, "shares of devices", lambda device: device.get("allowMultipleAllocations")),
}
"""What a setting has the driver offer, by what its devices are known, and since which minor version by default."""


async def _check_offered(api: Api, settings: dict[str, str]) -> None:
    """Skip the test where the API server drops what it is about; where it must not, the driver's not offering fails."""
    listed = (await api.list(collection("ResourceSlice")))["items"]
    devices = [device for item in listed for device in item["spec"].get("devices") or ()]
    for name in settings.keys() & NEEDED.keys():
        since, what, offered = NEEDED[name]
        if any(offered(device) for device in devices):
            continue
        version = await api.get("/version")
        assert int(version["minor"].rstrip("+")) < since, f"the driver offers no {what} in spite of --{name}"
        pytest.skip(f"the API server ({version['gitVersion']}) knows no {what}")


def _settings(item: pytest.Item) -> dict[str, str]:
    """Return the driver's settings of a test; its own go before those of its module."""
    marks = [mark.kwargs for mark in item.iter_markers("driver")]
    return {name: value for kwargs in reversed(marks) for name, value in kwargs.items()}


def _cluster(options: Options) -> Cluster:
    if options.kubeconfig is None:
        return EmbeddedCluster(gpus=options.gpus, kubernetes=options.kubernetes)
    return ProcessCluster(options) if options.driver == "process" else InstalledCluster(options)


async def _published(cluster: Cluster) -> Gpus:
    async with Api.from_kubeconfig(cluster.kubeconfig, cluster.context) as client:
        waiter = Waiter(client, "", cluster.patience)
        try:
            slices = await waiter.until(
                "ResourceSlice", lambda items: items if is_complete(items) else None, "the driver's ResourceSlices"
            )
        except (NotSeenError, DriverError) as exc:
            pytest.fail(
                f"There is no driver to test on {client.server}: {exc}\nInstall it (deploy/README.md), or let the "
                f"suite start it: --driver process.\n{cluster.about()}",
                pytrace=False,
            )
    return Gpus(slices)


async def _make_namespace(cluster: Cluster, name: str) -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    async with Api.from_kubeconfig(cluster.kubeconfig, cluster.context) as client:
        await client.create(collection("Namespace"), item)


async def _remove_namespace(cluster: Cluster, name: str) -> None:
    async with Api.from_kubeconfig(cluster.kubeconfig, cluster.context) as client:
        await client.delete(f"{collection('Namespace')}/{name}")


@pytest.fixture
async def pod_with_gpu(case: Case) -> Object:
    """Run a pod with a claim; return the claim."""
    await case.create(m.template("one"), m.pod("pod", [m.from_template("one")]))
    await case.running("pod")
    return await case.claim_of("pod")
