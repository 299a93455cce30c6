# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules about consumer groups that people rewind, skip, pause and resume, removed one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim_broker.core.consumers import crossing, cursors, operations, serving
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.consumers import ConsumerGroup
from seriatim_broker.core.state.partition import Partition
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import CursorRecord, OperateConsumerGroup
from seriatim_broker.core.values.log import CursorState
from seriatim_broker.core.values.positions import Place

from .mutation import Mutation, Patch, nothing

_AFTER = operations.after
_UNSETTLED = operations.is_unsettled
_MOVED_TO = CursorRecord.moved_to
_WRITE_CURSOR = crossing.write_cursor


def _chain_is_not_compared() -> list[Patch]:
    def write(
        broker: BrokerState,
        partition: Partition,
        consumer_group: ConsumerGroup,
        record: CursorRecord,
        revision: int,
        chain_revision: int = 0,
        *,
        is_new: bool = False,
    ) -> None:
        _WRITE_CURSOR(broker, partition, consumer_group, record, revision, is_new=is_new)

    return [(crossing, "write_cursor", write)]


def _epoch_is_not_raised() -> list[Patch]:
    def after(
        cursor: CursorRecord,
        event: OperateConsumerGroup,
        chain: Chain | None,
        here: Place,
        given_below: int = 0,
        noted: int = 0,
        noted_at: int | None = None,
    ) -> CursorRecord:
        moved = _AFTER(cursor, event, chain, here, given_below, noted, noted_at)
        return replace(moved, group_epoch=cursor.group_epoch)

    return [(operations, "after", after)]


def _old_epochs_count() -> list[Patch]:
    def known(partition: Partition, group: str, segment_no: int, _group_epoch: int) -> CursorState | None:
        return partition.cursor_in(segment_no, group)

    return [(cursors, "known_in_epoch", known)]


def _epochs_are_merged() -> list[Patch]:
    """On the other members what was acknowledged in the epoch before stays acknowledged."""

    real = cursors._keep

    def keep(broker: BrokerState, partition: Partition, cursor: CursorState, change: Any = None) -> None:
        known = partition.cursor_in(cursor.segment_no, cursor.consumer_group)
        if known is not None:
            acked, reserved = max(known.acked, cursor.acked), max(known.reserved, cursor.reserved)
            cursor = replace(cursor, acked=acked, reserved=reserved)
        real(broker, partition, cursor, change)

    return [(cursors, "_keep", keep)]


def _unknown_thaws() -> list[Patch]:
    def is_unsettled(
        broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup, record: CursorRecord, revision: int
    ) -> bool:
        operation = consumer_group.writing
        if (
            operation is not None
            and not consumer_group.crossing_serial
            and not operations.was_done(record, operation.event)
        ):
            operation.is_begun = False
            consumer_group.operations.pop(0)
            return False
        return _UNSETTLED(broker, partition, consumer_group, record, revision)

    return [(operations, "is_unsettled", is_unsettled)]


def _pause_is_not_carried_on() -> list[Patch]:
    def moved_to(self: CursorRecord, *arguments: Any, **named: Any) -> CursorRecord:
        return replace(_MOVED_TO(self, *arguments, **named), paused=False)

    return [(CursorRecord, "moved_to", moved_to)]


def _mutation(rule: str, patches: Any, *breaks: str, profile: str = "group-operations") -> Mutation:
    return Mutation(rule, patches, breaks, profile)


MUTATIONS: dict[str, Mutation] = {
    "operation-compares-chain": _mutation(
        "an operation on a consumer group compares the chain record, which names the server",
        _chain_is_not_compared,
        "VOID",
        "PAUSE",
        "I11",
        profile="late-operations",
    ),
    "operation-raises-epoch": _mutation("a rewind or skip begins a new group epoch", _epoch_is_not_raised, "I11"),
    "old-epochs-void": _mutation(
        "what was acknowledged in another group epoch does not count", _old_epochs_count, "I2", "I11", "I8"
    ),
    "epochs-apart": _mutation(
        "control records of two group epochs are not merged", _epochs_are_merged, "I2", "I11", "I8", "I3"
    ),
    "unknown-holds": _mutation(
        "a consumer group gets nothing until its move is known to be done",
        _unknown_thaws,
        "VOID",
        "I11",
        profile="late-operations",
    ),
    "stops-first": _mutation(
        "a consumer group is stopped before it is moved",
        lambda: [(operations, "_stop", nothing)],
        "VOID",
        "I11",
        "CORE",
    ),
    "operation-once": _mutation(
        "a repeated request is carried out once", lambda: [(operations, "was_done", lambda *_: False)], "ONCE"
    ),
    "newest-cursor": _mutation(
        "a cursor that was read earlier and arrives late is ignored",
        lambda: [(serving, "_came_late", lambda *_: False)],
        "VOID",
        "PAUSE",
        "I11",
        "I13",
    ),
    "pause-stays": _mutation(
        "a paused consumer group stays paused when it crosses or is moved", _pause_is_not_carried_on, "PAUSE", "I11"
    ),
}
"""By name."""
