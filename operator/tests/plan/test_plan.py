"""Plans over a small world: they come to rest, take one thing away at a time, and destroy nothing without proof."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seriatim_operator.plan.actions import Action, Apply, DeclareDead, DeleteClaim, DeletePod, MarkLost, PlaceAnew
from seriatim_operator.plan.chains import ChainsView
from seriatim_operator.plan.nodes import takes_brokers
from seriatim_operator.plan.observed import (
    ANNOTATION_PLACE_ANEW,
    ANNOTATION_SPREAD_MENDED,
    SPREAD_QUIET_S,
    ClassView,
    Ended,
    NodeView,
    Taint,
)
from seriatim_operator.plan.spread import PAUSE_IF_USELESS_S, Mending, unevenness
from seriatim_operator.spec.broker import BrokerStatus

from .world import World, annotated, begun_once, new_world


@begun_once
def started(**spec: object) -> World:
    """A world whose cluster serves, with a head and a segment on each group."""
    world = new_world(**spec)  # type: ignore[arg-type]
    world.run()
    for group in world._groups_there():
        world.heads[group], world.segments[group] = 1, 3
    world.done.clear()
    return world


def deleted(world: World, kind: type[Action]) -> list[Action]:
    return [action for action in world.done if isinstance(action, kind)]


def test_a_new_cluster_comes_up_and_rests() -> None:
    world = new_world()
    world.run()
    assert world.cluster.status.is_true("Ready")
    assert world.cluster.status.is_true("Stable")
    assert sorted(world.members) == ["g0-0", "g0-1", "g1-0", "g1-1", "g2-0", "g2-1"]
    assert world.budgets == {"g0": 0, "g1": 0, "g2": 0}
    assert not deleted(world, DeletePod)


def test_a_world_at_rest_is_left_alone() -> None:
    world = started()
    before = world.fingerprint()
    world.a_pass()
    assert world.fingerprint() == before


def test_two_members_of_a_group_never_share_a_machine_or_a_slot() -> None:
    world = started()
    for group in ("g0", "g1", "g2"):
        assert len({p.node for p in world.pods.values() if p.group == group}) == 2
    assert len(world.brokers) == 6


def test_a_node_that_is_gone_gives_its_disks_up_in_two_steps_after_its_time() -> None:
    world = started(nodes=4)
    lost = [p.name for p in world.pods.values() if p.node == "node1"]
    world.delete_node("node1")
    world.run(passes=30)
    assert not deleted(world, DeleteClaim), "before its time nothing is given up"
    assert all(not world.brokers[name].status.disk_lost for name in lost)
    world.now_s += 60
    world.a_pass()
    assert any(world.brokers[name].status.disk_lost for name in lost)
    assert not deleted(world, DeleteClaim), "the pass that marks deletes nothing"
    world.run()
    assert {a.name for a in deleted(world, DeleteClaim)} == set(lost)  # type: ignore[attr-defined]
    assert world.cluster.status.is_true("Ready")
    assert {a.broker for a in deleted(world, DeclareDead)} == {n.removeprefix("orders-")[:4] for n in lost}  # type: ignore[attr-defined]
    for name in lost:
        old = world.brokers[name]
        assert old.status.phase == "Released"
        heir = next(b for b in world.brokers.values() if b.spec.replaces == old.status.incarnation)
        assert (heir.spec.group, heir.spec.slot) == (old.spec.group, old.spec.slot)


def test_two_machines_gone_at_once_are_left_for_people() -> None:
    world = started(nodes=5)
    world.delete_node("node1")
    world.delete_node("node2")
    _passes(world, 200)
    assert not deleted(world, DeleteClaim)
    assert "annotate each Broker" in world.cluster.status.blocked_by


def _kubelet_stops(world: World) -> str:
    """The kubelet of node1 is silent, and the processes live. Returns the name of one of its Brokers."""
    world.stop_kubelet("node1")
    return next(p.name for p in world.pods.values() if p.node == "node1")


def _passes(world: World, count: int = 40) -> None:
    for _ in range(count):
        world.a_pass()
        world.settle()
        assert not world.falsely_certified, "a run that lives was certified to have ended"
        assert not world.deleted_under_process, "the claim went while its process lived"


def _steps(world: World, name: str) -> list[str]:
    """What was done about the disk of one Broker, in order."""
    broker = name.removeprefix("orders-")[:4]
    return [
        type(step).__name__
        for step in world.done
        if (isinstance(step, DeletePod | DeleteClaim) and step.name == name)
        or (isinstance(step, DeclareDead) and step.broker == broker)
    ]


def test_a_person_may_say_that_a_disk_is_lost() -> None:
    world = started(nodes=4)
    name = sorted(world.pods)[0]
    world.annotate(name)
    _passes(world)
    assert world.brokers[name].status.disk_lost is None, "it serves"
    assert f"delete pod {name}" in world.cluster.status.blocked_by
    world.delete_pod(name)
    world.run()
    assert [a.name for a in deleted(world, DeleteClaim)] == [name]  # type: ignore[attr-defined]
    assert _steps(world, name) == ["DeclareDead", "DeleteClaim"]
    assert [a.run for a in deleted(world, DeclareDead)] == [1]  # type: ignore[attr-defined]
    lost = world.brokers[name].status.disk_lost
    assert lost is not None
    assert (lost.incarnation, lost.run) == (world.brokers[name].status.incarnation, 1)
    assert "the brokers say of its copies: whole" in lost.proof
    assert world.cluster.status.is_true("Ready")


def test_a_pod_that_was_deleted_for_its_disk_is_not_made_again_while_its_live_key_stands() -> None:
    world = started(nodes=4)
    name, broker = sorted(world.pods)[0], sorted(world.members)[0]
    world.annotate(name)
    world.delete_pod(name)
    world.members[broker] = replace(world.members[broker], is_live=True)
    _passes(world, 3)
    assert name not in world.pods
    world.unhear(broker)
    world.run()
    assert _steps(world, name) == ["DeclareDead", "DeleteClaim"]


@pytest.mark.parametrize("said", ["true", "yes", "incarnation-of-another", "{0}/surely", "{0}x"])
def test_a_word_that_does_not_name_the_disk_is_answered_with_what_to_write(said: str) -> None:
    world = started(nodes=4)
    name = sorted(world.pods)[0]
    incarnation = world.brokers[name].status.incarnation
    world.delete_pod(name)
    world.annotate(name, said.format(incarnation))
    _passes(world)
    assert world.brokers[name].status.disk_lost is None
    found = world.brokers[name].status.condition("DiskHealthy")
    assert found is not None
    assert f"seriatim.dev/disk-lost={incarnation}" in found.message
    assert f"seriatim.dev/disk-lost={incarnation}" in world.cluster.status.blocked_by


def test_a_disk_that_never_joined_is_named_by_the_uid_of_its_broker() -> None:
    world = started(nodes=4)
    name = sorted(world.pods)[0]
    world.brokers[name] = world.brokers[name].model_copy(update={"status": BrokerStatus()})
    world.members["g0-0"] = replace(world.members["g0-0"], incarnation="another", is_live=False)
    world.pods[name] = replace(world.pods[name], is_ready=False)
    world.annotate(name, world.brokers[name].spec.uid)
    world.a_pass()
    assert world.brokers[name].status.disk_lost is not None


def test_with_a_stopped_kubelet_a_living_process_keeps_its_run_and_its_disk() -> None:
    """At the moment of the annotation, the node and the pod are not ready, and the process serves."""
    world = started(nodes=4)
    name = _kubelet_stops(world)
    world.annotate(name)
    _passes(world)
    assert world.brokers[name].status.disk_lost is None
    assert "the brokers still hear from its process" in world.cluster.status.blocked_by


def test_a_marked_disk_waits_for_its_kubelet_and_is_certified_before_its_claim_goes() -> None:
    world = started(nodes=4)
    name = _kubelet_stops(world)
    world.unhear(world.pods[name].broker)
    world.annotate(name)
    _passes(world)
    assert world.brokers[name].status.disk_lost is not None
    assert world.pods[name].is_deleting, "deleted with grace"
    assert _steps(world, name) == ["DeletePod"]
    assert not any(step.at_once for step in deleted(world, DeletePod))  # type: ignore[attr-defined]
    assert "has not confirmed that its process ended" in world.cluster.status.blocked_by
    world.nodes["node1"] = replace(world.nodes["node1"], is_ready=True)
    _passes(world)
    assert _steps(world, name) == ["DeletePod", "DeclareDead", "DeleteClaim"]


def test_a_pod_that_was_deleted_by_force_under_a_silent_kubelet_proves_nothing() -> None:
    world = started(nodes=4)
    name = _kubelet_stops(world)
    world.unhear(world.pods[name].broker)
    world.annotate(name)
    _passes(world, 3)
    world.delete_pod(name, by_force=True)
    _passes(world)
    assert _steps(world, name) == ["DeletePod"]
    assert "taint Node node1" in world.cluster.status.blocked_by
    world.lose_node("node1")
    world.nodes["node1"] = replace(world.nodes["node1"], is_out_of_service=True)
    _passes(world)
    assert _steps(world, name) == ["DeletePod", "DeclareDead", "DeleteClaim"]


def test_a_pod_of_a_node_that_is_out_of_service_is_deleted_at_once_and_then_certified() -> None:
    world = started(nodes=4)
    name = _kubelet_stops(world)
    world.lose_node("node1")
    world.nodes["node1"] = replace(world.nodes["node1"], is_out_of_service=True)
    _passes(world)
    assert _steps(world, name) == ["DeletePod", "DeclareDead", "DeleteClaim"]
    assert all(step.at_once for step in deleted(world, DeletePod))  # type: ignore[attr-defined]
    assert world.brokers[name].status.phase == "Released"


def test_a_disk_is_not_given_up_by_a_taint_while_the_brokers_hear_from_its_process() -> None:
    world = started(nodes=4)
    name = _kubelet_stops(world)
    world.nodes["node1"] = replace(world.nodes["node1"], is_out_of_service=True)
    _passes(world)
    assert world.brokers[name].status.disk_lost is None


def test_what_others_lack_is_given_up_only_in_so_many_words() -> None:
    world = started(nodes=4)
    name, pod = sorted(world.pods.items())[0]
    world.unsafe[pod.broker] = "no other disk holds the whole of segment 3 of partition 7"
    incarnation = world.brokers[name].status.incarnation
    world.delete_pod(name)
    world.annotate(name)
    world.a_pass()
    assert world.brokers[name].status.disk_lost is None
    assert "segment 3 of partition 7" in world.cluster.status.blocked_by
    assert f"seriatim.dev/disk-lost={incarnation}/last-copy" in world.cluster.status.blocked_by
    world.annotate(name, f"{incarnation}/last-copy")
    world.a_pass()
    lost = world.brokers[name].status.disk_lost
    assert lost is not None
    assert "segment 3 of partition 7" in lost.proof


def test_the_run_that_is_certified_is_the_last_one_that_the_pod_had() -> None:
    world = started(nodes=4)
    name = _kubelet_stops(world)
    broker = world.pods[name].broker
    world.unhear(broker)
    world.annotate(name)
    world.a_pass()
    world.members[broker] = replace(world.members[broker], run=2)  # its container started again meanwhile
    world.a_pass()
    lost = world.brokers[name].status.disk_lost
    assert lost is not None
    assert lost.run == 2
    del world.pods[name]
    world.members[broker] = replace(world.members[broker], run=3)  # and this was another process
    world.nodes["node1"] = replace(world.nodes["node1"], is_ready=True)
    world.processes.clear()
    _passes(world)
    assert not deleted(world, DeclareDead)
    assert not deleted(world, DeleteClaim)
    assert "run 3 of" in world.cluster.status.blocked_by


NEGATIVES = {
    "its node is not ready": lambda world: world.lose_node("node1"),
    "another node bears the host name": lambda world: world.nodes.update(
        renamed=replace(world.nodes.pop("node1"), name="renamed")
    ),
    "nodes may not be read": lambda world: world.nodes.clear(),
    "the cluster is paused": lambda world: (world.edit(paused=True), world.delete_node("node1")),
    "its time is not over": lambda world: (world.edit(nodeLossTimeoutSeconds=86400), world.delete_node("node1")),
    "brokers are silent and it is only cordoned": lambda world: (
        setattr(world, "brokers_answer", False),
        _cordon(world, "node1"),
    ),
    "its pod has ended": lambda world: world.pods.update(
        {n: replace(p, is_over=True, is_ready=False) for n, p in list(world.pods.items())[:1]}
    ),
    "the storage class is gone": lambda world: setattr(world, "storage_class", None),
}


@pytest.mark.parametrize("name", NEGATIVES)
def test_no_disk_is_given_up_without_proof(name: str) -> None:
    world = started()
    NEGATIVES[name](world)
    _passes(world, 150)
    assert not deleted(world, DeleteClaim)
    assert not any(b.status.disk_lost for b in world.brokers.values())


def _cordon(world: World, node: str) -> None:
    world.nodes[node] = replace(world.nodes[node], is_leaving=True)


def test_a_rolling_change_restarts_one_member_at_a_time_behind_the_gate() -> None:
    world = started()
    world.edit(image="seriatim.dev/broker:next")
    low = 6
    for _ in range(120):
        world.a_pass()
        low = min(low, sum(p.is_ready for p in world.pods.values()))
        world.settle()
    assert low == 5
    assert len(deleted(world, DeletePod)) == 6
    assert len({p.template_hash for p in world.pods.values()}) == 1
    assert world.cluster.status.operation is None
    assert world.cluster.status.is_true("Stable")


def test_a_rolling_change_waits_while_the_brokers_say_no() -> None:
    world = started()
    world.unsafe = dict.fromkeys(world.members, "the other copy is not complete")
    world.edit(image="seriatim.dev/broker:next")
    _passes(world, 20)
    assert not deleted(world, DeletePod)
    assert "the other copy is not complete" in world.cluster.status.blocked_by


def test_a_template_that_does_not_work_stops_the_change_at_its_first_member() -> None:
    world = started()
    world.edit(image="seriatim.dev/broker:broken")
    for _ in range(200):
        world.a_pass()
        wanted = world.make().template_hash()
        for name, pod in world.pods.items():
            if pod.template_hash == wanted:
                world.pods[name] = replace(pod, is_ready=False, is_running=False, is_scheduled=True, node="node1")
        ready = [p for p in world.pods.values() if p.is_ready]
        world.now_s += 20
    assert len(ready) == 5
    assert len({a.name for a in deleted(world, DeletePod)}) == 1  # type: ignore[attr-defined]


def test_approval_is_waited_for_and_named() -> None:
    world = started()
    world.edit(image="seriatim.dev/broker:next", changeApproval="Manual")
    world.run(passes=20)
    assert not deleted(world, DeletePod)
    assert [c.action for c in world.cluster.status.planned_changes] == ["Restart"] * 6
    hash_ = world.cluster.status.blocked_by.split("seriatim.dev/approve=")[1].split(" ")[0]
    annotated = world.cluster.metadata.model_copy(update={"annotations": {"seriatim.dev/approve": hash_}})
    world.cluster = world.cluster.model_copy(update={"metadata": annotated})
    world.run()
    assert len(deleted(world, DeletePod)) == 6


def test_a_cordoned_node_is_left_by_the_heads_before_anything_may_be_evicted() -> None:
    world = started()
    _cordon(world, "node1")
    groups = {p.group for p in world.pods.values() if p.node == "node1"}
    world.a_pass()
    assert {g: world.intents[g] for g in groups} == dict.fromkeys(groups, "CORDONED")
    assert set(world.budgets.values()) == {0}, "heads stand there still"
    world.settle()
    world.a_pass()
    assert {g for g, n in world.budgets.items() if n == 1} == groups
    world.nodes["node1"] = replace(world.nodes["node1"], is_leaving=False)
    world.run()
    assert set(world.intents.values()) == {"ACTIVE"}
    assert set(world.budgets.values()) == {0}


def test_a_budget_stays_shut_while_only_one_copy_is_left() -> None:
    world = started()
    _cordon(world, "node1")
    world.unsafe = dict.fromkeys(world.members, "it is the last copy")
    _passes(world, 10)
    assert set(world.budgets.values()) == {0}
    assert "last copy" in world.cluster.status.blocked_by


def test_a_group_that_a_person_drains_is_counted_until_it_is_empty() -> None:
    world = started()
    name, group = next((name, item) for name, item in world.groups.items() if item.spec.group == "g0")
    world.groups[name] = group.model_copy(update={"spec": group.spec.model_copy(update={"state": "Draining"})})
    world.a_pass()
    assert world.intents["g0"] == "DRAINING"
    assert world.groups[name].status.segments == 3
    world.settle()
    world.a_pass()
    assert (world.groups[name].status.heads, world.groups[name].status.segments) == (0, 0)
    assert world.groups[name].status.is_true("Drained")
    assert not deleted(world, DeletePod), "its disks stay until the group is removed"


def test_fewer_groups_are_drained_first_and_removed_when_empty() -> None:
    world = started(groups=4, nodes=4)
    world.edit(groups=2)
    world.a_pass()
    assert world.intents["g3"] == "DRAINING"
    assert not deleted(world, DeletePod)
    world.run()
    assert sorted(world.groups) == ["orders-g0", "orders-g1"]
    assert sorted(world.members) == ["g0-0", "g0-1", "g1-0", "g1-1"]
    assert len(world.claims) == 4
    assert world.cluster.status.is_true("Stable")


def test_a_group_that_does_not_empty_is_kept() -> None:
    world = started(groups=2)
    world.intents["g0"] = "CORDONED"  # no other broker group takes its segments
    world.edit(groups=1)
    for _ in range(50):
        world.a_pass()
        world.intents["g0"] = "CORDONED"
        world.settle()
    assert not deleted(world, DeletePod)
    assert "being drained" in world.cluster.status.blocked_by


def test_more_groups_change_nothing_of_those_that_are() -> None:
    world = started(groups=2, nodes=4)
    before = dict(world.pods)
    world.edit(groups=4)
    world.run()
    assert {name: world.pods[name] for name in before} == before
    assert len(world.pods) == 8


def test_a_container_that_ended_is_certified_with_its_run() -> None:
    world = started()
    name, pod = next(iter(world.pods.items()))
    member = world.members[pod.broker]
    ended = Ended(pod.broker, member.incarnation, member.run, 137, world.now_s, "", "")
    other = Ended(pod.broker, "another disk", member.run, 137, world.now_s, "", "")
    world.pods[name] = replace(pod, is_ready=False, is_running=False, ended=(other,))
    world.a_pass()
    assert not deleted(world, DeclareDead), "what ended was another disk's"
    world.pods[name] = replace(pod, is_ready=False, is_running=False, ended=(ended,))
    world.a_pass()
    assert [(a.broker, a.run) for a in deleted(world, DeclareDead)] == [(pod.broker, member.run)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("found", [None, ClassView("local-nvme", waits_for_consumer=False, can_expand=False)])
def test_a_class_that_will_not_do_starts_nothing(found: ClassView | None) -> None:
    world = new_world()
    world.storage_class = found
    world.run()
    assert not world.claims
    assert not world.pods
    assert world.cluster.status.condition("Degraded").reason.startswith("StorageClass")  # type: ignore[union-attr]


def test_brokers_that_have_a_disk_are_started_without_the_class_too() -> None:
    world = started()
    world.storage_class = None
    name, pod = next(iter(world.pods.items()))
    world.delete_pod(pod.name)
    world.run()
    assert world.pods[name].is_ready


def test_a_new_value_of_the_restart_annotation_restarts_each_broker_once() -> None:
    world = started()
    metadata = world.cluster.metadata.model_copy(update={"annotations": {"seriatim.dev/restart": "2026-01-02"}})
    world.cluster = world.cluster.model_copy(update={"metadata": metadata})
    world.run()
    assert len(deleted(world, DeletePod)) == 6
    assert world.cluster.status.is_true("Stable")
    world.run()
    assert len(deleted(world, DeletePod)) == 6


def _follow(world: World) -> str:
    """Do what the condition advises. Returns the broker group that is placed again; empty if it advises nothing."""
    found = world.degraded()
    advice = re.search(r"kubectl -n shop annotate sgroup (orders-(g\d)) (\S+)=true", found.message)
    if advice is None:
        return ""
    assert advice[3] == ANNOTATION_PLACE_ANEW
    _ask_anew(world, advice[1])
    return advice[2]


def _ask_anew(world: World, name: str, *, is_asked: bool = True) -> None:
    """An administrator annotates a BrokerGroup, or takes the annotation away."""
    world.groups[name] = annotated(world.groups[name], {ANNOTATION_PLACE_ANEW: "true"} if is_asked else {})


@begun_once
def _unspread(**spec: object) -> World:
    """A world whose third node was lost with its disks and came back empty, after two others took its disks."""
    world = started(**spec)
    node = world.nodes["node3"]
    world.delete_node("node3")
    world.a_pass()
    world.now_s += 120
    world.run()
    world.nodes["node3"] = node
    world.run()
    assert {pod.node for pod in world.pods.values()} == {"node1", "node2"}
    world.done.clear()
    world.chains = ChainsView()
    return world


def test_the_spread_after_a_replacement_is_mended_as_the_condition_advises() -> None:
    world = _unspread()
    asked = []
    while group := _follow(world):
        asked.append(group)
        assert len(asked) <= 3, "it must come to an end"
        world.run()
        assert world.cluster.status.is_true("Stable")
        assert len(world.pods) == 6
        assert "orders-" + group in world.groups
    assert len(set(asked)) == 2
    assert world.cluster.status.condition("Degraded").reason == "Healthy"  # type: ignore[union-attr]
    assert {sum(p.node == node for p in world.pods.values()) for node in world.nodes} == {2}


def _pass_for(world: World, seconds: float) -> list[PlaceAnew]:
    """Let time go by, and return what the operator placed again meanwhile."""
    before, until_s = len(world.done), world.now_s + seconds
    while world.now_s < until_s:
        world.a_pass()
        world.settle(max(10, seconds / 100))
    return [action for action in world.done[before:] if isinstance(action, PlaceAnew)]


def _on_nodes(world: World) -> list[int]:
    """How many brokers each node has."""
    return sorted(sum(pod.node == node for pod in world.pods.values()) for node in world.nodes)


def test_the_operator_mends_the_spread_by_itself_if_the_spec_says_so() -> None:
    world = _unspread(spreadMending="Automatic")
    assert not _pass_for(world, SPREAD_QUIET_S - 60)
    found = world.degraded()
    assert "the operator empties g0" in found.message
    assert ANNOTATION_PLACE_ANEW not in found.message
    (first,) = _pass_for(world, 1_800)
    assert world.cluster.status.is_true("Stable")
    assert _on_nodes(world) == [1, 2, 3]
    found = world.degraded()
    assert ", not before 20" in found.message, "one in an hour"
    (second,) = _pass_for(world, 3_600)
    assert first.object != second.object
    assert _on_nodes(world) == [2, 2, 2]
    assert not _pass_for(world, 2 * PAUSE_IF_USELESS_S)
    assert world.cluster.status.condition("Degraded").reason == "Healthy"  # type: ignore[union-attr]


def test_the_spread_is_not_mended_again_soon_if_that_did_not_help() -> None:
    world = _unspread(spreadMending="Automatic")
    record = Mending(datetime.fromtimestamp(world.now_s, UTC), unevenness(world.observed()), PAUSE_IF_USELESS_S)
    world.cluster = annotated(world.cluster, {ANNOTATION_SPREAD_MENDED: record.to_text()})
    assert not _pass_for(world, PAUSE_IF_USELESS_S - 60)
    assert _pass_for(world, 120)


def test_mending_that_never_helps_becomes_rare() -> None:
    world = _unspread(spreadMending="Automatic")
    world.shunned = {"node3"}
    mendings = [len(_pass_for(world, PAUSE_IF_USELESS_S)) for _ in range(8)]
    assert [day for day, count in enumerate(mendings) for _ in range(count)] == [0, 1, 3, 7]


def test_an_operator_that_died_before_it_asked_waits_a_day_unless_a_person_removes_its_record() -> None:
    world = _unspread(spreadMending="Automatic")
    _pass_for(world, SPREAD_QUIET_S - 60)
    before = dict(world.groups)
    (mending,) = _pass_for(world, 120)
    world.groups = before
    world.intents.clear()
    assert ANNOTATION_SPREAD_MENDED in world.cluster.metadata.annotations
    assert not _pass_for(world, PAUSE_IF_USELESS_S - 900)
    world.cluster = annotated(world.cluster, {})
    (again,) = _pass_for(world, 120)
    assert again.object == mending.object


@pytest.mark.parametrize(
    "written",
    [
        "",
        "soon",
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T00:00:00+00:00 many 86400",
        "2026-01-01T00:00:00+00:00 18 1e400",
        "2026-01-01T00:00:00+00:00 18 nan",
        "9999-12-31T23:59:59+00:00 18 86400",
        "0001-01-01T00:00:00+14:00 18 86400",
    ],
)
def test_what_people_write_into_the_record_of_mending_holds_up_nothing(written: str) -> None:
    world = _unspread(spreadMending="Automatic")
    world.cluster = annotated(world.cluster, {ANNOTATION_SPREAD_MENDED: written})
    assert _pass_for(world, 900)


def _by_hand(world: World) -> None:
    world.edit(spreadMending="Manual")


def _cordon_node(world: World) -> None:
    world.nodes["node3"] = replace(world.nodes["node3"], is_leaving=True)


def _cordon_group(world: World) -> None:
    name, item = min(world.groups.items())
    world.groups[name] = item.model_copy(update={"spec": item.spec.model_copy(update={"state": "Cordoned"})})


def _behind(world: World) -> None:
    world.chains = ChainsView(troubles={"CatchingUp": 1}, named={"CatchingUp": ("a",)})


def _unknown_chains(world: World) -> None:
    world.chains = None


def _silent_brokers(world: World) -> None:
    world.brokers_answer = False


def _fill_disk(world: World) -> None:
    name = min(world.members)
    world.members[name] = replace(world.members[name], disk_state="full")


def _stop_pod(world: World) -> None:
    world.stop_kubelet("node1")


def _pause(world: World) -> None:
    world.edit(paused=True)


@pytest.mark.parametrize(
    "change",
    [_by_hand, _cordon_node, _cordon_group, _behind, _unknown_chains, _silent_brokers, _fill_disk, _stop_pod, _pause],
)
def test_the_spread_is_not_mended_while_anything_else_is_wrong(change: Callable[[World], None]) -> None:
    world = _unspread(spreadMending="Automatic")
    change(world)
    assert not _pass_for(world, 2 * SPREAD_QUIET_S)


@pytest.mark.parametrize("mending", ["Automatic", "Manual"])
def test_a_broker_group_whose_object_was_deleted_is_made_again_also_if_it_should_be_placed_anew(mending: str) -> None:
    world = _unspread(spreadMending=mending)
    _pass_for(world, SPREAD_QUIET_S - 60)
    del world.groups["orders-g0"]
    world.settle(120)
    world.a_pass()
    assert "orders-g0" in world.groups


NODE = NodeView("node3", "host3", True, False, False, labels={"disk": "nvme", "cores": "8"})
TAINTED = replace(NODE, taints=(Taint("dedicated", "web", "NoSchedule"),))


def _required(operator: str, key: str, *values: str) -> dict[str, object]:
    term = {"matchExpressions": [{"key": key, "operator": operator, **({"values": [*values]} if values else {})}]}
    required = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("node", "template", "takes"),
    [
        (NODE, {}, True),
        (TAINTED, {}, False),
        (replace(NODE, taints=(Taint("dedicated", "web", "PreferNoSchedule"),)), {}, True),
        (TAINTED, {"tolerations": [{"operator": "Exists"}]}, True),
        (TAINTED, {"tolerations": [{"key": "dedicated", "value": "web"}]}, True),
        (TAINTED, {"tolerations": [{"key": "dedicated", "value": "db"}]}, False),
        (TAINTED, {"tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}]}, False),
        (NODE, {"nodeSelector": {"disk": "nvme"}}, True),
        (NODE, {"nodeSelector": {"disk": "hdd"}}, False),
        (NODE, _required("In", "disk", "hdd", "nvme"), True),
        (NODE, _required("In", "disk", "hdd"), False),
        (NODE, _required("NotIn", "disk", "nvme"), False),
        (NODE, _required("NotIn", "zone", "a"), True),
        (NODE, _required("Exists", "zone"), False),
        (NODE, _required("DoesNotExist", "zone"), True),
        (NODE, _required("Gt", "cores", "4"), True),
        (NODE, _required("Lt", "cores", "4"), False),
        (NODE, _required("Gt", "disk", "4"), False),
        (replace(NODE, is_ready=False), {}, False),
        (replace(NODE, is_leaving=True), {}, False),
    ],
)
def test_a_node_takes_brokers_if_kubernetes_may_choose_it(
    node: NodeView, template: dict[str, object], takes: bool
) -> None:
    assert takes_brokers(node, new_world(podTemplate=template).cluster.spec.pod_template) == takes


def test_the_spread_is_not_mended_if_only_nodes_that_take_no_brokers_have_few() -> None:
    world = _unspread(spreadMending="Automatic")
    world.nodes["node3"] = replace(world.nodes["node3"], taints=TAINTED.taints)
    assert not _pass_for(world, 3 * PAUSE_IF_USELESS_S)
    found = world.degraded()
    assert found.message.endswith("add broker groups, or nodes for them")


def test_a_group_that_is_placed_anew_keeps_its_disks_until_it_is_empty() -> None:
    world = _unspread()
    group = _follow(world)
    others = {pod.group for pod in world.pods.values()} - {group}
    world.a_pass()
    assert world.intents[group] == "DRAINING"
    assert {world.intents.get(name, "ACTIVE") for name in others} == {"ACTIVE"}
    assert not deleted(world, DeletePod)
    assert not deleted(world, DeleteClaim)
    assert world.segments[group]
    _ask_anew(world, f"orders-{group}", is_asked=False)
    world.a_pass()
    assert world.intents[group] == "ACTIVE", "an administrator may call it off"


def test_two_groups_are_not_placed_anew_at_once() -> None:
    world = _unspread()
    for name in ("orders-g1", "orders-g2"):
        _ask_anew(world, name)
    world.a_pass()
    assert {name for name, intent in world.intents.items() if intent == "DRAINING"} == {"g1"}
    world.run()
    assert world.cluster.status.is_true("Stable")
    assert len(world.pods) == 6


def test_a_removal_under_way_is_ended_before_a_newer_group_leaves() -> None:
    world = started(nodes=5)
    _ask_anew(world, "orders-g0")
    while world.cluster.status.operation is None:
        world.a_pass()
        world.settle()
    assert world.cluster.status.operation.object == "g0"
    world.edit(groups=2)
    _until_stable(world)
    assert {broker.split("-")[0] for broker in world.members} == {"g0", "g1"}


def test_the_only_group_is_not_placed_anew() -> None:
    world = started()
    _ask_anew(world, "orders-g0")
    world.a_pass()
    assert world.intents["g0"] == "DRAINING"
    world.edit(groups=1)
    world.run()
    assert world.cluster.status.is_true("Stable"), "no other broker group could take its segments"
    assert {broker.split("-")[0] for broker in world.members} == {"g0"}


BAD = {"heal_after": "90"}


@begun_once
def with_bad_settings(**spec: object) -> World:
    world = started(**spec)
    world.edit(settings=BAD)
    world.run()
    return world


def test_bad_settings_are_told_with_the_remedy_and_nothing_is_restarted() -> None:
    world = started()
    pods = dict(world.pods)
    world.edit(settings=BAD, image="seriatim.dev/broker:next")
    world.run()
    assert world.pods == pods
    assert not deleted(world, DeletePod)
    assert world.cluster.status.planned_changes == ()
    found = world.degraded()
    assert (found.status, found.reason) == ("True", "SettingsInvalid")
    assert "the nearest is 'heal_after_s': correct spec.settings" in found.message
    assert world.cluster.status.is_true("Ready")
    world.edit(settings={"heal_after_s": "90"})
    world.run()
    assert len(deleted(world, DeletePod)) == 6
    assert world.cluster.status.is_true("Stable")


def test_under_bad_settings_brokers_are_started_with_the_last_good_ones() -> None:
    world = started(settings={"stop_deadline_s": "13", "log_level": "debug"})
    world.edit(settings={"stop_deadline_s": "13", "heal_after": "90"})
    world.run()
    file, hashes = world.settings_file, {pod.template_hash for pod in world.pods.values()}
    name, pod = next(iter(world.pods.items()))
    ended = next(other for other in world.pods.values() if other.group != pod.group)
    world.delete_pod(pod.name)
    world.pods[ended.name] = replace(ended, is_over=True, is_ready=False)
    world.run()
    assert world.pods[name].is_ready
    assert world.pods[ended.name].is_ready
    assert world.settings_file == file
    assert 'log_level = "debug"' in file
    assert world.grace_s[name] == 40
    assert {pod.template_hash for pod in world.pods.values()} == hashes
    found = world.degraded()
    assert (found.status, found.reason) == ("True", "SettingsInvalid")
    assert "the last good settings stay in force" in found.message
    world.done.clear()
    world.edit(settings={"stop_deadline_s": "13", "log_level": "debug"})
    world.run()
    assert world.cluster.status.is_true("Stable")
    assert not deleted(world, DeletePod), "the settings are those that the brokers have"


def test_a_cluster_that_never_had_good_settings_starts_no_broker() -> None:
    world = new_world(settings=BAD)
    world.run()
    assert not world.pods
    found = world.degraded()
    assert "no broker is started, because none was ever given good settings" in found.message
    world.edit(settings={})
    world.run()
    assert world.cluster.status.is_true("Stable")


def test_under_bad_settings_what_is_shared_is_made_still() -> None:
    world = new_world(settings=BAD)
    world.run()
    kinds = {a.about.split()[0] for a in deleted(world, Apply)}  # type: ignore[attr-defined]
    assert {"Service", "NetworkPolicy", "ServiceAccount", "BrokerGroup", "PodDisruptionBudget"} <= kinds
    assert not {"Pod", "ConfigMap"} & kinds


def test_under_bad_settings_a_run_that_ended_is_certified() -> None:
    world = with_bad_settings()
    name, pod = next(iter(world.pods.items()))
    member = world.members[pod.broker]
    ended = Ended(pod.broker, member.incarnation, member.run, 137, world.now_s, "", "")
    world.pods[name] = replace(pod, is_ready=False, is_running=False, ended=(ended,))
    world.a_pass()
    assert [(a.broker, a.run) for a in deleted(world, DeclareDead)] == [(pod.broker, member.run)]  # type: ignore[attr-defined]


def test_under_bad_settings_a_lost_disk_is_replaced() -> None:
    world = with_bad_settings(nodes=4)
    lost = {p.name for p in world.pods.values() if p.node == "node1"}
    world.delete_node("node1")
    world.a_pass()
    world.now_s += 120
    world.run()
    assert {a.broker for a in deleted(world, DeclareDead)} == {n.removeprefix("orders-")[:4] for n in lost}  # type: ignore[attr-defined]
    assert all(world.brokers[name].status.phase == "Released" for name in lost)
    assert len(world.pods) == 6
    assert world.cluster.status.is_true("Ready")
    world.edit(settings={})
    world.run()
    assert world.cluster.status.is_true("Stable")


def test_under_bad_settings_a_cordoned_node_is_left_by_the_heads() -> None:
    world = with_bad_settings()
    _cordon(world, "node1")
    world.a_pass()
    groups = {p.group for p in world.pods.values() if p.node == "node1"}
    assert {g: world.intents[g] for g in groups} == dict.fromkeys(groups, "CORDONED")
    world.settle()
    world.a_pass()
    assert {g for g, n in world.budgets.items() if n == 1} == groups


def test_settings_that_become_bad_call_a_rolling_change_off() -> None:
    world = started()
    world.edit(image="seriatim.dev/broker:next")
    world.a_pass()
    assert world.cluster.status.operation is not None
    world.edit(settings=BAD)
    world.run()
    assert world.cluster.status.operation is None, "what is called off must not hold up a lost disk"
    assert not deleted(world, DeletePod)


def test_a_member_that_recovers_before_its_restart_keeps_its_turn() -> None:
    world = started(nodes=5)
    world.edit(image="seriatim.dev/broker:1")
    world.lose_node("node3")
    while world.cluster.status.operation is None:
        world.a_pass()
    operation = world.cluster.status.operation
    assert world.pods[operation.object].node == "node3", "the broken one comes first"
    world.nodes["node3"] = replace(world.nodes["node3"], is_ready=True)
    world.settle()
    world.run()
    assert world.cluster.status.is_true("Stable"), world.cluster.status


@pytest.mark.parametrize("node", ["node1", "node2", "node3"])
def test_a_disk_that_is_lost_in_a_rolling_change_is_replaced_before_the_change_goes_on(node: str) -> None:
    world = started(nodes=5)
    world.edit(image="seriatim.dev/broker:1")
    world.a_pass()
    world.settle()
    world.delete_node(node)
    _until_stable(world)


def test_disks_that_an_earlier_cluster_object_left_are_taken_back() -> None:
    world = started()
    members = {name: m.incarnation for name, m in world.members.items()}
    world.brokers.clear()
    world.groups.clear()
    world.pods.clear()
    manifest = world.cluster.to_manifest()
    manifest["metadata"]["uid"] = "another-uid"
    manifest.pop("status")
    world.cluster = type(world.cluster).from_manifest(manifest)
    world.run()
    assert {name: m.incarnation for name, m in world.members.items()} == members


@pytest.mark.parametrize("node", ["node1", "node2", "node3"])
def test_a_lost_member_of_a_group_that_leaves_is_not_waited_for(node: str) -> None:
    world = started(nodes=5)
    world.delete_node(node)
    world.edit(groups=1)
    _until_stable(world)
    assert {b.split("-")[0] for b in world.members} == {"g0"}


def _until_stable(world: World) -> None:
    """Judged passes until all rests, or for five minutes of the world's time."""
    for _ in range(150):
        before = world.fingerprint()
        _judged_pass(world, None)
        world.settle(2.0)
        if world.fingerprint() == before and world.cluster.status.is_true("Stable"):
            break
    assert world.cluster.status.is_true("Stable"), world.cluster.status


