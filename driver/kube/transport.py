"""HTTP to the API server with aiohttp; the only module that imports it, late, since that takes long.

Its errors become `ApiUnavailableError` here. One session, connections kept alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

import driver
from driver.errors import ApiUnauthorizedError, ApiUnavailableError, SettingsError
from driver.kube import failures

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from aiohttp.connector import AddrInfoType

    from driver.kube.config import ClusterConfig

LARGEST_ANSWER = 16 << 20  # bytes: ten times what etcd takes of one object; several at once must fit into the memory
_CONNECTIONS = 32  # at once; each costs some 300 KiB with TLS, and a burst's stay open for a while
_FIRST_ANSWER = 30.0  # seconds until a watch has its headers


class Transport:
    """Requests to one API server; made inside a running event loop."""

    def __init__(self, cluster: ClusterConfig, *, timeout: float) -> None:
        self._cluster = cluster
        self._ssl: ssl.SSLContext | None = None
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._connect_timeout = timeout
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=120, socket_factory=_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            proxy=cluster.proxy,
            skip_auto_headers=("Accept-Encoding", "User-Agent", "Accept"),
        )
        self._headers = {"Accept": "application/json", "User-Agent": f"gpu-dra/{driver.__version__}"}

    async def request(self, method: str, path: str, data: bytes | None = None, content_type: str = "") -> bytes:
        """Return the body of a successful answer.

        :raises ApiError: the answer's failure, or that there was none.
        """
        operation = f"{method} {path.partition('?')[0]}"
        with self._mapped(operation):
            async with await self._begin(method, path, data, content_type, self._timeout) as answer:
                body = await _limited(answer, operation)
        if answer.status < 300:
            return body
        raise self._failure(operation, answer, body)

    async def stream(self, path: str, *, silence: float) -> AsyncGenerator[bytes]:
        """Yield the chunks of a long answer as they come.

        :raises ApiError: the answer's failure, or that nothing came for `silence` seconds.
        """
        operation = f"watch {path.partition('?')[0]}"
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout, sock_read=silence)
        with self._mapped(operation):
            async with asyncio.timeout(_FIRST_ANSWER):
                answer = await self._begin("GET", path, None, "", limits)
            async with answer:
                if answer.status >= 300:
                    raise self._failure(operation, answer, await _limited(answer, operation))
                try:
                    async for chunk in _until_end(answer):
                        yield chunk
                finally:
                    _abort(answer)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _begin(
        self, method: str, path: str, data: bytes | None, content_type: str, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = self._headers
        bearer = await self._cluster.token.bearer()
        if bearer is not None or content_type:
            headers = dict(headers)
            if bearer is not None:
                headers["Authorization"] = f"Bearer {bearer}"
            if content_type:
                headers["Content-Type"] = content_type
        return await self._session.request(
            method,
            URL(f"{self._cluster.server}{path}", encoded=True),
            data=data,
            headers=headers,
            timeout=limits,
            allow_redirects=False,
            ssl=self._ssl or self._context(),
            server_hostname=self._cluster.tls.server_name,
        )

    def _context(self) -> ssl.SSLContext:
        try:
            self._ssl = self._cluster.tls.context()
        except SettingsError as error:
            raise ApiUnavailableError(f"{self._cluster.server}: {error}") from error
        return self._ssl

    def _failure(self, operation: str, answer: aiohttp.ClientResponse, body: bytes) -> Exception:
        error = failures.from_answer(operation, answer.status, body, answer.headers)
        if isinstance(error, ApiUnauthorizedError):
            self._cluster.token.refused()
        return error

    @contextlib.contextmanager
    def _mapped(self, operation: str) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            self._ssl = None  # an authority or a client certificate may have been rotated: read the files again
            raise ApiUnavailableError(f"{operation}: {self._cluster.server}: {error}") from error
        except TimeoutError as error:
            raise ApiUnavailableError(f"{operation}: {self._cluster.server} did not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnavailableError(f"{operation}: {self._cluster.server}: {_words(error)}") from error


def _words(error: Exception) -> str:
    """Say why there was no answer: the same at each try, as events with the same words are one."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"what answers does not speak HTTP as it should: {error.message.splitlines()[0].rstrip(':')}"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return getattr(cause, "strerror", None) or str(cause) or type(error).__name__


async def _limited(answer: aiohttp.ClientResponse, operation: str) -> bytes:
    chunks = []
    size = 0
    while chunk := await answer.content.readany():
        size += len(chunk)
        if size > LARGEST_ANSWER:
            answer.close()
            raise ApiUnavailableError(f"{operation}: the answer is longer than {LARGEST_ANSWER} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def _until_end(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield chunks; a connection that the server cuts in the middle is an end like any other."""
    try:
        while chunk := await answer.content.readany():
            yield chunk
    except aiohttp.ClientPayloadError:
        return


def _abort(answer: aiohttp.ClientResponse) -> None:
    """Drop the connection of an answer that was left before its end: a polite TLS farewell may wait for a dead peer."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()


def _socket(address: AddrInfoType) -> socket.socket:
    """Make a socket that notices within a minute that a silent peer is gone (a watch may be silent for long)."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 20),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 50_000),
    ):
        if hasattr(socket, option):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
