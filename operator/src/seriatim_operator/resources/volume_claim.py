"""The claim for a broker's disk."""

from __future__ import annotations

from ..spec.broker import BrokerSpec
from ..spec.cluster import BrokerCluster
from .names import Manifest, broker_labels, broker_object_name, child


def volume_claim(cluster: BrokerCluster, broker: BrokerSpec) -> Manifest:
    """The claim of one incarnation; its name is never used again, so that no disk is taken for another.

    With the policy Retain nobody owns it: the disks outlive a cluster object that was deleted by mistake.
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
