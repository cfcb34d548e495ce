"""How the settings make the writer of the node's labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.inventory.host import Host
from driver.label_writer import LabelWriter

if TYPE_CHECKING:
    from driver.kube.client import KubeClient
    from driver.label_writer import LabelObserver, Place, Teller
    from driver.settings import Settings


def make_labels(settings: Settings, client: KubeClient, *, tell: Teller, observer: LabelObserver) -> LabelWriter | None:
    """Make the writer; None if nobody is to write labels."""
    if settings.labels == "off":
        return None
    return LabelWriter(
        _place(settings, client),
        Host(settings.sys_root, fake=settings.fake),
        tell=tell,
        observer=observer,
        timestamp=settings.labels_timestamp == "on",
        remove_at_end=settings.labels_at_exit == "remove",
    )


def _place(settings: Settings, client: KubeClient) -> Place:
    if settings.labels == "nfd":
        from driver.feature_file import FeatureFile

        return FeatureFile(settings.labels_file)
    from driver.kube.node_labels import NodeLabels

    return NodeLabels(client, settings.node_name)
