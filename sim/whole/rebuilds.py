"""An older copy of the coordinator in a world of complete brokers: which broker notices it, and how an administrator
rebuilds it.

The rebuild is the production code:

1. Each broker reports what it knows, as it does on the wire.
2. The rebuild makes a plan from that and from the records of the coordinator.
3. It writes the plan by compare-and-swap. The judge checks these writes like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import operations_pb2, records_pb2
from seriatim_broker.core.peers import lost_decisions
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.rpc.servicers import rebuild_reports
from seriatim_broker.runtime.coordinator.keys import partition_of
from seriatim_broker.runtime.coordinator.mirror import RETRY_S
from seriatim_broker.runtime.membership.lost_records import LOOK_DEADLINE_S, LOOK_S
from seriatim_broker.runtime.membership.registration import Place
from seriatim_broker.runtime.rebuild import Answers, Step, Told, carry_out, make_plan
from seriatim_broker.testing.memory_coordinator import DEADLINE_S
from seriatim_broker.testing.virtual_time import ProcessClock, ProcessLoop

from ..basics.interfaces import WALL_MS_START
from ..judge import PERSON
from .coordinator import CLUSTER

if TYPE_CHECKING:
    from seriatim_broker.runtime.assembly import Runtime

    from .brokers import Home, RuntimeBroker, RuntimeProcess

NOTICED_US = int((LOOK_S + LOOK_DEADLINE_S + 0.2) * 1_000_000)
"""This long after the coordinator is back, a broker has looked at it, with any clock."""

COPIES_US = int((max(LOOK_S + LOOK_DEADLINE_S, DEADLINE_S + RETRY_S) + 0.3) * 1_000_000)
"""This long after a rebuild has ended, all brokers have looked at the coordinator and listed what they keep copies of.

