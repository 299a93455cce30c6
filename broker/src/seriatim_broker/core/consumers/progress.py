"""A consumer group continues: all members have a control record, time has passed, or the chain record has changed.

Then the server may deliver what it held back, read more, or cross.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..peers import disks, right
from ..state.broker import BrokerState
from ..state.consumers import GroupHead, GroupPhase
from ..state.partition import Partition
from ..values.effects import AckConfirmed
from ..values.kinds import TimerKind
from . import crossing, delivery
from .head import forget_if_unused, tell


def retry(broker: BrokerState, partition: Partition, segment_no: int) -> None:
    """Time has passed, or a certificate or a record has come: try to deliver, to read and to cross in this segment."""
    for head in list(partition.groups.values()):
        if head.segment_no == segment_no and head.phase is GroupPhase.SERVING:
            _chase_syncs(broker, partition, head)
            _go_on(broker, partition, head)


def _go_on(broker: BrokerState, partition: Partition, head: GroupHead) -> None:
    delivery.deliver_held_back(broker, partition, head)
    delivery.pump_group(broker, partition, head)
    crossing.cross_if_done(broker, partition, head)


def _chase_syncs(broker: BrokerState, partition: Partition, head: GroupHead) -> None:
    """Start to remove the members that control records wait for, if they are silent or their disks hang."""
    if not head.syncs:
        return
    no = head.segment_no
    waited_for = {member for sync in head.syncs.values() for member in sync.waiting}
    if waited_for.intersection(right.unfit_members(broker, partition, no)):
        right.seek(broker, partition, no)
    if broker.member in waited_for and disks.is_hung(broker, broker.member):
        right.offer(broker, partition, no)
    for member in [member for member in right.joining(partition, no) if disks.is_hung(broker, member)]:
        right.stop_joining(partition, no, member)
        expect_no_more(broker, partition, no, member)
    broker.poll(broker.config.heartbeat_us, TimerKind.PUMP, partition.id, head.segment_no)


# ---- control records become common ----------------------------------------------------------------------


def on_synced(
    broker: BrokerState, partition: Partition, member: MemberId, no: int, server_epoch: int | None, serial: int
) -> None:
    """A member has a control record. It replaces all older ones of the consumer group, so these are confirmed too."""
    for head in list(partition.groups.values()):
        if serial not in head.syncs or head.segment_no != no or server_epoch not in (None, head.server_epoch):
            continue
        for known in [known for known in head.syncs if known <= serial]:
            head.syncs[known].waiting.pop(member, None)
            finish_sync(broker, partition, head, known)


def expect_no_more(broker: BrokerState, partition: Partition, no: int, member: MemberId) -> None:
    """A joining member is gone: no control record waits for it any more."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    for head in list(partition.groups.values()):
        if head.segment_no != no or (segment is not None and member in segment.eligible):
            continue
        for serial in list(head.syncs):
            if serial in head.syncs:
                head.syncs[serial].waiting.pop(member, None)
                finish_sync(broker, partition, head, serial)


def finish_sync(broker: BrokerState, partition: Partition, head: GroupHead, serial: int) -> None:
    """If all members have the control record, it counts from now on: tell the consumer, and continue."""
    sync = head.syncs[serial]
    if sync.waiting:
        return
    del head.syncs[serial]
    head.safe_reserved = max(head.safe_reserved, sync.reserved)
    if sync.acked > head.safe_acked:
        head.safe_acked = sync.acked
        if head.active is not None:
            tell(broker, head.active, AckConfirmed(head.segment_no, head.safe_acked))
    _go_on(broker, partition, head)
    forget_if_unused(partition, head)
