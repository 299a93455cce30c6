"""Leaving: open segments leave a broker group that is cordoned, and copies too if it is drained.

The controller says what should leave. The member that is asked checks by itself whether that is safe as far as it
knows, and does nothing otherwise. Open segments leave by planned switches. Copies of a sealed segment leave its record
by a transaction of the segment's server. It needs `min_copies` in-sync copies that stay, on members that it can reach.
A server that must leave itself hands the right to one of these members in the same transaction; the new server waits as
any new server does. If another transaction comes first, this one is not tried again here: the controller looks again,
and asks again.
"""

from __future__ import annotations

from collections.abc import Collection

from seriatim_api.ids import MemberId

from ..peers import candidates, disks, right
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..switching import switch
from ..values.chain import may_join, release_copies
from ..values.kinds import SwitchReason, TimerKind, WriteOwner
from ..values.segment import Segment, SegmentState


def move_open_segment(broker: BrokerState, partition: Partition, no: int) -> None:
    """Begin a planned switch of the open segment, if this is its master and a broker group can take it.

    If no other one can, the open segment stays in its broker group, but gets the members that it lacks.
    """
    chain = partition.chain
    log = partition.open_log()
    if chain is None or log is None or chain.open_segment.no != no or not log.active or not log.unbroken:
        return
    if partition.switch is not None:
        return
    if candidates.open_target(broker, chain):
        switch.begin_move(broker, partition)
        return
    master = candidates.next_master(broker, partition.id, chain.open_segment)
    if master is not None:
        group = chain.open_segment.broker_group
        switch.begin_move(broker, partition, SwitchReason.PLANNED, group, master.broker)


def leave_full_disk(broker: BrokerState, partition: Partition) -> None:
    """Move the open segment to a broker group with room, if this is its master and a disk of its members is full.

    While the disk is full this is tried again every `retry_us_max` (1 s).

    Rule `full-stays` (I13): an open segment leaves a full disk. Without it:
      1. The disk of As reaches its reserve. Am refuses new batches.
      2. Am and As are alive, so no switch begins. The partition takes no batch until an administrator acts.
    """
    chain, log = partition.chain, partition.open_log()
    if chain is None or log is None or not log.active or not log.unbroken:
        return
    if disks.full_member(broker, log.record.members) is None:
        return
    target = candidates.open_target(broker, chain)
    if partition.switch is None and target:
        switch.begin_move(broker, partition, SwitchReason.DISK_FULL, target)
    broker.poll(broker.config.retry_us_max, TimerKind.ROOM, partition.id)


def release(broker: BrokerState, partition: Partition, nos: Collection[int], leaving: Collection[MemberId]) -> None:
    """Have members leave the records of sealed segments. If a segment has no live server, take its right first.

    All segments leave in one transaction, because two transactions on one chain would conflict.
    """
    chain = partition.chain
    if chain is None or any(chain.segment(no) is None for no in nos):
        partition.read_chain(broker)  # the controller asks again
        return
    if not partition.can_amend(broker):
        return  # without the pause: the controller asks seldom, and might never hit the moments between two pauses
    successors: dict[int, MemberId | None] = {}
    for segment in chain.segments:
        if segment.no not in nos or segment.state is not SegmentState.SEALED:
            continue
        if segment.server != broker.member:
            # A member that is not eligible lacks the control records. It serves only if no eligible member can come
            # back.
            if broker.member in segment.eligible or all(map(broker.directory.is_replaced, segment.eligible)):
                right.want(broker, partition, segment.no, segment.server_epoch)
            continue
        staying = staying_copies(broker, segment, leaving)
        if len(staying) >= broker.config.min_copies and may_join(successors, segment.no, partition.pace.segments_max):
            successors[segment.no] = staying[0] if broker.member in leaving else None
    if successors:
        partition.write_chain(broker, WriteOwner.LEAVE, release_copies(chain, leaving, successors))
    right.take_wanted(broker, partition)


def staying_copies(broker: BrokerState, segment: Segment, leaving: Collection[MemberId]) -> list[MemberId]:
    """The eligible members that do not leave and are linked. They hold the whole segment and its control records.

    Rules `leaves-when-one-stays` and `leaves-when-listed` (LEAVE): see `controller.plan_release`.
    """
    return [member for member in segment.eligible if member not in leaving and broker.is_linked(member)]
