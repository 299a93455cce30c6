"""Specs that were wrong, and are corrected: the cluster heals without a hand, and nothing that serves is given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from seriatim_operator.plan.absence import WAITS_S
from seriatim_operator.plan.actions import DeleteClaim, DeletePod
from seriatim_operator.plan.cluster import OPERATION_S
from seriatim_operator.plan.observed import ANNOTATION_PLACE_ANEW
from seriatim_operator.plan.rolling import ANNOTATION_APPROVE
from seriatim_operator.resources.names import FORMER

from .world import World, annotated, begun_once, new_world

NOWHERE, BROKEN, BETTER = (f"seriatim.dev/broker:{word}" for word in ("nowhere", "broken", "better"))
HEALED_PASSES = 30
"""Passes of one second each: this long may it take until all serve after a correction."""


def _world(**spec: object) -> World:
    """A cluster that no operator has seen, with images that do not work."""
    world = new_world(**spec)  # type: ignore[arg-type]
    world.nowhere, world.broken = {NOWHERE}, {BROKEN}
    return world


@begun_once
def _serving(**spec: object) -> World:
    world = _world(**spec)
    world.run()
    world.done.clear()
    return world


def _passes(world: World, count: int) -> None:
    for _ in range(count):
        world.a_pass()
        world.settle()


def _ready(world: World) -> int:
    return sum(pod.is_ready for pod in world.pods.values())


def _stopped(image: str, **spec: object) -> tuple[World, str]:
    """A rolling change that stands at its first member, and that member."""
    world = _serving(**spec)
    world.edit(image=image)
    _passes(world, 10)
    ((name, _),) = [item for item in world.pods.items() if not item[1].is_ready]
    return world, name


@pytest.mark.parametrize("image", [NOWHERE, BROKEN])
def test_a_wrong_image_of_a_new_cluster_is_corrected(image: str) -> None:
    world = _world(image=image)
    _passes(world, 20)
    assert _ready(world) == 0
    world.edit(image=BETTER)
    _passes(world, HEALED_PASSES)
    assert _ready(world) == 6
    assert world.cluster.status.is_true("Stable")
    assert len({action.name for action in world.done if isinstance(action, DeletePod)}) == 6
    assert sum(isinstance(action, DeletePod) for action in world.done) == 6, "each once"


@pytest.mark.parametrize("image", [NOWHERE, BROKEN])
@pytest.mark.parametrize("is_beside", [True, False])
def test_a_member_lost_in_a_stopped_roll_comes_back_with_the_image_that_worked(image: str, is_beside: bool) -> None:
    world, stands = _stopped(image)
    group = world.pods[stands].group
    lost = next(name for name, pod in world.pods.items() if pod.is_ready and (pod.group == group) is is_beside)
    before = world.pods[lost].image
    world.delete_pod(lost)
    deletions = sum(isinstance(action, DeletePod) for action in world.done)
    _passes(world, 10)
    assert world.pods[lost].is_ready
    assert world.pods[lost].image == before
    assert sum(isinstance(action, DeletePod) for action in world.done) == deletions, "it is left alone"
    world.edit(image=BETTER)
    _passes(world, HEALED_PASSES)
    assert {pod.image for pod in world.pods.values() if pod.is_ready} == {BETTER}
    assert world.cluster.status.is_true("Stable")


def test_a_member_that_waits_with_the_former_image_is_not_given_the_image_that_does_not_work() -> None:
    world, stands = _stopped(BROKEN)
    lost = next(name for name, pod in world.pods.items() if pod.is_ready)
    world.delete_pod(lost)
    world.nodes = {name: replace(node, is_ready=False) for name, node in world.nodes.items()}
    _passes(world, 10)
    world.now_s += OPERATION_S
    _passes(world, 10)
    assert not world.pods[lost].is_ready
    assert world.pods[lost].template_hash.startswith(FORMER)
    world.nodes = {name: replace(node, is_ready=True) for name, node in world.nodes.items()}
    _passes(world, 5)
    assert [name for name, pod in world.pods.items() if not pod.is_ready] == [stands]


def test_two_members_that_a_wrong_setting_of_pods_keeps_from_starting_are_corrected() -> None:
    world = _serving()
    was = {name: pod.image for name, pod in world.pods.items()}
    world.broken = set(was.values())  # such as a limit of memory that is too small: the image is the same
    world.edit(podTemplate={"env": [{"name": "WRONG", "value": "1"}]})
    _passes(world, 10)
    world.delete_pod(next(name for name, pod in world.pods.items() if pod.is_ready))
    _passes(world, 10)
    assert _ready(world) == 4
    world.broken = {"with the wrong setting"}
    for name, pod in world.pods.items():
        world.pods[name] = pod if pod.is_ready else replace(pod, image="with the wrong setting")
    world.edit(podTemplate={"env": [{"name": "RIGHT", "value": "1"}]})
    _passes(world, HEALED_PASSES)
    assert _ready(world) == 6


def test_a_disk_replaced_in_a_stopped_roll_serves_with_the_image_that_worked() -> None:
    world, stands = _stopped(BROKEN, nodes=5)
    node = next(pod.node for pod in world.pods.values() if pod.is_ready and pod.node != world.pods[stands].node)
    before = set(world.brokers)
    world.delete_node(node)
    _passes(world, 5)
    world.now_s += 1000.0
    _passes(world, 60)
    new = set(world.brokers) - before
    assert new
    assert all(world.pods[name].is_ready for name in new)
    assert _ready(world) == 5


def test_a_group_that_leaves_is_not_held_up_by_a_stopped_roll_of_its_member() -> None:
    world, stands = _stopped(NOWHERE)
    group = world.pods[stands].group
    world.groups[f"orders-{group}"] = annotated(world.groups[f"orders-{group}"], {ANNOTATION_PLACE_ANEW: "true"})
    _passes(world, 15)
    assert stands in {action.name for action in world.done if isinstance(action, DeleteClaim)}, "the group was removed"
    world.edit(image=BETTER)
    _passes(world, 2 * HEALED_PASSES)
    assert _ready(world) == 6


def test_an_image_that_worked_and_is_gone_is_corrected() -> None:
    world = _serving()
    world.nowhere |= {pod.image for pod in world.pods.values()}
    for name in list(world.pods):
        world.delete_pod(name)
    _passes(world, 5)
    world.edit(image=BETTER)
    _passes(world, HEALED_PASSES)
    assert _ready(world) == 6


def test_a_corrected_image_needs_an_approval_only_where_a_member_served() -> None:
    world = _world(image=NOWHERE, changeApproval="Manual")
    _passes(world, 5)
    world.edit(image=BETTER)
    _passes(world, HEALED_PASSES)
    assert _ready(world) == 6
    world.edit(image=BROKEN)
    _passes(world, 5)
    assert _ready(world) == 6
    approved = world.cluster.status.blocked_by.partition(f"{ANNOTATION_APPROVE}=")[2].split()[0]
    world.cluster = annotated(world.cluster, {ANNOTATION_APPROVE: approved})
    _passes(world, 10)
    assert _ready(world) == 5
    world.edit(image=BETTER)
    _passes(world, 10)
    assert _ready(world) == 5, "another change, which no administrator approved yet"
    assert ANNOTATION_APPROVE in world.cluster.status.blocked_by


def test_blocked_by_names_the_image_that_cannot_be_pulled() -> None:
    world, stands = _stopped(NOWHERE)
    told = world.cluster.status.blocked_by
    assert f"pod {stands} is not ready: its image cannot be pulled ({NOWHERE})" in told
    assert told.count(NOWHERE) == 1


def _wrongly_placed(**spec: object) -> World:
    """A new cluster whose pods wait for nodes that there are not."""
    world = _world(podTemplate={"nodeSelector": {"disk": "nvme"}}, **spec)
    world.nodeless = {world.make().placement_hash()}
    _passes(world, 5)
    assert _ready(world) == 0
    return world


def test_a_selector_reaches_pods_that_wait_for_a_node() -> None:
    world = _wrongly_placed()
    world.edit(podTemplate={"nodeSelector": {"disk": "ssd"}})
    world.a_pass()
    assert {change.action for change in world.cluster.status.planned_changes} == {"Place"}
    _passes(world, HEALED_PASSES)
    assert _ready(world) == 6
    assert sum(isinstance(action, DeletePod) for action in world.done) == 6, "each once"


def test_a_pod_of_an_older_operator_that_waits_for_a_node_is_made_again() -> None:
    world = _wrongly_placed()
    world.pods = {name: replace(pod, placement_hash="") for name, pod in world.pods.items()}
    world.nodeless = {""}
    world.edit(podTemplate={})
    _passes(world, HEALED_PASSES)
    assert all(pod.placement_hash == world.make().placement_hash() for pod in world.pods.values())
    assert _ready(world) == 6


def test_pull_secrets_reach_pods_that_wait_for_their_image() -> None:
    world = _world(image=NOWHERE)
    _passes(world, 5)
    world.edit(podTemplate={"imagePullSecrets": [{"name": "registry"}]})
    world.nowhere = {"without a secret"}
    world.pods = {name: replace(pod, image="without a secret") for name, pod in world.pods.items()}
    _passes(world, HEALED_PASSES)
    assert _ready(world) == 6


def test_placement_reaches_no_pod_that_runs() -> None:
    world = _serving()
    world.edit(podTemplate={"nodeSelector": {"disk": "ssd"}, "priorityClassName": "high"})
    _passes(world, 5)
    assert not any(isinstance(action, DeletePod) for action in world.done)
    assert world.cluster.status.is_true("Stable")


@pytest.mark.parametrize(
    ("make", "reason", "words"),
    [
        (_wrongly_placed, "NoNode", "0/3 nodes are available"),
        (lambda: _world(image=NOWHERE), "NoImage", NOWHERE),
    ],
)
def test_a_new_cluster_whose_pods_wait_says_what_is_wrong(make: Callable[[], World], reason: str, words: str) -> None:
    world = make()
    began = world.now_s
    while world.now_s - began < 2 * WAITS_S:
        world.a_pass()
        world.settle()
    world.a_pass()
    degraded = world.cluster.status.condition("Degraded")
    assert degraded is not None
    assert (degraded.status, degraded.reason) == ("True", reason)
    assert words in degraded.message
    assert words in world.cluster.status.blocked_by


def test_a_new_cluster_whose_pods_start_says_that_nothing_is_wrong() -> None:
    world = _world()
    for _ in range(5):
        world.a_pass()
        degraded = world.cluster.status.condition("Degraded")
        assert degraded is not None
        assert degraded.status == "False", degraded
        world.settle()


@pytest.mark.parametrize("first", ["image", "selector"])
def test_two_wrong_fields_are_corrected_one_after_the_other(first: str) -> None:
    world = _world(image=NOWHERE, podTemplate={"nodeSelector": {"disk": "none"}})
    world.nodeless = {world.make().placement_hash()}
    _passes(world, 10)
    assert _ready(world) == 0
    fields: dict[str, dict[str, object]] = {"image": {"image": BETTER}, "selector": {"podTemplate": {}}}
    world.edit(**fields.pop(first))
    _passes(world, 10)
    assert world.cluster.status.is_true("Degraded"), "the other one is still reported"
    world.edit(**fields.popitem()[1])
    _passes(world, HEALED_PASSES)
    assert _ready(world) == 6
    assert world.cluster.status.is_true("Stable")


def test_a_node_that_is_gone_and_back_while_another_disk_is_replaced_keeps_its_disks() -> None:
    world = _serving(nodeLossTimeoutSeconds=60)
    lost = next(name for name, pod in world.pods.items() if pod.node == "node1")
    kept = {name for name, pod in world.pods.items() if pod.node == "node2"}
    world.delete_pod(lost, by_force=True)
    world.annotate(lost)
    node = world.nodes["node2"]
    world.delete_node("node2")
    _passes(world, 20)
    world.nodes["node2"] = replace(node, is_ready=True, uid="another")
    _passes(world, 60)
    assert kept <= set(world.claims), "the machine came back within the time"
    assert not world.deleted_under_process
    assert not world.falsely_certified
    assert all(world.brokers[name].status.disk_lost is None for name in kept)


def test_settings_that_are_refused_and_a_wrong_image_are_corrected() -> None:
    world = _serving()
    world.edit(image=NOWHERE)
    world.refused = frozenset({"ConfigMap orders-config"})
    _passes(world, 10)
    assert _ready(world) == 6
    assert "ConfigMap orders-config cannot be written" in world.cluster.status.blocked_by
    world.edit(image=BETTER)
    world.refused = frozenset()
    _passes(world, 120)
    assert _ready(world) == 6
    assert {pod.image for pod in world.pods.values()} == {BETTER}


def test_a_pod_of_others_with_the_labels_of_the_cluster_changes_nothing() -> None:
    world = _serving()
    pod = next(iter(world.pods.values()))
    says = "coordinator-behind (error 605): x"
    world.pods["theirs"] = replace(pod, name="theirs", uid="theirs", group="", is_ready=False, image=BROKEN, says=says)
    world.edit(image=BETTER)
    _passes(world, 120)
    assert {each.image for name, each in world.pods.items() if name != "theirs"} == {BETTER}
