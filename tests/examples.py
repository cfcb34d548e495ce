"""How many examples hypothesis tries: the same few each time, or, with NIGHTLY=1, always other ones and many more."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_USUAL, _NIGHTLY = 100, 1_000


def register() -> None:
    """Make the profiles `default` and `nightly`, and load the one that NIGHTLY asks for.

    A usual run tells about the change that is tested, so its examples are fixed; the search for new ones is nightly's.
    How fast examples come tells about the machine: no test fails by that.
    """
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "default", max_examples=_USUAL, derandomize=True, deadline=None, suppress_health_check=slow
    )
    settings.register_profile(
        "nightly", max_examples=_NIGHTLY, print_blob=True, deadline=None, suppress_health_check=slow
    )
    settings.load_profile("nightly" if os.environ.get("NIGHTLY") else "default")


def examples(usual: int) -> int:
    """Return how many examples to try where a usual run tries `usual`: in proportion to the profile's."""
    return max(1, usual * settings.default.max_examples // _USUAL)