EVENTS = st.lists(
    st.sampled_from(
        [
            "cordon",
            "uncordon",
            "lose",
            "return",
            "delete",
            "image",
            "nowhere",
            "broken",
            "placement",
            "scale",
            "settings",
            "anew",
            "pod",
            "silence",
            "answer",
            "wait",
            "gate",
            "kubelet",
            "unhear",
            "annotate",
            "force",
        ]
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EVENTS, st.data())
def test_whatever_happens_one_thing_at_a_time_and_then_rest(events: list[str], data: st.DataObject) -> None:
    _live_through(events, data)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EVENTS, st.data())
def test_many_worlds_come_to_rest(events: list[str], data: st.DataObject) -> None:
    _live_through(events, data)


def _live_through(events: list[str], data: st.DataObject) -> None:
    """A world in which these things happen, with passes between them; then all heals, and it must come to rest."""
    world = started(nodes=5, membersPerGroup=data.draw(st.sampled_from((2, 3))))
    world.nowhere, world.broken = {"seriatim.dev/broker:nowhere"}, {"seriatim.dev/broker:broken"}
    gone = 0
    for event in events:
        node = data.draw(st.sampled_from(sorted(world.nodes)))
        if event == "cordon":
            _cordon(world, node)
        elif event == "uncordon":
            world.nodes[node] = replace(world.nodes[node], is_leaving=False)
        elif event == "lose":
            world.lose_node(node)
        elif event == "return":
            world.nodes[node] = replace(world.nodes[node], is_ready=True)
        elif event == "delete" and gone < 1:
            gone += 1
            world.delete_node(node)
        elif event == "image":
            world.edit(image=f"seriatim.dev/broker:{data.draw(st.integers(1, 3))}")
        elif event in ("nowhere", "broken"):
            world.edit(image=f"seriatim.dev/broker:{event}")
        elif event == "placement":
            world.edit(podTemplate={"nodeSelector": {"disk": data.draw(st.sampled_from(("nvme", "none")))}})
            if "none" in str(world.cluster.spec.pod_template.node_selector):
                world.nodeless = {world.make().placement_hash()}
        elif event == "scale":
            world.edit(groups=data.draw(st.integers(1, 4)))
        elif event == "settings":
            world.edit(settings={} if world.cluster.spec.settings else BAD)
        elif event == "anew" and world.groups:
            _ask_anew(world, data.draw(st.sampled_from(sorted(world.groups))))
        elif event == "pod" and world.pods:
            world.delete_pod(data.draw(st.sampled_from(sorted(world.pods))))
        elif event == "kubelet":
            world.stop_kubelet(node)
        elif event == "unhear" and world.members:
            world.unhear(data.draw(st.sampled_from(sorted(world.members))))
        elif event == "annotate" and world.brokers:
            name = data.draw(st.sampled_from(sorted(world.brokers)))
            world.annotate(name, data.draw(st.sampled_from((None, "true"))))
        elif event == "force" and world.pods:
            world.delete_pod(data.draw(st.sampled_from(sorted(world.pods))), by_force=True)
        elif event == "silence":
            world.brokers_answer = False
        elif event == "answer":
            world.brokers_answer = True
        elif event == "gate":
            world.unsafe = dict.fromkeys(world.members, "not now") if not world.unsafe else {}
        elif event == "wait":
            world.now_s += 100
        for _ in range(data.draw(st.integers(0, 5))):
            _judged_pass(world, data)
            world.settle()
    world.brokers_answer, world.unsafe = True, {}
    world.edit(settings={}, image="seriatim.dev/broker:1", podTemplate={})
    for name in world.brokers:
        if world.brokers[name].status.disk_lost is None:
            world.annotate(name, "")
    world.hear_all()
    for name, view in list(world.nodes.items()):
        world.nodes[name] = replace(view, is_ready=True, is_leaving=False)
    _until_stable(world)
    assert {b.split("-")[0] for b in world.members} == {f"g{n}" for n in range(world.cluster.spec.groups)}


def _judged_pass(world: World, data: st.DataObject | None) -> None:
    """One pass, which the operator may not survive; then what it took away is judged."""
    count = len(world.done)
    marked = {name for name, b in world.brokers.items() if b.status.disk_lost}
    stop = data.draw(st.one_of(st.none(), st.integers(0, 25))) if data is not None else None
    plan = world.a_pass(stop_after=stop)
    steps = world.done[count:]
    assert sum(step.is_disruptive for step in steps) <= 1
    assert not world.falsely_certified, "a run that lives was certified to have ended"
    assert not world.deleted_under_process, "a claim went while a process had its disk"
    for step in steps:
        if isinstance(step, DeleteClaim):
            group = step.name.split("-")[1]
            is_drained = group not in {b.split("-")[0] for b in world.members}
            assert step.name in marked or is_drained, step
        if isinstance(step, Apply):
            assert not any(isinstance(a, MarkLost) for a in plan.actions)
