"""Members of a group that are live and have no link: they say so, and their group is not whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from seriatim_api.v1 import records_pb2
from seriatim_broker.runtime.assembly import UNLINKED_S

from sim.whole.world import RuntimeWorld

SECOND = 1_000_000


@pytest.fixture
def world() -> Iterator[RuntimeWorld]:
    """Brokers that are not started, and nothing to do for them."""
    made = RuntimeWorld(1)
    yield made
    for broker in made.brokers.values():
        if broker.process is not None:
            broker.process.end()
    made.coordinator.close()


def _pass_time(world: RuntimeWorld, seconds: float) -> None:
    assert world.schedule.run_until(world.schedule.now_us + int(seconds * SECOND), 2_000_000)


def _told(world: RuntimeWorld, broker: str) -> list[str]:
    """What the live record of a broker names."""
    item = world.coordinator.store.items.get(world.coordinator.keys.live(broker))
    assert item is not None, "it is live"
    return list(records_pb2.LiveRecord.FromString(item.value).unlinked)


def _missing(world: RuntimeWorld, broker: str) -> str:
    process = world.brokers[broker].process
    assert process is not None
    runtime = process.simulated.runtime
    return runtime.missing_link() if runtime is not None else "not begun"


def _cut(world: RuntimeWorld, heal: bool = False) -> None:
    change = world.network.heal if heal else world.network.cut
    for pair in (("g0-0", "g0-1"), ("g0-1", "g0-0")):
        change(*pair)


def test_members_of_an_idle_group_are_linked_and_ready(world: RuntimeWorld) -> None:
    for broker in world.brokers.values():
        broker.start(world)
    _pass_time(world, 3)
    assert [_missing(world, name) for name in sorted(world.brokers)] == [""] * len(world.brokers)
    assert not any(_told(world, name) for name in world.brokers)


def test_a_member_that_reaches_nobody_of_its_group_is_not_ready_and_both_say_so_until_it_does(
    world: RuntimeWorld,
) -> None:
    _cut(world)
    for broker in world.brokers.values():
        broker.start(world)
    _pass_time(world, 3)
    assert (_missing(world, "g0-0"), _missing(world, "g0-1"), _missing(world, "g1-0")) == ("g0-1", "g0-0", "")
    _pass_time(world, UNLINKED_S + 2)
    assert (_told(world, "g0-0"), _told(world, "g0-1"), _told(world, "g1-0")) == (["g0-1"], ["g0-0"], [])
    _cut(world, heal=True)
    _pass_time(world, 6)
    assert not any(_told(world, name) or _missing(world, name) for name in world.brokers)


def test_a_link_that_breaks_later_is_told_and_takes_nobodys_readiness(world: RuntimeWorld) -> None:
    for broker in world.brokers.values():
        broker.start(world)
    _pass_time(world, 3)
    _cut(world)
    _pass_time(world, UNLINKED_S + 4)
    assert (_told(world, "g0-0"), _told(world, "g0-1")) == (["g0-1"], ["g0-0"])
    assert not any(_missing(world, name) for name in world.brokers)
