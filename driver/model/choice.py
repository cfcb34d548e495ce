"""Which GPUs a setting is about: none, all, or some that it names. Pure."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.model.device import Gpu

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ALLOWED = "must be off, all, or some of: an index (0), a GPU's whole UUID (GPU-…), a product with wildcards (*H100*)"


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """GPUs by index, UUID or pattern of the product's name (upper and lower case are the same); `*` are all."""

    words: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: object) -> GpuChoice:
        """Return the choice that a line, a list or one of YAML's own words for off and on says.

        :raises ValueError: it says what is allowed.
        """
        if value is None or isinstance(value, bool):
            return cls(("*",) if value else ())
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, str | int) for item in items):
            raise ValueError(_ALLOWED)
        words = tuple(dict.fromkeys(word for item in items if (word := str(item).strip())))
        if words in ((), ("off",)):
            return cls()
        if words == ("all",):
            return cls(("*",))
        for word in words:
            _check(word)
        return cls(words)

    def __bool__(self) -> bool:
        return bool(self.words)

    def __str__(self) -> str:
        return {(): "off", ("*",): "all"}.get(self.words) or ",".join(self.words)

    def names(self, gpu: Gpu) -> bool:
        """Say whether a GPU is meant."""
        return any(_means(word, gpu) for word in self.words)

    def unmatched(self, gpus: Iterable[Gpu]) -> tuple[str, ...]:
        """Return the words that mean none of these GPUs."""
        found = tuple(gpus)
        return tuple(word for word in self.words if not any(_means(word, gpu) for gpu in found))


NO_GPUS = GpuChoice()


def _check(word: str) -> None:
    if word in ("off", "all"):
        raise ValueError(f"{word!r} doesn't go with others")
    if word.upper().startswith("GPU-") and not _UUID.fullmatch(word):
        raise ValueError(f"{word!r} is no whole UUID; {_ALLOWED}")
    if re.fullmatch(r"[-+]\d+|\d{5,}", word, re.ASCII):
        raise ValueError(f"{word!r} is no index; {_ALLOWED}")


def _means(word: str, gpu: Gpu) -> bool:
    if word.isdecimal():
        return gpu.index == int(word)
    if _UUID.fullmatch(word):
        return gpu.uuid.lower() == word.lower()
    return fnmatch.fnmatchcase(gpu.product.lower(), word.lower())
