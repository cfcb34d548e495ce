"""The API server as a process of its own: `python -m driver.localcluster.apiserver --root DIR`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.localcluster.apiserver.features import DRA_VERSIONS, VERSIONS, Features, parse_gates
from driver.localcluster.apiserver.server import ApiServer

if TYPE_CHECKING:
    from collections.abc import Sequence


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="apiserver", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="directory for the kubeconfig and certificates")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--kubernetes", choices=VERSIONS, default="1.36", help="version to behave as")
    parser.add_argument("--feature-gates", default="", help="Gate=true,Gate=false")
    parser.add_argument("--dra-versions", default=",".join(DRA_VERSIONS), help="served versions of resource.k8s.io")
    parser.add_argument("--authorization", action="store_true", help="enforce RBAC")
    parser.add_argument("--audit-file", type=Path, help="append every call to this file, a JSON object a line")
    return parser


async def _serve(server: ApiServer) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.start()
    sys.stdout.write(f"{server.kubeconfig}\n")
    sys.stdout.flush()
    await stop.wait()
    await server.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; print the path of the kubeconfig once it listens."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        features = Features(
            kubernetes=given.kubernetes,
            gates=parse_gates(given.feature_gates),
            dra_versions=tuple(given.dra_versions.split(",")),
        )
    except InvalidValueError as error:
        parser.error(str(error))
    server = ApiServer(
        given.root,
        features,
        port=given.port,
        authorization=given.authorization,
        audit_file=given.audit_file,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(server))
    return 0


if __name__ == "__main__":
    sys.exit(main())
