"""An operator that cordons, drains, takes back and adds broker groups, and asks whether brokers may be stopped.

It is the production code that a broker runs for it, with the epochs of Leases that come and go. Sometimes an operator
that was deposed tries as well. At the end the brokers must have done what the operator wants: a drained broker group
holds nothing, and a cordoned broker group has no open segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from seriatim_api.errors import SeriatimError, StaleOperatorError
from seriatim_api.ids import MemberId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.control.controller import holders
from seriatim_broker.core.control.restarts import Verdict
from seriatim_broker.core.values.placement import Intent
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.runtime.controller.broker_groups import BrokerGroups
from seriatim_broker.runtime.coordinator.operator_lease import guard_of
from seriatim_broker.runtime.duties.restart_gate import GateAnswer
from seriatim_broker.testing.virtual_time import ProcessClock, ProcessLoop

from .brokers import Home, RuntimeBroker, RuntimeProcess, serves
from .coordinator import OPERATOR

GATE_S = 1.0
INTENTS = {
    "cordon": records_pb2.BROKER_GROUP_INTENT_CORDONED,
    "drain": records_pb2.BROKER_GROUP_INTENT_DRAINING,
    "activate": records_pb2.BROKER_GROUP_INTENT_ACTIVE,
}
ATTEMPTS_MAX = 200
ATTEMPT_PAUSE_S = 0.05
SETTLE_US = 500_000
NEEDED_SHARE = 0.8
"""The share of questions in which a member that holds something alone is asked about, if there is such a member."""


class BrokerGroupOperator:
    """The operators of a cluster, one after the other."""

    def __init__(self, cluster: Home) -> None:
        self._cluster = cluster
        self._schedule = cluster.schedule
        self._setting = cluster.setting
        self._epoch = 1
        self._operator_count = 0
        time, options = cluster.schedule.time, cluster.setting.options
        self._loop = ProcessLoop(time, ProcessClock(time, 0, 0), "operators")
        if options.group_count > 2 and options.kinds.get("add_group"):
            for broker in cluster.brokers.values():
                broker.is_awaited = broker.group == f"g{options.group_count - 1}"

    def close(self) -> None:
        """End what the operators are doing."""
        self._loop.kill()

    def want(self, group: str, what: str, *, epoch_back: int = 0) -> None:
        """An operator says what it wants of a broker group, under the newest Lease or an older one."""
        if not epoch_back:
            self._epoch += 1
        epoch = max(1, self._epoch - epoch_back)
        self._operator_count += 1
        client = self._cluster.coordinator.client(f"{OPERATOR}{epoch}.{self._operator_count}")
        groups = BrokerGroups(client, self._cluster.coordinator.keys, lambda _member: True, 2)
        guard = guard_of(client, self._cluster.coordinator.keys, epoch)

        async def say() -> None:
            for _ in range(ATTEMPTS_MAX):
                try:
                    await groups.set(group, INTENTS[what], None, guard)
                except StaleOperatorError:
                    self._cluster.scene.judge.seen.states.add("older operator")
                    return
                except SeriatimError:
                    await asyncio.sleep(ATTEMPT_PAUSE_S)
                else:
                    return

        self._do(self._loop, say, f"{group} to {what}")

    def settle_intents(self, rng: Random) -> None:
        """Say the last wishes: some broker groups stay as they are, and at least one is active."""
        groups = sorted({broker.group for broker in self._cluster.brokers.values()})
        intents = self._cluster.coordinator.intents()
        closed = [group for group in groups if intents.get(group, Intent.ACTIVE) is not Intent.ACTIVE]
        keep = rng.choice(groups)
        for group in closed:
            if group == keep or rng.random() < 0.3:
                self.want(group, "activate")
        self._schedule.after(SETTLE_US, self._keep_one_active, groups)

    def _keep_one_active(self, groups: list[str]) -> None:
        """Keep one broker group active, because an earlier wish may arrive late and close the last one."""
        intents = self._cluster.coordinator.intents()
        if all(intents.get(group, Intent.ACTIVE) is not Intent.ACTIVE for group in groups):
            self.want(groups[0], "activate")
        self._schedule.after(SETTLE_US, self._keep_one_active, groups)

    def add_group(self) -> None:
        """The group that was left out starts."""
        for broker in self._cluster.brokers.values():
            if broker.is_awaited:
                self._schedule.tell("FAULT", f"{broker.name} is added")
                self._cluster.scene.judge.seen.states.add("group added")
                broker.is_awaited = False
                broker.start_again()

    def needed(self) -> list[RuntimeBroker]:
        """Brokers that must not be stopped: they hold something alone, or may be needed to settle a segment."""
        members: list[MemberId] = []
        is_whole = self._cluster.scene.judge.seen.is_in_sync
        for partition in self._setting.partitions:
            for segment in self._cluster.scene.copies.chain(partition).segments:
                if segment.state is SegmentState.UNSETTLED:
                    members += segment.members
                elif segment.state is SegmentState.SEALED:
                    whole = [member for member in segment.members if is_whole(partition, segment, member)]
                    members += whole if len(whole) == 1 else []
        brokers = self._cluster.brokers
        names = dict.fromkeys(member.broker for member in members if brokers[member.broker].member == member)
        return [brokers[name] for name in names if serves(brokers[name].process)]

    def ask_gate(self, asked: RuntimeProcess, broker: str, go_on: Callable[[], None]) -> None:
        """Ask a broker whether another one may be stopped. If it says yes, the judge checks that."""
        runtime = asked.simulated.runtime
        assert runtime is not None
        gate = runtime.gate

        async def ask() -> None:
            try:
                answer = await gate.check(broker, GATE_S)
            except SeriatimError as error:
                self._schedule.tell("gate", f"{asked.name} cannot say whether {broker} may be stopped: {error!r}")
                return
            self._schedule.after(0, self._gate_said, broker, answer, go_on)

        self._do(asked.loop, ask, f"gate for {broker}")

    def _gate_said(self, broker: str, answer: GateAnswer, go_on: Callable[[], None]) -> None:
        self._schedule.tell("gate", f"{broker}: {answer.verdict.name}, {answer.text}")
        if answer.verdict is Verdict.SAFE:
            self._cluster.scene.judge.said_safe(
                self._cluster.brokers[broker].member,
                map(self._cluster.scene.copies.chain, self._setting.partitions),
            )
            go_on()
        else:
            self._cluster.scene.judge.seen.states.add(f"not safe: {answer.verdict.name}")

    def _do(self, loop: ProcessLoop, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        loop.call_soon(lambda: loop.create_task(work(), name=name))

    def left_on_groups(self) -> list[str]:
        """Open segments on cordoned broker groups, and copies on drained ones."""
        intents = self._cluster.coordinator.intents()
        closed = {group for group, intent in intents.items() if intent is not Intent.ACTIVE}
        drained = {group for group, intent in intents.items() if intent is Intent.DRAINING}
        left: list[str] = []
        for partition in self._setting.partitions:
            chain = self._cluster.scene.copies.chain(partition)
            if chain.open_segment.broker_group in closed:
                left.append(f"the open segment of {partition} on {chain.open_segment.broker_group}")
            for segment in chain.segments:
                groups = {self._cluster.brokers[member.broker].group for member in holders(segment)} & drained
                left += [f"{partition}:{segment.no} on {group}" for group in sorted(groups)]
        return left
