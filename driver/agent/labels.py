"""How the settings make the writer of the node's labels, and what an agent with other settings has left elsewhere."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from driver.backoff import Backoff
from driver.errors import ApiNotFoundError, DriverError, TemporaryError
from driver.inventory.host import Host
from driver.label_writer import LabelWriter

if TYPE_CHECKING:
    from driver.kube.client import KubeClient
    from driver.label_writer import LabelObserver, Place
    from driver.settings import Settings
    from driver.teller import Teller


log = logging.getLogger(__name__)


def make_labels(settings: Settings, client: KubeClient, *, tell: Teller, observer: LabelObserver) -> LabelWriter | None:
    """Make the writer; None if nobody is to write labels."""
    if settings.labels == "off":
        return None
    return LabelWriter(
        _place(settings.labels, settings, client),
        Host(settings.sys_root, fake=settings.fake),
        tell=tell,
        observer=observer,
        timestamp=settings.labels_timestamp == "on",
        remove_at_end=settings.labels_at_exit == "remove",
    )


async def remove_elsewhere(settings: Settings, client: KubeClient) -> None:
    """Remove our labels from where they are not to be written any more; nobody else would. Those of others stay."""
    for kind in ("node", "nfd"):
        if kind != settings.labels:
            await _remove(_place(kind, settings, client))


async def _remove(place: Place) -> None:
    pauses = Backoff(1.0, 300.0)
    while True:
        try:
            await place.remove()
        except ApiNotFoundError:
            return
        except TemporaryError as exc:
            log.info("our former labels of %s can't be removed yet: %s", place.where, exc)
            await asyncio.sleep(pauses.next(exc))
        except DriverError as exc:
            log.warning("labels that this agent may have written to %s stay: %s", place.where, exc)
            return
        else:
            return


def _place(kind: str, settings: Settings, client: KubeClient) -> Place:
    if kind == "nfd":
        from driver.feature_file import FeatureFile

        return FeatureFile(settings.labels_file)
    from driver.kube.node_labels import NodeLabels

    return NodeLabels(client, settings.node_name)
