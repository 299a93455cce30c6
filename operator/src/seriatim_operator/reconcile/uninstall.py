"""What must hold before the operator is taken away: nobody needs it, and nothing waits for it for ever.

A cluster without an operator goes on, but nothing replaces what it loses; a cluster whose etcd goes with the release
cannot even switch. So clusters stand in the way of an uninstall unless somebody insists. Finalizers, by contrast, are
taken off: an object that asks the operator for leave to go could not be deleted any more, nor could its namespace.
Without its finalizer a Topic that is deleted leaves the topic in the brokers as it is. (In the operator's own namespace
there are none: nothing is held there.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..cluster.kinds import BROKER_CLUSTER, OWN, TOPIC, Kind
from ..cluster.kube import KubeError

FINALIZER_PREFIX = "seriatim.dev/"


class Lister(Protocol):
    """What a look asks of the API."""

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[dict[str, Any]]:
        """All objects, page by page."""


class Merger(Protocol):
    """What taking finalizers off asks of it."""

    async def merge(self, kind: Kind, namespace: str | None, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        """A merge patch."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A cluster that is there."""

    namespace: str
    name: str
    topics: int
    deletion_policy: str
    is_being_deleted: bool

    def __str__(self) -> str:
        volumes = "are deleted with it" if self.deletion_policy == "Delete" else "stay when it is deleted"
        state = ", being deleted" if self.is_being_deleted else ""
        return f"{self.namespace}/{self.name}: {self.topics} topics; its volumes {volumes}{state}"


@dataclass(slots=True)
class Survey:
    """What was found.

    Attributes:
        clusters: That need the operator.
        held: Objects that carry a finalizer of ours.
    """

    clusters: list[Standing] = field(default_factory=list)
    held: list[tuple[Kind, dict[str, Any]]] = field(default_factory=list)


async def survey(api: Lister, namespaces: Sequence[str]) -> Survey:
    """Look at all our objects, in some namespaces or (none named) in all.

    Raises:
        KubeError: The API cannot be asked; a kind that it does not know has no objects.
    """
    objects: dict[str, list[dict[str, Any]]] = {}
    for kind in OWN:
        objects[kind.kind] = [item for one in namespaces or (None,) for item in await _list(api, kind, one)]
    found = Survey()
    for cluster in objects[BROKER_CLUSTER.kind]:
        metadata = cluster["metadata"]
        topics = [
            topic
            for topic in objects[TOPIC.kind]
            if topic["metadata"]["namespace"] == metadata["namespace"]
            and topic.get("spec", {}).get("cluster") == metadata["name"]
        ]
        policy = cluster.get("spec", {}).get("deletionPolicy", "Retain")
        is_being_deleted = "deletionTimestamp" in metadata
        found.clusters.append(Standing(metadata["namespace"], metadata["name"], len(topics), policy, is_being_deleted))
    for kind in OWN:
        found.held += [(kind, item) for item in objects[kind.kind] if _ours(item)]
    return found


async def take_finalizers_off(api: Merger, found: Survey) -> int:
    """Take our finalizers off; returns from how many objects."""
    for kind, item in found.held:
        metadata = item["metadata"]
        theirs = [name for name in metadata["finalizers"] if not name.startswith(FINALIZER_PREFIX)]
        patch = {"metadata": {"finalizers": theirs, "resourceVersion": metadata["resourceVersion"]}}
        await api.merge(kind, metadata["namespace"], metadata["name"], patch)
    return len(found.held)


def refusal(found: Survey, *, takes_etcd: bool, release: str, revision: str) -> str:
    """Why the operator should stay, and what to do about it; empty if nothing is in the way."""
    if not found.clusters:
        return ""
    lost = "the operator and the etcd of" if takes_etcd else "the operator of"
    return "\n".join(
        [
            f"Not uninstalled: it would take away {lost} clusters that are there.",
            *(f"  {cluster}" for cluster in found.clusters),
            "Nothing has been changed, but Helm has marked the release. Set that right first:",
            f"  helm rollback {release} {revision}",
            "Then either delete the clusters, and uninstall again:",
            *(f"  kubectl -n {cluster.namespace} delete brokercluster {cluster.name}" for cluster in found.clusters),
            "or, if you mean it (brokers and volumes then stay, with nobody to look after them):",
            f"  helm upgrade {release} CHART --reuse-values --set uninstall.force=true, and uninstall again.",
        ]
    )


async def _list(api: Lister, kind: Kind, namespace: str | None) -> list[dict[str, Any]]:
    try:
        return await api.list(kind, namespace)
    except KubeError as exc:
        if exc.status == 404:  # the definitions went first
            return []
        raise


def _ours(item: dict[str, Any]) -> bool:
    return any(name.startswith(FINALIZER_PREFIX) for name in item["metadata"].get("finalizers") or ())
