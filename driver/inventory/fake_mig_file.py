"""The MIG state of fake GPUs, kept in a file: a real GPU keeps its MIG devices when the agent dies.

Agents that overlap in a rolling update share the file under a lock. What it says about a GPU counts only in the boot,
and for the specification, that it was written in; at any other time the GPU is as specified.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING

from driver.errors import DriverError, InvalidValueError, InventoryError
from driver.files import locked, write_atomic
from driver.inventory.fake_mig import Board, ComputeInstance, GpuInstance
from driver.model.decode import Fields
from driver.model.json_object import parse_json
from driver.model.mig import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from driver.model.device import Gpu
    from driver.model.mig import MigState

_MAX_ID = 1 << 31


class FakeMigFile:
    """The MIG state of a node's fake GPUs. Without a file it lives as long as this object."""

    def __init__(self, gpus: Iterable[Gpu], file: Path | None = None, boot_id: str = "") -> None:
        self._facts = {gpu.uuid: gpu.mig for gpu in gpus if gpu.mig is not None}
        self._bases = {uuid: _digest(boot_id, facts) for uuid, facts in self._facts.items()}
        self._boards = {uuid: Board.at_boot(uuid, facts) for uuid, facts in self._facts.items()}
        self._file = file
        self._entries: dict[str, object] = {}  # as in the file, other nodes' GPUs included
        self._stamp: tuple[int, ...] | None = None

    def boards(self) -> Mapping[str, Board]:
        """Return the MIG-capable GPUs as they are now, by UUID.

        :raises InventoryError: the file can't be read.
        """
        self._refresh()
        return self._boards

    def change(self, gpu_uuid: str, step: Callable[[Board], Board]) -> Board:
        """Change one GPU, alone among all agents; return it as it is then.

        :raises InventoryError: the file can't be read or written. What `step` raises passes through.
        """
        with self._locked():
            self._refresh(anew=True)
            before = self._boards[gpu_uuid]
            after = step(before)
            if after != before:
                self._save(gpu_uuid, after)
            return after

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, which the kernel frees when its holder dies."""
        if self._file is None:
            yield
            return
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self._file.with_suffix(".lock")))
            except DriverError as exc:
                raise InventoryError(f"the state of the fake GPUs can't be used: {exc}") from exc
            yield

    def _save(self, gpu_uuid: str, board: Board) -> None:
        if self._file is not None:
            entries = {**self._entries, gpu_uuid: _encode(board, self._bases[gpu_uuid])}
            try:
                write_atomic(self._file, json.dumps({"version": 1, "gpus": entries}).encode(), durable=False)
            except DriverError as exc:
                raise InventoryError(f"the fake GPU can't be changed: {exc}") from exc
        self._boards = {**self._boards, gpu_uuid: board}

    def _refresh(self, *, anew: bool = False) -> None:
        """Read the file again if it is another than the last time; `anew`: even if it looks the same."""
        if self._file is None:
            return
        try:
            stamp = _stamp(self._file)
            if stamp == self._stamp and not anew:
                return
            entries = _read(self._file) if stamp else {}
            self._boards = {uuid: self._board(uuid, entries.get(uuid)) for uuid in self._facts}
        except (InvalidValueError, OSError, ValueError) as exc:
            message = f"the state of the fake GPUs can't be read: {self._file}: {exc}; remove the file to begin anew"
            raise InventoryError(message) from exc
        self._entries, self._stamp = entries, stamp

    def _board(self, uuid: str, entry: object) -> Board:
        if entry is None:
            return Board.at_boot(uuid, self._facts[uuid])
        fields = Fields(entry, f"gpus.{uuid}")
        generation = fields.integer("generation", 0, _MAX_ID)
        if fields.take("base") != self._bases[uuid]:
            return Board.at_boot(uuid, self._facts[uuid], generation)
        return _decode(fields, Board.at_boot(uuid, self._facts[uuid], generation))


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _digest(boot_id: str, facts: MigState) -> str:
    return hashlib.sha256(repr((boot_id, facts)).encode()).hexdigest()[:16]


def _read(file: Path) -> dict[str, object]:
    fields = Fields(parse_json(file.read_bytes()), str(file), separator=": ")
    fields.integer("version", 1, 1)
    entries = fields.take("gpus")
    fields.done()
    if not isinstance(entries, dict):
        raise InvalidValueError(f"{file}: gpus", entries, "must be a mapping from UUIDs to GPUs")
    return entries


def _encode(board: Board, base: str) -> dict[str, object]:
    instances = [
        {
            "id": one.id,
            "profile": one.profile.id,
            "start": one.placement.start,
            "size": one.placement.size,
            "compute": [{"id": each.id, "slices": each.slices, "uuid": each.uuid} for each in one.compute],
        }
        for one in board.instances
    ]
    return {"base": base, "generation": board.generation, "enabled": board.enabled, "instances": instances}


def _decode(fields: Fields, at_boot: Board) -> Board:
    profiles = {profile.id: profile for profile in at_boot.facts.profiles}
    instances = []
    for value, path in fields.items("instances"):
        one = Fields(value, path)
        number = one.integer("profile", 0, _MAX_ID)
        if number not in profiles:
            raise InvalidValueError(one.at("profile"), number, "this GPU has no such profile")
        instances.append(
            GpuInstance(
                id=one.integer("id", 0, _MAX_ID),
                profile=profiles[number],
                placement=Placement(one.integer("start", 0, _MAX_ID), one.integer("size", 1, _MAX_ID)),
                compute=tuple(_compute(Fields(each, at)) for each, at in one.items("compute")),
            )
        )
        one.done()
    enabled = fields.take("enabled") is True
    fields.done()
    return Board(
        uuid=at_boot.uuid,
        facts=at_boot.facts,
        enabled=enabled,
        instances=tuple(instances),
        generation=at_boot.generation,
    )


def _compute(fields: Fields) -> ComputeInstance:
    made = ComputeInstance(
        id=fields.integer("id", 0, _MAX_ID), slices=fields.integer("slices", 1, _MAX_ID), uuid=fields.text("uuid")
    )
    fields.done()
    return made
