"""The nodes' disks: what should be done so that each node has its free disks on offer. Pure; `keeper` does it.

A disk is a directory of one node, named by a random id that is never used again, and offered as one PersistentVolume.
When its claim is gone and its policy is Delete, it is wiped: volume and directory go, and a new disk takes its place.
A disk of a node that is down is left as it is. A volume whose disk is lost while a claim holds it stays too: the owner
of the claim must notice that.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tools.kubernetes.layout import DISKS_PER_NODE, STORAGE_CLASS, NodeLayout

LABEL: Final = "seriatim.dev/e2e-node"
"""On every volume of ours: the node's name."""

PROVISIONER: Final = "seriatim.dev/e2e-keeper"
"""In each volume's annotation: Kubernetes leaves the deletion to the provisioner that is named there."""

CAPACITY: Final = "10Gi"
"""What a volume claims to have; a directory has no such limit."""


GIVEN_BACK: Final = ("Released", "Failed")
"""Phases of a volume whose claim is gone."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume of ours.

    Attributes:
        node: Whose it is.
        disk: The directory's name.
        phase: As Kubernetes says: Available, Bound, Released, Failed, Pending.
        deletes: Whether its reclaim policy is Delete.
    """

    node: str
    disk: str
    phase: str
    deletes: bool


@dataclass(frozen=True, slots=True)
class Make:
    """Make a new disk."""

    node: str


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer a disk as a volume."""

    node: str
    disk: str


@dataclass(frozen=True, slots=True)
class Wipe:
    """Destroy a disk that was given back, and its volume."""

    node: str
    disk: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back the volume of a disk that is gone and that no claim holds: its node was lost and came back empty."""

    node: str
    disk: str


Action = Make | Offer | Wipe | Withdraw


def volume_name(node: str, disk: str) -> str:
    """The volume's name of a disk."""
    return f"{node}-{disk}"


def split_volume_name(name: str) -> tuple[str, str]:
    """The node and the disk of a volume's name."""
    node, _, disk = name.partition("-")
    return node, disk


def new_disk() -> str:
    """A name for a new disk."""
    return f"disk-{secrets.token_hex(4)}"


def plan(disks: Mapping[str, Sequence[str]], volumes: Sequence[Volume]) -> list[Action]:
    """What to do next.

    Args:
        disks: The disks of each node that runs; nodes that do not are left out.
        volumes: All volumes of ours.
    """
    by_disk = {(volume.node, volume.disk): volume for volume in volumes}
    actions: list[Action] = []
    for node, names in disks.items():
        for disk in names:
            volume = by_disk.pop((node, disk), None)
            if volume is None:
                actions.append(Offer(node, disk))
            elif volume.phase in GIVEN_BACK and volume.deletes:
                actions.append(Wipe(node, disk))
        actions += [Make(node)] * (DISKS_PER_NODE - len(names))
    for volume in by_disk.values():
        if volume.node in disks and volume.phase in (*GIVEN_BACK, "Available"):
            actions.append(Withdraw(volume.node, volume.disk))
    return actions


def manifest(node: NodeLayout, disk: str) -> dict[str, object]:
    """The PersistentVolume of a disk."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": volume_name(node.name, disk),
            "labels": {LABEL: node.name},
            "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
        },
        "spec": {
            "capacity": {"storage": CAPACITY},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": str(node.disks / disk)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }
