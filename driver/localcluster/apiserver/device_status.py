"""Who may write a device's part of a claim's status (since 1.36).

Beside `resourceclaims/status`, the writer needs the verb `associated-node:VERB` (with a token bound to the node that
the claim is allocated on) or `arbitrary-node:VERB` on `resourceclaims/driver`, the driver being the resource's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from driver.localcluster.apiserver.audit import Call
from driver.localcluster.apiserver.errors import forbidden
from driver.localcluster.apiserver.identity import NODE_NAME
from driver.localcluster.apiserver.objects import Object, lookup, metadata
from driver.localcluster.apiserver.resources import DRA_GROUP, RESOURCES

if TYPE_CHECKING:
    from driver.localcluster.apiserver.authorization import Authorizer
    from driver.localcluster.apiserver.identity import User

_SINCE: Final = 36  # of Kubernetes 1


def check_device_status(authorizer: Authorizer, user: User, verb: str, minor: int, new: Object, old: Object) -> None:
    """Let a status write pass if its writer may write for every driver whose entries it changes.

    :raises StatusError: 403 otherwise.
    """
    if not authorizer.enforce or minor < _SINCE:
        return
    for driver in _changed_drivers(new, old):
        if not _allowed(authorizer, user, verb, driver, new):
            why = (
                f'changing status.devices requires resource="resourceclaims/driver", '
                f'verb="associated-node:{verb}" or "arbitrary-node:{verb}" permission for driver "{driver}"'
            )
            raise forbidden(RESOURCES["resourceclaims"], metadata(new)["name"], why)


def _changed_drivers(new: Object, old: Object) -> list[str]:
    was, is_now = _by_driver(old), _by_driver(new)
    return sorted(driver for driver in was.keys() | is_now.keys() if was.get(driver) != is_now.get(driver))


def _by_driver(claim: Object) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for device in lookup(claim, "status.devices") or ():
        found.setdefault(str(device.get("driver")), []).append(device)
    return found


def _allowed(authorizer: Authorizer, user: User, verb: str, driver: str, claim: Object) -> bool:
    scopes = ["arbitrary-node"]
    nodes = user.extra.get(NODE_NAME)
    if nodes and _is_on(claim, nodes[0]):
        scopes.append("associated-node")
    return any(
        authorizer.allows(
            user,
            Call(
                user=user.name, verb=f"{scope}:{verb}", group=DRA_GROUP, resource="resourceclaims",
                subresource="driver", namespace=metadata(claim).get("namespace", ""), name=driver,
            ),
        )
        for scope in scopes
    )  # fmt: skip


def _is_on(claim: Object, node: str) -> bool:
    terms = lookup(claim, "status.allocation.nodeSelector.nodeSelectorTerms") or ()
    fields = [field for term in terms for field in term.get("matchFields") or ()]
    names = [set(field.get("values") or ()) for field in fields if field.get("key") == "metadata.name"]
    return not names or any(node in values for values in names)
