"""Alarms mean something: no Warning for what the operator does or an administrator plans, and one for each fault,
soon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from seriatim_operator.plan.absence import DRAINED_S, RESTART_S, planned_names, returning_names
from seriatim_operator.plan.chains import ChainCounts, ChainsView
from seriatim_operator.plan.cluster import RESYNC_S, TROUBLE_S
from seriatim_operator.plan.observed import Ended
from seriatim_operator.plan.topics import ChainView, Finding, Holders, TopicSettings, TopicView
from seriatim_operator.spec.topic import Topic, TopicStatus
from seriatim_operator.status.cluster import cluster_events, danger, member_events
from seriatim_operator.status.reasons import BROKER, CLUSTER, GROUP, TOPIC
from seriatim_operator.status.topics import topic_events, topic_status

from .world import World, new_world

SETTINGS = TopicSettings(flush=1, retention_ms=0, batch_size_bytes_max=1, message_size_bytes_max=1, chain_width=0)

TOLD_S = 10
"""Seconds in which a fault must be reported."""


@dataclass
class Watched:
    """A world whose cluster serves a topic with one partition on each broker group, and what is known of it."""

    world: World
    topic: Topic
    counts: ChainCounts = field(default_factory=ChainCounts)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    warned: str = ""

    def second(self, seconds: float = 1.0) -> None:
        """A pass over the cluster and its topic, and what happens in a second, or in more."""
        world = self.world
        observed, _ = world.planned()
        cluster, groups = world.cluster.status, dict(world.groups)
        world.a_pass()
        for name, item in groups.items():
            if name in world.groups:
                self._note(member_events(observed, item, world.groups[name].status))
        self.warned = danger(cluster) or self.warned
        self._note(cluster_events(cluster, world.cluster.status, self.warned))
        live = observed.live_brokers | observed.live_disks | returning_names(observed)
        if observed.members is not None:
            view, planned = self._view(), planned_names(observed)
            self.counts.see_live(live, planned, {})
            self.counts.put("flights", view)
            world.chains = self.counts.view()
            finding = Finding("Accepting", "", view)
            after = topic_status(self.topic, finding, world.now_s, live, (), planned)
            self._note(topic_events(self.topic.status, after, live, planned, is_warned=False))
            self.topic = self.topic.model_copy(update={"status": after})
        world.settle(seconds)
        self._knows_its_words()

    def _note(self, events: list) -> None:  # type: ignore[type-arg]
        self.warnings += [(event.reason, event.note) for event in events if event.type == "Warning"]

    def _view(self) -> TopicView:
        """The segments stay where they are, on brokers that the members name."""
        chains = {}
        for number, group in enumerate(("g0", "g1")):
            names = tuple(f"{group}-{slot}" for slot in (0, 1))
            disks = tuple(self.world.members[name].disk for name in names if name in self.world.members)
            chains[number] = ChainView(
                number, 1, 1, group, names[0], 1, 0, 0, 0, 0, 0, None, {Holders(names, disks): 1}
            )
        return TopicView("flights", "inc", "READY", SETTINGS, 2, chains)

    def _knows_its_words(self) -> None:
        for status, words in (
            (self.world.cluster.status, CLUSTER),
            (self.topic.status, TOPIC),
            *((item.status, GROUP) for item in self.world.groups.values()),
            *((item.status, BROKER) for item in self.world.brokers.values()),
        ):
            for each in status.conditions:
                assert each.reason in words[each.type], (each.type, each.reason)

    def until(self, holds: Callable[[], bool], seconds: int = 120) -> None:
        """Seconds pass until something holds."""
        for _ in range(seconds):
            self.second()
            if holds():
                return
        raise AssertionError(self.world.cluster.status)

    def is_steady(self) -> bool:
        """Whether the cluster is stable in this generation."""
        cluster = self.world.cluster
        return cluster.status.is_true("Stable") and cluster.status.observed_generation == cluster.metadata.generation

    def degraded(self) -> str:
        """The reason of the cluster's condition."""
        found = self.world.cluster.status.condition("Degraded")
        assert found is not None
        return found.reason


def watched(**spec: object) -> Watched:
    world = new_world(**spec)  # type: ignore[arg-type]
    metadata = {"name": "flights", "namespace": "shop", "uid": "t", "generation": 1}
    topic = Topic.from_manifest({"metadata": metadata, "spec": {"cluster": "orders"}})
    return Watched(world, topic.model_copy(update={"status": TopicStatus()}))


def serving() -> Watched:
    it = watched()
    it.until(it.is_steady)
    assert it.warnings == []
    return it


