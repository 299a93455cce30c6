"""Finds the keys of the work queue for an object that changed."""

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
    """The key of a pass over a BrokerCluster."""

    namespace: str
    name: str
    part: str = "cluster"


class TopicsKey(NamedTuple):
    """The key of a pass over the Topics of a cluster."""

    namespace: str
    name: str
    part: str = "topics"


class ConsumerGroupsKey(NamedTuple):
    """The key of a pass over the ConsumerGroups of a cluster.

    It is a pass of its own, because it asks brokers about one consumer group after another and must not hold up others.
    """

    namespace: str
    name: str
    part: str = "consumer groups"


def keys_of(kind: str, manifest: Manifest, before: Manifest | None, cache: Cache) -> Iterator[Hashable]:
    """Yield the keys of the passes that an object concerns, after it changed or was deleted.

    Args:
        kind: The kind of the object.
        manifest: The object as it is now, or as it was last.
        before: The object that the cache had; None if it had none.
        cache: Has the clusters, for an object that concerns all of them.
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
        # Heartbeats change a Node object all the time, so only a change of what plans read starts a pass.
        for cluster in cache.of(BROKER_CLUSTER.kind):
            yield ClusterKey(cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def _says_more(manifest: Manifest, before: Manifest | None) -> bool:
    """Whether more than the status changed. The operator writes the status itself, so it starts no pass."""
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
