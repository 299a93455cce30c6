"""Decides to which cluster an object belongs, so that no object of others is written or deleted because of its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec.base import API_GROUP
from ..spec.cluster import BrokerCluster
from .names import FIELD_MANAGER, LABEL_CLUSTER, LABEL_MANAGED_BY


def belongs_to(manifest: Mapping[str, Any], cluster: BrokerCluster) -> bool:
    """Whether an object is a child of this cluster.

    The labels say it, because claims and what a restored backup brings have no owner, and the owner says it if an
    administrator changed the labels. An object of our own kinds says it itself.

    Args:
        manifest: The object as the API has it.
        cluster: The cluster, as the API has it.
    """
    if str(manifest.get("apiVersion", "")).startswith(f"{API_GROUP}/"):
        return bool((manifest.get("spec") or {}).get("cluster") == cluster.name)
    owners = manifest["metadata"].get("ownerReferences") or ()
    return is_labelled(manifest, cluster) or any(owner.get("uid") == cluster.uid for owner in owners)


def is_labelled(manifest: Mapping[str, Any], cluster: BrokerCluster) -> bool:
    """Whether an object has the labels of the cluster's children."""
    labels = manifest["metadata"].get("labels") or {}
    return labels.get(LABEL_MANAGED_BY) == FIELD_MANAGER and labels.get(LABEL_CLUSTER) == cluster.name


def tell_owner(manifest: Mapping[str, Any]) -> str:
    """To whom an object belongs that is no child of the cluster, as far as it says so: the end of a sentence."""
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    manager, owners = labels.get(LABEL_MANAGED_BY), metadata.get("ownerReferences") or ()
    if manager == FIELD_MANAGER and labels.get(LABEL_CLUSTER):
        return f"belongs to the cluster {labels[LABEL_CLUSTER]}"
    if owners:
        return f"belongs to {owners[0].get('kind')} {owners[0].get('name')}"
    return f"is managed by {manager}" if manager and manager != FIELD_MANAGER else "was not made by the operator"
