"""The closed lists of reasons: the words that may be in `reason` of each condition, and what each means.

Alerts, scripts and users rely on these words. A new word is added here first. `docs/reference/crds.md` is made
from these tables.
"""

from __future__ import annotations

from typing import Final

NOT_RENEWED: Final = "the operator's passes fail, so what was reported may be old; the message has the last error"

CLUSTER: Final = {
    "Ready": {
        "AllServing": "every member of every broker group serves",
        "SomeServing": "at least one broker group has all its members serving, and others have not",
        "NotServing": "no broker group has all its members serving: no message is accepted",
        "NotRenewed": NOT_RENEWED,
        "InvalidSpec": "the object, or a BrokerGroup or Broker of it, has a field that this version cannot read",
    },
    "Progressing": {
        "AsWanted": "nothing is left to do for this generation of the object",
        "Applying": "the operator makes or changes pods and other children",
        "Operating": "the one disruptive operation is under way",
        "Waiting": "the next step waits; blockedBy says for what",
        "Paused": "spec.paused is set",
    },
    "Degraded": {
        "Healthy": "nothing is wrong",
        "Starting": "members start for the first time, and nothing is wrong so far; the message says how many serve",
        "AwayAsPlanned": "members are away because the operator restarts or removes them, or their node is drained",
        "MembersAway": "some members do not serve",
        "SegmentsUnsettled": "it is not known where segments of a topic end: consumers wait there",
        "SegmentsUnreachable": "no broker that has segments of a topic answers: consumers wait there",
        "SegmentsLost": "an administrator declared segments of a topic lost, and consumers skip them",
        "OneCopy": "segments of a topic have one copy left",
        "CopiesAway": "segments of a topic have two copies, and only one of their brokers answers",
        "CatchingUp": "one broker surely has the ends of segments of a topic: another copies them or is away",
        "NoNode": "no node takes a pod of a Broker that never served; the message has the scheduler's words",
        "NoImage": "the image of a pod cannot be pulled, and its Broker never served",
        "NodeGone": "no Node has the host name of a machine that has a disk of the cluster",
        "StorageClassUnknown": "the storage class does not exist",
        "StorageClassImmediate": "the storage class binds a volume before its pod has a node",
        "ClassCannotExpand": "spec.storage.size asks for larger volumes, and the storage class does not expand volumes",
        "SettingsInvalid": "spec.settings has a wrong name or value; the last good settings stay in force",
        "TooFewNodes": "there are fewer usable nodes than members in a broker group",
        "CertificateInvalid": "the certificate authority or a certificate cannot be used",
        "EtcdSecretInvalid": "the Secret with the certificate for etcd is not there, or lacks a file",
        "NameTaken": "an object of others has the name of a child, and the operator does not write to it",
        "OneMachineHoldsAll": "each broker group has a member on one machine: without it no broker group is complete",
        "CoordinatorBehind": "a broker says that etcd has lost decisions (error 605): nothing is restarted or deleted",
        "EtcdUnreachable": "brokers cannot start, because etcd does not answer them",
        "EtcdSilent": "etcd does not answer the brokers: messages continue, and nothing can fail over",
        "ChildRefused": "the API server refuses a child of the cluster; the message has its own words",
        "DefinitionOutdated": "the definitions of our kinds are of another version than the operator",
    },
    "Quiesced": {
        "Done": "the operator takes no step until an object or the world changes",
        "Busy": "a step is under way or waits",
    },
    "Stable": {
        "Steady": "Quiesced and Ready are True, and Degraded is False",
        "Unsteady": "Quiesced or Ready is not True, or Degraded is True",
        "NotRenewed": NOT_RENEWED,
    },
    "ExternalReady": {
        "NotAsked": "spec.external is not set, so clients outside cannot connect",
        "AllHaveAddresses": "there is an address to connect to first, and each broker has one for clients outside",
        "CertificatePending": "the brokers' certificate does not name all outer hosts yet; the message says which",
        "AuthorityTooNarrow": "the operator's authority may not name outer hosts; the message says how to replace it",
        "AddressesPending": "a Service has no address for clients outside yet; the message says what it waits for",
    },
    "EtcdHealthy": {
        "AllMembers": "all members of the release's etcd serve, and their disks have room",
        "MemberAway": "a member does not serve, and the others have a quorum; the message says why",
        "NoQuorum": "no member serves: messages continue, and nothing can fail over; the message says why",
        "Filling": "a member has used over 80 % of its quota: at all of it, etcd takes no more writes",
    },
    "AuthoritySettled": {
        "One": "all trust one authority; the message has its id and its end",
        "NoTls": "spec.tls.enabled is not set",
        "NotTold": "the certificates have not been looked at yet, or cannot be read",
        "Due": "two thirds of the authority's life are over; the message says how to replace it",
        "NotFollowed": "the annotation that should replace the authority is not followed; the message says why",
        "NewTrusted": "another authority is trusted too, and does not sign yet; the message says until when",
        "NewSigns": "another authority signs, and the one before is still trusted; the message says until when",
    },
}

