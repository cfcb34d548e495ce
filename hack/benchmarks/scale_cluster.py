"""A control plane of many nodes, as a process: `python -m hack.benchmarks.scale_cluster --root DIR --nodes N`.

API server, scheduler and claim controller are the embedded cluster's. The nodes are objects only: who plays the agents
connects with the kubeconfig `agent-<number>.kubeconfig` in the root directory. A line on stdin, the number of claims
per node, makes so many claims with a pod each.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from driver.localcluster.apiserver import ApiServer, Features
from driver.localcluster.controllers.claims import ClaimController
from driver.localcluster.scheduler import cel
from driver.localcluster.scheduler.scheduler import Scheduler

CLASS = "gpu.nvidia.com"
_SELECTOR = f"device.driver == '{CLASS}' && device.attributes['{CLASS}'].type == 'gpu'"
_AT_ONCE = 20  # objects made between two looks at what else there is to do


def name_of(number: int) -> str:
    """Return a node's name."""
    return f"node-{number:04}"


def user_of(number: int) -> str:
    """Return who a node's agent is to the API server."""
    return f"agent-{number:04}"


def _node(number: int) -> dict[str, Any]:
    status = {"allocatable": {}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name_of(number)}, "status": status}


def _claim(number: int) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 1}}
    return {"metadata": {"name": f"claim-{number}"}, "spec": {"devices": {"requests": [request]}}}


def _pod(number: int) -> dict[str, Any]:
    container = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}
    uses = [{"name": "gpu", "resourceClaimName": f"claim-{number}"}]
    return {"metadata": {"name": f"pod-{number}"}, "spec": {"containers": [container], "resourceClaims": uses}}


async def _ask_for(server: ApiServer, claims: int) -> None:
    for number in range(claims):
        server.store.create("resourceclaims", _claim(number), "default")
        server.store.create("pods", _pod(number), "default")
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def run(root: Path, nodes: int) -> None:
    """Serve until stdin ends."""
    server = ApiServer(root, Features(), audit_file=root / "audit.jsonl")
    server.store.cel = cel.check
    await server.start()
    device_class = {"metadata": {"name": CLASS}, "spec": {"selectors": [{"cel": {"expression": _SELECTOR}}]}}
    server.store.create("deviceclasses", device_class)
    for number in range(nodes):
        server.store.create("nodes", _node(number))
        server.kubeconfig_for(user_of(number))
    tasks = [asyncio.create_task(kind(server.store).run()) for kind in (Scheduler, ClaimController)]
    sys.stdout.write(f"{server.kubeconfig}\n")
    sys.stdout.flush()
    reader = await _lines()
    while line := await reader.readline():
        await _ask_for(server, int(line) * nodes)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop()


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.root, arguments.nodes))


if __name__ == "__main__":
    main()
