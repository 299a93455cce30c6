"""The controller's balance: which brokers it asks, what it leaves alone, and how it carries a plan out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from seriatim_api.errors import SeriatimError, UnavailableError
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_broker.core.values.effects import Resolved
from seriatim_broker.core.values.events import PlanSwitch
from seriatim_broker.core.values.placement import DEFAULT_SPEC, BrokerGroupSpec, Intent
from seriatim_broker.counters.broker import Counters
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.runtime.controller.balancer import FAILURES_MAX, Balancer, BalancerSettings
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import chain_to_record
from seriatim_broker.runtime.driver.traffic import STALE_S, WINDOW_S, Measured, Traffic
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

from .test_planning import CHAIN

KEYS = Keys("c")
SETTINGS = BalancerSettings(interval_s=0.001, moves_per_s=100_000, floor_bytes_per_s=0, steady_s=30, move_again_s=300)
MOVE_S = 10.0
"""How long a planned switch of this test takes, so that the clock continues."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_us(self) -> int:
        return int(self.now_s * 1e6)

    def wall_ms(self) -> int:
        return int(self.now_s * 1e3)


class World:
    """Groups of two, heads with traffic, and a driver that makes planned switches in the coordinator."""

    def __init__(self, group_count: int = 2, settings: BalancerSettings = SETTINGS) -> None:
        self.clock = Clock()
        self.store = MemoryStore()
        self.members = {
            f"g{number}": tuple(MemberId(f"g{number}-{slot}", f"disk-{number}-{slot}") for slot in range(2))
            for number in range(group_count)
        }
        self.member_runs = {member.broker: 1 for members in self.members.values() for member in members}
        self.gone: set[str] = set()
        self.specs: dict[str, BrokerGroupSpec] = {}
        self.load: dict[int, int] = {}
        self.open_segments: dict[int, tuple[str, int]] = {}
        self.silent: set[str] = set()
        self.seconds = 10.0
        self.asked: list[str] = []
        self.switches: list[PlanSwitch] = []
        self.error: SeriatimError | None = None
        self.listeners: list[Callable[[], None]] = []
        self.counters = Counters()
        self._replies: dict[int, Callable[[Any], None]] = {}
        parts: list[Any] = [MemoryCoordinator(self.store), KEYS, self, self, self.is_there, self.measure, self.clock]
        self.balancer = Balancer(*parts, settings, self.counters)

    # what the balancer asks of the directory, of masters, and of the driver

    def broker_groups(self) -> dict[str, tuple[MemberId, ...]]:
        return self.members

    def spec(self, group: str) -> BrokerGroupSpec:
        return self.specs.get(group, DEFAULT_SPEC)

    def member_run_of(self, broker: str) -> RunId:
        member = next(member for members in self.members.values() for member in members if member.broker == broker)
        return RunId(member, self.member_runs[broker])

    def on_change(self, changed: Callable[[], None]) -> None:
        self.listeners.append(changed)

    def is_there(self, member: MemberId) -> bool:
        return member.broker not in self.gone

    async def measure(self, broker: str, deadline_s: float) -> Measured:
        assert deadline_s > 0
        self.asked.append(broker)
        if broker in self.silent:
            raise UnavailableError("silent")
        mine = {
            PartitionId(id_): (0, self.load[id_] * 10)
            for id_, (group, slot) in self.open_segments.items()
            if f"{group}-{slot}" == broker
        }
        seconds, self.seconds = self.seconds, 10.0
        return Measured(seconds, mine)

    def new_request(self, reply: Callable[[Any], None]) -> int:
        self._replies[len(self._replies) + 1] = reply
        return len(self._replies)

    def forget_request(self, request: int) -> None:
        pass

    def feed(self, event: PlanSwitch) -> None:
        self.switches.append(event)
        self.clock.now_s += MOVE_S
        if self.error is None:
            self.put(event.partition, event.target_broker_group, int(event.target_master[-1]))
        self._replies[event.request](Resolved(event.request, None, self.error))

    # what tests do

    def put(self, partition: int, group: str, slot: int = 0, load: int | None = None) -> None:
        """The open segment is there from now on."""
        self.open_segments[partition] = (group, slot)
        if load is not None:
            self.load[partition] = load
        members = self.members[group]
        members = (*members[slot:], *members[:slot])
        segment = replace(CHAIN.open_segment, broker_group=group, members=members, opened_at_ms=self.clock.wall_ms())
        chain = replace(CHAIN, partition=PartitionId(partition), segments=(segment,))
        self.store.txn((), [Put(KEYS.chain(PartitionId(partition)), chain_to_record(chain).SerializeToString())], ())

    def later(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def changed(self) -> None:
        for listener in self.listeners:
            listener()

    def on(self, group: str) -> int:
        return sum(at == group for at, _ in self.open_segments.values())


def uneven(**options: Any) -> World:
    """Eight heads on one of two groups, all steady for long."""
    world = World(**options)
    world.changed()
    for partition in range(8):
        world.put(partition, "g1", partition % 2, 1000)
    world.later(60)
    return world


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is about what the world holds
            await asyncio.sleep(0)


async def run_until(world: World, condition: Callable[[], bool]) -> None:
    task = asyncio.create_task(world.balancer.run())
    await asyncio.sleep(0)
    world.later(60)  # what it saw at its beginning has become steady
    try:
        await until(condition)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_person_sees_the_plan_and_nothing_moves() -> None:
    world = uneven()
    look = await world.balancer.ask(run=False)
    assert (len(look.moves), look.reason) == (4, "")
    assert not world.switches
    assert {open_segment.broker_group for open_segment in look.after} == {"g0", "g1"}


async def test_it_says_why_there_is_nothing_to_move() -> None:
    world = uneven()
    for partition in range(4):
        world.put(partition, "g0", partition % 2)
    world.later(60)
    reason = (await world.balancer.ask(run=False)).reason
    assert reason == "all is even enough: the busiest broker group is 0% above the mean"
    world.load = dict.fromkeys(world.load, 0)
    assert "too little traffic" in (await world.balancer.ask(run=False)).reason
    world.load[7] = 1_000_000
    reason = (await world.balancer.ask(run=False)).reason
    assert reason == "no move would help: the busiest broker group is 100% above the mean"


async def test_it_looks_by_itself_and_spreads_groups_and_masters() -> None:
    world = uneven()
    await run_until(world, lambda: world.counters.balance_moves.get("done", 0) >= 4)
    assert (world.on("g0"), world.on("g1")) == (4, 4)
    assert sorted(world.open_segments.values()) == [(group, slot) for group in ("g0", "g1") for slot in (0, 0, 1, 1)]
    assert len(world.switches) == 4


async def test_what_a_person_asks_for_is_carried_out_once() -> None:
    world = uneven(settings=replace(SETTINGS, interval_s=0))
    task = asyncio.create_task(world.balancer.run())
    await asyncio.sleep(0)
    world.later(60)
    look = await world.balancer.ask(run=True)
    assert "being moved" in (await world.balancer.ask(run=True)).reason
    await until(lambda: world.counters.balance_moves.get("done") == len(look.moves))
    assert world.on("g0") == 4
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("not complete", lambda world: world.gone.add("g0-1")),
        ("cordoned", lambda world: world.specs.update(g0=BrokerGroupSpec(Intent.CORDONED))),
        ("draining", lambda world: world.specs.update(g1=BrokerGroupSpec(Intent.DRAINING))),
        ("changed", lambda world: world.member_runs.update({"g1-0": 2})),
        ("did not say", lambda world: world.silent.add("g1-1")),
    ],
)
async def test_a_group_that_is_not_steady_neither_gives_nor_takes(reason: str, change: Callable[[World], None]) -> None:
    world = uneven()
    change(world)
    world.changed()
    look = await world.balancer.ask(run=False)
    assert look.moves == ()
    assert reason in look.reason


