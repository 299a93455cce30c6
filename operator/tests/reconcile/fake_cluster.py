"""The brokers and the machines of a cluster in one process, for passes of the real reconciler.

Claims are bound on the node of their first pod, and pods start by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from seriatim_api.v1 import broker_pb2, operations_pb2, records_pb2
from seriatim_operator.cluster.brokers import Brokers, Credentials

from ..memory_kube import Manifest, MemoryKube
from ..spec.objects import good

NAMESPACE = "shop"


class FakeBrokers(Brokers):
    """The brokers' side: what they registered, and what was asked of them. Outlives the operator, as brokers do."""

    def __init__(self, kube: MemoryKube) -> None:
        super().__init__("orders", lambda: 1)
        self._kube = kube
        self.members: dict[str, operations_pb2.GroupMember] = {}
        self.intents: dict[str, int] = {}
        self.weights: dict[str, float] = {}
        self.segments: dict[str, int] = {}
        self.certified: list[tuple[str, str, int]] = []

    def reach(self, addresses: Sequence[str], credentials: Credentials | None) -> None:
        """Connect nothing, and remember which addresses there are."""
        self._addresses = tuple(addresses)

    async def close(self) -> None:
        """Nothing to close."""

    async def list_broker_groups(self, *, with_counts: bool) -> list[operations_pb2.BrokerGroupDescription]:
        """By group."""
        found = []
        for group in sorted({broker.split("-")[0] for broker in self.members}):
            record = records_pb2.BrokerGroupRecord(
                group=group, intent=self.intents.get(group, 0), weight=self.weights.get(group, 0.0)
            )
            members = [self.members[b] for b in sorted(self.members) if b.split("-")[0] == group]
            description = operations_pb2.BrokerGroupDescription(record=record, members=members)
            if with_counts:
                draining = record.intent == records_pb2.BROKER_GROUP_INTENT_DRAINING
                description.heads = 0 if record.intent > records_pb2.BROKER_GROUP_INTENT_ACTIVE else 1
                description.segments = 0 if draining else self.segments.get(group, 2)
            found.append(description)
        return found

    async def describe_cluster(self) -> broker_pb2.DescribeClusterResponse:
        """Its id."""
        return broker_pb2.DescribeClusterResponse(cluster="shop.orders", cluster_id="an-id")

    async def set_broker_group(
        self, group: str, intent: records_pb2.BrokerGroupIntent.ValueType, weight: float
    ) -> None:
        """Written down."""
        self.intents[group], self.weights[group] = intent, weight
        self._kube.wrote(f"set group {group}")

    async def remove_broker_group(self, group: str) -> None:
        """Its members are forgotten."""
        self.members = {b: m for b, m in self.members.items() if b.split("-")[0] != group}
        self._kube.wrote(f"remove group {group}")

    async def check_restart(self, broker: str) -> operations_pb2.CheckRestartResponse:
        """Safe while every other member of its group is ready."""
        group, slot = broker.split("-")
        for pod in self._kube.of("Pod"):
            labels = pod["metadata"]["labels"]
            if labels["seriatim.dev/group"] == group and labels["seriatim.dev/slot"] != slot and not is_ready(pod):
                verdict = operations_pb2.RESTART_VERDICT_PEER_AWAY
                return operations_pb2.CheckRestartResponse(verdict=verdict, text="the other one is away")
        return operations_pb2.CheckRestartResponse(verdict=operations_pb2.RESTART_VERDICT_SAFE, text="whole")

    async def declare_dead(self, broker: str, incarnation: str, run: int, evidence: str) -> None:
        """Written down, if it is the run that is registered."""
        member = self.members[broker]
        assert (member.record.member.incarnation, member.record.run) == (incarnation, run)
        member.certified = True
        self.certified.append((broker, incarnation, run))
        self._kube.wrote(f"declare dead {broker}")


