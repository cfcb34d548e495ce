"""Asking the agent on this node, over its Unix socket."""

from __future__ import annotations

import http.client
import socket
from typing import TYPE_CHECKING, Any

from driver.errors import DriverError
from driver.model.json_object import parse_json

if TYPE_CHECKING:
    from pathlib import Path

    from driver.settings import Settings

_TIMEOUT = 10.0  # seconds


class NoAgentError(DriverError):
    """Nobody answers on this node; the message says what to do next."""


def read_status(settings: Settings) -> dict[str, Any]:
    """Return the agent's status document.

    :raises NoAgentError: no agent runs here, or it may not be asked.
    :raises DriverError: it answers with something else.
    """
    path = settings.status_socket
    connection = _Connection(path)
    try:
        connection.request("GET", "/status")
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException) as exc:
        raise NoAgentError(_why(path, exc)) from exc
    finally:
        connection.close()
    status = _decoded(data)
    if answer.status != http.HTTPStatus.OK or status is None:
        raise DriverError(
            f"the agent at {path} gives no status (HTTP {answer.status}, {len(data)} bytes): is it of another version?"
        )
    return status


class _Connection(http.client.HTTPConnection):
    """HTTP over the agent's Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket.

        :raises OSError: nobody serves it.
        """
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _decoded(data: bytes) -> dict[str, Any] | None:
    try:
        status = parse_json(data)
    except ValueError:
        return None
    return status if isinstance(status, dict) and isinstance(status.get("gpus"), list) else None


def _why(path: Path, error: Exception) -> str:
    look = (
        "look for its pod with `kubectl get pods -n gpu-dra -o wide`, or for its process; if it runs with another "
        "--kubelet-root or --state-dir, give the same here"
    )
    if isinstance(error, FileNotFoundError):
        return f"no agent runs on this node: there is no {path}; {look}"
    if isinstance(error, ConnectionRefusedError):
        return f"no agent runs on this node any more: nobody serves {path}; {look}"
    if isinstance(error, PermissionError):
        return f"only root may ask the agent ({path}): use sudo, or kubectl exec into the agent's pod"
    if isinstance(error, TimeoutError):
        return f"the agent did not answer within {_TIMEOUT:g} s ({path}): see its log, it may hang"
    return f"cannot ask the agent at {path}: {getattr(error, 'strerror', None) or error!r}"
