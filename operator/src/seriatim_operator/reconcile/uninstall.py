"""What must be true before the operator is uninstalled: no cluster needs it, and no object waits for it for ever.

A cluster without an operator continues, but its lost disks are not replaced. If its etcd is uninstalled with the
release, it cannot even switch. So an uninstall is refused while there are clusters, unless an administrator forces it.

Finalizers are removed in an uninstall. With a finalizer and without an operator, neither the object nor its namespace
could be deleted. If a Topic without its finalizer is deleted, the brokers keep the topic as it is. In its own namespace
the operator sets no finalizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..cluster.kinds import BROKER_CLUSTER, OWN, SECRET, TOPIC, Kind
from ..cluster.kube import KubeError

FINALIZER_PREFIX = "seriatim.dev/"


class Lister(Protocol):
    """The part of the API that `survey` uses."""

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[dict[str, Any]]:
        """List all objects of a kind, in one namespace or (None) in all."""


class Merger(Protocol):
    """The part of the API that `take_finalizers_off` uses."""

    async def merge(self, kind: Kind, namespace: str | None, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Send a merge patch, and return the object after it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A cluster that exists.

    Attributes:
        objects: Its Topic objects.
        topics: Topics that the brokers had when the operator reported last; None: it never reported that.
    """

    namespace: str
    name: str
    objects: int
    topics: int | None
    deletion_policy: str
    is_being_deleted: bool

    def __str__(self) -> str:
        volumes = "are deleted with it" if self.deletion_policy == "Delete" else "stay when it is deleted"
        state = ", being deleted" if self.is_being_deleted else ""
        return f"{self.namespace}/{self.name}: {self._topics()}; its volumes {volumes}{state}"

    def _topics(self) -> str:
        """How many topics there are. An object may be newer than the report, or its topic not made yet."""
        count = max(self.objects, self.topics or 0)
        told = f"{count:,} topic{'' if count == 1 else 's'}"
        if self.topics is None:
            return f"{told} with a Topic object, and those that programs and commands made"
        free = count - self.objects
        return f"{told}, {free:,} of them without a Topic object" if free else told


@dataclass(slots=True)
class Survey:
    """What the API has.

    Attributes:
        clusters: Clusters, which need the operator.
        held: Objects that have a finalizer of the operator.
    """

    clusters: list[Standing] = field(default_factory=list)
    held: list[tuple[Kind, dict[str, Any]]] = field(default_factory=list)


async def survey(api: Lister, namespaces: Sequence[str]) -> Survey:
    """Find all objects of our kinds, in the named namespaces or, if none is named, in all.

    Raises:
        KubeError: The API cannot be asked. A kind that it does not know is no error: it has no objects.
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
        told = cluster.get("status", {}).get("topics")
        found.clusters.append(
            Standing(metadata["namespace"], metadata["name"], len(topics), told, policy, is_being_deleted)
        )
    for kind in OWN:
        found.held += [(kind, item) for item in objects[kind.kind] if _ours(item)]
    return found


async def take_finalizers_off(api: Merger, found: Survey) -> int:
    """Remove the operator's finalizers, and return from how many objects.

    Raises:
        KubeError: The API refuses a patch, for instance because the object has changed since the survey.
    """
    for kind, item in found.held:
        metadata = item["metadata"]
        theirs = [name for name in metadata["finalizers"] if not name.startswith(FINALIZER_PREFIX)]
        patch = {"metadata": {"finalizers": theirs, "resourceVersion": metadata["resourceVersion"]}}
        await api.merge(kind, metadata["namespace"], metadata["name"], patch)
    return len(found.held)


def refusal(found: Survey, *, takes_etcd: bool, release: str, revision: str, namespace: str) -> str:
    """Why the operator must stay, and what to do; empty if there are no clusters.

    Args:
        found: What the API has.
        takes_etcd: The release contains the clusters' etcd.
        release: Name of the release, for the advice.
        revision: Revision that works, for the advice.
        namespace: Namespace of the release, for the advice; empty if it is not known.
    """
    if not found.clusters:
        return ""
    helm = f"helm -n {namespace}" if namespace else "helm"
    lost = "the operator and the etcd of" if takes_etcd else "the operator of"
    return "\n".join(
        [
            f"Not uninstalled: it would remove {lost} clusters that are there.",
            *(f"  {cluster}" for cluster in found.clusters),
            "Nothing has been changed, but Helm has marked the release as uninstalling. First undo that:",
            f"  {helm} rollback {release} {revision}",
            "Then either delete the clusters, and uninstall again:",
            *(f"  kubectl -n {cluster.namespace} delete scluster {cluster.name}" for cluster in found.clusters),
            "or uninstall all the same (brokers and volumes then stay, and no operator looks after them):",
            f"  {helm} upgrade {release} CHART --reuse-values --set uninstall.force=true, and uninstall again.",
        ]
    )


async def working_revision(api: Lister, namespace: str, release: str) -> str:
    """The revision of the release to go back to after a refusal; empty if Helm's records do not report.

    Helm has a Secret for each revision, whose labels have its status. When the hook runs, the newest revision is
    `uninstalling`. If that one had failed to install, an older one is still `deployed`, and that one is what works.

    Args:
        api: The Kubernetes API.
        namespace: The namespace of the release.
        release: The name of the release.
    """
    try:
        secrets = await api.list(SECRET, namespace, f"owner=helm,name={release}")
    except KubeError:
        return ""  # Helm keeps its records elsewhere, or the operator may not read Secrets here
    versions: dict[str, int] = {}
    for secret in secrets:
        labels = secret["metadata"].get("labels") or {}
        status, version = labels.get("status", ""), str(labels.get("version", ""))
        if version.isdecimal():
            versions[status] = max(versions.get(status, 0), int(version))
    found = versions.get("deployed") or versions.get("uninstalling")
    return str(found) if found else ""


async def _list(api: Lister, kind: Kind, namespace: str | None) -> list[dict[str, Any]]:
    try:
        return await api.list(kind, namespace)
    except KubeError as exc:
        if exc.status == 404:  # the definitions were deleted before
            return []
        raise


def _ours(item: dict[str, Any]) -> bool:
    return any(name.startswith(FINALIZER_PREFIX) for name in item["metadata"].get("finalizers") or ())
