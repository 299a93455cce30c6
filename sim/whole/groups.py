"""A world of whole brokers in which an operator cordons, drains, takes back and adds broker groups, and rolls brokers.

The operator is the production code that a broker runs for it, with the epochs of Leases that come and go. Sometimes an
operator that was deposed tries as well. At the end the brokers must have done what the operator wants: a drained broker
group holds nothing, and a cordoned broker group has no open segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from seriatim_api.errors import SeriatimError, StaleOperatorError
from seriatim_api.ids import MemberId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.control.controller import holders
from seriatim_broker.core.control.restarting import Verdict
from seriatim_broker.core.values.placement import Intent
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.interfaces.coordinator import Compare, Operation, Put, TxnResult
from seriatim_broker.runtime.broker_groups import BrokerGroups
from seriatim_broker.runtime.operators import guard_of
from seriatim_broker.runtime.records import spec_from_value
from seriatim_broker.testing.virtual_time import ProcessClock, ProcessLoop

from ..schedule import Violation
from .brokers import RuntimeBroker, RuntimeProcess
from .coordinator import RuntimeCoordinator
from .injector import RuntimeInjector
from .world import RuntimeWorld

GATE_S = 1.0
INTENTS = {
    "cordon": records_pb2.BROKER_GROUP_INTENT_CORDONED,
    "drain": records_pb2.BROKER_GROUP_INTENT_DRAINING,
    "activate": records_pb2.BROKER_GROUP_INTENT_ACTIVE,
}
OPERATOR = "operator-"
ATTEMPTS_MAX = 200
ATTEMPT_PAUSE_S = 0.05
SETTLE_US = 500_000
NEEDED_SHARE = 0.8
"""The share of questions in which a member that holds something alone is asked about, if there is such a member."""


class GroupsCoordinator(RuntimeCoordinator):
    """Also knows which operator was the last to write what it wants of broker groups."""

    operator_epoch = 0

    def intents(self) -> dict[str, Intent]:
        """What an operator wants of each broker group, if it said anything."""
        prefix = self.keys.group_specs
        items = [item for key, item in self.store.items.items() if key.startswith(prefix)]
        return {item.key.rpartition("/")[2]: spec_from_value(item.value).intent for item in items}

    def _observe(self, client: str, compares: Sequence[Compare], done: Sequence[Operation], result: TxnResult) -> None:
        super()._observe(client, compares, done, result)
        for operation in done:
            if isinstance(operation, Put) and operation.key == self.keys.operator:
                seen = records_pb2.OperatorRecord.FromString(operation.value).epoch
                if seen < self.operator_epoch:
                    self._judge.fail("OPERATOR", f"the epoch of operators went from {self.operator_epoch} to {seen}")
                self.operator_epoch = seen
            elif isinstance(operation, Put) and operation.key.startswith(self.keys.group_specs):
                epoch = int(client.removeprefix(OPERATOR).partition(".")[0])
                if epoch < self.operator_epoch:
                    self._judge.fail("OPERATOR", f"{client} wrote {operation.key} after {self.operator_epoch} was seen")


class GroupsInjector(RuntimeInjector):
    """Adds what an operator does to broker groups."""

    _world: GroupsWorld

    def inject_cordon(self) -> None:
        """Want no open segments on a broker group any more."""
        self._want("cordon")

    def inject_drain(self) -> None:
        """And no copies."""
        self._want("drain")

    def inject_activate(self) -> None:
        """A group is as good as any other again."""
        self._want("activate")

    def _want(self, what: str, epoch_back: int = 0) -> None:
        group = self._victim().group
        self._tell(f"an operator wants {group} to {what}" + (f", {epoch_back} Leases too late" if epoch_back else ""))
        self._world.want(group, what, epoch_back=epoch_back)

    def inject_older_operator(self) -> None:
        """An operator that was deposed goes on beside its successor."""
        self._want("activate")
        self._want("drain", epoch_back=1)

    def inject_add_group(self) -> None:
        """A group that was not there at the beginning."""
        self._world.add_group()

    def inject_gated_roll(self) -> None:
        """A broker is stopped in order if the gate says that it may be; any broker is asked."""
        needed = self._world.needed()
        victim: Any = self._rng.choice(needed) if needed and self._rng.random() < NEEDED_SHARE else self._victim()
        process: RuntimeProcess | None = victim.process
        serving = [broker.process for broker in self._world.brokers.values() if _serves(broker.process)]
        if process is None or process.frozen or not process.is_serving or not serving:
            return
        self._world.ask_gate(self._rng.choice(serving), victim.name, lambda: self.roll(victim, process))

    def heal(self) -> None:
        """Also bring all brokers back, and let at least one broker group take open segments."""
        for broker in self._world.brokers.values():
            broker.is_awaited = False
        super().heal()
        self._world.settle_intents(self._rng)


class GroupsWorld(RuntimeWorld):
    """A world in which an operator changes what it wants of broker groups."""

    injector_kind = GroupsInjector
    event_count_max = 6_000_000

    coordinator: GroupsCoordinator

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._epoch = 1
        self._operator_count = 0
        self._operators = ProcessLoop(self.schedule.time, ProcessClock(self.schedule.time, 0, 0), "operators")
        if self.options.group_count > 2 and self.options.kinds.get("add_group"):
            for broker in self.brokers.values():
                broker.is_awaited = broker.group == f"g{self.options.group_count - 1}"

    def _make_coordinator(self) -> Any:
        return GroupsCoordinator(self.schedule, self.options, self.judge)

    def _make_broker(self, name: str, group: str) -> Any:
        return AwaitedBroker(name, group, self._incarnation())

    def _first_brokers(self) -> list[Any]:
        return [broker for broker in self.brokers.values() if not broker.is_awaited]

    def _all_admitted(self, process: RuntimeProcess) -> bool:
        runtime = process.simulated.runtime
        assert runtime is not None
        admitted = {member for members in runtime.directory.groups().values() for member in members}
        return admitted == {broker.member for broker in self._first_brokers()}

    # ---- the operator -------------------------------------------------------------------------------

    def want(self, group: str, what: str, *, epoch_back: int = 0) -> None:
        """An operator says what it wants of a broker group, under the newest Lease or an older one."""
        if not epoch_back:
            self._epoch += 1
        epoch = max(1, self._epoch - epoch_back)
        self._operator_count += 1
        client = self.coordinator.client(f"{OPERATOR}{epoch}.{self._operator_count}")
        groups = BrokerGroups(client, self.coordinator.keys, lambda _member: True, 2)
        guard = guard_of(client, self.coordinator.keys, epoch)

        async def say() -> None:
            for _ in range(ATTEMPTS_MAX):
                try:
                    await groups.set(group, INTENTS[what], None, guard)
                except StaleOperatorError:
                    self.judge.seen.states.add("older operator")
                    return
                except SeriatimError:
                    await asyncio.sleep(ATTEMPT_PAUSE_S)
                else:
                    return

        self._do(self._operators, say, f"{group} to {what}")

    def settle_intents(self, rng: Any) -> None:
        """Say the last wishes: some broker groups stay as they are, and at least one is active."""
        groups = sorted({broker.group for broker in self.brokers.values()})
        intents = self.coordinator.intents()
        closed = [group for group in groups if intents.get(group, Intent.ACTIVE) is not Intent.ACTIVE]
        keep = rng.choice(groups)
        for group in closed:
            if group == keep or rng.random() < 0.3:
                self.want(group, "activate")
        self.schedule.after(SETTLE_US, self._keep_one_active, groups)

    def _keep_one_active(self, groups: list[str]) -> None:
        """Keep one broker group active, because an earlier wish may arrive late and close the last one."""
        intents = self.coordinator.intents()
        if all(intents.get(group, Intent.ACTIVE) is not Intent.ACTIVE for group in groups):
            self.want(groups[0], "activate")
        self.schedule.after(SETTLE_US, self._keep_one_active, groups)

    def add_group(self) -> None:
        """The group that was left out starts."""
        for broker in self.brokers.values():
            if broker.is_awaited:
                self.schedule.tell("FAULT", f"{broker.name} is added")
                self.judge.seen.states.add("group added")
                broker.is_awaited = False
                self._start_again(broker)

    def needed(self) -> list[Any]:
        """Brokers that must not be stopped: they hold something alone, or may be needed to settle a segment."""
        members: list[MemberId] = []
        for partition in self.partitions:
            for segment in self._chain(partition).segments:
                if segment.state is SegmentState.UNSETTLED:
                    members += segment.members
                elif segment.state is SegmentState.SEALED:
                    whole = [
                        member for member in segment.members if self.judge.seen.is_whole(partition, segment, member)
                    ]
                    members += whole if len(whole) == 1 else []
        brokers = dict.fromkeys(member.broker for member in members if self.brokers[member.broker].member == member)
        return [self.brokers[name] for name in brokers if _serves(self.brokers[name].process)]

    def ask_gate(self, asked: RuntimeProcess, broker: str, go_on: Callable[[], None]) -> None:
        """Ask a broker whether another one may be stopped. If it says yes, the judge checks that."""
        runtime = asked.simulated.runtime
        assert runtime is not None
        gate = runtime.gate

        async def ask() -> None:
            try:
                answer = await gate.check(broker, GATE_S)
            except SeriatimError as error:
                self.schedule.tell("gate", f"{asked.name} cannot say whether {broker} may be stopped: {error!r}")
                return
            self.schedule.after(0, self._gate_said, broker, answer, go_on)

        self._do(asked.loop, ask, f"gate for {broker}")

    def _gate_said(self, broker: str, answer: Any, go_on: Callable[[], None]) -> None:
        self.schedule.tell("gate", f"{broker}: {answer.verdict.name}, {answer.text}")
        if answer.verdict is Verdict.SAFE:
            self.judge.said_safe(self.brokers[broker].member, map(self._chain, self.partitions))
            go_on()
        else:
            self.judge.seen.states.add(f"not safe: {answer.verdict.name}")

    def _do(self, loop: ProcessLoop, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        loop.call_soon(lambda: loop.create_task(work(), name=name))

    # ---- the end ------------------------------------------------------------------------------------

    def _is_drained(self) -> bool:
        """Also whether the brokers have done what the operator wants of broker groups."""
        return super()._is_drained() and not self._left_on_groups()

    def _left_on_groups(self) -> list[str]:
        """Open segments on cordoned broker groups, and copies on drained ones."""
        intents = self.coordinator.intents()
        closed = {group for group, intent in intents.items() if intent is not Intent.ACTIVE}
        drained = {group for group, intent in intents.items() if intent is Intent.DRAINING}
        left: list[str] = []
        for partition in self.partitions:
            chain = self._chain(partition)
            if chain.open_segment.group in closed:
                left.append(f"the head of {partition} on {chain.open_segment.group}")
            for segment in chain.segments:
                groups = {self.brokers[member.broker].group for member in holders(segment)} & drained
                left += [f"{partition}:{segment.no} on {group}" for group in sorted(groups)]
        return left

    def _stuck(self) -> str:
        left = self._left_on_groups()
        return super()._stuck() + (f"; not left: {left}" if left else "")

    def run(self) -> Any:
        """As the others; the operators end with it."""
        try:
            return super().run()
        finally:
            self._operators.kill()


class AwaitedBroker(RuntimeBroker):
    """A broker that may not be there yet."""

    is_awaited = False

    def start(self, world: RuntimeWorld) -> RuntimeProcess:
        """Start the next run on this disk; a violation if the broker is not there yet."""
        if self.is_awaited:
            raise Violation("WORLD", f"{self.name} is not there yet")
        return super().start(world)


def _serves(process: Any) -> bool:
    return process is not None and process.is_serving