async def test_a_group_is_left_alone_for_a_while_after_a_change() -> None:
    world = uneven()
    world.member_runs["g0-0"] = 2
    world.changed()
    world.later(SETTINGS.steady_s - 1)
    assert not (await world.balancer.ask(run=False)).moves
    world.later(2)
    assert (await world.balancer.ask(run=False)).moves


async def test_a_move_that_does_not_mean_any_more_what_it_meant_is_left_out() -> None:
    world = uneven(settings=replace(SETTINGS, interval_s=0))
    task = asyncio.create_task(world.balancer.run())
    await asyncio.sleep(0)
    world.later(60)
    look = await world.balancer.ask(run=True)
    gone, opened = look.moves[0].open_segment, look.moves[1].open_segment
    world.put(gone.partition, "g1", 1 - int(gone.master[-1]))  # under the other member now
    world.put(opened.partition, "g1", int(opened.master[-1]))  # a new segment at the same place, a moment ago
    world.clock.now_s -= 0.001
    await until(lambda: sum(world.counters.balance_moves.values()) == len(look.moves))
    assert world.counters.balance_moves == {"stale": 2, "done": 2}
    assert not {gone.partition, opened.partition} & {switch.partition for switch in world.switches}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_group_that_fails_meanwhile_ends_its_moves() -> None:
    world = uneven()
    world.error = None
    first = world.feed

    def fail_after_one(event: PlanSwitch) -> None:
        first(event)
        world.gone.add("g0-0")

    world.feed = fail_after_one  # type: ignore[method-assign]
    await run_until(world, lambda: world.counters.balance_moves.get("stale", 0) >= 3)
    assert len(world.switches) == 1


