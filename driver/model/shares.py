"""How the claims of a device share it, as a setting says (consumable capacity, KEP-5075). Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

_MOST = 1000
_ALLOWED = f"must be disabled, memory, unlimited, or a number of shares from 1 to {_MOST}"


class ShareMode(enum.StrEnum):
    """What a claim gets of a device."""

    DISABLED = "disabled"  # all of it
    MEMORY = "memory"  # the memory that it asks for, all if it asks for none
    UNLIMITED = "unlimited"  # as many claims as like, each with the memory that it asks for, none by default
    COUNTED = "counted"  # one of N shares


@dataclass(frozen=True, slots=True)
class Shares:
    """A mode, and for `COUNTED` the number of shares."""

    mode: ShareMode = ShareMode.DISABLED
    count: int = 0

    @classmethod
    def parse(cls, value: object) -> Shares:
        """Return what a setting says.

        :raises ValueError: it says what is allowed.
        """
        text = "" if isinstance(value, bool) else str(value).strip()
        if text in ("disabled", "memory", "unlimited"):
            return cls(ShareMode(text))
        if text.isdecimal() and text.isascii() and len(text) <= 4 and 1 <= int(text) <= _MOST:
            return cls(ShareMode.COUNTED, int(text))
        raise ValueError(_ALLOWED)

    def __bool__(self) -> bool:
        return self.mode is not ShareMode.DISABLED

    def __str__(self) -> str:
        return str(self.count) if self.mode is ShareMode.COUNTED else str(self.mode)


EXCLUSIVE = Shares()