def is_ready(pod: Manifest) -> bool:
    """Whether a pod is ready."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))


class FakeMachines:
    """Scheduler, kubelets and brokers: what happens between two passes."""

    def __init__(self, kube: MemoryKube, brokers: FakeBrokers, nodes: int) -> None:
        self.kube = kube
        self.brokers = brokers
        self.disks: dict[str, str] = {}
        self.refused: list[str] = []
        for number in range(1, nodes + 1):
            self.add_node(number)

    def add_node(self, number: int) -> None:
        """A machine."""
        name = f"node{number}"
        labels = {"kubernetes.io/hostname": name}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.kube.put(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": {},
                "status": status,
            }
        )

    def delete_node(self, name: str) -> None:
        """Its object goes, and its pods."""
        del self.kube.objects["Node", "", name]
        for pod in self.kube.of("Pod"):
            if pod["spec"].get("nodeName") == name:
                del self.kube.objects["Pod", NAMESPACE, pod["metadata"]["name"]]
                labels = pod["metadata"]["labels"]
                member = self.brokers.members.get(f"{labels['seriatim.dev/group']}-{labels['seriatim.dev/slot']}")
                if member is not None:
                    member.live = False

    def step(self) -> None:
        """Every pod comes one step nearer to serving."""
        for pod in self.kube.of("Pod"):
            if not pod["spec"].get("nodeName"):
                self._schedule(pod)
            elif not is_ready(pod):
                self._start(pod)

    def _schedule(self, pod: Manifest) -> None:
        name, group = pod["metadata"]["name"], pod["metadata"]["labels"]["seriatim.dev/group"]
        claim = self.kube.objects.get(("PersistentVolumeClaim", NAMESPACE, name))
        if claim is None:
            return
        pods = [p for p in self.kube.of("Pod") if p["spec"].get("nodeName")]
        taken = {p["spec"]["nodeName"] for p in pods if p["metadata"]["labels"]["seriatim.dev/group"] == group}
        volume = claim["spec"].get("volumeName")
        hosts = self._hosts(volume) if volume else None
        nodes = sorted(n["metadata"]["name"] for n in self.kube.of("Node"))
        load = {node: sum(p["spec"]["nodeName"] == node for p in pods) for node in nodes}
        for node in sorted(nodes, key=lambda n: (load[n], n)):
            if node in taken or (hosts is not None and node not in hosts):
                continue
            if not volume:
                volume = claim["spec"]["volumeName"] = f"pv-of-{claim['metadata']['uid']}"
                term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
                spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
                self.kube.put(
                    {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec}
                )
            pod["spec"]["nodeName"] = node
            return

    def _hosts(self, volume: str) -> list[str]:
        spec = self.kube.objects["PersistentVolume", "", volume]["spec"]
        term = spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]
        return list(term["matchExpressions"][0]["values"])

    def _start(self, pod: Manifest) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        broker = f"{labels['seriatim.dev/group']}-{labels['seriatim.dev/slot']}"
        environment = {e["name"]: e["value"] for e in pod["spec"]["containers"][0]["env"]}
        volume = self.kube.objects["PersistentVolumeClaim", NAMESPACE, name]["spec"]["volumeName"]
        member, disk = self.brokers.members.get(broker), self.disks.get(volume)
        known = member.record.member.incarnation if member is not None else ""
        if disk is None:
            if known and environment.get("SERIATIM_REPLACE_DISK_OF") != known:
                self.refused.append(name)
                return
            disk = self.disks[volume] = f"disk-{len(self.disks)}"
        elif known != disk:
            self.refused.append(name)
            return
        run = member.record.run + 1 if member is not None and known == disk else 1
        record = records_pb2.MemberRecord(group=labels["seriatim.dev/group"], run=run, admitted=True)
        record.member.broker, record.member.incarnation = broker, disk
        self.brokers.members[broker] = operations_pb2.GroupMember(record=record, live=True)
        pod["status"] = {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "hostIP": f"203.0.113.{pod['spec']['nodeName'].removeprefix('node')}",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "broker", "state": {"running": {}}}],
        }


def storage_class() -> Manifest:
    """A class as it should be."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local-nvme"},
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def broker_cluster(**spec: object) -> Manifest:
    """The cluster that tests reconcile; without TLS, whose certificates have tests of their own."""
    usual: dict[str, object] = {"tls": {"enabled": False}, "nodeLossTimeoutSeconds": 10}
    return good("BrokerCluster", namespace=NAMESPACE, **(usual | spec))
