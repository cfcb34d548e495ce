"""What is served where: API groups and versions, and the meaning of a request's path."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from driver.localcluster.apiserver.errors import no_such_path
from driver.localcluster.apiserver.resources import DRA_GROUP, RESOURCES, REVIEWS, STORED_VERSION, Resource

if TYPE_CHECKING:
    from driver.localcluster.apiserver.features import Features

EVENTS_GROUP = "events.k8s.io"


@dataclass(frozen=True, slots=True)
class Served:
    """A resource in one version of its API."""

    resource: Resource
    group: str
    version: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects here."""
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a path points at. Empty strings for what it does not name."""

    served: Served
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class Registry:
    """The served resources of a cluster with these features."""

    def __init__(self, features: Features) -> None:
        self._served: dict[tuple[str, str], dict[str, Served]] = {}
        for resource in RESOURCES.values():
            versions = features.dra_versions if resource.group == DRA_GROUP else (STORED_VERSION,)
            for version in versions:
                self._add(Served(resource, resource.group, version))
        for review in REVIEWS.values():
            self._add(Served(review, review.group, "v1"))
        self._add(Served(RESOURCES["events"], EVENTS_GROUP, "v1"))
        self.target = lru_cache(maxsize=4096)(self._target)
        """Parse a path below `/api` or `/apis`; cached, as agents ask for the same paths again."""

    def _add(self, served: Served) -> None:
        self._served.setdefault((served.group, served.version), {})[served.resource.plural] = served

    @property
    def groups(self) -> dict[str, list[str]]:
        """The versions of each group, the preferred one first."""
        groups: dict[str, list[str]] = {}
        for group, version in self._served:
            groups.setdefault(group, []).append(version)
        return groups

    def resources(self, group: str, version: str) -> list[Served]:
        """Return what a version of a group serves.

        :raises StatusError: 404 if it is not served at all.
        """
        found = self._served.get((group, version))
        if found is None:
            raise no_such_path()
        return list(found.values())

    def _target(self, path: str) -> Target:
        steps = path.strip("/").split("/")
        group, version, rest = ("", steps[1], steps[2:]) if steps[0] == "api" else (steps[1], steps[2], steps[3:])
        served = self._served.get((group, version), {})
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] in served:
            namespace, rest = rest[1], rest[2:]
        if not rest or len(rest) > 3 or rest[0] not in served:
            raise no_such_path()
        name, subresource = ([*rest[1:], "", ""])[:2]
        found = served[rest[0]]
        if subresource and subresource not in found.resource.subresources:
            raise no_such_path()
        if bool(namespace) is not found.resource.namespaced and (namespace or name):
            raise no_such_path()
        return Target(served=found, namespace=namespace, name=name, subresource=subresource)
