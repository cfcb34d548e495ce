"""Every error of the driver, in one tree.

The type says whether to try again: a `TemporaryError` may pass within a call's deadline, a `PermanentError` will not
until somebody changes something. Third-party exceptions are mapped to these at one border each (kube.client,
inventory.nvml, files), `from exc`. Every message names the object, what is wrong with it, and what to do.
"""

from __future__ import annotations

import errno


class DriverError(Exception):
    """Base of all errors that the driver raises on purpose; the message is for people."""


class TemporaryError(DriverError):
    """Another try may succeed without anybody doing anything."""


class PermanentError(DriverError):
    """Another try gives the same answer until somebody changes something."""


# --- input -----------------------------------------------------------------------------------------------------------


class InvalidValueError(PermanentError):
    """A value from outside (setting, file, claim, name) is not allowed.

    `path` names the field as its author wrote it (`spec.devices.config[0].opaque.parameters.sharing.strategy`),
    `allowed` says what would be right.
    """

    def __init__(self, path: str, value: object, allowed: str) -> None:
        found = "no value" if value is None else f"invalid value {_shown(value)}"
        super().__init__(f"{_printable(path)}: {found}: {allowed}")
        self.path = path
        self.value = value
        self.allowed = allowed


class InvalidFileError(InvalidValueError):
    """A file that people write is of no use as a whole; `path` has line and column where the problem has them."""

    def __init__(self, path: str, problem: str) -> None:
        DriverError.__init__(self, f"{_printable(path)}: {problem}")
        self.path = path
        self.value = None
        self.allowed = problem


class SettingsError(PermanentError):
    """The settings can't be used; the process must not start with them."""


class ServeError(PermanentError):
    """A socket or port can't be served; the process ends with this message."""


# --- inventory -------------------------------------------------------------------------------------------------------


class InventoryError(TemporaryError):
    """The inventory as a whole can't be read now (library missing, initialisation failed, call timed out)."""


class GpuLostError(PermanentError):
    """A GPU has fallen off the bus, or is not there: it takes a reset or a reboot, which undoes all that was set."""


class MigError(PermanentError):
    """A MIG operation can't be done: the placement is taken, the profile not offered, a reset would be needed."""


# --- claims ----------------------------------------------------------------------------------------------------------


class ClaimRefusedError(PermanentError):
    """This claim can't be prepared here as it is; the message tells its author why."""


class DeviceHeldError(PermanentError):
    """A device is held by another prepared claim; `holder` is that claim's UID, `claim` its name if it is known."""

    def __init__(self, device: str, held: str, holder: str, claim: str = "") -> None:
        what = "it" if held == device else f"{held} of the same GPU"
        super().__init__(
            f"device {device} can't be prepared: {what} is held by the prepared claim {claim or f'with uid {holder}'}, "
            "and is free when no pod uses that one any more; `gpu-dra status` in the agent's pod shows who does"
        )
        self.device = device
        self.held = held
        self.holder = holder


class SupersededError(PermanentError):
    """An unprepare of the same claim came while this prepare was under way; it must not leave a ghost."""


class RecordError(PermanentError):
    """A claim's record can't be read; its bytes are kept in quarantine."""


class StateBusyError(TemporaryError):
    """Another instance of the driver holds the state lock, or that of a GPU."""


class StorageError(TemporaryError):
    """A file could not be written or removed (disk full, read-only, permission)."""

    @classmethod
    def of(cls, operation: str, path: object, cause: OSError) -> StorageError:
        """Return the error of a system call that failed, with what to do where that can be told."""
        remedy = _REMEDIES.get(cause.errno or 0)
        return cls(f"cannot {operation} {path}: {cause.strerror or cause}{f'; {remedy}' if remedy else ''}")


_REMEDIES = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "raise the quota there, or free some of it",
    errno.EROFS: "mount that file system writable",
    errno.EACCES: "give the agent's user access to it",
    errno.EPERM: "give the agent's user the right to do so",
    errno.EIO: "the disk fails: see the kernel's log",
}


class DeviceNotReadyError(TemporaryError):
    """The device exists but can't be handed out yet (its device nodes or driver libraries are not there)."""


class PlacementTakenError(DeviceNotReadyError):
    """What no record owns is where a MIG device is to be made."""


class GpuToolError(TemporaryError):
    """nvidia-smi or an MPS daemon failed, hung or ended; the message has its last words."""


class SettingNotSupportedError(PermanentError):
    """This GPU, or its driver, can't do what was asked; another GPU may."""


# --- Kubernetes API --------------------------------------------------------------------------------------------------


class ApiError(DriverError):
    """The API server answered with a failure; `status` is the HTTP code, 0 if there was no answer."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ApiUnavailableError(ApiError, TemporaryError):
    """No answer, a 5xx or a 429: the server may be back soon. `retry_after` is in seconds, if the server said so."""

    retry_after: float | None = None


class ApiUnauthorizedError(ApiError, TemporaryError):
    """401: the token was refused; it is read again for the next try, as kubelet rotates it."""


class ApiForbiddenError(ApiError, PermanentError):
    """403: RBAC or admission refused the call."""


class ApiNotFoundError(ApiError, PermanentError):
    """404: no such object, or this version of the API is not served."""


class ApiConflictError(ApiError, TemporaryError):
    """409: the object changed or exists; read it again."""


class ApiGoneError(ApiError, TemporaryError):
    """410: the resource version is too old; list again."""


class ApiInvalidError(ApiError, PermanentError):
    """400, 415, 422 and other 4xx: the server will not take this object."""


def _printable(path: str) -> str:
    """Escape what would start a line of its own in a log: keys in a path are somebody's words."""
    return path if path.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in path)


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)  # as in the YAML or JSON that it came from
    return text if len(text) <= 120 else f"{text[:117]}..."
