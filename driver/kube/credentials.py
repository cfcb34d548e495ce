"""Bearer tokens: none, fixed, or from a file that is rotated. Tokens never appear in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from driver.errors import ApiUnauthorizedError

if TYPE_CHECKING:
    from pathlib import Path


class Token(Protocol):
    """What goes into the Authorization header."""

    async def bearer(self) -> str | None:
        """Return the token for the next request, None for no such header.

        :raises ApiUnauthorizedError: there should be one, but it can't be had now.
        """
        ...

    def refused(self) -> None:
        """Learn that the server answered 401: what is kept is no good any more."""
        ...


class NoToken:
    """No token: the client certificate, or nothing, says who we are."""

    async def bearer(self) -> str | None:
        """Return nothing."""
        return None

    def refused(self) -> None:
        """Do nothing: there is nothing to renew."""


class FixedToken:
    """A token that never changes."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def bearer(self) -> str | None:
        """Return the token."""
        return self._token

    def refused(self) -> None:
        """Do nothing: there is nothing to renew."""


class FileToken:
    """A token in a file, such as a pod's, that the kubelet rotates: read again when the file changed or after a 401."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._seen: tuple[int, int, int] | None = None

    async def bearer(self) -> str | None:
        """Return the file's current content."""
        try:
            stat = self._path.stat()  # a few microseconds; the file is in memory (tmpfs)
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen != self._seen:
                self._token = self._path.read_text("ascii").strip()
                self._seen = seen
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise ApiUnauthorizedError(f"the token file {self._path} can't be read: {why}") from error
        if not self._token:
            raise ApiUnauthorizedError(f"the token file {self._path} is empty")
        return self._token

    def refused(self) -> None:
        """Read the file again for the next request."""
        self._seen = None
