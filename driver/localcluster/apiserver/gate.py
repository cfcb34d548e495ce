"""The last check of a write over HTTP: what depends on who writes. The cluster's own parts are not asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.localcluster.apiserver.device_status import check_device_status
from driver.localcluster.apiserver.policies import Caller, check

if TYPE_CHECKING:
    from driver.localcluster.apiserver.authorization import Authorizer
    from driver.localcluster.apiserver.identity import User
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Target
    from driver.localcluster.apiserver.store import Store


class Gate:
    """Passes or refuses the writes of one request; given to the store's methods as `admit`."""

    def __init__(
        self, store: Store, authorizer: Authorizer, *, verb: str, target: Target, user: User, dry_run: bool
    ) -> None:
        self._store = store
        self._authorizer = authorizer
        self._verb = verb
        self._is_claim_status = (target.served.resource.plural, target.subresource) == ("resourceclaims", "status")
        self._caller = Caller(user=user, served=target.served, subresource=target.subresource, dry_run=dry_run)

    def __call__(self, new: Object | None, old: Object | None) -> None:
        """Let a write pass.

        :raises StatusError: it is refused.
        """
        if self._is_claim_status and new is not None and old is not None:
            minor = self._store.features.minor
            check_device_status(self._authorizer, self._caller.user, self._verb, minor, new, old)
        check(self._store, self._caller, new, old)

    @property
    def warnings(self) -> list[str]:
        """What policies warn of so far."""
        return self._caller.warnings
