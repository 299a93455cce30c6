"""Rebuilding a coordinator that lost decisions: which records it should have, from what the brokers know. Pure.

Each broker tells the chain records and the cursors that it knows. The coordinator has the records that are left. Of
each partition the newest record is written: the one with the highest segment number, then the highest chain epoch. It
gets a chain epoch above all that were told, so that every broker learns it. Two records that cannot both have been
decided (one segment number, two switch attempts) are not merged. Messages may have been acknowledged under both, so a
person must decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from seriatim_api.ids import PartitionId, make_offset, split_offset

from ..values.chain import Chain
from ..values.events import CursorRecord
from ..values.log import NO_HAND_OVER, CursorState


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """What to do with one partition's record.

    Attributes:
        current: The record that the coordinator has; None if it has none.
        chain: The record to write; None: nothing is to be written.
        told_by: The broker that told it.
        conflict: Why nothing can be written; empty if there is no conflict.
    """

    partition: PartitionId
    current: Chain | None
    chain: Chain | None
    told_by: str = ""
    conflict: str = ""


def plan_chain(partition: PartitionId, told: Mapping[str, Chain], current: Chain | None) -> ChainPlan:
    """The newest record of a partition.

    Args:
        partition: The partition.
        told: The records that brokers know, by the name of the broker.
        current: The record that the coordinator has; None if it has none.
    """
    assert told or current is not None
    known = [*told.items(), *([("the coordinator", current)] if current is not None else [])]
    by, best = max(known, key=lambda item: (item[1].open_segment.no, item[1].epoch))
    for name, other in known:
        conflict = _conflict(best, other)
        if conflict:
            return ChainPlan(partition, current, None, conflict=f"{conflict} ({by} and {name} tell it differently)")
    epoch = max(chain.epoch for _, chain in known)
    newest = [chain for _, chain in known if chain.epoch == epoch]
    if (
        current is not None
        and (current.epoch, current.open_segment.no) == (epoch, best.open_segment.no)
        and all(chain.segments == current.segments for chain in newest)
    ):
        return ChainPlan(partition, current, None)
    return ChainPlan(partition, current, replace(best, epoch=epoch + 1), by)


def _conflict(one: Chain, other: Chain) -> str:
    for has, lacks in ((one, other), (other, one)):
        for segment in has.segments:
            if segment.sealed_len and lacks.is_folded(segment.no):
                return f"segment {segment.no} was sealed twice, at {segment.sealed_len} and as empty"
    for mine in one.segments:
        theirs = other.segment(mine.no)
        if theirs is None or theirs is mine:
            continue
        if theirs.switch_attempt != mine.switch_attempt:
            return f"segment {mine.no} was opened twice, on {mine.broker_group} and on {theirs.broker_group}"
        if None not in (mine.sealed_len, theirs.sealed_len) and mine.sealed_len != theirs.sealed_len:
            return f"segment {mine.no} was sealed twice, at {mine.sealed_len} and at {theirs.sealed_len}"
    return ""


def plan_cursor(
    told: Iterable[CursorState], current: CursorRecord | None, topic: str, expired: int = 0, chain_epoch: int = 0
) -> CursorRecord | None:
    """A consumer group's cursor in a partition, if the brokers know a newer one than the coordinator; else None.

    It begins at the least index that a member tells. A server continues at what its own disk has, and counts everything
    below the cursor as acknowledged on all members. What disks do not tell, such as the mode and the retry policy, is
    as in the record that the coordinator has.

    Rule `rebuilt-as-it-was` (K1, J3): the mode stays, and the term base is above each one that may be lost. Each
    crossing raised the term base by at most `chain_epoch`, the highest epoch of the chain, and one. Without it:
      1. The coordinator is restored as it was when a key-ordered consumer group was in segment 2.
      2. The rebuild writes that the consumer group is in segment 8, and exclusive.
      3. Its parked keys are passed, because an exclusive consumer group has only a floor.

    Rule `expired-stays-deleted` (EPOCH): if the coordinator has no record, control records of group epochs up to
    `expired` do not count. Every consumer group that was made since has a higher group epoch. Without it:
      1. A consumer group is deleted. Its deleted cursor is removed after `deleted_kept_s`.
      2. A broker still has its control record, and tells it.
      3. The rebuild makes the deleted consumer group again.
    """
    states = [state for state in told if current is not None or state.group_epoch > expired]
    epoch, no = max(((state.group_epoch, state.segment_no) for state in states), default=(0, 0))
    if not states or (current is not None and (current.group_epoch, current.segment_no) >= (epoch, no)):
        return None
    newest = [state for state in states if (state.group_epoch, state.segment_no) == (epoch, no)]
    start = min(state.acked for state in newest)
    oldest = min((state.oldest for state in newest if state.oldest), default=0)
    if current is None or current.deleted:
        # Its mode is lost. What was set aside comes again, with the flag. Without it: k:5 is parked, and k:6 is
        # acknowledged. The group is exclusive now and has no lists, so k:5 is never delivered.
        if oldest and oldest < make_offset(no, start):
            return CursorRecord(split_offset(oldest)[0], epoch + 1, split_offset(oldest)[1], topic, repeated_to=no)
        return CursorRecord(no, epoch, start, topic)
    crossings = max(no - current.segment_no, 0) + epoch - current.group_epoch
    moved = replace(current, segment_no=no, group_epoch=epoch, start_index=start, handover=NO_HAND_OVER, begun_by=None)
    base = current.term_base + crossings * (chain_epoch + 1) if current.mode.is_keyed else current.term_base
    return replace(moved, oldest=oldest, term_base=base, dropped_from=0, dropped_position=0)