def drain(it: Watched, node: str) -> None:
    """As `kubectl drain`: a pod goes when its budget lets it, and is ready until its process has ended."""
    world = it.world
    world.nodes[node] = replace(world.nodes[node], is_leaving=True)
    here = {name for name, pod in world.pods.items() if pod.node == node}

    def evict() -> bool:
        left = {name for name in here if (pod := world.pods.get(name)) and pod.node == node}
        for name in sorted(left):
            if world.budgets.get(world.pods[name].group):
                world.pods[name] = replace(world.pods[name], is_deleting=True)
                return False
        return not left

    it.until(evict)


def undrain(it: Watched, node: str) -> None:
    it.world.nodes[node] = replace(it.world.nodes[node], is_leaving=False)


def break_process(it: Watched, name: str) -> None:
    """The container of a pod ends with an error, and is started no more."""
    pod = it.world.pods[name]
    ended = Ended(pod.broker, "", 0, 1, it.world.now_s, "", "")
    it.world.broken.add(pod.image)
    it.world._end(pod.broker)
    it.world.pods[name] = replace(pod, is_ready=False, is_running=False, waiting="CrashLoopBackOff", ended=(ended,))


# ---- what is planned ---------------------------------------------------------------------------------------------


def roll(it: Watched) -> None:
    it.world.edit(image="seriatim.dev/broker:next")
    it.until(it.is_steady)


def scale(it: Watched, groups: int) -> None:
    it.world.edit(groups=groups)
    it.until(it.is_steady)


def drain_and_back(it: Watched) -> None:
    drain(it, "node1")
    for _ in range(60):
        it.second()
    assert it.degraded() == "AwayAsPlanned"
    undrain(it, "node1")
    it.until(it.is_steady)


def drain_and_back_at_once(it: Watched) -> None:
    drain(it, "node1")
    undrain(it, "node1")
    it.until(it.is_steady)


def etcd_returns(it: Watched) -> None:
    """No broker reports who runs for 20 s. Then members are unheard for some seconds, though none has ended."""
    it.world.brokers_answer = False
    for _ in range(20):
        it.second()
    it.world.brokers_answer = True
    members = dict(it.world.members)
    for name, member in members.items():
        it.world.members[name] = replace(member, is_live=False)
    for _ in range(3):
        it.second()
    it.world.members.update(members)
    it.until(it.is_steady)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(roll, id="rolling change"),
        pytest.param(lambda it: scale(it, 5), id="scale-out"),
        pytest.param(lambda it: scale(it, 2), id="scale-in"),
        pytest.param(drain_and_back, id="drain"),
        pytest.param(drain_and_back_at_once, id="drain that is over at once"),
        pytest.param(etcd_returns, id="return of etcd"),
    ],
)
def test_a_planned_act_gives_no_warning(act: Callable[[Watched], None]) -> None:
    it = serving()
    act(it)
    assert it.warnings == []
    assert it.degraded() in ("Healthy", "OneMachineHoldsAll")


# ---- what is a fault ---------------------------------------------------------------------------------------------


def dies(it: Watched) -> str:
    name = min(it.world.pods)
    break_process(it, name)
    return name


def loses_its_node(it: Watched) -> str:
    it.world.lose_node("node1")
    return "of broker group"


def dies_while_another_restarts(it: Watched) -> str:
    it.world.edit(image="seriatim.dev/broker:next")
    it.until(lambda: it.degraded() == "AwayAsPlanned")
    name = max(it.world.pods)
    break_process(it, name)
    return name


def has_no_image(it: Watched) -> str:
    it.world.nowhere.add("seriatim.dev/broker:nowhere")
    it.world.edit(image="seriatim.dev/broker:nowhere")
    it.until(lambda: any(pod.lacks_image for pod in it.world.pods.values()))
    return next(name for name, pod in it.world.pods.items() if pod.lacks_image)


def dies_on_a_node_that_is_drained(it: Watched) -> str:
    node = "node1"
    it.world.nodes[node] = replace(it.world.nodes[node], is_leaving=True)
    name = min(name for name, pod in it.world.pods.items() if pod.node == node)
    break_process(it, name)
    return name


def loses_its_node_after_the_drain(it: Watched) -> str:
    drain(it, "node1")
    for _ in range(5):
        it.second()
    assert it.warnings == []
    it.world.lose_node("node1")
    return "orders-g"


def dies_behind_a_silence_of_etcd(it: Watched) -> str:
    it.world.brokers_answer = False
    for _ in range(5):
        it.second()
    it.warnings.clear()
    it.world.brokers_answer = True
    name = min(it.world.pods)
    break_process(it, name)
    return name


def is_unheard_though_its_pod_is_ready(it: Watched) -> str:
    it.world.unhear("g0-1")
    return "g0"


