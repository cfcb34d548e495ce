"""`gpu-dra migrate`: how far the GPUs of this node are on their way from one API to the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from driver.cli import output
from driver.errors import DriverError, InvalidValueError, SettingsError
from driver.model.json_object import parse_json
from driver.settings import add_flags, load_settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from driver.settings import Settings

DESCRIPTION = """\
Show who offers each GPU of this node (dra, device-plugin, or withheld), who shall, who holds it, and what it waits for.

A GPU changes hands only when nobody holds it. To move GPUs, edit the agent's --ownership-file, or restart the agent
with another --ownership; then wait here for --status to say that nothing waits any more.
"""
EPILOG = """\
examples:
  gpu-dra migrate --status                                      where the agent runs
  kubectl exec -n gpu-dra daemonset/gpu-dra -- gpu-dra migrate --status
  gpu-dra migrate --status -o json | jq '.gpus[] | select(.waitingFor != "")'

exit status: 0 all GPUs are where they shall be; 1 not yet, or it can't be told; 2 wrong usage.
"""

_SETTINGS = ("node_name", "kubelet_root", "state_dir")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--status", action="store_true", help="show where each GPU is (the only thing to do here)")
    output.add_format(parser)
    add_flags(parser, _SETTINGS)


def run(args: argparse.Namespace) -> int:
    """Show the status."""
    if not args.status:
        raise SettingsError("nothing to do: give --status (GPUs are moved by the agent's setting --ownership)")
    status = read_status(load_settings(vars(args)))
    if args.output == "table":
        output.print_table(("GPU", "UUID", "OWNER", "WANTED", "HELD BY", "WAITING FOR"), map(_row, status["gpus"]))
        for problem in status["problems"]:
            print(f"problem: {problem}")
    else:
        output.print_value(args.output, status)
    return 1 if any(gpu["waitingFor"] for gpu in status["gpus"]) else 0


def read_status(settings: Settings) -> dict[str, Any]:
    """Return what the agent decided last, with the holders of this moment.

    :raises SettingsError: no agent has decided anything here.
    """
    from driver.offering.offering import STATUS_FILE

    file = settings.state / STATUS_FILE
    try:
        status: dict[str, Any] = parse_json(file.read_bytes())
        gpus: list[dict[str, Any]] = status["gpus"]
    except FileNotFoundError as exc:
        raise SettingsError(f"no agent has run on this node: there is no {file}; give its --kubelet-root") from exc
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise DriverError(f"cannot read {file}: {exc}") from exc
    claims = _claims(settings.state / "claims")
    pods = asyncio.run(_pods(settings)) or {}
    for gpu in gpus:
        known = [*claims.get(gpu["uuid"], ()), *(f"pod {name}" for name in pods.get(gpu["uuid"], ()))]
        # MIG devices have UUIDs of their own, that only the agent knows
        gpu["heldBy"] = known or [one for one in gpu["heldBy"] if one.removeprefix("pod ") in _all(pods)]
    return status


def _all(pods: Mapping[str, tuple[str, ...]]) -> set[str]:
    return {name for names in pods.values() for name in names}


async def _pods(settings: Settings) -> Mapping[str, tuple[str, ...]] | None:
    from driver.kubelet.pod_resources import PodResources

    return await PodResources(settings.pod_resources_socket).device_holders()


def _claims(directory: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for uuid, name in _held(directory):
        names = found.setdefault(uuid, [])
        if name not in names:
            names.append(name)
    return found


def _held(directory: Path) -> Iterator[tuple[str, str]]:
    from driver.claims.record import decode

    for path in sorted(directory.glob("*.json")):
        try:
            record = decode(path.read_bytes(), path.stem)
        except (OSError, DriverError, InvalidValueError):
            continue  # the agent tells of it
        for holding in record.holdings:
            yield holding.gpu_uuid, f"claim {record.claim.namespace}/{record.claim.name}"


def _row(gpu: Mapping[str, Any]) -> tuple[object, ...]:
    return gpu["name"], gpu["uuid"], gpu["owner"], gpu["wanted"], ", ".join(gpu["heldBy"]), gpu["waitingFor"]
