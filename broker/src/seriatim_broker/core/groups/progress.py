"""A group goes on: a control record became common to its members, time passed, or something else changed.

What was held back may be delivered, more may be read, and what is done may be crossed.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from .. import disks, right
from ..effects import AckConfirmed
from ..outbox import Outbox
from ..partition import Partition
from . import crossing, delivery
from .head import GroupHead, Phase, forget_if_unused, tell


def retry(outbox: Outbox, partition: Partition, segment_no: int) -> None:
    """Time, a certificate or a record changed: what was held back may go now."""
    for head in list(partition.groups.values()):
        if head.segment_no == segment_no and head.phase is Phase.SERVING:
            _chase_syncs(outbox, partition, head)
            _go_on(outbox, partition, head)


def _go_on(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    delivery.deliver_held_back(outbox, partition, head)
    delivery.pump_group(outbox, partition, head)
    crossing.cross_if_done(outbox, partition, head)


def _chase_syncs(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """A control record waits for a member that is silent, or whose disk hangs: that one must not stay eligible."""
    if not head.syncs:
        return
    no = head.segment_no
    waited_for = {member for sync in head.syncs.values() for member in sync.waiting}
    if waited_for.intersection(right.unfit_members(outbox, partition, no)):
        right.seek(outbox, partition, no)
    if outbox.member in waited_for and disks.is_hung(outbox, outbox.member):
        right.offer(outbox, partition, no)
    for member in [member for member in right.joining(partition, no) if disks.is_hung(outbox, member)]:
        right.stop_joining(partition, no, member)
        expect_no_more(outbox, partition, no, member)
    outbox.poll(outbox.config.heartbeat_us, "pump", partition.id, head.segment_no)


# ---- control records become common ----------------------------------------------------------------------


def on_synced(
    outbox: Outbox, partition: Partition, member: MemberId, no: int, server_epoch: int | None, serial: int
) -> None:
    """One more member has a control record; it says all that the older ones of the same group said."""
    for head in list(partition.groups.values()):
        if serial not in head.syncs or head.segment_no != no or server_epoch not in (None, head.server_epoch):
            continue
        for known in [known for known in head.syncs if known <= serial]:
            head.syncs[known].waiting.pop(member, None)
            finish_sync(outbox, partition, head, known)


def expect_no_more(outbox: Outbox, partition: Partition, no: int, member: MemberId) -> None:
    """A member that was about to be eligible is gone: no control record waits for it any more."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    for head in list(partition.groups.values()):
        if head.segment_no != no or (segment is not None and member in segment.eligible):
            continue
        for serial in list(head.syncs):
            if serial in head.syncs:
                head.syncs[serial].waiting.pop(member, None)
                finish_sync(outbox, partition, head, serial)


def finish_sync(outbox: Outbox, partition: Partition, head: GroupHead, serial: int) -> None:
    """If all have the control record: what it says counts from now on."""
    sync = head.syncs[serial]
    if sync.waiting:
        return
    del head.syncs[serial]
    head.safe_reserved = max(head.safe_reserved, sync.reserved)
    if sync.acked > head.safe_acked:
        head.safe_acked = sync.acked
        if head.active is not None:
            tell(outbox, head.active, AckConfirmed(head.segment_no, head.safe_acked))
    _go_on(outbox, partition, head)
    forget_if_unused(partition, head)
