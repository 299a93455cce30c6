"""Control records: how far a group has acknowledged, and below where it may have been given messages.

The server writes each on its own disk and sends it to every eligible (or joining) member; `progress` looks who has
confirmed. On another member they are kept, in case it becomes the server.
"""

from __future__ import annotations

from collections.abc import Mapping

from seriatim_api.ids import MemberId, PartitionId, split_offset

from ..peers import updates
from ..state.broker import BrokerState
from ..state.consumers import GroupHead, GroupPhase, Sync
from ..state.partition import Partition
from ..values.effects import CursorsListed
from ..values.events import ConsumerAck, ForgetGroup, ListCursors
from ..values.kinds import StoredFor, TimerKind
from ..values.log import CursorState, DropCursor, PutCursor
from ..values.messages import CursorSync, CursorSynced
from ..values.states import drop


def known_in_epoch(partition: Partition, group: str, segment_no: int, group_epoch: int) -> CursorState | None:
    """What this disk knows of the group's acknowledgements in a segment.

    Rule `old-epochs-void` (I1): those of another epoch count for nothing. Without it: (1) a group has acknowledged 1:50
    and is rewound to 1:0; (2) its server finds 1:50 on its disk, and the group is never given what it was rewound for.
    """
    known = partition.cursor_in(segment_no, group)
    return known if known is not None and known.group_epoch == group_epoch else None


def was_further(partition: Partition, group: str, segment_no: int, group_epoch: int) -> bool:
    """Whether this disk knows that the group has left that place already: then the cursor is an older one.

    Rule `further-before` (I9, I11): it is not known here how far the group was in the segment that it had left. Without
    it: (1) the group has worked segment 2 off, and this member serves it in segment 4, where the control record takes
    the place of the one of segment 2; (2) the coordinator is restored as it was when the group came to segment 2; (3)
    before this member notices, a consumer joins, and is given segment 2 again, as if for the first time.
    """
    known = partition.cursors.get(group)
    return known is not None and (known.group_epoch, known.segment_no) > (group_epoch, segment_no)


# ---- the server -----------------------------------------------------------------------------------------


def on_ack(broker: BrokerState, partition: Partition, event: ConsumerAck) -> None:
    """All up to an offset is done, if the token is the current grant's."""
    for head in partition.groups.values():
        for consumer in head.consumers:
            if (consumer.stream, consumer.subscription) != (event.stream, event.subscription):
                continue
            no, index = split_offset(event.offset)
            current = consumer is head.active and event.token == head.token and no == head.segment_no
            if not current or index >= head.delivered or head.phase is not GroupPhase.SERVING:
                return  # a stale token changes nothing
            if index + 1 > head.acked:
                head.acked = index + 1
                head.dropped_from = 0  # it was told: what it acknowledges comes behind that
                _sync_soon(broker, partition, head)
            return


def _sync_soon(broker: BrokerState, partition: Partition, head: GroupHead) -> None:
    """Make the acknowledgement durable: with others that come within a moment, at the end of a segment at once."""
    log = partition.logs.get(head.segment_no)
    if log is not None and log.record.sealed_len is not None and head.acked == log.record.sealed_len:
        sync(broker, partition, head)
    elif not head.dirty:
        head.dirty = True
        broker.wake(broker.now.mono_us + broker.config.ack_sync_us, TimerKind.SYNC, partition.id, head.group)


def on_sync_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """The moment is over."""
    head = partition.groups.get(group)
    if head is not None and head.dirty and head.phase is GroupPhase.SERVING:
        sync(broker, partition, head)


