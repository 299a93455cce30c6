"""A broker says that the coordinator has lost decisions: nothing is taken away, and the cluster says what to do."""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.troubles import COORDINATOR_BEHIND
from seriatim_operator.plan.actions import DeleteClaim, DeleteObject, DeletePod

from .world import World, new_world

SAYS = COORDINATOR_BEHIND.line(
    "the coordinator has lost decisions: its record of orders/0 has epoch 1, this broker knows 3. Acknowledged "
    "messages are on the brokers' disks. Remedy: change nothing else, and run seriatim coordinator rebuild"
)


def _behind() -> tuple[World, str]:
    """A cluster that served, and in which one broker has noticed a loss."""
    world = new_world()
    world.run()
    world.done.clear()
    name = sorted(world.pods)[0]
    world.pods[name] = replace(world.pods[name], is_ready=False, says=SAYS)
    return world, name


def _passes(world: World, count: int) -> list[object]:
    """Make passes while the broker stays behind. Returns the steps that take something away."""
    for _ in range(count):
        world.a_pass()
    return [step for step in world.done if isinstance(step, DeletePod | DeleteClaim | DeleteObject)]


def test_a_coordinator_that_lost_decisions_is_the_first_trouble() -> None:
    world, name = _behind()
    _passes(world, 1)
    found = world.degraded()
    assert (found.status, found.reason) == ("True", "CoordinatorBehind")
    assert found.message.startswith(f"{name} says: the coordinator has lost decisions: its record of orders/0")
    assert "run seriatim coordinator rebuild: runbook coordinator-behind" in found.message
    assert "nothing is restarted or deleted" in world.cluster.status.blocked_by


def test_no_broker_is_restarted_while_one_is_behind() -> None:
    world, _ = _behind()
    world.edit(image="seriatim.dev/broker:better")
    assert _passes(world, 10) == []


def test_a_group_that_the_coordinator_forgot_keeps_its_disks() -> None:
    world, _ = _behind()
    world.edit(groups=2)
    del world.members["g2-0"], world.members["g2-1"]
    assert _passes(world, 10) == []


def test_a_pod_that_is_missing_is_made_while_a_broker_is_behind() -> None:
    world, name = _behind()
    other = next(each for each in world.pods if each != name)
    world.delete_pod(other, by_force=True)
    world.a_pass()
    assert other in world.pods


def test_a_group_that_the_brokers_do_not_know_is_not_taken_for_an_empty_one() -> None:
    world = new_world()
    world.run()
    world.done.clear()
    del world.members["g2-0"], world.members["g2-1"]
    world.edit(groups=2)
    assert _passes(world, 10) == [], "no broker has noticed the loss yet"
    assert "broker group g2 is not removed: the brokers do not know it" in world.cluster.status.blocked_by


def test_a_group_that_was_counted_empty_and_is_forgotten_is_removed() -> None:
    world = new_world()
    world.run()
    world.edit(groups=2)
    world.run()
    assert not [name for name in world.claims if "-g2-" in name]


def test_a_group_that_never_joined_is_removed() -> None:
    world = new_world(groups=2)
    world.run()
    world.shunned = set(world.nodes)
    world.edit(groups=3)
    for _ in range(10):
        world.a_pass()
        world.settle()
    assert "g2-0" not in world.members
    world.edit(groups=2)
    world.run()
    assert not [name for name in world.brokers if "-g2-" in name]
