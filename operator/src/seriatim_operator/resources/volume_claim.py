"""Builds the claim for a broker's disk."""

from __future__ import annotations

from ..spec.broker import BrokerSpec
from ..spec.cluster import BrokerCluster
from .names import Manifest, broker_labels, broker_object_name, child


def volume_claim(cluster: BrokerCluster, broker: BrokerSpec) -> Manifest:
    """The claim of one incarnation. Its name is never used again, so that one disk cannot be used in place of another.

    With the policy Retain it has no owner, so the disks stay if the cluster object is deleted by mistake.
    """
    storage = cluster.spec.storage
    manifest = child(
        cluster,
        "v1",
        "PersistentVolumeClaim",
        broker_object_name(broker),
        labels=broker_labels(broker),
        owned=cluster.spec.deletion_policy == "Delete",
    )
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "storageClassName": storage.storage_class_name,
        "resources": {"requests": {"storage": storage.size}},
    }
    return {**manifest, "spec": spec}
