"""A small world for plans: nodes, pods, claims, objects and brokers that do what is asked of them, in virtual time.

It keeps to what Kubernetes and the brokers promise: a pod is scheduled on a node that no member of its group is on and
that its bound disk can be reached from; a claim is bound where its first pod is; a broker joins with a new incarnation
on an empty disk, and is refused if the slot has another disk and no administrator allowed to replace that one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from typing import TypeVar

from seriatim_operator.plan.actions import (
    Action,
    Apply,
    AskCounts,
    AskGate,
    BeginOperation,
    DeclareDead,
    DeleteClaim,
    DeleteObject,
    DeletePod,
    PlaceAnew,
    Plan,
    RemoveBrokerGroup,
    SetBrokerGroup,
)
from seriatim_operator.plan.chains import ChainsView
from seriatim_operator.plan.cluster import plan as make_plan
from seriatim_operator.plan.observed import (
    ANNOTATION_PLACE_ANEW,
    ANNOTATION_SPREAD_MENDED,
    BrokerGroupView,
    ClaimView,
    ClassView,
    GateView,
    MemberView,
    NodeView,
    Observed,
    PodView,
    VolumeView,
)
from seriatim_operator.resources.cluster_children import ClusterChildren
from seriatim_operator.resources.config import settings_in
from seriatim_operator.spec.base import Condition, Resource
from seriatim_operator.spec.broker import Broker
from seriatim_operator.spec.cluster import BrokerCluster
from seriatim_operator.spec.group import BrokerGroup
from seriatim_operator.spec.settings import SettingsError, parse_settings
from seriatim_operator.status.cluster import broker_group_status, broker_status, cluster_status

from ..spec.objects import good

START_S = 1_700_000_000.0
Object = TypeVar("Object", bound=Resource)


@dataclass
class World:
    """The state, and what was done to it."""

    cluster: BrokerCluster
    nodes: dict[str, NodeView]
    now_s: float = START_S
    groups: dict[str, BrokerGroup] = field(default_factory=dict)
    brokers: dict[str, Broker] = field(default_factory=dict)
    pods: dict[str, PodView] = field(default_factory=dict)
    claims: dict[str, ClaimView] = field(default_factory=dict)
    volumes: dict[str, VolumeView] = field(default_factory=dict)
    budgets: dict[str, int] = field(default_factory=dict)
    replaces: dict[str, str] = field(default_factory=dict)
    disks: dict[str, str] = field(default_factory=dict)
    members: dict[str, MemberView] = field(default_factory=dict)
    intents: dict[str, str] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    segments: dict[str, int] = field(default_factory=dict)
    unsafe: dict[str, str] = field(default_factory=dict)
    storage_class: ClassView | None = field(default_factory=lambda: ClassView("local-nvme", True, True))
    brokers_answer: bool = True
    shunned: set[str] = field(default_factory=set)
    """Nodes to which Kubernetes sends no new broker, for reasons that the operator does not see."""
    nowhere: set[str] = field(default_factory=set)
    """Images that cannot be pulled."""
    broken: set[str] = field(default_factory=set)
    """Images whose process ends again and again, before it serves."""
    nodeless: set[str] = field(default_factory=set)
    """Hashes of placements that no node meets."""
    chains: ChainsView | None = None
    refused: frozenset[str] = frozenset()
    done: list[Action] = field(default_factory=list)
    processes: dict[tuple[str, str, int], str] = field(default_factory=dict)
    """Broker, incarnation and run of each process that lives -> its node, whatever state the API shows for its pod."""
    falsely_certified: list[DeclareDead] = field(default_factory=list)
    deleted_under_process: list[str] = field(default_factory=list)
    numbers: int = 0
    settings_file: str = ""
    """What the brokers were given last."""
    grace_s: dict[str, int] = field(default_factory=dict)
    """How long each pod may take to end, as its manifest says."""

    def copy(self) -> World:
        """One that is the same now, and goes its own way from here. What the tables hold never changes."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return World(**{k: type(v)(v) if isinstance(v, dict | set | list) else v for k, v in values.items()})

    def make(self) -> ClusterChildren:
        """The real builders."""
        return ClusterChildren(self.observed().cluster_in_force, "seriatim.dev/broker:dev", "seriatim-system")

    # ---- the operator ----

    def observed(self, *, counts: bool = False) -> Observed:
        """One look."""
        members: dict[str, BrokerGroupView] | None = None
        if self.brokers_answer and self.members:
            members = {}
            for group, brokers in groupby(sorted(self.members), lambda broker: broker.split("-")[0]):
                rest = tuple(self.members[broker] for broker in brokers)
                members[group] = BrokerGroupView(
                    group,
                    self.intents.get(group, "ACTIVE"),
                    1.0,
                    self.heads.get(group, 0) if counts else None,
                    self.segments.get(group, 0) if counts else None,
                    rest,
                )
        return Observed(
            cluster=self.cluster,
            now_s=self.now_s,
            groups=dict(self.groups),
            brokers=dict(self.brokers),
            pods=dict(self.pods),
            claims=dict(self.claims),
            volumes=dict(self.volumes),
            nodes=dict(self.nodes),
            storage_class=self.storage_class,
            members=members,
            last_settings=self._last_settings(),
            chains=self.chains,
            refused=self.refused,
        )

    def _last_settings(self) -> dict[str, str] | None:
        """As `reconcile.observe` finds them."""
        try:
            parse_settings(self.cluster.spec.settings)
        except SettingsError:
            return settings_in(self.settings_file) if self.settings_file else None
        return None

    def a_pass(self, stop_after: int | None = None) -> Plan:
        """Observe, plan, apply, report; `stop_after` writes the operator dies."""
        observed, plan = self.planned()
        writes = 0

        def write() -> bool:
            nonlocal writes
            writes += 1
            return stop_after is not None and writes > stop_after

        marks = any(type(a).__name__ in ("MarkLost", "BeginOperation", "EndOperation") for a in plan.actions)
        for action in [] if marks else [a for a in plan.actions if not a.is_disruptive] + plan.disruptive:
            if write():
                return plan
            self.do(action)
        if marks:
            self.done += [a for a in plan.actions if isinstance(a, BeginOperation)]
        for name, broker in list(observed.brokers.items()):
            if name in self.brokers:
                if write():
                    return plan
                self.brokers[name] = broker.model_copy(update={"status": broker_status(observed, broker, plan)})
        for name, group in list(observed.groups.items()):
            if name in self.groups:
                self.groups[name] = self.groups[name].model_copy(
                    update={"status": broker_group_status(observed, group)}
                )
        if write():
            return plan
        status = cluster_status(observed, plan, "", "the-cluster" if self.members else "")
        self.cluster = self.cluster.model_copy(update={"status": status})
        return plan

    def planned(self) -> tuple[Observed, Plan]:
        """What is and what the plan says, with its questions answered."""
        observed = self.observed()
        plan = Plan()
        for _ in range(8):
            plan = make_plan(observed, self.make())
            gates = [a.broker for a in plan.actions if isinstance(a, AskGate)]
            if any(isinstance(a, AskCounts) for a in plan.actions):
                observed = replace(observed, members=self.observed(counts=True).members)
            elif not gates:
                break
            observed = replace(observed, gates={**observed.gates, **{b: self.gate(b) for b in gates}})
        return observed, plan

    def gate(self, broker: str) -> GateView:
        """The brokers' answer: safe while every other member of the group serves."""
        text = self.unsafe.get(broker, "")
        group = broker.split("-")[0]
        for pod in self.pods.values():
            if pod.group == group and pod.broker != broker and not pod.is_ready:
                text = text or f"{pod.broker} is away"
        return GateView(broker, not text, "SAFE" if not text else "LAST_COPY", text or "whole")

    # ---- what a step does ----

    def do(self, action: Action) -> None:
        """One write, as the API or the brokers take it."""
        self.done.append(action)
        if isinstance(action, Apply):
            self._apply(dict(action.manifest))
        elif isinstance(action, DeletePod):
            pod = self.pods.get(action.name)
            if pod is not None and pod.uid == action.uid:
                self.delete_pod(pod.name, by_force=action.at_once)
        elif isinstance(action, DeleteClaim):
            claim = self.claims.pop(action.name, None)
            if claim is not None and claim.volume:
                disk = self.disks.pop(claim.volume, None)
                if any(incarnation == disk for _, incarnation, _ in self.processes):
                    self.deleted_under_process.append(action.name)
                self.volumes.pop(claim.volume, None)
        elif isinstance(action, PlaceAnew):
            group, cluster = self.groups[action.object], self.cluster
            assert group.uid == action.uid
            self.groups[action.object] = annotated(group, {ANNOTATION_PLACE_ANEW: "true"})
            self.cluster = annotated(cluster, {ANNOTATION_SPREAD_MENDED: action.record})
        elif isinstance(action, SetBrokerGroup):
            self.intents[action.group] = action.intent
        elif isinstance(action, DeclareDead):
            if (action.broker, action.incarnation, action.run) in self.processes:
                self.falsely_certified.append(action)
            member = self.members[action.broker]
            if (member.incarnation, member.run) == (action.incarnation, action.run):
                self.members[action.broker] = replace(member, is_certified=True)
        elif isinstance(action, RemoveBrokerGroup):
            if not self.segments.get(action.group) and not any(p.group == action.group for p in self.pods.values()):
                self.members = {b: m for b, m in self.members.items() if b.split("-")[0] != action.group}
        elif isinstance(action, DeleteObject):
            (self.brokers if action.kind == "Broker" else self.groups).pop(action.name, None)

    def _apply(self, manifest: dict) -> None:  # type: ignore[type-arg]
        kind, metadata = manifest["kind"], manifest["metadata"]
        name = metadata["name"]
        self.numbers += 1
        full = {**manifest, "metadata": {**metadata, "uid": f"uid-{self.numbers}", "creationTimestamp": self._time()}}
        if kind == "BrokerGroup" and name not in self.groups:
            self.groups[name] = BrokerGroup.from_manifest(full)
        elif kind == "Broker" and name not in self.brokers:
            self.brokers[name] = Broker.from_manifest(full)
        elif kind == "PersistentVolumeClaim" and name not in self.claims:
            labels = metadata["labels"]
            self.claims[name] = ClaimView(
                name,
                f"uid-{self.numbers}",
                "",
                False,
                manifest["spec"]["resources"]["requests"]["storage"],
                labels["seriatim.dev/group"],
                int(labels["seriatim.dev/slot"]),
                labels["seriatim.dev/broker-uid"],
                self.now_s,
            )
        elif kind == "ConfigMap":
            self.settings_file = manifest["data"]["broker.toml"]
        elif kind == "Pod" and name not in self.pods:
            self.grace_s[name] = manifest["spec"]["terminationGracePeriodSeconds"]
            env = {e["name"]: e["value"] for e in manifest["spec"]["containers"][0]["env"]}
            self.replaces[name] = env.get("SERIATIM_REPLACE_DISK_OF", "")
            self.pods[name] = PodView(
                name=name,
                uid=f"uid-{self.numbers}",
                group=metadata["labels"]["seriatim.dev/group"],
                slot=int(metadata["labels"]["seriatim.dev/slot"]),
                node="",
                ip="",
                is_ready=False,
                is_running=False,
                is_deleting=False,
                is_scheduled=False,
                is_over=False,
                template_hash=metadata["annotations"]["seriatim.dev/template-hash"],
                created_s=self.now_s,
                restarts=0,
                waiting="",
                ended=(),
                image=manifest["spec"]["containers"][0]["image"],
                placement_hash=metadata["annotations"]["seriatim.dev/placement-hash"],
            )
        elif kind == "PodDisruptionBudget":
            self.budgets[metadata["labels"]["seriatim.dev/group"]] = (
                self.cluster.spec.members_per_group - manifest["spec"]["minAvailable"]
            )

    def delete_pod(self, name: str, *, by_force: bool = False) -> None:
        """Delete a pod: its kubelet ends the process and lets go of it. By force the object goes at once.

        A silent kubelet does neither: the pod stays on its way out, or is gone while its process lives.
        """
        pod = self.pods[name]
        node = self.nodes.get(pod.node)
        is_heard = not pod.is_scheduled or (node is not None and node.is_ready)
        if is_heard:
            self._end(pod.broker)
        if is_heard or by_force:
            del self.pods[name]
        else:
            self.pods[name] = replace(pod, is_deleting=True)

    def _end(self, broker: str) -> None:
        """The processes of a broker that a pod was made for end."""
        self.processes = {process: node for process, node in self.processes.items() if process[0] != broker}
        member = self.members.get(broker)
        if member is not None:
            self.members[broker] = replace(member, is_live=False)

    def _time(self) -> str:
        return datetime.fromtimestamp(self.now_s, UTC).isoformat()

    # ---- Kubernetes and the brokers, between two passes ----

    def settle(self, seconds: float = 1.0) -> None:
        """Time continues: pods are scheduled and start, groups move their heads, drains go forward."""
        self.now_s += seconds
        for name, pod in list(self.pods.items()):
            if not pod.is_scheduled:
                self._schedule(name, pod)
            elif pod.node in self.nodes and self.nodes[pod.node].is_ready:
                if pod.is_deleting:
                    self.delete_pod(name)
                elif not pod.is_ready and not any(process[0] == pod.broker for process in self.processes):
                    self._start(name, pod)
                elif not pod.is_ready:
                    self.pods[name] = replace(pod, is_ready=True)
        whole = [g for g in self._groups_there() if self._is_whole(g)]
        active = [g for g in whole if self.intents.get(g, "ACTIVE") == "ACTIVE"]
        for group in self._groups_there():
            if (group not in active) and active:
                self.heads[active[0]] = self.heads.get(active[0], 0) + self.heads.pop(group, 0)
            if self.intents.get(group) == "DRAINING" and active:
                self.segments[active[0]] = self.segments.get(active[0], 0) + self.segments.pop(group, 0)

    def _groups_there(self) -> list[str]:
        return sorted({broker.split("-")[0] for broker in self.members})

    def _is_whole(self, group: str) -> bool:
        ready = [p for p in self.pods.values() if p.group == group and p.is_ready]
        return len(ready) >= self.cluster.spec.members_per_group

    def _schedule(self, name: str, pod: PodView) -> None:
        claim = self.claims.get(name)
        if claim is None:
            return
        if pod.placement_hash in self.nodeless:
            self.pods[name] = replace(pod, no_node="0/3 nodes are available")
            return
        hosts = self.volumes[claim.volume].hostnames if claim.volume else None
        taken = {p.node for p in self.pods.values() if p.group == pod.group and p.name != name}
        load = {node: sum(p.node == node for p in self.pods.values()) for node in self.nodes}
        for node in sorted(self.nodes, key=lambda n: (load[n], n)):
            view = self.nodes[node]
            if (
                not view.is_ready
                or view.is_leaving
                or view.taints
                or node in taken
                or (not claim.volume and node in self.shunned)
                or (hosts is not None and view.hostname not in hosts)
            ):
                continue
            if not claim.volume:
                self.numbers += 1
                volume = f"pv-{self.numbers}"
                self.volumes[volume] = VolumeView(volume, frozenset({view.hostname}))
                self.claims[name] = replace(claim, volume=volume)
            self.pods[name] = replace(pod, node=node, is_scheduled=True)
            return

    def _start(self, name: str, pod: PodView) -> None:
        if pod.image in self.nowhere:
            self.pods[name] = replace(pod, waiting="ErrImagePull")
            return
        if pod.image in self.broken:
            self.pods[name] = replace(pod, waiting="CrashLoopBackOff", restarts=pod.restarts + 1)
            return
        volume = self.claims[name].volume
        member = self.members.get(pod.broker)
        disk = self.disks.get(volume, "")
        if not disk:
            if member is not None and member.incarnation != self.replaces[name]:
                return  # refused: the slot's disk is another one
            self.numbers += 1
            disk = self.disks[volume] = f"incarnation-{self.numbers}"
        elif member is not None and disk != member.incarnation:
            return  # refused: a foreign disk
        run = member.run + 1 if member is not None and member.incarnation == disk else 1
        self.members[pod.broker] = MemberView(pod.broker, disk, run, True, True, False)
        self.processes[pod.broker, disk, run] = pod.node
        self.pods[name] = replace(pod, is_running=True, is_ready=True, waiting="", ip="10.0.0.1")
        self.heads.setdefault(pod.group, 0)

    # ---- faults and administrators ----

    def lose_node(self, name: str) -> None:
        """Power off: its pods are not ready any more, and the API says no more."""
        self.nodes[name] = replace(self.nodes[name], is_ready=False)
        for pod in list(self.pods.values()):
            if pod.node == name:
                self.pods[pod.name] = replace(pod, is_ready=False)
                self._end(pod.broker)
        for broker, _, _ in [process for process, node in self.processes.items() if node == name]:
            self._end(broker)

    def stop_kubelet(self, name: str) -> None:
        """The kubelet is silent: its node and pods are not ready, and the processes live on."""
        self.nodes[name] = replace(self.nodes[name], is_ready=False)
        for pod in list(self.pods.values()):
            if pod.node == name:
                self.pods[pod.name] = replace(pod, is_ready=False)

    def unhear(self, broker: str) -> None:
        """The process of a broker cannot reach the coordinator: it lives, and is not live."""
        self.members[broker] = replace(self.members[broker], is_live=False)

    def hear_all(self) -> None:
        """Every process reaches the coordinator; kubelets that are back end what the API has no pod for."""
        for broker, incarnation, run in list(self.processes):
            if not any(pod.broker == broker for pod in self.pods.values()):
                self._end(broker)
            elif broker in self.members and self.members[broker].incarnation == incarnation:
                self.members[broker] = replace(self.members[broker], is_live=self.members[broker].run == run)

    def degraded(self) -> Condition:
        """What the cluster says to administrators."""
        found = self.cluster.status.condition("Degraded")
        assert found is not None
        return found

    def annotate(self, name: str, value: str | None = None) -> None:
        """An administrator says that the disk of a Broker is lost, by its identity or in these words."""
        broker = self.brokers[name]
        said = broker.status.incarnation if value is None else value
        metadata = broker.metadata.model_copy(update={"annotations": {"seriatim.dev/disk-lost": said}})
        self.brokers[name] = broker.model_copy(update={"metadata": metadata})

    def delete_node(self, name: str) -> None:
        """The Node object goes, and with it, later, the pods."""
        self.lose_node(name)
        del self.nodes[name]
        for pod in list(self.pods.values()):
            if pod.node == name:
                del self.pods[pod.name]

    def edit(self, **spec: object) -> None:
        """An administrator changes the cluster's spec (camelCase)."""
        manifest = self.cluster.to_manifest()
        manifest["spec"].update(spec)
        manifest["metadata"]["generation"] = manifest["metadata"].get("generation", 1) + 1
        self.cluster = BrokerCluster.from_manifest(manifest)

    def run(self, passes: int = 200, seconds: float = 1.0) -> None:
        """Passes until nothing changes any more."""
        quiet = 0
        for _ in range(passes):
            before = self.fingerprint()
            self.a_pass()
            self.settle(seconds)
            quiet = quiet + 1 if self.fingerprint() == before else 0
            if quiet >= 3:
                return
        raise AssertionError(f"it does not come to rest: {self.cluster.status.blocked_by or self.done[-5:]}")

    def fingerprint(self) -> object:
        """Everything but the time."""
        return (
            self.cluster.model_dump_json(),
            {k: v.model_dump_json() for k, v in self.brokers.items()},
            {k: v.model_dump_json() for k, v in self.groups.items()},
            dict(self.pods),
            dict(self.claims),
            dict(self.members),
            dict(self.intents),
            dict(self.heads),
            dict(self.segments),
            dict(self.budgets),
        )


def annotated(item: Object, annotations: dict[str, str]) -> Object:
    """An object with these annotations, and no others."""
    metadata = item.metadata.model_copy(update={"annotations": annotations})
    return item.model_copy(update={"metadata": metadata})


def begun_once(begin: Callable[..., World]) -> Callable[..., World]:
    """Worlds of a specification begin alike: the first one is run, and the others are its copies."""

    @cache
    def first(text: str) -> World:
        return begin(**json.loads(text))

    return lambda **spec: first(json.dumps(spec)).copy()


def new_world(groups: int = 3, nodes: int = 3, **spec: object) -> World:
    """A cluster that no operator has reconciled yet."""
    manifest = good("BrokerCluster", namespace="shop", groups=groups, **spec)
    manifest["metadata"] |= {"uid": "the-uid", "generation": 1}
    views = {f"node{n}": NodeView(f"node{n}", f"host{n}", True, False, False) for n in range(1, nodes + 1)}
    return World(BrokerCluster.from_manifest(manifest), views)
