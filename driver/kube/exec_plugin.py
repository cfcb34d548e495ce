"""Credential plugins of a kubeconfig (`exec`): a program that prints an ExecCredential with a token.

Protocol: client.authentication.k8s.io, v1 and v1beta1, tokens only (plugins that give certificates are refused).
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from driver.errors import ApiUnauthorizedError
from driver.model.json_object import parse_json

_TIME_LIMIT = 60.0  # seconds of one run
_EARLY = timedelta(seconds=30)  # before the expiry another token is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """The program to run."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    api_version: str = "client.authentication.k8s.io/v1"


class ExecToken:
    """A token from a plugin, kept until shortly before it expires or the server refuses it."""

    def __init__(self, plugin: ExecPlugin) -> None:
        self._plugin = plugin
        self._token = ""
        self._expires: datetime | None = None
        self._lock: asyncio.Lock | None = None

    async def bearer(self) -> str | None:
        """Return a token that is valid for a while yet; run the plugin if there is none.

        :raises ApiUnauthorizedError: the plugin failed; its own words are in the message, a token never is.
        """
        if not self._valid():
            self._lock = self._lock or asyncio.Lock()
            async with self._lock:
                if not self._valid():
                    self._token, self._expires = _credential(self._plugin.command, await self._run())
        return self._token

    def refused(self) -> None:
        """Ask the plugin again for the next request."""
        self._token = ""

    def _valid(self) -> bool:
        return bool(self._token) and (self._expires is None or datetime.now(UTC) < self._expires - _EARLY)

    async def _run(self) -> bytes:
        plugin = self._plugin
        info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environment = {**os.environ, **dict(plugin.environment), "KUBERNETES_EXEC_INFO": json.dumps(info)}
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
            )
        except OSError as error:
            raise ApiUnauthorizedError(f"credential plugin {plugin.command}: {error.strerror}") from error
        return await _output(plugin.command, process)


async def _output(command: str, process: asyncio.subprocess.Process) -> bytes:
    try:
        async with asyncio.timeout(_TIME_LIMIT):
            output, words = await process.communicate()
    except TimeoutError as error:
        raise ApiUnauthorizedError(f"credential plugin {command} took longer than {_TIME_LIMIT:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        shown = " ".join(words.decode(errors="replace").split())[:500]
        raise ApiUnauthorizedError(f"credential plugin {command} ended with status {process.returncode}: {shown}")
    return output


def _credential(command: str, output: bytes) -> tuple[str, datetime | None]:
    try:
        status: Any = parse_json(output)["status"]
        token = status.get("token")
        expiry = status.get("expirationTimestamp")
        expires = datetime.fromisoformat(expiry) if expiry else None
    except (ValueError, KeyError, TypeError, AttributeError):
        # from None: the output holds the token
        raise ApiUnauthorizedError(f"credential plugin {command} printed no ExecCredential") from None
    if not isinstance(token, str) or not token:
        raise ApiUnauthorizedError(f"credential plugin {command} gave no token (client certificates are not supported)")
    return token, expires if expires is None or expires.tzinfo else expires.replace(tzinfo=UTC)