A list that was asked for before the coordinator went back gets no answer. Its broker asks again after the deadline.
"""

COPIES_LOOK_US = 100_000

REBUILDS_MAX = 20
"""So often at most a rebuild is repeated until all that it plans is written."""

AGAIN_S = 0.1
"""Before it is repeated."""

ASK_US = (200, 20_000)
"""How long the administrator takes from one broker to the next, and before one that does not answer is asked again."""


class Person:
    """Rebuilds the coordinator from the answers of all running brokers."""

    def __init__(self, cluster: Home) -> None:
        time = cluster.schedule.time
        self._cluster = cluster
        self._schedule = cluster.schedule
        self._setting = cluster.setting
        self._clock = ProcessClock(time, 0, WALL_MS_START)
        self._loop = ProcessLoop(time, self._clock, PERSON)
        self._seen: dict[RuntimeProcess, int] = {}

    def close(self) -> None:
        """End the rebuild that is under way."""
        self._loop.kill()

    # ---- what brokers have to say -------------------------------------------------------------------

    def note_seen(self) -> None:
        """Note the revision that each broker has seen, before the coordinator goes back."""
        self._seen = {process: runtime.lost_records.seen.revision for process, runtime in self._running()}

    def check_alarm(self) -> None:
        """ALARM: a broker that has seen a higher revision than the coordinator has says so once it has looked."""
        revision = self._cluster.coordinator.store.revision
        for process, _ in self._running():
            if _says(process):
                self._cluster.scene.judge.seen.states.add("coordinator behind")
            elif self._seen.get(process, 0) > revision and not process.frozen:
                what = f"{process.name} has seen revision {self._seen[process]} of the coordinator"
                self._cluster.scene.judge.fail("ALARM", f"{what}, which is back at {revision}, and raises no alarm")

    def check_copies(self) -> None:
        """I13: after a rebuild, each broker's copy of the members is soon the one that the coordinator has."""
        scene = self._cluster.scene
        if "coordinator rebuilt" not in scene.judge.seen.states:
            return
        until_us = self._schedule.now_us + COPIES_US
        while older := [process.name for process, runtime in self._running() if not self._has_members(runtime)]:
            if scene.judge.seen.waits_for_rebuild:  # an older copy came back after everything had drained
                until_us = self._schedule.now_us + COPIES_US
            if self._schedule.now_us > until_us:
                scene.judge.fail("I13", f"the copies of the members are older than the rebuild on {older}")
            scene.draining.run_until(self._schedule.now_us + COPIES_LOOK_US)

    def _has_members(self, runtime: Runtime) -> bool:
        keys, items = self._cluster.coordinator.keys, self._cluster.coordinator.store.items
        values = (item.value for key, item in items.items() if key.startswith(keys.members))
        records = [records_pb2.MemberRecord.FromString(value) for value in values]
        return runtime.directory.members == {record.member.broker: record for record in records}

    def _running(self) -> Iterator[tuple[RuntimeProcess, Runtime]]:
        for broker in self._cluster.brokers.values():
            process = broker.process
            if process is not None and process.is_serving:
                runtime = process.simulated.runtime
                assert runtime is not None
                yield process, runtime

    # ---- the rebuild --------------------------------------------------------------------------------

    def rebuild(self, done: Callable[[], None]) -> None:
        """Ask all brokers that serve, write the lost records, then call `done`."""
        self._loop.call_soon(lambda: self._loop.create_task(self._guarded(done), name="rebuild"))

    async def _guarded(self, done: Callable[[], None]) -> None:
        schedule = self._schedule
        try:
            await self._rebuild()
        except Exception as error:  # a violation, or an error that the rebuild must not raise: it ends the world
            schedule.time.fail(error)
            return
        schedule.after(0, done)

    async def _rebuild(self) -> None:
        """Plan and write until nothing is left to write. A changed or unanswered record is planned again."""
        for _ in range(REBUILDS_MAX):
            try:
                if await self._rebuild_once():
                    return
            except SeriatimError as error:
                self._schedule.tell(PERSON, f"nothing more was written: {error!r}")
            await asyncio.sleep(AGAIN_S)
        self._cluster.scene.judge.fail("I13", f"{REBUILDS_MAX} rebuilds left something to write")

    async def _rebuild_once(self) -> bool:
        scene = self._cluster.scene
        client = self._cluster.coordinator.client(PERSON)
        answers = Answers(tuple(await self._ask_all()))
        plan = await make_plan(client, self._cluster.coordinator.keys, answers, self._clock.wall_ms())
        if plan.conflicts:
            scene.judge.fail("TWICE", f"the brokers contradict each other: {plan.conflicts}")
        if plan.refusals:
            scene.judge.fail("I13", f"all brokers reported, and nothing may be written: {plan.refusals}")
        for step in plan.steps:
            self._schedule.tell(PERSON, step.text)
            scene.judge.seen.states.add("coordinator rebuilt")
        changed: list[str] = []
        for step in plan.steps:
            if self._setting.options.revisions_again:
                self._use_revision_again(step)
            changed += await carry_out(client, replace(plan, steps=[step]))
            if changed and step is plan.steps[0]:
                return False
        return not changed

    def _use_revision_again(self, step: Step) -> None:
        """If the step writes a chain, others write until it gets the revision at which a broker knows the lost record.

        The broker has not noticed the loss. Without the rule `epoch-compare`, its next write is carried out on the
        record that was rebuilt.
        """
        coordinator = self._cluster.coordinator
        for put in step.operations:
            if not isinstance(put, Put) or not put.key.startswith(coordinator.keys.chains):
                continue
            for process, _ in self._running():
                assert process.watched is not None
                partition = process.watched.core.partitions.get(partition_of(put.key))
                if partition is None or partition.chain is None or _says(process):
                    continue
                if coordinator.store.revision < partition.revision - 1:
                    coordinator.store.revision = partition.revision - 1
                    self._cluster.scene.judge.seen.states.add("revision used again")

    async def _ask_all(self) -> list[Told]:
        told: list[Told] = []
        for name in sorted(self._cluster.brokers):
            broker = self._cluster.brokers[name]
            is_there = False
            while not is_there:  # it starts, or starts again
                await asyncio.sleep(self._schedule.rng.randint(*ASK_US) / 1e6)
                is_there = broker.process is not None and broker.process.is_serving
            told.append(_ask(broker))
        return told


def _ask(broker: RuntimeBroker) -> Told:
    """What a broker knows, as it would say it on the wire."""
    process = broker.process
    assert process is not None
    assert process.watched is not None
    runtime = process.simulated.runtime
    assert runtime is not None
    group, _, slot = broker.name.rpartition("-")
    place = Place(CLUSTER, group, int(slot), broker.address, link_address=broker.address)
    pages: list[operations_pb2.TellKnownResponse] = []
    after = 0
    while not pages or not pages[-1].is_last:
        pages.append(rebuild_reports.tell(process.watched.core, runtime.identity, place, after))
        after = max((page.partition_id for page in pages[-1].partitions), default=after)
    return rebuild_reports.read(broker.name, pages)


def _says(process: RuntimeProcess) -> bool:
    """Whether it says that the coordinator has lost decisions: in its readiness, in its status, and to the rebuild."""
    return process.watched is not None and bool(lost_decisions.reason(process.watched.core.state))
