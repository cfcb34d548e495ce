"""What probes and lifecycle hooks do alike: ask a container's server."""

from __future__ import annotations

import asyncio
from typing import Any

from driver.localcluster.kubelet.pod_state import NODE_IP


async def http_get(spec: dict[str, Any], get: dict[str, Any]) -> str:
    """Ask a container's server; return what is wrong with its answer, nothing if it is well. `get` is an HTTPGetAction.

    :raises OSError: it does not answer.
    """
    host = get.get("host") or NODE_IP
    reader, writer = await asyncio.open_connection(host, port(spec, get["port"]))
    try:
        path = get.get("path") or "/"
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: kube-probe\r\n\r\n".encode())
        parts = (await reader.readline()).split()
        if len(parts) < 2 or not parts[1].isdigit():
            return "the answer is not HTTP"
        return "" if 200 <= int(parts[1]) < 400 else f"HTTP probe failed with statuscode: {int(parts[1])}"
    finally:
        writer.close()


def port(spec: dict[str, Any], wanted: int | str) -> int:
    """Return the number of a container's port, which may be named."""
    ports = {item.get("name"): item["containerPort"] for item in spec.get("ports") or ()}
    return int(ports.get(wanted, wanted))
