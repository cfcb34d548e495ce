"""What may be done to MIG, judged by a GPU's state, so that every inventory refuses it in the same words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.errors import MigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driver.model.mig import MigProfile, MigState, Placement


def check_creation(gpu: str, state: MigState, profile_id: int, placement: Placement) -> MigProfile:
    """Return the profile of a GPU instance that may be made; `gpu` for messages.

    :raises MigError: MIG mode is off, the profile or placement is not offered, or the placement is taken.
    """
    if not state.enabled:
        raise MigError(f"{gpu}: no MIG device can be made, as MIG mode is off")
    profile = _offered(gpu, state, profile_id)
    if placement not in profile.placements:
        offered = ", ".join(map(str, profile.placements))
        raise MigError(f"{gpu}: {profile.name} can't lie at {placement}; its placements (start:size) are {offered}")
    for other, what in taken(state):
        if placement.overlaps(other):
            raise MigError(f"{gpu}: {profile.name} at {placement}: the placement is taken: {what} is at {other}")
    return profile


def check_mode(gpu: str, state: MigState, enabled: bool) -> bool:
    """Say whether MIG mode has to be switched.

    :raises MigError: it has, and that needs a reset (M2), or MIG devices are in the way.
    """
    if state.enabled == enabled:
        return False
    if not state.switches_at_once:
        raise needs_reset(gpu, enabled)
    for other, what in taken(state):
        raise MigError(f"{gpu}: MIG mode can't be switched while there are MIG devices: {what} is at {other}")
    return True


def needs_reset(gpu: str, enabled: bool) -> MigError:
    """Make the error for a mode that waits for a reset: no GPU is ever reset, nor left to a reboot (M2)."""
    mode = "on" if enabled else "off"
    return MigError(f"{gpu}: switching MIG mode {mode} needs a GPU reset; do it while the node is drained")


def _offered(gpu: str, state: MigState, profile_id: int) -> MigProfile:
    for profile in state.profiles:
        if profile.id == profile_id:
            return profile
    offered = ", ".join(f"{one.id} ({one.name})" for one in state.profiles)
    raise MigError(f"{gpu}: there is no GPU instance profile {profile_id}; it offers {offered or 'none'}")


def taken(state: MigState) -> Iterator[tuple[Placement, str]]:
    """Yield the placements that are in use, each with what is there."""
    for instance in state.instances:
        yield instance.placement, f"MIG device {instance.name} ({instance.uuid})"
    for placement in state.bare:
        yield placement, "a GPU instance without a compute instance"
