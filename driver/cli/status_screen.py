"""The status document as lines for people: one screen for whoever is on call. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from driver.model.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_HEADER = ("DEVICE", "PRODUCT", "OWNER", "HEALTH", "UTIL", "MEMORY", "POWER", "TEMP", "HELD BY", "SINCE")
_RIGHT = frozenset({4, 5, 6, 7})  # columns of numbers
_GI = 1 << 30


def render(status: Mapping[str, Any]) -> list[str]:
    """Return the lines, without colours and of any length."""
    rows = [row for gpu in status["gpus"] for row in _gpu_rows(gpu, str(status.get("time") or ""))]
    lines = [_title(status), *_not_ready(status), ""]
    lines += _table(rows) if rows else ["this node has no GPU that the driver knows"]
    notes = [*_health_notes(status["gpus"]), *_problems(status)]
    return [*lines, "", *notes] if notes else lines


def _title(status: Mapping[str, Any]) -> str:
    agent, versions = status.get("agent") or {}, status.get("driver") or {}
    usage = status.get("usage") or {}
    gpus = status["gpus"]
    healthy = sum(bool(gpu["health"]["healthy"]) for gpu in gpus)
    held = sum(any(part["holders"] for part in (gpu, *gpu["devices"])) for gpu in gpus)
    age = usage.get("age")
    return "  ".join(
        (
            f"{status.get('node') or '?'}:",
            f"{counted(len(gpus), 'GPU')}, {healthy} healthy, {held} held",
            f"driver {versions.get('version') or 'unknown'}, CUDA {versions.get('cuda') or 'unknown'}",
            f"agent {agent.get('version')} {'ready' if agent.get('ready') else 'NOT READY'}",
            f"use seen {age:.0f} s ago" if age is not None else "use not seen yet",
        )
    )


def _not_ready(status: Mapping[str, Any]) -> Iterator[str]:
    for part, why in ((status.get("agent") or {}).get("missing") or {}).items():
        yield f"not ready: {part}: {why}"


def _gpu_rows(gpu: Mapping[str, Any], now: str) -> Iterator[tuple[str, ...]]:
    owner = gpu["owner"] if not gpu["waitingFor"] else f"{gpu['owner']} -> {gpu['wanted']}"
    head = (gpu["name"], gpu["product"].removeprefix("NVIDIA "), owner)
    yield from _rows(head, gpu, now)
    for device in gpu["devices"]:
        name = device["name"].removeprefix(f"{gpu['name']}-")
        yield from _rows((f"  {name}", "", ""), device, now)


def _rows(head: tuple[str, ...], part: Mapping[str, Any], now: str) -> Iterator[tuple[str, ...]]:
    facts = (*head, _health(part["health"]), *_use(part["use"]))
    holders = part["holders"] or [None]
    for position, holder in enumerate(holders):
        shown = facts if position == 0 else ("",) * len(facts)
        yield (*shown, _holder(holder), _age(holder["since"], now)) if holder else (*shown, "", "")


def _health(health: Mapping[str, Any]) -> str:
    if not health["healthy"]:
        return "BAD"
    return "note" if health["reason"] else "ok"


def _use(use: Mapping[str, Any]) -> tuple[str, str, str, str]:
    total, used = use.get("memoryTotal"), use.get("memoryUsed")
    return (
        _number(use.get("utilization"), "%"),
        f"{used / _GI:.1f}/{total / _GI:.0f} GiB" if total is not None and used is not None else "",
        _number(use.get("power"), " W"),
        _number(use.get("temperature"), " C"),
    )


def _number(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f}{unit}"


def _holder(holder: Mapping[str, Any]) -> str:
    pod, claim = holder["pod"], holder["claim"]
    words = [f"pod {pod}" if pod else "", f"claim {claim}" if claim else ""]
    if holder.get("adminAccess"):
        words.append("(admin access)")
    return " ".join(word for word in words if word)


def _age(since: str, now: str) -> str:
    """Return how long ago it was, in the two units that matter."""
    try:
        seconds = int((datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds())
    except (ValueError, TypeError):
        return ""
    minutes, seconds = divmod(max(0, seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _health_notes(gpus: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for gpu in gpus:
        told = gpu["health"]["reason"]
        if told:
            yield _note(gpu)
        for device in gpu["devices"]:
            reason = device["health"]["reason"]
            if reason and reason != told:
                yield _note(device)
        if gpu["waitingFor"]:
            yield f"{gpu['name']}: goes to {gpu['wanted']} when free: {gpu['waitingFor']}"


def _note(part: Mapping[str, Any]) -> str:
    health = part["health"]
    shown = ", ".join(map(_taint, health["taints"]))
    return f"{part['name']}: {health['reason']}{f' [{shown}]' if shown else ''}"


def _taint(taint: Mapping[str, Any]) -> str:
    """Write a taint as kubectl does."""
    value = f"={taint['value']}" if taint["value"] else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _problems(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is not told of a GPU's health already."""
    told = {(gpu["name"], gpu["health"]["reason"]) for gpu in status["gpus"]}
    for problem in status.get("problems") or ():
        if (problem["object"], problem["message"]) not in told:
            yield f"{problem['object']}: {problem['message']}"
    trouble = (status.get("usage") or {}).get("problem")
    if trouble:
        yield f"use: {trouble}"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in (_HEADER, *rows)) for column in range(len(_HEADER))]
    return ["  ".join(_padded(row, widths)).rstrip() for row in (_HEADER, *rows)]


def _padded(row: Iterable[str], widths: list[int]) -> Iterator[str]:
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.rjust(width) if column in _RIGHT else cell.ljust(width)