@pytest.mark.parametrize(
    "fault",
    [
        dies,
        loses_its_node,
        dies_while_another_restarts,
        has_no_image,
        dies_on_a_node_that_is_drained,
        loses_its_node_after_the_drain,
        dies_behind_a_silence_of_etcd,
        is_unheard_though_its_pod_is_ready,
    ],
)
def test_a_fault_is_told_within_ten_seconds(fault: Callable[[Watched], str]) -> None:
    it = serving()
    words = fault(it)
    it.until(lambda: any(words in note for _, note in it.warnings), TOLD_S)


def test_a_restart_that_waits_for_etcd_for_a_moment_is_no_fault() -> None:
    it = serving()
    it.world.edit(image="seriatim.dev/broker:next")
    it.until(lambda: it.degraded() == "AwayAsPlanned")
    name = next(name for name, item in it.world.brokers.items() if not item.status.is_true("Ready"))
    it.until(lambda: name in it.world.pods and it.world.pods[name].is_running)
    says = "g0-1 waits for the coordinator at etcd:2379"
    it.world.pods[name] = replace(it.world.pods[name], is_ready=False, says=says)
    it.second()
    assert it.warnings == []
    assert it.degraded() == "AwayAsPlanned"


def test_a_topic_tells_of_a_restart_that_fails() -> None:
    it = serving()
    has_no_image(it)
    it.until(lambda: any(reason == "CopyAway" for reason, _ in it.warnings), TOLD_S)


def test_a_restart_of_a_member_that_was_away_is_no_plan() -> None:
    it = serving()
    name = dies(it)
    it.until(lambda: bool(it.warnings), TOLD_S)
    it.world.broken.add("seriatim.dev/broker:next")
    it.world.edit(image="seriatim.dev/broker:next")
    for _ in range(30):
        it.second()
        ready = it.world.brokers[name].status.condition("Ready")
        assert ready is not None
        assert ready.reason != "Restarting"
        assert it.degraded() == "MembersAway"


def test_what_lasts_is_looked_at_again_soon() -> None:
    it = serving()
    assert it.world.a_pass().again_s == RESYNC_S
    it.world.chains = ChainsView(troubles={"CatchingUp": 1}, named={"CatchingUp": ("flights",)})
    assert it.world.a_pass().again_s == TROUBLE_S
    it.world.chains = None
    it.world.brokers_answer = False
    assert it.world.a_pass().again_s == TROUBLE_S


def test_a_restart_that_lasts_too_long_is_told() -> None:
    it = serving()
    it.world.edit(image="seriatim.dev/broker:next")
    it.until(lambda: it.degraded() == "AwayAsPlanned")
    it.world.broken.add("seriatim.dev/broker:next")  # the pod says nothing of it
    world = it.world

    def hang() -> bool:
        for name, pod in world.pods.items():
            if not pod.is_ready and pod.is_scheduled:
                world.pods[name] = replace(pod, waiting="", ended=())
        return bool(it.warnings)

    began = world.now_s
    it.until(hang, int(RESTART_S) + TOLD_S)
    assert world.now_s - began > RESTART_S - TOLD_S


def test_a_drained_node_that_stays_away_is_told_once() -> None:
    it = serving()
    drain(it, "node1")
    began = it.world.now_s
    while it.world.now_s - began < DRAINED_S - 2 * TOLD_S:
        it.second(TOLD_S)
    assert not it.warnings
    it.until(lambda: bool(it.warnings), 4 * TOLD_S)
    assert it.world.now_s - began > DRAINED_S - TOLD_S
    for _ in range(TOLD_S):
        it.second()  # the second member left some seconds after the first
    told = len(it.warnings)
    for _ in range(60):
        it.second()
    assert len(it.warnings) == told


def test_a_cluster_that_starts_does_not_say_that_nothing_is_wrong() -> None:
    it = watched()
    it.world.shunned |= set(it.world.nodes)  # no pod gets a node, and no event says why
    reasons = set()
    for _ in range(int(RESTART_S) + TOLD_S):
        it.second()
        reasons.add(it.degraded())
        found = it.world.degraded()
        assert it.world.cluster.status.ready_groups == 0
        assert found.reason != "Healthy"
        if found.reason == "Starting":
            assert found.message.startswith("0 of 3 groups serve")
    assert reasons == {"Starting", "MembersAway"}
    assert it.warnings


def test_a_pod_of_a_deleted_node_does_not_run() -> None:
    it = serving()
    world = it.world
    name, pod = min(world.pods.items())
    del world.nodes[pod.node]  # Kubernetes deletes the pod later, and calls it running until then
    world.pods[name] = replace(pod, is_ready=False)
    it.second()
    status = world.brokers[name].status
    ready = status.condition("Ready")
    assert ready is not None
    assert (status.phase, ready.status, ready.reason) == ("Stopped", "False", "NodeGone")
    assert it.degraded() == "NodeGone"
