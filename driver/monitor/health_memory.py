"""Serious XIDs that outlive the agent: `<state>/health.json`, void once the node has booted anew.

Losing it costs what an agent without it would lose; so it is not synced, and a bad file is set aside with a warning.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError, StorageError
from driver.files import write_atomic
from driver.model.decode import Fields
from driver.model.health_chart import MAX_XIDS, SeenXid
from driver.model.health_rules import MAX_XID
from driver.model.json_object import parse_json

if TYPE_CHECKING:
    from pathlib import Path

    from driver.monitor.charts import Lasting

log = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20


class HealthMemory:
    """The file, for the boot with this id."""

    def __init__(self, file: Path, boot_id: str) -> None:
        self._file = file
        self._boot_id = boot_id

    def load(self) -> Lasting:
        """Return what was saved since the node booted; what can't be read is told and forgotten."""
        try:
            with self._file.open("rb") as file:
                data = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return {}
        except OSError as exc:
            log.warning("cannot read %s, earlier XIDs are forgotten: %s", self._file, exc.strerror)
            return {}
        try:
            return self._decoded(parse_json(data))
        except (InvalidValueError, ValueError, TypeError) as exc:
            log.warning("%s is no use, earlier XIDs are forgotten: %s", self._file, exc)
            return {}

    def save(self, lasting: Lasting) -> None:
        """Replace the file."""
        gpus = {uuid: [_encoded(one) for one in xids] for uuid, xids in lasting.items()}
        data = json.dumps({"bootID": self._boot_id, "gpus": gpus}, indent=1).encode()
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._file, data, durable=False)
        except (OSError, StorageError) as exc:
            log.warning("XIDs will be forgotten when the agent ends: %s", exc)

    def _decoded(self, value: object) -> Lasting:
        fields = Fields(value, "health.json", separator=": ")
        if fields.take("bootID") != self._boot_id:
            return {}
        table = fields.take("gpus")
        if not isinstance(table, dict):
            raise InvalidValueError(fields.at("gpus"), table, "must be a mapping")
        return {str(uuid): tuple(_decode(entry) for entry in entries[:MAX_XIDS]) for uuid, entries in table.items()}


def _encoded(seen: SeenXid) -> dict[str, object]:
    entry: dict[str, object] = {"xid": seen.xid, "down": seen.down}
    return entry if seen.instances is None else {**entry, "instances": list(seen.instances)}


def _decode(entry: object) -> SeenXid:
    fields = Fields(entry, "xids")
    xid, down = fields.integer("xid", 1, MAX_XID), fields.take("down") is True
    instances = [(number, at) for number, at in fields.items("instances", [])]
    if not instances:
        return SeenXid(xid=xid, at=0.0, down=down)
    gi, ci = (number for number, _ in instances)
    if not isinstance(gi, int) or not (ci is None or isinstance(ci, int)):
        raise InvalidValueError(fields.at("instances"), [gi, ci], "must be two ids")
    return SeenXid(xid=xid, instances=(gi, ci), at=0.0, down=down)
