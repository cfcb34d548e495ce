"""What a device needs in a container: the seam between real driver roots and fake GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from driver.cdi.spec import ContainerEdits
    from driver.model.device import Device


class EditsSource(Protocol):
    """Answers what containers get. Looks at the node as it is now; an answer that is not whole is never given (C2)."""

    def common(self) -> ContainerEdits:
        """Return what every container with any of the devices gets, once.

        :raises DeviceNotReadyError: the driver's files or device nodes are not there (yet).
        """
        ...

    def device(self, device: Device) -> ContainerEdits:
        """Return what one device adds; never empty.

        :raises DeviceNotReadyError: its device nodes are not there (yet).
        :raises ClaimRefusedError: a device of this kind can't be handed out.
        """
        ...
