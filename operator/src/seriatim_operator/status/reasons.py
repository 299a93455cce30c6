"""The closed lists of reasons: what may stand in `reason` of each condition, and what it means.

Alerts, scripts and people rely on these words; a new one is added here first. `docs/reference/crds.md` is made
from this table.
"""

from __future__ import annotations

from typing import Final

CLUSTER: Final = {
    "Ready": {
        "AllServing": "every member of every group serves",
        "SomeServing": "at least one whole group serves, others do not",
        "NotServing": "no group is whole: nothing is accepted",
        "InvalidSpec": "the object, or a BrokerGroup or Broker of it, has a field that this version cannot read",
    },
    "Progressing": {
        "AsWanted": "nothing is left to do for this generation",
        "Applying": "children are being made or changed",
        "Operating": "the one disruptive operation is under way",
        "Waiting": "the next step waits; blockedBy says for what",
        "Paused": "spec.paused is set",
    },
    "Degraded": {
        "Healthy": "nothing is wrong",
        "MembersAway": "some members do not serve",
        "NodeGone": "a machine with a disk of the cluster is gone",
        "StorageClassUnknown": "the storage class does not exist",
        "StorageClassImmediate": "the storage class binds before scheduling",
        "ClassCannotExpand": "larger volumes are wanted, and the class does not expand them",
        "SettingsInvalid": "spec.settings has a name or value that brokers do not know",
        "TooFewNodes": "there are fewer nodes than members of a group",
        "CertificateInvalid": "the authority or a certificate cannot be used",
        "OneMachineHoldsAll": "the loss of one machine would leave no whole group",
        "EtcdUnreachable": "brokers cannot start, for etcd does not answer them",
        "DefinitionOutdated": "the definitions of our kinds are of another version than the operator",
    },
    "Quiesced": {
        "Done": "nothing happens until somebody changes something",
        "Busy": "steps are under way or awaited",
    },
    "Stable": {
        "Steady": "quiesced, ready and not degraded",
        "Unsteady": "one of these is not so",
    },
}

GROUP: Final = {
    "Ready": {
        "Serving": "all members serve",
        "MembersAway": "a member does not serve",
        "InvalidSpec": "the object has a field that this version cannot read",
    },
    "Whole": {
        "AllThere": "all members are admitted and live: segments can be opened here",
        "Incomplete": "a member is missing: no segment is opened here while another group is whole",
        "NotLinked": "all members are live, and two of them have no link: no segment is opened here",
        "Unknown": "no broker answers",
    },
    "Drained": {
        "Empty": "no head and no segment lies here",
        "HoldsData": "heads or segments lie here",
        "HeldUp": "they should leave, and some cannot: the message says what they wait for",
        "NotCounted": "nobody asked",
    },
}

BROKER: Final = {
    "Ready": {
        "Serving": "admitted and serving",
        "Starting": "its container runs and does not serve yet",
        "NotRunning": "its container does not run",
        "Refused": "it refuses to start; DiskHealthy or the message says why",
        "DiskLost": "its disk is given up",
        "InvalidSpec": "the object has a field that this version cannot read",
    },
    "Scheduled": {"OnNode": "it has a node", "NoNode": "no node was found for it", "NoPod": "it has no pod"},
    "StorageBound": {
        "Bound": "its claim has a volume",
        "Unbound": "its claim has none yet",
        "NoClaim": "it has no claim",
    },
    "DiskHealthy": {
        "Accepted": "the brokers know the disk by its passport",
        "NotJoined": "it has not joined yet",
        "NodeGone": "no node bears the host name that the volume is bound to",
        "ForeignDisk": "the disk is another member's or another cluster's",
        "WipedDisk": "the directory is empty, and the slot's disk was not",
        "OldDisk": "the directory is an older copy of the disk",
        "ClonedDisk": "the disk is in use by another process",
        "LostDisk": "the disk was declared lost and must not come back",
        "NewerFormat": "the disk was written by a newer version",
        "Corrupt": "the disk's passport or log cannot be read",
        "GivenUp": "the disk is proved lost, and replaced",
    },
}

TOPIC: Final = {
    "Ready": {
        "Accepting": "all partitions take messages, and the settings are as the object says",
        "Creating": "the brokers are making it",
        "Updating": "partitions or settings are being changed",
        "Deleting": "the object is being deleted, and the topic with it if its deletionPolicy says so",
        "ResourceConflict": "an older object stands for the same topic; the message names it",
        "RenameRefused": "the object stood for a topic of another name, and a topic keeps its name",
        "OtherDurability": "there is such a topic with another durability, which is never changed",
        "MorePartitions": "there is such a topic with more partitions, and none is ever taken away",
        "ClusterNotFound": "there is no such BrokerCluster in the namespace, or it is being deleted",
        "BrokersSilent": "no broker of the cluster answers",
        "Paused": "the cluster's spec.paused is set",
        "Refused": "the brokers refuse it; the message says why",
        "InvalidSpec": "the object has a field that this version cannot read",
    },
    "ChainHealthy": {
        "TwoCopies": "every closed segment is listed on two disks or more",
        "OneCopy": "a closed segment has one copy left",
        "Unsettled": "no member of a segment answers: consumers wait there",
        "Lost": "a segment was declared lost",
        "NotTold": "the brokers have not told all chains yet",
    },
}

CONSUMER_GROUP: Final = {
    "Ready": {
        "Placed": "the group has its place in the topic",
        "TopicNotFound": "the brokers have no such topic",
        "ResourceConflict": "an older object stands for the same group of the same topic; the message names it",
        "ClusterNotFound": "there is no such BrokerCluster in the namespace, or it is being deleted",
        "BrokersSilent": "no broker of the cluster answers",
        "Paused": "the cluster's spec.paused is set",
        "Refused": "the brokers refuse it; the message says why",
        "InvalidSpec": "the object has a field that this version cannot read",
    },
}

TOPIC_EVENTS: Final = {
    "TopicCreated": "the topic was made",
    "TopicAdopted": "a topic of that name was there, and the object has it from now on",
    "TopicUpdated": "partitions or settings were changed as the object says",
    "DriftReverted": "somebody changed them behind the operator, and they were changed back",
    "TopicRecreated": "the topic was deleted behind the operator, and made again without its messages",
    "TopicReplaced": "the topic was deleted and made anew behind the operator; the new one was taken over",
    "TopicDeleted": "the topic was deleted with its messages, by deletionPolicy Delete",
    "TopicKept": "the object goes and the topic stays: another object has it, or it never was this one's",
    "ResourceConflict": "an older object stands for the same topic",
}
"""Reasons of the Events on a Topic."""

CLUSTER_TOPIC_EVENTS: Final = {
    "TopicUnclaimed": "topics that an operator made for an object are there, and no object stands for them any more",
}
"""Reasons of the Events on a BrokerCluster that speak of its topics."""

CONSUMER_GROUP_EVENTS: Final = {
    "GroupCreated": "the group got its place",
    "GroupPaused": "the group is given nothing until it is resumed",
    "GroupResumed": "the group is given messages again",
    "GroupRewound": "the group began anew elsewhere, as spec.rewind asks; the status has the request",
    "GroupRecreated": "the group was deleted behind the operator, and got a new place",
}
"""Reasons of the Events on a ConsumerGroup."""
