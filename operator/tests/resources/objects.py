"""A cluster and a broker to build from, with one field changed at a time."""

from __future__ import annotations

from typing import Any

from seriatim_operator.resources.cluster_children import ClusterChildren
from seriatim_operator.spec.broker import Broker
from seriatim_operator.spec.cluster import BrokerCluster

from ..spec.objects import good

IMAGE = "seriatim.dev/broker:dev"
UID = "6f1c9c1e-0000-4000-8000-000000000001"


def cluster(namespace: str = "shop", **spec: Any) -> BrokerCluster:
    """The cluster `orders`; keywords are fields of its spec as they are in a manifest."""
    manifest = good("BrokerCluster", namespace=namespace, **spec)
    manifest["metadata"]["uid"] = UID
    return BrokerCluster.from_manifest(manifest)


def children(namespace: str = "shop", **spec: Any) -> ClusterChildren:
    """The builders of such a cluster."""
    return ClusterChildren(cluster(namespace, **spec), IMAGE, "seriatim-system")


def broker(namespace: str = "shop", slot: int = 1, uid: str = "x7k2", replaces: str | None = None) -> Broker:
    """A broker of its first group."""
    spec = {"cluster": "orders", "group": "g0", "slot": slot, "uid": uid, "replaces": replaces}
    return Broker.from_manifest({"metadata": {"name": f"orders-g0-{slot}-{uid}", "namespace": namespace}, "spec": spec})


def hash_of(**spec: Any) -> str:
    """The template hash of a pod of such a cluster."""
    made = children(**spec).pod(broker())
    return str(made["metadata"]["annotations"]["seriatim.dev/template-hash"])
