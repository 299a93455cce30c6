"""What an administrator can do about a disk that a broker refuses: one text, for the Broker's condition and for
`doctor`."""

from __future__ import annotations

from typing import Final

from ..plan.loss import ANNOTATION_LOST, lost_value
from ..spec.broker import Broker

_REPLACE: Final = (
    "{replace}: if the brokers say that other disks have all its messages, another disk takes the slot, and brokers "
    "copy them there"
)

_REMEDIES: Final = {
    "WipedDisk": _REPLACE + "; do this only if what was on the disk is gone: if it was moved, bring it back",
    "ForeignDisk": "give the volume back to its owner, and bring the disk that belongs here; if that is lost for good, "
    + _REPLACE,
    "OldDisk": "bring back the disk as it was last; if that is lost for good, " + _REPLACE,
    "ClonedDisk": "end the other process that uses the same volume",
    "LostDisk": "the disk was given up before and must not come back; " + _REPLACE,
    "NewerFormat": "run the newer image again: an older one cannot read this disk",
    "OlderFormat": "run the older image again, or make a new cluster with empty disks",
    "Corrupt": "see what the kernel says of the device; if the disk is lost for good, " + _REPLACE,
    "MountFailed": "see what the node says of the disk, and bring it back; if it is lost for good, " + _REPLACE,
    "NodeReplaced": "if the machine came back without its disks, they are gone: " + _REPLACE,
    "NodeGone": "bring the node back within nodeLossTimeoutSeconds, or do nothing: the operator replaces the disk",
}


def disk_remedy(broker: Broker, reason: str) -> str:
    """The remedy for a reason of the condition `DiskHealthy`; empty if there is none."""
    value = f"{ANNOTATION_LOST}={lost_value(broker)}"
    replace = f"kubectl -n {broker.namespace} annotate sbroker {broker.name} {value}"
    return _REMEDIES.get(reason, "").format(replace=replace)
