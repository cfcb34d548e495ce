"""The table of resources that the API server serves."""

from __future__ import annotations

from dataclasses import dataclass, field

STORED_VERSION = "v1"
"""Objects are kept in this version of their API group, whatever version a client speaks."""

DRA_GROUP = "resource.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource, as discovery describes it and as the store treats it."""

    group: str
    plural: str
    kind: str
    namespaced: bool
    status: bool = False
    """Is there a `status` subresource, so that status and the rest are written apart?"""
    generation: bool = False
    """Does `metadata.generation` rise with every change of the spec?"""
    other_subresources: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    stored: bool = True
    """False for a review, which is answered and forgotten."""
    inert: bool = False
    """Is it stored and nothing acts on it, here, so that whoever creates one is to be told?"""
    list_kind: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "list_kind", f"{self.kind}List")

    @property
    def qualified(self) -> str:
        """The name that messages use: `resourceslices.resource.k8s.io`, `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def singular(self) -> str:
        """The name for one of them."""
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        """The `apiVersion` in which the store holds it."""
        return f"{self.group}/{STORED_VERSION}" if self.group else STORED_VERSION

    @property
    def subresources(self) -> tuple[str, ...]:
        """All subresources, `status` first."""
        return (("status",) if self.status else ()) + self.other_subresources


_STREAMS = ("attach", "exec", "portforward")


def _core() -> tuple[Resource, ...]:
    return (
        Resource(
            group="", plural="namespaces", kind="Namespace", namespaced=False, status=True, short_names=("ns",),
            other_subresources=("finalize",),
        ),
        Resource(group="", plural="nodes", kind="Node", namespaced=False, status=True, short_names=("no",)),
        Resource(
            group="", plural="pods", kind="Pod", namespaced=True, status=True, generation=True, short_names=("po",),
            categories=("all",), other_subresources=("log", "binding", "eviction", *_STREAMS),
        ),
        Resource(group="", plural="events", kind="Event", namespaced=True, short_names=("ev",)),
        Resource(
            group="", plural="serviceaccounts", kind="ServiceAccount", namespaced=True, short_names=("sa",),
            other_subresources=("token",),
        ),
        Resource(group="", plural="configmaps", kind="ConfigMap", namespaced=True, short_names=("cm",)),
        Resource(group="", plural="secrets", kind="Secret", namespaced=True),
        Resource(
            group="", plural="services", kind="Service", namespaced=True, status=True, short_names=("svc",),
            categories=("all",),
        ),
        Resource(
            group="", plural="limitranges", kind="LimitRange", namespaced=True, short_names=("limits",), inert=True,
        ),
        Resource(
            group="", plural="resourcequotas", kind="ResourceQuota", namespaced=True, status=True,
            short_names=("quota",), inert=True,
        ),
    )  # fmt: skip


def _workloads() -> tuple[Resource, ...]:
    def workload(group: str, plural: str, kind: str, *short: str, scale: bool = False, inert: bool = False) -> Resource:
        return Resource(
            group=group, plural=plural, kind=kind, namespaced=True, status=True, generation=True, short_names=short,
            categories=("all",), other_subresources=("scale",) if scale else (), inert=inert,
        )  # fmt: skip

    return (
        workload("apps", "deployments", "Deployment", "deploy", scale=True),
        workload("apps", "replicasets", "ReplicaSet", "rs", scale=True),
        workload("apps", "daemonsets", "DaemonSet", "ds", inert=True),
        workload("apps", "statefulsets", "StatefulSet", "sts", scale=True, inert=True),
        Resource(group="apps", plural="controllerrevisions", kind="ControllerRevision", namespaced=True),
        workload("batch", "jobs", "Job"),
        workload("batch", "cronjobs", "CronJob", "cj", inert=True),
    )


def _policy() -> tuple[Resource, ...]:
    rbac, admission = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
    return (
        Resource(group=rbac, plural="clusterroles", kind="ClusterRole", namespaced=False),
        Resource(group=rbac, plural="clusterrolebindings", kind="ClusterRoleBinding", namespaced=False),
        Resource(group=rbac, plural="roles", kind="Role", namespaced=True),
        Resource(group=rbac, plural="rolebindings", kind="RoleBinding", namespaced=True),
        Resource(
            group=admission, plural="validatingadmissionpolicies", kind="ValidatingAdmissionPolicy", namespaced=False,
            status=True, generation=True,
        ),
        Resource(
            group=admission, plural="validatingadmissionpolicybindings", kind="ValidatingAdmissionPolicyBinding",
            namespaced=False, generation=True,
        ),
        Resource(
            group="scheduling.k8s.io", plural="priorityclasses", kind="PriorityClass", namespaced=False,
            short_names=("pc",), generation=True,
        ),
        Resource(group="coordination.k8s.io", plural="leases", kind="Lease", namespaced=True),
        Resource(
            group="policy", plural="poddisruptionbudgets", kind="PodDisruptionBudget", namespaced=True, status=True,
            short_names=("pdb",), generation=True, inert=True,
        ),
    )  # fmt: skip


def _devices() -> tuple[Resource, ...]:
    return (
        Resource(group=DRA_GROUP, plural="deviceclasses", kind="DeviceClass", namespaced=False, generation=True),
        Resource(group=DRA_GROUP, plural="resourceclaims", kind="ResourceClaim", namespaced=True, status=True),
        Resource(group=DRA_GROUP, plural="resourceclaimtemplates", kind="ResourceClaimTemplate", namespaced=True),
        Resource(group=DRA_GROUP, plural="resourceslices", kind="ResourceSlice", namespaced=False, generation=True),
    )


def _reviews() -> tuple[Resource, ...]:
    def review(group: str, plural: str, kind: str) -> Resource:
        return Resource(group=f"{group}.k8s.io", plural=plural, kind=kind, namespaced=False, stored=False)

    return (
        review("authentication", "tokenreviews", "TokenReview"),
        review("authentication", "selfsubjectreviews", "SelfSubjectReview"),
        review("authorization", "subjectaccessreviews", "SubjectAccessReview"),
        review("authorization", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
        review("authorization", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    )


REVIEWS: dict[str, Resource] = {resource.plural: resource for resource in _reviews()}
"""What can only be created, and is not stored."""

RESOURCES: dict[str, Resource] = {
    resource.plural: resource for resource in (*_core(), *_workloads(), *_policy(), *_devices())
}
"""All resources by their plural name, which is unique among them."""
