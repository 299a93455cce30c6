"""Rules about broker groups that are cordoned, drained and rolled, removed one at a time.

Two brokers decide which member leaves a record: the controller, and the server that carries it out. So a mutant removes
the rule at both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from seriatim_api.errors import StaleOperatorError
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.control import controller, leaving
from seriatim_broker.core.control import restarting as gate_rules
from seriatim_broker.core.control.controller import holders
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import Release
from seriatim_broker.core.values.messages import CopyReport, Standing
from seriatim_broker.core.values.segment import Segment, SegmentState
from seriatim_broker.interfaces.coordinator import Compare
from seriatim_broker.runtime import broker_groups, drainer, restart_gate
from seriatim_broker.runtime.broker_groups import BrokerGroups
from seriatim_broker.runtime.restart_gate import RestartGate

from .mutation import LOSS, Mutation, Patch


def _plan_with(stay: Callable[[Segment, set[MemberId]], list[MemberId]], enough: int) -> Any:
    """The controller's rule with another one for who stays, and how many of them will do."""

    def plan(
        chain: Chain, is_leaving: Callable[[MemberId], bool], is_there: Callable[[MemberId], bool], *, min_copies: int
    ) -> Release | None:
        for segment in chain.segments:
            gone = set(filter(is_leaving, holders(segment)))
            if segment.state is not SegmentState.SEALED or not gone:
                continue
            staying = [member for member in stay(segment, gone) if is_there(member)]
            if len(staying) >= enough:
                by = segment.server if is_there(segment.server) else staying[0]
                return Release(chain.partition, (segment.no,), by, tuple(sorted(gone)))
        return None

    return plan


def _leaves_when_one_stays() -> list[Patch]:
    def stay(segment: Segment, gone: set[MemberId]) -> list[MemberId]:
        return [member for member in segment.eligible if member not in gone]

    def staying(broker: BrokerState, segment: Segment, gone: Collection[MemberId]) -> list[MemberId]:
        found = [member for member in segment.eligible if member not in gone and broker.is_linked(member)]
        return [*found, *found]  # one counts for two

    return [(drainer, "plan_release", _plan_with(stay, 1)), (leaving, "staying_copies", staying)]


def _leaves_when_listed() -> list[Patch]:
    """Members that are still copying count as if they had everything."""

    def stay(segment: Segment, gone: set[MemberId]) -> list[MemberId]:
        return [member for member in segment.members if member not in gone] + [segment.server]

    def staying(broker: BrokerState, segment: Segment, gone: Collection[MemberId]) -> list[MemberId]:
        found = [member for member in segment.eligible if member not in gone]
        return [
            *found,
            *(member for member in broker.directory.broker_groups.get(segment.broker_group, ()) if member not in found),
        ]

    return [(drainer, "plan_release", _plan_with(stay, 1)), (leaving, "staying_copies", staying)]


def _gate_asks_nobody() -> list[Patch]:
    async def ask(
        self: RestartGate,
        member: MemberId,
        without: MemberId,
        segments: Sequence[tuple[PartitionId, int]],
        until_s: float,
    ) -> tuple[CopyReport, ...]:
        return tuple(CopyReport(Standing.WHOLE, 0, 0) for _ in segments)

    judge = gate_rules.judge

    def trusting(need: gate_rules.Need, reports: Any, is_there: Callable[[MemberId], bool]) -> gate_rules.Finding:
        if need.state is SegmentState.OPEN:
            return gate_rules.Finding(gate_rules.Verdict.SAFE, "it is in the record", need)
        return judge(need, reports, is_there)

    return [(RestartGate, "_ask", ask), (restart_gate, "judge", trusting)]


def _older_operator_is_obeyed() -> list[Patch]:
    set_group = BrokerGroups.set

    async def obey(self: BrokerGroups, group: str, intent: Any, weight: Any, guard: Any = None) -> Any:
        async def compares() -> Sequence[Compare]:
            with contextlib.suppress(StaleOperatorError):
                await guard()
            return ()

        return await set_group(self, group, intent, weight, compares)

    return [(BrokerGroups, "set", obey)]


def _epoch_is_read_and_not_compared() -> list[Patch]:
    set_group = BrokerGroups.set

    async def look(self: BrokerGroups, group: str, intent: Any, weight: Any, guard: Any = None) -> Any:
        async def compares() -> Sequence[Compare]:
            await guard()
            return ()

        return await set_group(self, group, intent, weight, compares)

    return [(BrokerGroups, "set", look)]


def _tail_copies_are_forgotten() -> list[Patch]:
    """The controller does not count who holds only a tail."""

    def members_only(segment: Segment) -> set[MemberId]:
        return holders(replace(segment, tail_copies=()))

    return [(controller, "holders", members_only), (broker_groups, "holders", members_only)]


_STUCK = ("I13",)

MUTATIONS: dict[str, Mutation] = {
    "leaves-when-one-stays": Mutation(
        "a copy leaves a record only if two whole copies stay",
        _leaves_when_one_stays,
        ("LEAVE", *LOSS),
        "groups-change",
        world="groups",
        layer="runtime",
    ),
    "leaves-when-listed": Mutation(
        "only an eligible member counts as a whole copy",
        _leaves_when_listed,
        ("LEAVE", *LOSS),
        "groups-change",
        world="groups",
        layer="runtime",
    ),
    "gate-asks-nobody": Mutation(
        "the gate asks the members, and does not trust the record",
        _gate_asks_nobody,
        ("GATE",),
        "groups-change",
        world="groups",
        layer="runtime",
    ),
    "older-operator": Mutation(
        "an operator whose Lease is over changes nothing",
        _older_operator_is_obeyed,
        ("OPERATOR",),
        "groups-change",
        world="groups",
        layer="runtime",
    ),
    "operator-compare": Mutation(
        "an operator's epoch is compared in the transaction",
        _epoch_is_read_and_not_compared,
        ("OPERATOR",),
        "groups-change",
        world="groups",
        layer="runtime",
    ),
    "tails-forgotten": Mutation(
        "a drained broker group gives away tail copies as well",
        _tail_copies_are_forgotten,
        _STUCK,
        "groups-change",
        world="groups",
        layer="core",
    ),
}
"""By name."""