def sync(broker: BrokerState, partition: Partition, head: GroupHead) -> None:
    """Write the control record here and on every other eligible (or joining) member."""
    head.dirty = False
    no = head.segment_no
    segment = partition.chain.segment(no) if partition.chain is not None else None
    assert segment is not None
    cursor = CursorState(no, head.group, head.group_epoch, head.acked, head.reserved)
    _keep(broker, partition, cursor)
    serial = broker.new_serial()
    broker.out.when_stored(partition.id, StoredFor.CURSOR, no, serial)
    held = partition.rights.get(no)
    if held is not None and held.joining:
        held.joining = dict.fromkeys(held.joining, serial)
    joining = held.joining if held is not None else ()
    others = [member for member in dict.fromkeys((*segment.eligible, *joining)) if member != broker.member]
    head.syncs[serial] = Sync(head.acked, head.reserved, dict.fromkeys((broker.member, *others)))
    head.eligible = segment.eligible
    message = CursorSync(partition.id, no, segment.server_epoch, serial, (cursor,))
    for member in others:
        broker.send(member, message)
    broker.poll(broker.config.silence_us, TimerKind.PUMP, partition.id, no)


def _keep(broker: BrokerState, partition: Partition, cursor: CursorState) -> None:
    """Write a control record, and drop the one that the group left in an earlier segment."""
    left = partition.keep_cursor(cursor)
    broker.out.write(PutCursor(partition.id, cursor))
    if left is not None:
        broker.out.write(DropCursor(partition.id, left.segment_no, left.group))


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """What a member may have missed is sent again: the newest control record says it all."""
    for head in list(partition.groups.values()):
        if head.phase is GroupPhase.SERVING and any(member in waited.waiting for waited in head.syncs.values()):
            sync(broker, partition, head)


# ---- another member -------------------------------------------------------------------------------------


def on_cursor_sync(broker: BrokerState, partition: Partition, sender: MemberId, message: CursorSync) -> None:
    """The server's control records: keep them, unless a newer server is known."""
    segment = partition.chain.segment(message.segment_no) if partition.chain is not None else None
    if segment is not None and partition.chain is not None and message.server_epoch < segment.server_epoch:
        updates.tell_member(broker, partition, sender)  # it serves no more
        return
    for cursor in message.cursors:
        _keep(broker, partition, _merge(partition.cursor_in(cursor.segment_no, cursor.group), cursor))
    answer = CursorSynced(partition.id, message.segment_no, message.server_epoch, message.serial)
    broker.out.when_durable_send(sender, answer)


# ---- groups that are gone -------------------------------------------------------------------------------


def list_groups(partitions: Mapping[PartitionId, Partition], event: ListCursors) -> CursorsListed:
    """The groups with a control record here of an epoch that may have expired, by partition and name."""
    found: list[tuple[PartitionId, str]] = []
    first, after = event.after
    for id_ in sorted(id_ for id_, partition in partitions.items() if id_ >= first and partition.cursors):
        low = [
            cursor.group
            for cursor in partitions[id_].cursors.values()
            if cursor.group_epoch <= event.epoch_max and (id_ > first or cursor.group > after)
        ]
        found += [(id_, group) for group in sorted(low)]
        if len(found) >= event.limit:
            break
    return CursorsListed(event.request, tuple(found[: event.limit]))


def forget_group(broker: BrokerState, partition: Partition, event: ForgetGroup) -> None:
    """Drop the control records of a group that was deleted, from memory and disk.

    Rule `forgets-below`: only those of epochs up to `epoch_max`. The group may have been made again since the
    coordinator was read, and its new control records hold acknowledged messages.
    """
    cursor = partition.cursors.get(event.group)
    if cursor is not None and cursor.group_epoch <= event.epoch_max:
        partition.cursors = drop(partition.cursors, event.group)
        broker.out.write(DropCursor(partition.id, cursor.segment_no, cursor.group))


def _merge(known: CursorState | None, new: CursorState) -> CursorState:
    """Within an epoch of the group a cursor only moves forward, whatever the order of arrival."""
    if known is None or known.group_epoch < new.group_epoch:
        return new
    if known.group_epoch > new.group_epoch:
        return known
    acked, reserved = max(known.acked, new.acked), max(known.reserved, new.reserved)
    return CursorState(new.segment_no, new.group, new.group_epoch, acked, reserved)