GROUP: Final = {
    "Ready": {
        "Serving": "all members serve",
        "MembersAway": "a member does not serve",
        "NotRenewed": NOT_RENEWED,
        "InvalidSpec": "the object has a field that this version cannot read",
    },
    "Whole": {
        "AllThere": "all members are admitted and live: segments can be opened here",
        "Incomplete": "a member is missing: no segment is opened here while another broker group is complete",
        "AwayAsPlanned": "as Incomplete, and the member is away as planned",
        "Returning": "etcd answers the brokers again, and members whose pods are ready register again",
        "NotLinked": "all members are live, but two of them have no link: no segment is opened here",
        "NotTold": "no broker reports which members run: none answers, or etcd does not answer them",
        "NotRenewed": NOT_RENEWED,
    },
    "Drained": {
        "Empty": "the broker group has no segment, open or sealed",
        "HoldsData": "the broker group has open segments or copies of segments",
        "HeldUp": "segments should leave, and some cannot: the message says what they wait for",
        "NotCounted": "the brokers have not counted yet",
    },
}

BROKER: Final = {
    "Ready": {
        "Serving": "its pod is ready: it is admitted and serves",
        "Starting": "its container runs but does not serve yet",
        "Restarting": "the operator restarts it, or it starts again after its node was drained",
        "Drained": "its node is drained, and its pod waits until that is over",
        "Removed": "its broker group is drained, and is being removed",
        "NodeSilent": "the kubelet of its Node does not answer, so it is not known whether its container runs",
        "NodeGone": "the Node of its pod is gone",
        "NotRunning": "its container does not run",
        "Refused": "it refuses to start: DiskHealthy or the message says why",
        "DiskLost": "the operator gives up its disk",
        "NotRenewed": NOT_RENEWED,
        "InvalidSpec": "the object has a field that this version cannot read",
    },
    "Scheduled": {
        "OnNode": "it has a node",
        "NoNode": "Kubernetes found no node for its pod",
        "NoPod": "it has no pod",
    },
    "StorageBound": {
        "Bound": "its claim has a volume",
        "Unbound": "its claim has no volume yet",
        "NoClaim": "it has no claim",
    },
    "DiskHealthy": {
        "Accepted": "the brokers know the disk by its identity file",
        "NotJoined": "the disk has not joined the cluster yet",
        "NodeGone": "no Node has the host name that the volume is bound to",
        "ForeignDisk": "the disk belongs to another member or another cluster",
        "WipedDisk": "the directory is empty, but the slot had a disk before",
        "OldDisk": "the directory is an older copy of the disk",
        "ClonedDisk": "the disk is in use by another process",
        "LostDisk": "the disk was declared lost and must not come back",
        "NewerFormat": "the disk was written by a newer version",
        "OlderFormat": "the disk was written by an older version, whose disks this one does not read",
        "Corrupt": "the disk's identity file or log cannot be read",
        "MountFailed": "the kubelet cannot mount the volume; the message has its words",
        "NodeReplaced": "the kubelet cannot mount the volume, and its Node was made again: the disk is probably gone",
        "GivenUp": "the disk is proved lost, and another disk takes the slot",
    },
}

