"""The device plugin's config in force: from a file, or the one of a directory that the node's label names.

Edits, and changes of the label, take effect without a restart. What can't be used is told, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import aclosing
from typing import TYPE_CHECKING

from driver.config.device_plugin import PluginConfig, decode_config
from driver.errors import DriverError, InvalidValueError
from driver.file_watch import changes
from driver.model.decode import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from driver.kube.client import KubeClient
    from driver.settings import Settings
    from driver.teller import Teller

log = logging.getLogger(__name__)

LABEL = "nvidia.com/device-plugin.config"
DEFAULT = "default"
_PEER_CONFIG = "CONFIG_FILE"
_SUFFIXES = ("", ".yaml", ".yml")
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between tries to read the node's label
_FLAGS = (
    "mig_strategy",
    "device_list_strategy",
    "device_id_strategy",
    "pass_device_specs",
    "cdi_annotation_prefix",
    "shared_devices_allocation_policy",
)
"""The peer's flags that are settings of ours too."""


class ConfigSource:
    """Finds the config and calls `apply` with it and with each new one.

    :raises InvalidValueError: the config is a file, and wrong; or a flag is.
    """

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        tell: Teller,
        apply: Callable[[PluginConfig], None],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._flags = {name: str(getattr(settings, name)) for name in _FLAGS}
        self._environ = environ if settings.serves_device_plugin else {}
        self._path = settings.device_plugin_config or self._peer_path()
        self._node = settings.node_name
        self._client = client
        self._tell = tell
        self._apply = apply
        self._label: str | None = None
        self._labelled = asyncio.Event()
        self._refused = ""
        self.config: PluginConfig | None = None
        """What is in force; None while the node's label is not known yet."""
        if self._path is None or not self._path.is_dir():
            self.config = self._read(self._path)
            _name_unused(self.config)

    async def run(self) -> None:
        """Follow the files and the label until cancelled."""
        if self.config is not None:
            self._apply(self.config)
        if self._path is None:
            return
        if self._path.is_file():
            await self._follow_files(self._path)
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_label())
            await self._labelled.wait()
            tasks.create_task(self._follow_files(self._path))

    def _peer_path(self) -> Path | None:
        from pathlib import Path

        value = self._environ.get(_PEER_CONFIG)
        return Path(value) if value else None

    def _read(self, path: Path | None) -> PluginConfig:
        if path is None:
            return decode_config(None, "no config file", cli=self._flags, environ=self._environ)
        from driver.yaml_file import load_yaml, read_text

        return decode_config(load_yaml(read_text(path), str(path)), str(path), cli=self._flags, environ=self._environ)

    # --- changes -----------------------------------------------------------------------------------------------------

    async def _follow_files(self, path: Path) -> None:
        async with aclosing(changes(path)) as looks:
            async for _ in looks:
                self._look()

    def _look(self) -> None:
        """Take up the config that holds now, if it is another one."""
        try:
            config = self._read(self._chosen())
        except InvalidValueError as exc:
            self._refuse(str(exc))
            return
        self._refused = ""
        if config != self.config:
            log.info("the device plugin's config has changed" if self.config else "the device plugin has its config")
            _name_unused(config)
            self.config = config
            self._apply(config)

    def _chosen(self) -> Path | None:
        path = self._path
        if path is None or not path.is_dir():
            return path
        found = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(".") and entry.is_file())
        wanted = self._label or (found[0] if len(found) == 1 else DEFAULT)
        for suffix in _SUFFIXES:
            if f"{wanted}{suffix}" in found:
                return path / f"{wanted}{suffix}"
        if not self._label:
            raise InvalidValueError(str(path), found, f"has no {DEFAULT!r} for a node without the label {LABEL}")
        known = {name.removesuffix(".yaml").removesuffix(".yml") for name in found}
        raise InvalidValueError(
            f"node label {LABEL}", wanted, f"names no config in {path}; {suggestion(wanted, known)}"
        )

    def _refuse(self, why: str) -> None:
        if why == self._refused:
            return
        self._refused = why
        stays = "; the config before stays in force" if self.config is not None else "; no resource is offered"
        log.error("%s%s", why, stays)
        self._tell.emit("DevicePluginConfigRefused", f"{why}{stays}", warning=True)

    # --- the label ---------------------------------------------------------------------------------------------------

    async def _follow_label(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._watch_label()
                pause = _FIRST_PAUSE
            except DriverError as exc:
                log.warning("the node's label %s can't be followed now: %s", LABEL, exc)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _watch_label(self) -> None:
        node = await self._client.get(f"/api/v1/nodes/{self._node}")
        self._take(node)
        version = str(node["metadata"].get("resourceVersion") or "")
        watch = self._client.watch(
            "/api/v1/nodes", field_selector=f"metadata.name={self._node}", resource_version=version
        )
        async with aclosing(watch) as events:
            async for event in events:
                if event.type in ("ADDED", "MODIFIED"):
                    self._take(event.object)

    def _take(self, node: Mapping[str, object]) -> None:
        metadata = node.get("metadata")
        labels = metadata.get("labels") if isinstance(metadata, dict) else None
        label = str((labels or {}).get(LABEL) or "")
        if label != self._label:
            self._label = label
            if self._labelled.is_set():
                self._look()
            self._labelled.set()


def _name_unused(config: PluginConfig) -> None:
    for one in config.flags.unused:
        log.info("without effect: %s", one)


async def follow_yaml(path: Path, take: Callable[[object], None], refuse: Callable[[str], None]) -> None:
    """Call `take` with the document at `path` now and after each change (None: no such file), until cancelled.

    What `take` raises as `InvalidValueError`, or the file's own faults, go to `refuse`.
    """
    async with aclosing(changes(path)) as looks:
        async for _ in looks:
            try:
                take(_document(path))
            except InvalidValueError as exc:
                refuse(str(exc))


def _document(path: Path) -> object:
    from driver.yaml_file import load_yaml, read_text

    return load_yaml(read_text(path), str(path)) if path.exists() else None
