"""What an administrator does about each reason of a condition that is not well, with a command that can be typed.

`kubectl seriatim doctor` shows it. A test compares these tables with the catalogue of reasons (`reasons`), so that no
reason is without a remedy. For a disk that a broker refuses, `disk_remedies` has more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..spec.base import Condition, Resource
from ..spec.cluster import BrokerCluster

_DESCRIBE: Final = "kubectl -n {ns} describe {short} {name}"
_EDIT: Final = "kubectl -n {ns} edit {short} {name}"
OPERATOR: Final = (
    "kubectl get pods -A -l app.kubernetes.io/component=operator finds the operator: see its log with kubectl logs"
)
_MEMBERS: Final = (
    "kubectl -n {ns} get sbroker -l seriatim.dev/cluster={cluster} -o wide shows which members do not serve, and why"
)
_WAIT: Final = "wait; kubectl -n {ns} get {short} {name} -w shows when it is done"
_CHAINS: Final = "bring back a member of the segment: kubectl seriatim -n {ns} chains {name} shows its broker group"
_ETCD: Final = "see runbook no-controller; kubectl -n {ns} get pods -l app.kubernetes.io/component=etcd"
_REBUILD: Final = (
    "restart and delete nothing; run seriatim coordinator rebuild, as the runbook coordinator-behind says for pods"
)
_CORRECT: Final = f"correct what the message names: {_EDIT}"
_PAUSED: Final = (
    'kubectl -n {ns} patch scluster {cluster} --type=merge --patch=\'{{"spec": {{"paused": false}}}}\' when the '
    "work is done for which it was paused"
)
_POD: Final = "kubectl -n {ns} describe pod {name}"
_LOGS: Final = "kubectl -n {ns} logs {name}"
_RENEW: Final = f"do what the message says: kubectl -n {{ns}} describe scluster {{name}}; {OPERATOR}"

_COMMON: Final = {"NotRenewed": OPERATOR, "InvalidSpec": _CORRECT}

REMEDIES: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "BrokerCluster": {
        "Ready": {**_COMMON, "SomeServing": _MEMBERS, "NotServing": _MEMBERS},
        "Degraded": {
            "MembersAway": _MEMBERS,
            "SegmentsUnsettled": f"bring back a member of each segment: {_MEMBERS}",
            "SegmentsUnreachable": f"bring back a member of each segment: {_MEMBERS}",
            "SegmentsLost": "kubectl -n {ns} get stopic names the topics; consumers get an event, and continue",
            "OneCopy": f"bring back the member, or wait: brokers make the second copy (heal_after_s). {_MEMBERS}",
            "CopiesAway": f"bring back the broker: {_MEMBERS}",
            "CatchingUp": _WAIT,
            "NoNode": f"correct spec.podTemplate, or add nodes: {_EDIT}",
            "NoImage": f"correct spec.image or spec.podTemplate.imagePullSecrets, or give the nodes the image: {_EDIT}",
            "NodeGone": "bring the node back, or wait: kubectl get nodes; see runbook broker-down",
            "StorageClassUnknown": "kubectl get storageclass; make the class, or make the cluster with another one",
            "StorageClassImmediate": "kubectl get storageclass; use one with volumeBindingMode: WaitForFirstConsumer",
            "ClassCannotExpand": f"set spec.storage.size back, or allowVolumeExpansion in the class: {_EDIT}",
            "SettingsInvalid": f"correct spec.settings: {_EDIT}",
            "TooFewNodes": "kubectl get nodes; uncordon or add some",
            "CertificateInvalid": _RENEW,
            "EtcdSecretInvalid": f"kubectl -n {{ns}} get secrets; give it the files, or name another one: {_EDIT}",
            "NameTaken": f"give that object or this cluster another name: {_DESCRIBE} names it and its owner",
            "CoordinatorBehind": _REBUILD,
            "EtcdUnreachable": f"{_ETCD}; check spec.etcd.endpoints and the network policies: {_DESCRIBE}",
            "EtcdSilent": f"{_ETCD}; check spec.etcd.endpoints and the network policies: {_DESCRIBE}",
            "ChildRefused": (
                "correct the spec, or what refuses it (a quota, an admission webhook); the operator tries it every "
                f"10 s. {_EDIT}"
            ),
            "DefinitionOutdated": "seriatim operator crds | kubectl apply --server-side -f -",
            "OneMachineHoldsAll": f"do what the message says, or add a node with disks: {_DESCRIBE}",
        },
        "Progressing": {
            "Waiting": "kubectl seriatim -n {ns} plan {name} shows what the next step waits for",
            "Paused": _PAUSED,
        },
        "Stable": {
            "NotRenewed": OPERATOR,
            "Unsteady": "see Ready, Degraded and Progressing: kubectl seriatim -n {ns} status",
        },
        "ExternalReady": {
            "CertificatePending": f"{_WAIT}; if it lasts for minutes, {OPERATOR}",
            "AuthorityTooNarrow": f"do what the message says: {_DESCRIBE}",
            "AddressesPending": "kubectl -n {ns} get services -l seriatim.dev/external shows which has no address",
        },
        "EtcdHealthy": {
            "MemberAway": _ETCD.replace("no-controller", "etcd-member-down"),
            "NoQuorum": _ETCD,
            "Filling": _ETCD.replace("no-controller", "etcd-full"),
        },
        "AuthoritySettled": {
            "NotTold": _RENEW,
            "Due": f"do what the message says: {_DESCRIBE}",
            "NotFollowed": f"correct the annotation, as the message says: {_EDIT}",
            "NewTrusted": f"give clients with copies the new ca.crt until the first time of the message: {_DESCRIBE}",
            "NewSigns": (
                f"give clients with copies the new tls.crt and tls.key until the time of the message: {_DESCRIBE}"
            ),
        },
    },
    "BrokerGroup": {
        "Ready": {**_COMMON, "MembersAway": _MEMBERS},
        "Whole": {
            "NotRenewed": OPERATOR,
            "Incomplete": _MEMBERS,
            "AwayAsPlanned": _WAIT,
            "Returning": _WAIT,
            "NotLinked": "check the network between the two: kubectl -n {ns} get networkpolicies",
            "NotTold": f"{_MEMBERS}; {_ETCD}",
        },
        "Drained": {"HeldUp": "kubectl seriatim -n {ns} plan {cluster}; bring back what the message names"},
    },
    "Broker": {
        "Ready": {
            **_COMMON,
            "Starting": f"wait; {_LOGS} shows what it does",
            "Restarting": f"wait; {_LOGS} shows what it does",
            "Drained": "wait until the drain of its node is over: kubectl get nodes, and kubectl uncordon",
            "Removed": "wait; kubectl seriatim -n {ns} plan {cluster} shows the removal",
            "NodeSilent": "see the node: kubectl get nodes; runbook broker-down",
            "NodeGone": "bring the node back: kubectl get nodes; runbook broker-down",
            "NotRunning": f"{_POD}; kubectl -n {{ns}} logs -p {{name}}",
            "Refused": f"do what the condition DiskHealthy or the message says: {_DESCRIBE}",
            "DiskLost": "wait: another disk takes the slot; kubectl seriatim -n {ns} plan {cluster} shows it",
        },
        "Scheduled": {
            "NoNode": f"correct spec.podTemplate of the cluster, or the nodes: {_POD} says which rule each node breaks",
            "NoPod": "kubectl seriatim -n {ns} plan {cluster} shows what it waits for",
        },
        "StorageBound": {
            "Unbound": "kubectl -n {ns} describe pvc {name} says what the provisioner waits for",
            "NoClaim": "kubectl seriatim -n {ns} plan {cluster} shows what it waits for",
        },
        "DiskHealthy": {
            "NotJoined": f"wait; {_LOGS} shows what it waits for",
            **dict.fromkeys(
                (
                    *("NodeGone", "ForeignDisk", "WipedDisk", "OldDisk", "ClonedDisk", "LostDisk", "NewerFormat"),
                    *("OlderFormat", "Corrupt", "MountFailed", "NodeReplaced"),
                ),
                f"do what the message says: {_DESCRIBE}",
            ),
            "GivenUp": "wait: another disk takes the slot; kubectl seriatim -n {ns} plan {cluster} shows it",
        },
    },
    "Topic": {
        "Ready": {
            "InvalidSpec": _CORRECT,
            **dict.fromkeys(("Creating", "Updating", "Deleting", "Unconfirmed"), _WAIT),
            "ResourceConflict": f"keep one of the two objects: {_DESCRIBE} names the other one, which has the topic",
            "RenameRefused": f"write the former name back, and make another object for another topic: {_EDIT}",
            "OtherDurability": f"write the durability that the message names: {_EDIT}",
            "MorePartitions": f"write the number of partitions that the message names: {_EDIT}",
            "ClusterNotFound": f"kubectl -n {{ns}} get scluster; make the cluster, or correct spec.cluster: {_EDIT}",
            "BrokersSilent": _MEMBERS,
            "Paused": _PAUSED,
            "Refused": _CORRECT,
            "CoordinatorBehind": _REBUILD,
        },
        "ChainHealthy": {
            "CopyAway": f"bring back the broker: {_MEMBERS}",
            "AwayAsPlanned": _WAIT,
            "CatchingUp": _WAIT,
            "OneCopy": f"bring back the member, or wait: brokers make the second copy (heal_after_s). {_MEMBERS}",
            "Unreachable": _CHAINS,
            "Unsettled": _CHAINS,
            "Lost": "kubectl seriatim -n {ns} chains {name} shows the segment; consumers get an event, and continue",
            "NotTold": _MEMBERS,
        },
    },
    "ConsumerGroup": {
        "Ready": {
            "InvalidSpec": _CORRECT,
            "TopicNotFound": f"kubectl -n {{ns}} get stopic; make the topic, or correct spec.topic: {_EDIT}",
            "ConsumersConnected": "stop its consumers: seriatim group describe {topic} {group} names them",
            "MessagesAside": "seriatim group parked {topic} {group}; then group release, or group skip --key",
            "DeadLetterTopicMissing": "kubectl -n {ns} describe stopic says why the Topic has not made it",
            "DeadLetterTopicSmall": "kubectl -n {ns} edit stopic: write the number of partitions of the message",
            "ResourceConflict": f"keep one of the two objects: {_DESCRIBE} names the other one, which has the place",
            "ClusterNotFound": f"kubectl -n {{ns}} get scluster; make the cluster, or correct spec.cluster: {_EDIT}",
            "BrokersSilent": _MEMBERS,
            "Paused": _PAUSED,
            "Refused": _CORRECT,
            "CoordinatorBehind": _REBUILD,
            "Unconfirmed": _WAIT,
        },
        "KeysParked": {
            "KeysWait": "seriatim group parked {topic} {group}; then group release, or group skip --key",
            "NotTold": _MEMBERS,
        },
        "DeadLettering": {
            "HeldUp": "kubectl -n {ns} describe stopic says why the topic takes no message: see dead_letters_refused",
            "NotTold": _MEMBERS,
            "DeadLetterTopicMissing": "kubectl -n {ns} describe stopic says why the Topic has not made it",
            "DeadLetterTopicSmall": "kubectl -n {ns} edit stopic: write the number of partitions of the message",
        },
    },
}
"""By kind, condition and reason."""

WELL: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "BrokerCluster": {
        "Ready": ("AllServing",),
        "Degraded": ("Healthy", "Starting", "AwayAsPlanned"),
        "Progressing": ("AsWanted", "Applying", "Operating"),
        "Quiesced": ("Done", "Busy"),
        "Stable": ("Steady",),
        "ExternalReady": ("NotAsked", "AllHaveAddresses"),
        "EtcdHealthy": ("AllMembers",),
        "AuthoritySettled": ("One", "NoTls"),
    },
    "BrokerGroup": {
        "Ready": ("Serving",),
        "Whole": ("AllThere",),
        "Drained": ("Empty", "HoldsData", "NotCounted"),
    },
    "Broker": {
        "Ready": ("Serving",),
        "Scheduled": ("OnNode",),
        "StorageBound": ("Bound",),
        "DiskHealthy": ("Accepted",),
    },
    "Topic": {"Ready": ("Accepting",), "ChainHealthy": ("TwoCopies",)},
    "ConsumerGroup": {
        "Ready": ("Placed",),
        "KeysParked": ("NoneParked",),
        "DeadLettering": ("NotAsked", "Forwarding"),
    },
}
"""The reasons with which there is nothing to do, by kind and condition."""


def how_to_resume(cluster: BrokerCluster) -> str:
    """How an administrator ends the pause of a cluster."""
    return _PAUSED.format(ns=cluster.metadata.namespace, cluster=cluster.metadata.name)


def remedy(item: Resource, condition: Condition) -> str:
    """What an administrator does about the condition of an object. A reason of a newer operator gets the general
    answer."""
    found = REMEDIES.get(item.KIND, {}).get(condition.type, {}).get(condition.reason, _DESCRIBE)
    spec = getattr(item, "spec", None)
    return found.format(
        ns=item.metadata.namespace,
        name=item.metadata.name,
        short=item.SHORT_NAME,
        cluster=getattr(spec, "cluster", item.metadata.name),
        topic=getattr(spec, "topic", ""),
        group=getattr(item, "group_name", ""),
    )
