"""Faults as words on a command line: `xid=79`, `lost`, `slow=2s`, `nvml-down`. Pure.

A word sets what the faults file has under the same name, with `-` for `_`; lists grow, and `mig-` stands for a GPU's
`mig` table. So there is one list of what can be wrong, and one that decodes it.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.inventory.faults import HEALTHY_GPU, MAX_SLOW, Faults, GpuFaults, MigFaults, decode_gpu, encode_gpu
from driver.inventory.health_faults import HealthFaults
from driver.model.decode import suggestion
from driver.settings.options import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.model.device import Gpu

NVML_DOWN, NVML_SLOW = "nvml-down", "nvml-slow"
NODE_WORDS = (NVML_DOWN, NVML_SLOW)
"""What concerns the node as a whole; no GPU is named with it."""

_LISTS = ("xid", "not-supported")
_MIG = "mig-"
_DURATION = seconds(0, MAX_SLOW)
_USUAL_SLOW = "2s"
GPU_WORDS = (
    "lost",
    "xid",
    "slow",
    "not-supported",
    "fails",
    *(one.name.replace("_", "-") for one in fields(HealthFaults)),
    *(_MIG + one.name.replace("_", "-") for one in fields(MigFaults)),
)
"""What a GPU can have."""


def inject_node(faults: Faults, word: str) -> Faults:
    """Return the faults with one of the node's more.

    :raises InvalidValueError: it is none, or its value is bad.
    """
    name, _, value = word.partition("=")
    if name == NVML_DOWN and not value:
        return replace(faults, nvml_down=True, nvml_slow=0.0)
    if name == NVML_SLOW:
        return replace(faults, nvml_down=False, nvml_slow=_seconds(value, name))
    raise InvalidValueError("fault", word, f"must be {NVML_DOWN} or {NVML_SLOW}=DURATION")


def inject(faults: Faults, gpu_uuid: str, name: str, words: Iterable[str]) -> Faults:
    """Return the faults with more of them on a GPU, of which `name` is for messages.

    :raises InvalidValueError: a word is unknown, or its value is bad.
    """
    entry = encode_gpu(faults.of(gpu_uuid))
    for word in words:
        _add(entry, word)
    return _with(faults, gpu_uuid, decode_gpu(entry, name))


def recover(faults: Faults, gpu_uuid: str) -> Faults:
    """Return the faults without those of a GPU."""
    return _with(faults, gpu_uuid, HEALTHY_GPU)


def words_of(faults: GpuFaults) -> tuple[str, ...]:
    """Return a GPU's faults as the words that inject them."""
    entry = encode_gpu(faults)
    nested = {_MIG + key: value for key, value in _table(entry, "mig").items()}
    entry.pop("mig")
    named = {key.replace("_", "-"): value for key, value in {**entry, **nested}.items()}
    return tuple(_word(key, value) for key, value in named.items() if value or (value == 0 and key == "temperature"))


def node_words(faults: Faults) -> tuple[str, ...]:
    """Return the node's faults as the words that inject them."""
    if faults.nvml_down:
        return (NVML_DOWN,)
    return (f"{NVML_SLOW}={faults.nvml_slow:g}s",) if faults.nvml_slow else ()


def told(faults: Faults, gpus: Iterable[Gpu]) -> str:
    """Return all faults in one line, `nvml-slow=2s; gpu-3: lost xid=79`; empty if there are none."""
    by_name = {gpu.name: words_of(faults.of(gpu.uuid)) for gpu in gpus}
    return "; ".join([*node_words(faults), *(f"{name}: {' '.join(words)}" for name, words in by_name.items() if words)])


def _with(faults: Faults, gpu_uuid: str, one: GpuFaults) -> Faults:
    gpus = {**faults.gpus, gpu_uuid: one}
    return replace(faults, gpus=MappingProxyType({uuid: each for uuid, each in gpus.items() if each != HEALTHY_GPU}))


def _add(entry: dict[str, object], word: str) -> None:
    name, equals, value = word.partition("=")
    if name == "recover":
        raise InvalidValueError("fault", word, "is an action of its own: gpu-dra fault recover [GPU…]")
    if name not in GPU_WORDS:
        hint = f"{name} concerns the node: name no GPU" if name in NODE_WORDS else suggestion(name, GPU_WORDS)
        raise InvalidValueError("fault", word, f"no such fault; {hint}")
    if name == "lost" and not equals:
        entry["lost"] = True
        return
    if name == "slow" and not equals:
        value = _USUAL_SLOW
    if not value:
        raise InvalidValueError("fault", word, f"needs a value: {name}=…")
    if name.startswith(_MIG):
        _set(_table(entry, "mig"), name.removeprefix(_MIG), value)
    else:
        _set(entry, name, value)


def _table(entry: dict[str, object], key: str) -> dict[str, object]:
    """Return a table within an entry, which is made if it is not there."""
    found = entry.setdefault(key, {})
    return found if isinstance(found, dict) else {}


def _set(table: dict[str, object], name: str, value: str) -> None:
    key = name.replace("-", "_")
    if name in _LISTS:
        before = table.get(key)
        table[key] = [*(before if isinstance(before, list) else []), *(_parsed(one) for one in value.split(","))]
    elif name == "slow":
        table[key] = _seconds(value, name)
    else:
        table[key] = {"true": True, "false": False}.get(value, _parsed(value))


def _parsed(value: str) -> int | str:
    return int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else value


def _seconds(value: str, name: str) -> float:
    try:
        return float(_DURATION.parse(value))
    except ValueError as exc:
        raise InvalidValueError(name, value, str(exc)) from exc


def _word(key: str, value: object) -> str:
    if value is True:
        return key
    if isinstance(value, list):
        return f"{key}={','.join(map(str, value))}"
    return f"{key}={value:g}s" if key.endswith("slow") and isinstance(value, float) else f"{key}={value}"
