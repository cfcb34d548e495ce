from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import ApiUnavailableError, InvalidValueError
from driver.kube.client import WatchEvent
from driver.offering.plugin_config import LABEL, ConfigSource, follow_yaml
from driver.settings import load_settings
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from driver.config.device_plugin import PluginConfig


class Node:
    """The API server, as far as one node's labels go."""

    def __init__(self) -> None:
        self.label: str | None = None
        self.away = False
        self.changed = asyncio.Event()
        self.watches: list[dict[str, str]] = []

    def set(self, label: str | None) -> None:
        self.label = label
        self.changed.set()

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/api/v1/nodes/n1"
        if self.away:
            raise ApiUnavailableError("away")
        return self._node()

    async def watch(self, path: str, **query: str) -> AsyncIterator[WatchEvent]:
        assert path == "/api/v1/nodes"
        self.watches.append(query)
        while True:
            await self.changed.wait()
            self.changed.clear()
            yield WatchEvent(type="MODIFIED", object=self._node())

    def _node(self) -> dict[str, Any]:
        labels = {} if self.label is None else {LABEL: self.label}
        return {"metadata": {"name": "n1", "resourceVersion": "7", "labels": labels}}


class Seen:
    """A config source under test, and what it applied and told."""

    def __init__(self, node: Node, environ: dict[str, str] | None = None, **flags: str) -> None:
        self.applied: list[PluginConfig] = []
        self.told: list[str] = []
        settings = load_settings({"node_name": "n1", **flags}, {})
        self.source = ConfigSource(settings, node, tell=self, apply=self.applied.append, environ=environ or {})  # type: ignore[arg-type]

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        assert (reason, warning) == ("DevicePluginConfigRefused", True)
        self.told.append(message)

    @property
    def strategies(self) -> list[str]:
        return [config.flags.mig_strategy for config in self.applied]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Seen]:
        task = asyncio.create_task(self.source.run())
        yield self
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def node() -> Node:
    return Node()


def config(strategy: str) -> str:
    return f"version: v1\nflags: {{migStrategy: {strategy}}}\n"


async def test_without_a_file_the_flags_and_the_environment_hold(node: Node) -> None:
    seen = Seen(node, {"MIG_STRATEGY": "mixed"}, device_plugin="on", device_list_strategy="envvar")
    async with seen.running():
        await until(lambda: seen.applied)
    assert seen.strategies == ["mixed"]
    assert seen.applied[0].flags.device_list_strategy == ("envvar",)


async def test_the_environment_counts_only_where_the_device_plugin_is_on(node: Node, tmp_path: Path) -> None:
    environ = {"MIG_STRATEGY": "mixed", "CONFIG_FILE": str(tmp_path / "absent")}
    assert Seen(node, environ).source.config is not None


async def test_the_peers_variable_names_the_file(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(config("single"))
    source = Seen(node, {"CONFIG_FILE": str(file)}, device_plugin="on").source
    assert source.config is not None
    assert source.config.flags.mig_strategy == "single"


@pytest.mark.parametrize("text", ["version: v3", "flags: [", "a: 1", None])
async def test_a_bad_file_at_the_start_is_refused(node: Node, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "c.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidValueError, match=str(file)):
        Seen(node, device_plugin_config=str(file))


async def test_edits_of_a_file_take_effect_bad_ones_are_told_once(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(config("none"))
    async with Seen(node, device_plugin_config=str(file)).running() as seen:
        await until(lambda: seen.strategies == ["none"])
        file.write_text(config("single"))
        await until(lambda: seen.strategies == ["none", "single"])
        file.write_text("version: v1\nflag: 1\n")
        await until(lambda: seen.told)
        assert "c.yaml: flag" in seen.told[0]
        assert "stays in force" in seen.told[0]
        fresh = tmp_path / "fresh"
        fresh.write_text(config("mixed"))
        fresh.rename(file)
        await until(lambda: seen.strategies[-1] == "mixed")
    assert len(seen.told) == 1


async def test_a_mounted_config_map_is_followed(node: Node, tmp_path: Path) -> None:
    """The kubelet swaps a link to a directory; the file's own link stays."""
    for number, strategy in enumerate(("none", "mixed")):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}/c.yaml").write_text(config(strategy))
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "c.yaml").symlink_to("..data/c.yaml")
    async with Seen(node, device_plugin_config=str(tmp_path / "c.yaml")).running() as seen:
        await until(lambda: seen.strategies == ["none"])
        (tmp_path / "..tmp").symlink_to("..1")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        await until(lambda: seen.strategies == ["none", "mixed"])


# --- a directory of configs -------------------------------------------------------------------------------------------


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    directory = tmp_path / "configs"
    directory.mkdir()
    (directory / "default").write_text(config("none"))
    (directory / "parts.yaml").write_text(config("mixed"))
    (directory / "..data").mkdir()
    return directory


async def test_the_label_picks_and_is_followed(node: Node, configs: Path) -> None:
    async with Seen(node, device_plugin_config=str(configs)).running() as seen:
        await until(lambda: seen.strategies == ["none"])
        await until(lambda: node.watches)
        assert node.watches[0] == {"field_selector": "metadata.name=n1", "resource_version": "7"}
        node.set("parts")
        await until(lambda: seen.strategies == ["none", "mixed"])
        node.set("part")
        await until(lambda: seen.told)
        assert "names no config" in seen.told[0]
        assert "did you mean" in seen.told[0]
        (configs / "part").write_text(config("single"))
        await until(lambda: seen.strategies[-1] == "single")
        node.set(None)
        await until(lambda: seen.strategies[-1] == "none")


async def test_nothing_is_offered_before_the_label_is_known(node: Node, configs: Path, monkeypatch) -> None:
    monkeypatch.setattr("driver.offering.plugin_config._FIRST_PAUSE", 0.01)
    node.away, node.label = True, "parts"
    async with Seen(node, device_plugin_config=str(configs)).running() as seen:
        await asyncio.sleep(0)
        assert seen.source.config is None
        node.away = False
        await until(lambda: seen.strategies == ["mixed"])


async def test_the_only_config_needs_no_label(node: Node, configs: Path) -> None:
    (configs / "default").unlink()
    async with Seen(node, device_plugin_config=str(configs)).running() as seen:
        await until(lambda: seen.strategies == ["mixed"])


async def test_without_a_default_and_a_label_it_is_told(node: Node, configs: Path) -> None:
    (configs / "default").rename(configs / "other")
    async with Seen(node, device_plugin_config=str(configs)).running() as seen:
        await until(lambda: seen.told)
        assert "has no 'default' for a node without the label" in seen.told[0]
        assert "no resource is offered" in seen.told[0]
        node.set("other")
        await until(lambda: seen.strategies == ["none"])


# --- any YAML file ----------------------------------------------------------------------------------------------------


async def test_a_yaml_file_that_comes_changes_and_goes(tmp_path: Path) -> None:
    file = tmp_path / "deep/rules.yaml"
    taken: list[object] = []
    refused: list[str] = []
    task = asyncio.create_task(follow_yaml(file, taken.append, refused.append))
    await until(lambda: taken == [None])
    file.parent.mkdir()
    file.write_text("a: 1")
    await until(lambda: taken[-1] == {"a": 1})
    file.write_text("a: [")
    await until(lambda: refused)
    assert str(file) in refused[0]
    file.unlink()
    await until(lambda: taken[-1] is None and len(taken) > 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
