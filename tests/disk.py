"""Disks in trouble."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def full_disk(opened: Callable[..., int]) -> Callable[..., int]:
    """Return `os.open` as it is on a disk without room for one more file; what is there may be written over."""

    def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT and not os.path.lexists(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return opened(path, flags, *args, **kwargs)

    return open_
