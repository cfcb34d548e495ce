"""What can go wrong between a container's description and its running process."""

from __future__ import annotations

from driver.errors import PermanentError


class CdiError(PermanentError):
    """A CDI file or device can't be used; the text is containerd's."""


class ContainerError(PermanentError):
    """The container did not start.

    `reason` is what the kubelet shows: `CreateContainerConfigError` or `CreateContainerError` (before the process
    exists), `RunContainerError` (the runtime failed to start the process).
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
