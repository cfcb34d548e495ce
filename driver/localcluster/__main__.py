"""Run an embedded cluster until SIGTERM: `python -m driver.localcluster --root DIR`.

When it is ready it prints one line of JSON on stdout: the kubeconfig, each node's paths, and a command line that runs
the agent there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driver.errors import DriverError
from driver.localcluster.apiserver.features import VERSIONS, parse_gates
from driver.localcluster.cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_run(options))
    except (DriverError, OSError) as exc:
        sys.stderr.write(f"localcluster: {exc}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m driver.localcluster", description="Run an embedded cluster.")
    parser.add_argument("--root", type=Path, required=True, help="directory for all its files; its path must be short")
    parser.add_argument("--nodes", type=int, default=1, help="number of nodes (default: 1)")
    parser.add_argument("--kubernetes", choices=VERSIONS, default="1.36", help="version to behave as (default: 1.36)")
    parser.add_argument("--feature-gates", default="", metavar="A=true,B=false", help="switches, as in Kubernetes")
    parser.add_argument("--port", type=int, default=0, help="port of the API server (default: a free one)")
    parser.add_argument("--time-scale", type=float, default=1.0, help="factor on all waits (default: 1)")
    parser.add_argument("--gpus", default="h100:8", help="fake GPUs in the printed agent command (default: h100:8)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="warning")
    return parser


async def _run(options: argparse.Namespace) -> None:
    cluster = LocalCluster(
        options.root.absolute(),
        nodes=[f"node-{number + 1}" for number in range(options.nodes)],
        kubernetes=options.kubernetes,
        feature_gates=parse_gates(options.feature_gates),
        time_scale=options.time_scale,
        port=options.port,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with cluster:
        sys.stdout.write(json.dumps(_description(cluster, options.gpus)) + "\n")
        sys.stdout.flush()
        await stop.wait()


def _description(cluster: LocalCluster, gpus: str) -> dict[str, Any]:
    """Return what a person or a program needs to use the cluster."""
    nodes = {
        name: {
            "kubeletRoot": str(node.kubelet_root),
            "cdiDirs": [str(path) for path in node.cdi_dirs],
            "agent": cluster.agent_command(name, gpus=gpus),
        }
        for name, node in cluster.nodes.items()
    }
    return {"KUBECONFIG": str(cluster.kubeconfig), "server": cluster.apiserver.url, "nodes": nodes}


if __name__ == "__main__":
    sys.exit(main())
