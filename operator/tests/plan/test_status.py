"""What is reported of disks and groups, from a small world."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_operator.plan.actions import Plan
from seriatim_operator.plan.chains import ChainsView
from seriatim_operator.plan.cluster import OPERATION_S
from seriatim_operator.plan.observed import Ended, Observed
from seriatim_operator.status.cluster import (
    DISK_REASONS,
    REPORTED_S,
    broker_group_status,
    broker_status,
    cluster_events,
    cluster_status,
    danger,
    disk_events,
    member_events,
)
from seriatim_operator.status.disk_remedies import disk_remedy
from seriatim_operator.status.reasons import BROKER, CLUSTER, GROUP

from .world import World, begun_once, new_world


@begun_once
def started() -> World:
    world = new_world()
    world.run()
    return world


@pytest.mark.parametrize("error", DISK_REASONS)
def test_a_refused_disk_is_named_with_what_to_do_about_it_on_kubernetes(error: str) -> None:
    world = started()
    name, pod = next(iter(sorted(world.pods.items())))
    ended = Ended(
        pod.broker, "", 0, 2, world.now_s, error, "the directory is not this one's. Remedy: start with --replace-disk"
    )
    world.pods[name] = replace(pod, is_ready=False, is_running=False, ended=(ended,))
    status = broker_status(world.observed(), world.brokers[name], Plan())
    found = status.condition("DiskHealthy")
    assert found is not None
    assert (found.status, found.reason) == ("False", DISK_REASONS[error])
    assert found.reason in BROKER["DiskHealthy"]
    assert "the directory is not this one's." in found.message
    assert found.message.endswith(disk_remedy(world.brokers[name], found.reason))
    assert "--replace-disk" not in found.message


def test_a_wiped_disk_has_one_remedy_and_the_right_one_comes_first() -> None:
    world = started()
    broker = world.brokers[min(world.brokers)]
    remedy = disk_remedy(broker, "WipedDisk")
    incarnation = broker.status.incarnation
    assert incarnation
    assert remedy.startswith(
        f"kubectl -n {broker.namespace} annotate sbroker {broker.name} seriatim.dev/disk-lost={incarnation}: "
    )


def test_brokers_that_wait_for_etcd_make_the_cluster_say_so() -> None:
    world = started()
    for name, pod in list(world.pods.items()):
        world.pods[name] = replace(pod, is_ready=False, says=f"{pod.broker} waits for the coordinator at etcd:2379")
    found = cluster_status(replace(world.observed(), members=None), Plan(), "", "").condition("Degraded")
    assert found is not None
    assert (found.status, found.reason) == ("True", "EtcdUnreachable")
    assert found.reason in CLUSTER["Degraded"]
    assert "etcd:2379" in found.message
    assert "spec.etcd.endpoints" in found.message


def test_one_broker_that_waits_for_etcd_beside_others_is_no_fault_of_etcd() -> None:
    world = started()
    name, pod = min(world.pods.items())
    world.pods[name] = replace(pod, is_ready=False, says=f"{pod.broker} waits for the coordinator at etcd:2379")
    found = cluster_status(world.observed(), Plan(), "", "").condition("Degraded")
    assert found is not None
    assert found.reason == "MembersAway"


def test_a_roll_that_waits_for_an_image_says_so_and_says_one_thing_between_two_tries() -> None:
    world = started()
    world.edit(image="seriatim.dev/broker:nowhere")
    while not (missing := [name for name, pod in world.pods.items() if not pod.is_ready]):
        world.a_pass()
    said = set()
    for reason in ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"):
        world.pods[missing[0]] = replace(world.pods[missing[0]], is_scheduled=True, node="node1", waiting=reason)
        world.a_pass()
        progressing = world.cluster.status.condition("Progressing")
        ready = world.brokers[missing[0]].status.condition("Ready")
        assert progressing is not None
        assert ready is not None
        said.add((progressing.reason, progressing.message, ready.message))
    ((reason, message, of_broker),) = said
    assert reason == "Operating"
    assert f"pod {missing[0]} is not ready: its image cannot be pulled (seriatim.dev/broker:nowhere)" in message
    assert f"kubectl describe pod {missing[0]}" in of_broker
    for _ in range(3):
        world.now_s += OPERATION_S  # the operation ends; what it waited for stays
        world.a_pass()
        progressing = world.cluster.status.condition("Progressing")
        assert progressing is not None
        assert "its image cannot be pulled" in progressing.message, progressing


def test_a_drain_that_is_held_up_says_what_it_waits_for() -> None:
    world = started()
    members = world.observed(counts=True).members
    assert members is not None
    held = replace(world.observed(), members={**members, "g1": replace(members["g1"], waits_for="g0-1 is away")})
    held.members["g1"] = replace(held.members["g1"], open_segments=0, segments=3, intent="DRAINING")  # type: ignore[index]
    item = world.groups["orders-g1"]

    def drained(observed: Observed) -> tuple[str, str, str]:
        nonlocal item
        item = item.model_copy(update={"status": broker_group_status(observed, item)})
        found = item.status.condition("Drained")
        assert found is not None
        assert found.reason in GROUP["Drained"]
        return found.status, found.reason, found.message

    told = ("False", "HeldUp", "g0-1 is away")
    assert drained(held) == told
    uncounted = replace(held.members["g1"], open_segments=None, segments=None, waits_for="")  # type: ignore[index]
    assert drained(replace(held, members={"g1": uncounted})) == told, "no broker counted: it is as it was"
    assert drained(replace(held, members=None)) == told, "no broker answers"
    called_off = replace(uncounted, intent="ACTIVE")
    assert drained(replace(held, members={"g1": called_off})) == (
        "False",
        "HoldsData",
        GROUP["Drained"]["HoldsData"],
    )


def test_a_machine_that_holds_a_member_of_every_group_is_named_and_is_no_fault() -> None:
    world = new_world(groups=2, nodes=2)
    world.run()
    found = world.degraded()
    assert (found.status, found.reason) == ("False", "OneMachineHoldsAll")
    assert world.cluster.status.is_true("Stable")
    assert started().cluster.status.condition("Degraded").reason == "Healthy"  # type: ignore[union-attr]


def test_an_operator_that_acts_reports_at_least_every_minute() -> None:
    world = started()
    first = world.cluster.status
    assert first.reported_at is not None
    for passed_s, is_new in ((REPORTED_S - 1, False), (REPORTED_S, True)):
        observed = replace(world.observed(), now_s=first.reported_at.timestamp() + passed_s)
        later = cluster_status(observed, Plan(), "", "")
        assert (later.reported_at != first.reported_at) == is_new
        assert later.conditions == first.conditions


def test_a_member_that_dies_is_an_event_on_the_cluster_and_so_is_its_return() -> None:
    world = started()
    item = world.groups["orders-g0"]
    whole = item.model_copy(update={"status": broker_group_status(world.observed(), item)})
    assert member_events(world.observed(), whole, whole.status) == []
    world.members["g0-1"] = replace(world.members["g0-1"], is_live=False)
    broken = broker_group_status(world.observed(), whole)
    (event,) = member_events(world.observed(), whole, broken)
    assert (event.type, event.reason) == ("Warning", "MemberAway")
    assert "of broker group g0 does not answer" in event.note
    assert whole.status.members[1].broker in event.note
    assert whole.status.members[0].broker not in event.note
    world.members["g0-1"] = replace(world.members["g0-1"], is_live=True)
    back = whole.model_copy(update={"status": broken})
    (event,) = member_events(world.observed(), back, whole.status)
    assert (event.type, event.reason) == ("Normal", "MembersBack")


def test_a_member_whose_kubelet_is_silent_is_not_said_to_start() -> None:
    world = started()
    name, pod = min(world.pods.items())
    world.pods[name] = replace(pod, is_ready=False)
    observed = world.observed()

    def reason(observed: Observed) -> str:
        found = broker_status(observed, observed.brokers[name], Plan()).condition("Ready")
        assert found is not None
        assert found.reason in BROKER["Ready"]
        return found.reason

    assert reason(observed) == "Starting"
    silent = {n: replace(view, is_ready=view.name != pod.node) for n, view in observed.nodes.items()}
    assert reason(replace(observed, nodes=silent)) == "NodeSilent"


def test_a_danger_is_an_event_once_and_so_is_its_end() -> None:
    world = started()
    well = cluster_status(world.observed(), Plan(), "", "")
    weak = cluster_status(replace(world.observed(), chains=WEAK), Plan(), "", "")
    assert [(event.type, event.reason) for event in cluster_events(well, weak, "")] == [("Warning", "CopiesAway")]
    assert cluster_events(weak, weak, "CopiesAway") == []
    back = cluster_status(replace(world.observed(), chains=BACK), Plan(), "", "")
    assert cluster_events(well, back, "") == [], "a moment after each switch is like that"
    assert cluster_events(back, well, "") == [], "there was no Warning"
    assert [(event.reason, event.note) for event in cluster_events(back, well, danger(weak))] == [
        ("Recovered", "no longer: CopiesAway")
    ]
    assert (danger(well), danger(weak), danger(back)) == ("", "CopiesAway", "")


WEAK = ChainsView(troubles={"CopyAway": 5}, named={"CopyAway": ("a", "b", "c")})
BACK = ChainsView(troubles={"CatchingUp": 1}, named={"CatchingUp": ("a",)})
STUCK = ChainsView(troubles={"Unreachable": 1, "OneCopy": 1}, named={"Unreachable": ("a",), "OneCopy": ("b",)})


def test_a_cluster_whose_topics_are_in_danger_is_degraded() -> None:
    world = started()
    for chains, reason, texts in (
        (WEAK, "CopiesAway", ["topics a, b, c and 2 more"]),
        (BACK, "CatchingUp", ["one broker surely has the ends of segments of topic a: another copies them"]),
        (STUCK, "SegmentsUnreachable", ["topic a answers: consumers wait there", "topic b have one copy left"]),
    ):
        status = cluster_status(replace(world.observed(), chains=chains), Plan(), "", "")
        found = status.condition("Degraded")
        assert found is not None
        assert (found.status, found.reason) == ("True", reason)
        assert found.reason in CLUSTER["Degraded"]
        assert all(text in found.message for text in texts)
        assert not status.is_true("Stable")


def test_a_member_that_is_away_comes_before_a_weak_copy_and_after_consumers_that_wait() -> None:
    world = started()
    name, pod = min(world.pods.items())
    world.pods[name] = replace(pod, is_ready=False)

    def reason(chains: ChainsView) -> str:
        found = cluster_status(replace(world.observed(), chains=chains), Plan(), "", "").condition("Degraded")
        assert found is not None
        assert name in found.message
        return found.reason

    assert (reason(WEAK), reason(STUCK)) == ("MembersAway", "SegmentsUnreachable")


def test_an_etcd_that_is_silent_while_brokers_serve_is_a_condition() -> None:
    world = started()
    observed = replace(world.observed(), members=None, is_etcd_silent=True)
    found = cluster_status(observed, Plan(), "", "").condition("Degraded")
    assert found is not None
    assert (found.status, found.reason) == ("True", "EtcdSilent")
    assert found.reason in CLUSTER["Degraded"]
    assert "messages continue, and nothing can fail over" in found.message
    whole = broker_group_status(observed, world.groups["orders-g0"]).condition("Whole")
    assert whole is not None
    assert (whole.status, whole.reason, whole.message) == ("Unknown", "NotTold", "etcd does not answer the brokers")


def test_heads_segments_and_roles_come_from_the_chains() -> None:
    world = started()
    chains = ChainsView(open_segments={"g0": 2}, masters={"g0-1": 2}, segments={"g0-0": 7, "g0-1": 8, "g1-0": 1})
    observed = replace(world.observed(), chains=chains)
    status = broker_group_status(observed, world.groups["orders-g0"])
    assert (status.heads, status.segments) == (2, 8)
    assert [member.role for member in status.members] == ["Slave", "Master"]
    drained = status.condition("Drained")
    assert drained is not None
    assert (drained.status, drained.reason) == ("False", "HoldsData")
    empty = broker_group_status(observed, world.groups["orders-g2"])
    assert (empty.heads, empty.segments) == (0, 0)
    assert [member.role for member in empty.members] == ["Slave", "Slave"]


def test_only_the_count_of_the_brokers_proves_that_a_broker_group_is_empty() -> None:
    world = started()
    item = world.groups["orders-g0"]
    observed = replace(world.observed(), chains=ChainsView())
    found = broker_group_status(observed, item).condition("Drained")
    assert found is not None
    assert (found.status, found.reason) == ("Unknown", "NotCounted")
    leaving = item.model_copy(update={"spec": item.spec.model_copy(update={"state": "Draining"})})
    found = broker_group_status(observed, leaving).condition("Drained")
    assert found is not None
    assert found.status != "True"


def test_a_group_names_all_its_members_in_one_text() -> None:
    world = started()
    members = sorted((p for p in world.pods.values() if p.group == "g0"), key=lambda p: p.slot)
    status = world.groups["orders-g0"].status
    assert status.brokers == f"{members[0].name},{members[1].name}"
    assert status.nodes == f"{members[0].node},{members[1].node}"
    world.pods[members[0].name] = replace(members[0], node="")
    world.a_pass()
    assert world.groups["orders-g0"].status.nodes == f"-,{members[1].node}"


def test_a_group_whose_members_are_live_and_not_linked_is_not_whole() -> None:
    world = started()
    whole = broker_group_status(world.observed(), world.groups["orders-g0"]).condition("Whole")
    assert whole is not None
    assert (whole.status, whole.reason) == ("True", "AllThere")
    world.members["g0-1"] = replace(world.members["g0-1"], unlinked=("g0-0",))
    whole = broker_group_status(world.observed(), world.groups["orders-g0"]).condition("Whole")
    assert whole is not None
    assert (whole.status, whole.reason) == ("False", "NotLinked")
    assert whole.reason in GROUP["Whole"]
    assert "g0-1 has no link to g0-0" in whole.message


GONE = 'MountVolume failed for volume "{}" : path "/mnt/disk-1" does not exist'


def unmounted(world: World, name: str) -> None:
    """The pod is made again, and its kubelet cannot mount its volume."""
    words = GONE.format(world.claims[name].volume)
    world.pods[name] = replace(world.pods[name], is_ready=False, is_running=False, ended=(), mount_fails=words)


@pytest.mark.parametrize(("uid", "reason"), [("other", "NodeReplaced"), ("first", "MountFailed")])
def test_a_volume_that_cannot_be_mounted_is_told_with_what_to_annotate(uid: str, reason: str) -> None:
    world = new_world()
    world.nodes = {name: replace(node, uid="first") for name, node in world.nodes.items()}
    world.run()
    name = min(world.pods)
    assert world.brokers[name].status.node_uid == "first"
    node = world.pods[name].node
    world.nodes[node] = replace(world.nodes[node], uid=uid)
    unmounted(world, name)
    broker = world.brokers[name]
    status = broker_status(world.observed(), broker, Plan())
    found = status.condition("DiskHealthy")
    assert found is not None
    assert (found.status, found.reason) == ("False", reason)
    assert found.reason in BROKER["DiskHealthy"]
    assert "does not exist" in found.message
    assert f"annotate sbroker {name} seriatim.dev/disk-lost={broker.status.incarnation}" in found.message
    assert status.node_uid == "first", "until it serves on the other one"
    (event,) = disk_events(broker, status)
    assert (event.type, event.reason) == ("Warning", reason)
    assert name in event.note
    assert disk_events(broker.model_copy(update={"status": status}), status) == []


def test_another_volume_that_cannot_be_mounted_says_nothing_of_the_disk() -> None:
    world = started()
    name = min(world.pods)
    unmounted(world, name)
    world.pods[name] = replace(world.pods[name], mount_fails='volume "config": configmap "orders" not found')
    status = broker_status(world.observed(), world.brokers[name], Plan())
    assert status.is_true("DiskHealthy")
    ready = status.condition("Ready")
    assert ready is not None
    assert "configmap" in ready.message


def test_a_person_gives_up_a_disk_that_cannot_be_mounted() -> None:
    world = started()
    name = min(world.pods)
    broker = world.pods[name].broker
    world._end(broker)
    unmounted(world, name)
    world.a_pass()
    assert world.brokers[name].status.disk_lost is None, "the words of a kubelet prove nothing"
    world.annotate(name)
    world.run()
    assert world.brokers[name].status.released is not None
    assert any(pod.broker == broker and pod.is_ready for pod in world.pods.values())