TOPIC: Final = {
    "Ready": {
        "Accepting": "all partitions take messages, and the topic's settings are those of the object",
        "Creating": "the brokers are making the topic",
        "Updating": "the brokers are adding partitions or changing settings",
        "Deleting": "the object is being deleted, and the topic with it if its deletionPolicy says so",
        "ResourceConflict": "an older object has the same topic; the message names it",
        "RenameRefused": "the object had a topic of another name, and a topic keeps its name",
        "OtherDurability": "the topic was there with another durability, which never changes",
        "MorePartitions": "the topic has more partitions than the object says, and partitions are never removed",
        "ClusterNotFound": "there is no such BrokerCluster in the namespace, or it is being deleted",
        "BrokersSilent": "no broker of the cluster answers",
        "Paused": "the cluster's spec.paused is set",
        "Refused": "the brokers refuse the topic; the message says why",
        "CoordinatorBehind": "it is missing, and a broker says that etcd has lost decisions: it is not made again",
        "Unconfirmed": "it is missing, and the brokers have not said for 10 s that etcd has lost nothing",
        "InvalidSpec": "the object has a field that this version cannot read",
    },
    "ChainHealthy": {
        "TwoCopies": "two brokers or more that answer have every segment, complete",
        "CopyAway": "two disks or more have every segment, and only one of these brokers answers",
        "AwayAsPlanned": "as CopyAway, and the other broker is away as planned",
        "CatchingUp": "one broker surely has the end of a segment: another copies it, or has just stopped answering",
        "OneCopy": "a sealed segment has one copy left",
        "Unreachable": "no broker that has a segment answers: consumers wait there until one returns",
        "Unsettled": "it is not known where a segment ends, because no member of it answers: consumers wait there",
        "Lost": "an administrator declared a segment lost",
        "NotTold": "the brokers have not answered with all chains yet",
    },
}

CONSUMER_GROUP: Final = {
    "Ready": {
        "Placed": "the consumer group has its place in the topic, and the settings of the object",
        "TopicNotFound": "the brokers have no such topic",
        "ConsumersConnected": "another mode is asked for, and brokers change it only while no consumer is connected",
        "MessagesAside": "another mode is asked for, which would drop the messages of parked keys",
        "DeadLetterTopicMissing": "a Topic object has the dead-letter topic, and has not made it yet",
        "DeadLetterTopicSmall": "a Topic object has the dead-letter topic, which has fewer partitions than the source",
        "ResourceConflict": "an older object has the same consumer group of the same topic; the message names it",
        "ClusterNotFound": "there is no such BrokerCluster in the namespace, or it is being deleted",
        "BrokersSilent": "no broker of the cluster answers",
        "Paused": "the cluster's spec.paused is set",
        "Refused": "the brokers refuse the consumer group; the message says why",
        "CoordinatorBehind": "it is missing, and a broker says that etcd has lost decisions: it is not made again",
        "Unconfirmed": "it is missing, and the brokers have not said for 10 s that etcd has lost nothing",
        "InvalidSpec": "the object has a field that this version cannot read",
    },
    "KeysParked": {
        "NoneParked": "no key is parked",
        "KeysWait": "messages of some keys wait for an administrator; the message names the partitions",
        "NotTold": "the brokers have not reported it yet",
    },
    "DeadLettering": {
        "NotAsked": "the retry policy sends no message to a dead-letter topic",
        "Forwarding": "messages go to the dead-letter topic after their last attempt",
        "HeldUp": "the dead-letter topic takes no messages: those that should go there wait, and so do their keys",
        "NotTold": "the brokers have not reported it yet",
        "DeadLetterTopicMissing": "a Topic object has the dead-letter topic, and has not made it yet",
        "DeadLetterTopicSmall": "a Topic object has the dead-letter topic, which has fewer partitions than the source",
    },
}

