"""MIG devices of ours that no record owns any more: somebody removed the record, or it was garbage and settled by hand.

Removed only if all of this is so: the ledger says that this driver made it in this boot, no record and no unreadable
record may own it, no pod on the node uses a claim that has no record, and what is there now is what was made. A device
that processes use can't be removed by anybody; it is looked at again later.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from driver.errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from driver.claims.effect_runner import EffectRunner
    from driver.claims.ledger import Made

    Locked = Callable[[tuple[str, ...], Callable[[], Coroutine[Any, Any, bool]]], Awaitable[bool]]

log = logging.getLogger(__name__)


async def remove_strays(
    runner: EffectRunner,
    locked: Locked,
    *,
    is_owned: Callable[[Made], Awaitable[bool]],
    may_be_used: Callable[[], Awaitable[bool]],
) -> int:
    """Remove them; return how many. One that can't be removed costs itself only.

    `locked` does work with GPUs locked, to the end even if the caller, a kubelet's call perhaps, goes away.

    :raises StorageError: the records can't be read.
    """
    suspects = [made for made in runner.made() if not await is_owned(made)]
    used = bool(suspects) and await may_be_used()
    removed = 0
    for made in suspects:
        if used:
            log.warning("No record owns %s, but a pod may use it: it is left for now", _told(made))
            continue
        try:
            removed += await locked((made.gpu,), partial(_remove, runner, made, is_owned))
        except DriverError as exc:
            log.warning("%s can't be removed now: %s", _told(made), exc)
    return removed


async def _remove(runner: EffectRunner, made: Made, is_owned: Callable[[Made], Awaitable[bool]]) -> bool:
    if made not in runner.made() or await is_owned(made):
        return False  # another claim or another instance of the driver was here meanwhile
    log.warning("No record owns %s, and no pod uses it: removing it", _told(made))
    await runner.remove(made)
    return True


def _told(made: Made) -> str:
    return f"the MIG device at {made.placement} of {made.gpu}, made for claim {', '.join(sorted(made.claims))}"
