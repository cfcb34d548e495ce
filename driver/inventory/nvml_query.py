"""Asking NVML about one GPU: which errors cost an attribute, which cost the GPU, and which end the session."""

from __future__ import annotations

import ctypes
from typing import Any

NOT_SUPPORTED = "NVML_ERROR_NOT_SUPPORTED"
FUNCTION_NOT_FOUND = "NVML_ERROR_FUNCTION_NOT_FOUND"
INVALID_ARGUMENT = "NVML_ERROR_INVALID_ARGUMENT"
NOT_FOUND = "NVML_ERROR_NOT_FOUND"
NO_PERMISSION = "NVML_ERROR_NO_PERMISSION"

ABSENT = (
    NOT_SUPPORTED,
    FUNCTION_NOT_FOUND,  # an older library
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",  # an older library, another version of the struct
    "NVML_ERROR_DEPRECATED",
    NO_PERMISSION,
)
"""The GPU, library or permission does not have this: the attribute is lost, the GPU is not (A4)."""

_SESSION_OVER = (
    "NVML_ERROR_UNINITIALIZED",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
)


class GpuRefusedError(Exception):
    """A GPU failed to answer: nothing read of it may be used (A11). Never leaves the inventory."""


class GpuQuery:
    """One GPU's handle. `asked` is the last question, so that an error can name it; `notes` are for people."""

    def __init__(self, api: Any, handle: Any) -> None:
        self.api = api
        self.handle = handle
        self.asked = ""
        self.notes: list[str] = []

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function about this GPU.

        :raises pynvml.NVMLError: as NVML says.
        """
        return self.call(function, self.handle, *arguments)

    def ask_or(self, default: Any, function: str, *arguments: Any, absent: tuple[str, ...] = ABSENT) -> Any:
        """Call an NVML function; return `default` where it fails as `absent` names.

        :raises pynvml.NVMLError: any other failure.
        """
        return self.call_or(default, function, self.handle, *arguments, absent=absent)

    def call_or(self, default: Any, function: str, *arguments: Any, absent: tuple[str, ...]) -> Any:
        """Call as `call` does; return `default` where it fails as `absent` names.

        :raises pynvml.NVMLError: any other failure.
        """
        try:
            return self.call(function, *arguments)
        except self.api.NVMLError as exc:
            if not is_one_of(self.api, exc, absent):
                raise
            return default

    def call(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function whose first argument is another handle of this GPU."""
        self.asked = function
        call = getattr(self.api, function, None)  # nvidia-ml-py may be older than the function
        if call is None:
            raise self.api.NVMLError(self.api.NVML_ERROR_FUNCTION_NOT_FOUND)
        return call(*arguments)


def is_one_of(api: Any, exc: Any, names: tuple[str, ...]) -> bool:
    """Say whether an `NVMLError` is one of the named; it is neither hashable nor safe to compare."""
    return any(exc.value == getattr(api, name, None) for name in names)


def ends_session(api: Any, exc: Any) -> bool:
    """Say whether an error means that NVML itself is gone, not one GPU."""
    return is_one_of(api, exc, _SESSION_OVER)


def address(handle: Any) -> int:
    """Return what identifies a device handle within a session: ctypes pointers don't compare."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