TOPIC_EVENTS: Final = {
    "TopicCreated": "the operator made the topic",
    "TopicAdopted": "a topic of that name was there before the object, and the object has it from now on",
    "TopicUpdated": "the operator changed partitions or settings to those of the object",
    "DriftReverted": "others changed partitions or settings, and the operator changed them back",
    "TopicRecreated": "others deleted the topic, and the operator made it again, without its messages",
    "TopicReplaced": "others deleted the topic and made it again; the object has the new topic",
    "TopicDeleted": "the operator deleted the topic with its messages, because of deletionPolicy Delete",
    "TopicKept": "the object is deleted and the topic stays: another object has it, or this object never had it",
    "ResourceConflict": "an older object has the same topic",
    "MasterAway": "the master of a partition does not answer, and another broker took over",
    "CopyAway": "a broker that has a copy does not answer",
    "OneCopy": "a sealed segment has one copy left",
    "Unreachable": "no broker that has a segment answers",
    "Unsettled": "it is not known where a segment ends",
    "Lost": "an administrator declared a segment lost",
    "CoordinatorBehind": "the topic is missing, and is not made again, because a broker says that etcd lost decisions",
    "CopiesBack": "every segment is on two disks again whose brokers answer",
}
"""Reasons of the Events on a Topic."""

CLUSTER_EVENTS: Final = {
    "MemberAway": "a member of a broker group does not answer: its open segments go to other broker groups",
    "MembersBack": "all members of a broker group answer again",
    "Recovered": "Degraded is False again",
    "ChildRefused": "the API server refuses a child of the cluster, in its own words",
    "NotRenewed": "the operator's passes fail, so the conditions Ready, Whole and Stable are Unknown",
    "PlacedAnew": "the operator empties a broker group and makes it again on other disks (`spec.spreadMending`)",
    "CertificateIssued": "the operator issued a certificate; the note says why",
    "AuthorityMade": "the operator made a certificate authority",
    "OtherOperator": "an operator leaves the cluster to another one, which looks after it; the note names the two",
}
"""Reasons of the Events on a BrokerCluster about its members, copies and certificates. Every reason of `Degraded` with
status True is one as well, and every reason of a Broker's `DiskHealthy` with status False, except GivenUp."""

CLUSTER_TOPIC_EVENTS: Final = {
    "TopicUnclaimed": "an operator made topics for objects that are gone: no object has these topics now",
}
"""Reasons of the Events on a BrokerCluster that are about its topics."""

CONSUMER_GROUP_EVENTS: Final = {
    "GroupCreated": "the consumer group got its place in the topic",
    "GroupPaused": "brokers give the consumer group nothing until it is resumed",
    "GroupResumed": "brokers give the consumer group messages again",
    "GroupRewound": "the consumer group is at another place, as spec.rewind asks; the status has the request",
    "GroupRecreated": "others deleted the consumer group, and the operator gave it a new place",
    "GroupConfigured": "the operator changed mode, delivery or retry policy to those of the object",
    "DriftReverted": "others changed mode, delivery or retry policy, and the operator changed them back",
    "CoordinatorBehind": "it is missing, and is not made again, because a broker says that etcd lost decisions",
    "KeyParked": "a partition has its first parked key: its messages wait for an administrator; its note has the error",
    "KeysReleased": "no key of the consumer group is parked any more",
    "DeadLetterTopicCreated": "the operator made the topic for dead letters",
}
"""Reasons of the Events on a ConsumerGroup."""
