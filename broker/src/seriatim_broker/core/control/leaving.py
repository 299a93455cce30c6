"""Leaving: a broker group that is cordoned gets rid of its heads, one that is drained also of its copies.

The controller says what should leave; whoever is asked looks again for itself, and does nothing unless it is safe as
far as it knows. Heads leave by planned switches. Copies of a sealed segment leave its record by a transaction of the
segment's server, only while `min_copies` whole copies stay whose holders it can reach; a server that must leave itself
hands the right to one of them first, which waits as any new server does. Lost to another transaction it is not tried
again here: the controller looks, and asks anew.
"""

from __future__ import annotations

from collections.abc import Collection

from seriatim_api.ids import MemberId

from ..peers import candidates, disks, right
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..switching import switch
from ..values.chain import Segment, SegmentState, release_copies
from ..values.kinds import SwitchReason, TimerKind, WriteOwner


def move_head(broker: BrokerState, partition: Partition, no: int) -> None:
    """Begin a planned switch of the open segment, if this is its master and there is a group to go to."""
    chain = partition.chain
    log = partition.open_log()
    if chain is None or log is None or chain.open_segment.no != no or not log.active or not log.unbroken:
        return
    if partition.switch is None and candidates.open_target(broker, chain):
        switch.begin_move(broker, partition)


def leave_full_disk(broker: BrokerState, partition: Partition) -> None:
    """Move the head to a group with room, if this is its master and a disk of its members is full; and look again."""
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
    """Have members leave the records of sealed segments; of those that nobody serves, take the right to do so.

    All in one transaction, for two on the same chain would be in each other's way.
    """
    chain = partition.chain
    if chain is None or any(chain.segment(no) is None for no in nos):
        partition.read_chain(broker)  # the controller asks again
        return
    if partition.is_writing(WriteOwner.LEAVE) or partition.write_wait_us(broker):
        return
    successors: dict[int, MemberId | None] = {}
    for segment in chain.segments:
        if segment.no not in nos or segment.state is not SegmentState.SEALED:
            continue
        if partition.is_writing(WriteOwner.RIGHT, segment.no):
            continue
        if segment.server != broker.member:
            # Whoever is not eligible lacks the control records: it serves only if nobody who has them can come back.
            if broker.member in segment.eligible or all(map(broker.directory.is_replaced, segment.eligible)):
                right.take_over(broker, partition, segment.no, segment.server_epoch)
            continue
        staying = staying_copies(broker, segment, leaving)
        if len(staying) >= broker.config.min_copies:
            successors[segment.no] = staying[0] if broker.member in leaving else None
    if successors:
        partition.write_chain(broker, WriteOwner.LEAVE, release_copies(chain, leaving, successors))


def staying_copies(broker: BrokerState, segment: Segment, leaving: Collection[MemberId]) -> list[MemberId]:
    """Eligible members (they hold the whole segment and its control records) that do not leave and can be reached."""
    return [member for member in segment.eligible if member not in leaving and broker.is_linked(member)]
