"""What is known of objects that did not become as they should."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.errors import ApiError
from tests.conformance.api import collection

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.conformance.api import Api, Object

_MOST = 10  # objects


async def all_of(api: Api, items: Sequence[Object], namespace: str) -> str:
    """Return a few lines for each object, and the namespace's events about them."""
    if not items:
        return "  there is no such object"
    names = {item["metadata"]["name"] for item in items}
    lines = [line for item in items[:_MOST] for line in _object(item)]
    try:
        events = (await api.list(collection("Event", namespace)))["items"] if namespace else []
    except ApiError as exc:
        return "\n".join([*lines, f"  events: {exc}"])
    about = [event for event in events if event["involvedObject"].get("name") in names]
    return "\n".join([*lines, *(f"  event {event['reason']}: {event.get('message')}" for event in about[-_MOST:])])


def _object(item: Object) -> Iterator[str]:
    status = item.get("status") or {}
    yield f"  {item.get('kind', 'object')} {item['metadata']['name']}: {status.get('phase', '')}".rstrip(": ")
    for condition in status.get("conditions") or ():
        if condition["status"] != "True":
            yield f"    not {condition['type']}: {condition.get('reason', '')} {condition.get('message', '')}".rstrip()
    for one in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        for state, about in (one.get("state") or {}).items():
            shown = " ".join(str(about[key]) for key in ("reason", "exitCode", "message") if key in about)
            yield f"    container {one['name']}: {state} {shown}".rstrip()
    for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
        yield f"    allocated: {result['pool']}/{result['device']} for {result['request']}"
