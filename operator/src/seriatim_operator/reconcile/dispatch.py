"""From what changed to what should be looked at: the keys of the work queue."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from ..cluster.kinds import (
    BROKER,
    BROKER_CLUSTER,
    BROKER_GROUP,
    CLAIM,
    CONSUMER_GROUP,
    NODE,
    POD,
    TOPIC,
)
from ..plan.observed import node_view
from ..resources.names import LABEL_CLUSTER
from .cache import Cache

Manifest = dict[str, Any]


class ClusterKey(NamedTuple):
    """A pass over a BrokerCluster."""

    namespace: str
    name: str
    part: str = "cluster"


class TopicsKey(NamedTuple):
    """A pass over the Topics of a cluster."""

    namespace: str
    name: str
    part: str = "topics"


class ConsumerGroupsKey(NamedTuple):
    """A pass over the ConsumerGroups of a cluster, which asks brokers one by one, and holds up nobody else."""

    namespace: str
    name: str
    part: str = "consumer groups"


def keys_of(kind: str, manifest: Manifest, before: Manifest | None, cache: Cache) -> Iterator[Hashable]:
    """What to look at because an object changed, or went.

    Args:
        kind: Of the object.
        manifest: As it is now, or was last.
        before: What the cache had.
        cache: For objects that concern all clusters.
    """
    metadata = manifest["metadata"]
    namespace = str(metadata.get("namespace") or "")
    if kind == BROKER_CLUSTER.kind:
        yield ClusterKey(namespace, metadata["name"])
        yield TopicsKey(namespace, metadata["name"])
        yield ConsumerGroupsKey(namespace, metadata["name"])
    elif kind in (TOPIC.kind, CONSUMER_GROUP.kind):
        name = (manifest.get("spec") or {}).get("cluster")
        if name and _says_more(manifest, before):
            key = TopicsKey if kind == TOPIC.kind else ConsumerGroupsKey
            yield key(namespace, str(name))
    elif kind in (BROKER.kind, BROKER_GROUP.kind, POD.kind, CLAIM.kind):
        name = (metadata.get("labels") or {}).get(LABEL_CLUSTER)
        if name:
            yield ClusterKey(namespace, str(name))
    elif kind == NODE.kind and (before is None or node_view(before) != node_view(manifest)):
        # A node's heartbeats change its object all the time; what a plan looks at does not.
        for cluster in cache.of(BROKER_CLUSTER.kind):
            yield ClusterKey(cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def _says_more(manifest: Manifest, before: Manifest | None) -> bool:
    """Whether more than the status changed: that is our own doing."""
    if before is None:
        return True

    def said(of: Manifest) -> tuple[Any, ...]:
        metadata = of["metadata"]
        return (
            metadata.get("generation"),
            metadata.get("deletionTimestamp"),
            metadata.get("annotations"),
            metadata.get("finalizers"),
        )

    return said(manifest) != said(before)
