"""Editing the faults file of fake GPUs while an agent runs on it: locked, whole, and by the names that people use.

Beside the faults file the agent leaves the names of its GPUs (`fake-gpus.json`), so that whoever injects a fault need
not say again which GPUs there are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from driver.files import locked, write_atomic
from driver.inventory.faults import NO_FAULTS, decode_faults, save_faults
from driver.model.decode import Fields
from driver.model.device import Gpu
from driver.yaml_file import load_yaml, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from driver.inventory.faults import Faults

_NAMES = "fake-gpus.json"
_MOST = 1 << 16  # GPUs of a node; far more than there can be


def write_names(faults_file: Path, gpus: Sequence[Gpu]) -> None:
    """Leave the names of the GPUs beside a faults file.

    :raises StorageError: the file is as it was.
    """
    named = [{"index": gpu.index, "minor": gpu.minor, "uuid": gpu.uuid, "product": gpu.product} for gpu in gpus]
    data = json.dumps({"gpus": named}).encode()
    write_atomic(faults_file.with_name(_NAMES), data, mode=0o644, durable=False)


def read_names(faults_file: Path) -> tuple[Gpu, ...]:
    """Return the GPUs of the agent that uses a faults file, by their names alone; empty if none has run.

    :raises InvalidValueError: the file was changed by somebody.
    """
    file = faults_file.with_name(_NAMES)
    if not file.exists():
        return ()
    fields = Fields(load_yaml(read_text(file), str(file)), str(file), separator=": ")
    gpus = tuple(_named(Fields(entry, at)) for entry, at in fields.items("gpus"))
    fields.done()
    return gpus


def read_faults(file: Path, gpus: Sequence[Gpu]) -> Faults:
    """Return what is wrong now.

    :raises InvalidValueError: the file is bad; naming the field.
    """
    return decode_faults(read_text(file), gpus, str(file)) if file.exists() else NO_FAULTS


def edit_faults(file: Path, gpus: Sequence[Gpu], change: Callable[[Faults], Faults]) -> Faults:
    """Replace the faults by what `change` makes of them, while nobody else edits; return them.

    :raises InvalidValueError: the file that is there is bad, and stays.
    :raises StorageError: it can't be written.
    """
    with locked(file.with_name(f".{file.name}.lock")):
        faults = change(read_faults(file, gpus))
        save_faults(file, faults)
    return faults


def _named(fields: Fields) -> Gpu:
    minor = fields.take("minor")
    gpu = Gpu(
        uuid=fields.text("uuid"),
        index=fields.integer("index", 0, _MOST),
        minor=minor if isinstance(minor, int) else None,
        product=fields.text("product"),
    )
    fields.done()
    return gpu