async def test_moves_that_fail_end_the_plan_and_are_not_tried_again_at_once() -> None:
    world = uneven()
    world.error = UnavailableError("no")
    await run_until(world, lambda: world.counters.balance_moves.get("failed", 0) >= FAILURES_MAX + 2)
    tried = [switch.partition for switch in world.switches]
    assert len(set(tried)) == len(tried), "barred after its move failed"


async def test_after_three_failures_the_rest_of_a_plan_is_dropped() -> None:
    world = uneven(settings=replace(SETTINGS, interval_s=0))
    world.error = UnavailableError("no")
    task = asyncio.create_task(world.balancer.run())
    await asyncio.sleep(0)
    world.later(60)
    look = await world.balancer.ask(run=True)
    assert len(look.moves) > FAILURES_MAX
    await until(lambda: len(world.switches) >= FAILURES_MAX)
    await until(lambda: not world.balancer._is_moving)
    assert len(world.switches) == FAILURES_MAX
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_head_is_not_moved_twice_within_a_while() -> None:
    world = uneven()
    await run_until(world, lambda: world.counters.balance_moves.get("done", 0) >= 4)
    moved = {switch.partition for switch in world.switches}
    for partition in moved:
        world.load[partition] = 100_000  # now the other group is too busy
    world.later(60)
    look = await world.balancer.ask(run=False)
    assert not moved & {move.open_segment.partition for move in look.moves}
    world.later(SETTINGS.move_again_s)
    look = await world.balancer.ask(run=False)
    assert moved & {move.open_segment.partition for move in look.moves}


async def test_figures_that_nobody_has_asked_for_in_a_long_time_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seriatim_broker.runtime.controller.balancer.FRESH_S", 0)
    world = uneven()
    world.seconds = STALE_S + 1
    await world.balancer.ask(run=False)
    assert len(world.asked) == 8


def test_traffic_is_counted_in_windows_and_old_ones_are_forgotten() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    one = PartitionId(1)
    traffic.add(one, 100)
    traffic.add(one, 50)
    clock.now_s += WINDOW_S
    assert traffic.measure() == Measured(WINDOW_S, {one: (2, 150)})
    clock.now_s += 1
    traffic.add(PartitionId(2), 7)
    assert traffic.measure() == Measured(WINDOW_S + 1, {one: (2, 150), PartitionId(2): (1, 7)})
    clock.now_s += WINDOW_S
    traffic.measure()
    clock.now_s += 1
    assert traffic.measure() == Measured(WINDOW_S + 2, {PartitionId(2): (1, 7)})
    clock.now_s += STALE_S
    assert traffic.measure().seconds > STALE_S
    clock.now_s += 2
    traffic.add(one, 5)
    assert traffic.measure() == Measured(2.0, {one: (1, 5)})
