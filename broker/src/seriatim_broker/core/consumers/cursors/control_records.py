"""Control records: how far a consumer group has acknowledged, and below which index it may have been given messages.

The server writes each control record on its own disk and sends it to every eligible or joining member. Each of these
members, the server too, confirms it with `CursorsReplicated` (`groups.eligibility`) when it is durable there. The other
members keep it in case one of them becomes the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from seriatim_api.ids import MemberId, PartitionId

from ...peers import updates
from ...state.broker import BrokerState
from ...state.consumers import KeyedServed, Served
from ...state.keyed import rows as keyed_rows
from ...state.ledger import CursorReplication, Ledger
from ...state.partition import Partition
from ...values.delayed import is_ledger_name
from ...values.effects import CursorsListed
from ...values.events import CursorRecord, ForgetConsumerGroup, ListCursors
from ...values.kinds import TimerKind
from ...values.log import (
    NO_HAND_OVER,
    CursorState,
    DropCursor,
    HandOverState,
    LedgerChange,
    LedgerVersion,
    PutCursor,
    PutHandOver,
    PutLedger,
)
from ...values.messages import CursorsReplicated, LedgerWanted, ReplicateCursors, ReplicateLedger
from ...values.segment import Segment
from ...values.states import drop, put
from .consumer_group import keyed_of


def known_in_epoch(partition: Partition, group: str, segment_no: int, group_epoch: int) -> CursorState | None:
    """The control record on this disk of a consumer group in a segment, if it is of that group epoch.

    Rule `old-epochs-void` (I1, I8): what was acknowledged in another group epoch does not count. Without it:
      1. A consumer group has acknowledged all below 1:50. An administrator rewinds it to 1:0.
      2. Its server finds 1:50 on its disk, and begins there. The messages from 1:0 to 1:49 are not given again.
    """
    known = partition.cursor_in(segment_no, group)
    return known if known is not None and known.group_epoch == group_epoch else None


def rows_at_rest(partition: Partition, group: str, record: CursorRecord) -> Mapping[bytes, bytes] | None:
    """The rows with which this member would begin to serve a consumer group; None if it lacks what was handed over."""
    if known_in_epoch(partition, group, record.segment_no, record.group_epoch) is not None:
        return partition.ledger_rows.get(group, {})
    if record.handoff == NO_HAND_OVER:
        return {}
    handed_over = named_handoff(partition, group, record)
    return dict(handed_over.rows) if handed_over is not None else None


def named_handoff(partition: Partition, group: str, record: CursorRecord) -> HandOverState | None:
    """The handoff that the cursor names, if this disk has it."""
    known = partition.handoffs.get(group)
    named = (record.segment_no, record.group_epoch, record.handoff)
    return known if known is not None and (known.segment_no, known.group_epoch, known.id) == named else None


def was_further(partition: Partition, group: str, segment_no: int, group_epoch: int) -> bool:
    """Whether this disk has a control record of a later segment or group epoch. Then the cursor that was read is older.

    Rule `further-before` (I9, I11): the server then flags its deliveries, because it does not know how far the consumer
    group was in the segment of the older cursor. Without it:
      1. The consumer group has finished segment 2. This member serves it in segment 4. Here the control record of
         segment 4 has replaced the one of segment 2.
      2. The coordinator is restored as it was when the consumer group came to segment 2.
      3. Before this member notices, a consumer joins. It is given segment 2 again, without a flag.
    """
    known = partition.cursors.get(group)
    return known is not None and (known.group_epoch, known.segment_no) > (group_epoch, segment_no)


# ---- the server -----------------------------------------------------------------------------------------


def replicate_soon(served: Served) -> None:
    """Write the control record after `ack_replication_us` (20 ms), for all acknowledgements until then.

    If all of a sealed segment is acknowledged, write it at once.
    """
    ledger, sealed_len = served.ledger, served.log.record.sealed_len
    if sealed_len is not None and ledger.acked == sealed_len:
        replicate(served)
    elif not ledger.dirty:
        ledger.dirty = True
        served.broker.wake(
            served.broker.now.mono_us + served.broker.config.ack_replication_us,
            TimerKind.REPLICATION,
            served.partition.id,
            served.group.name,
        )


def on_replication_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """`ack_replication_us` is over: write the control record."""
    consumer_group = partition.consumer_groups.get(group)
    served = consumer_group.served if consumer_group is not None else None
    if served is not None and served.ledger.dirty and served.is_serving:
        replicate(served)


def write_if_dirty(served: Served) -> None:
    """Write the control record now if one is due: this member may start over at what its disk has."""
    if served.ledger.dirty and served.is_serving:
        replicate(served)


def after_passing(served: KeyedServed) -> None:
    """Indexes may have been passed, or records changed: the change is written within `ack_replication_us`."""
    keyed = served.keyed
    served.ledger.acknowledge(keyed.window.floor)
    if keyed.window.changed or keyed.window.gone or keyed.line.changed:
        replicate_soon(served)


def replicate(served: Served) -> int:
    """Write the control record here, and send it to every other eligible or joining member. Returns its serial, or 0.

    Rule `ack-copies` (I11): an ack counts only once every eligible member has it. Without it:
      1. The server has an ack on its own disk only, and tells the consumer that it is confirmed.
      2. The server dies, and another eligible member takes the right.
      3. The new server does not have the ack, and the cursor of the consumer group falls back.
    """
    consumer_group, ledger, record = served.group, served.ledger, served.cursor
    keyed = served.keyed if isinstance(served, KeyedServed) else None
    if keyed is not None and keyed.handoff.unread is not None:
        return 0  # the oldest message in a list is not known yet; when all keys are read, this is called again
    oldest = keyed.lists.oldest if keyed is not None else 0
    # Rule `note-is-durable` (I1): without it, a note of what consumers must still hear ends with its server.
    untold = ledger.dropped_from if ledger.untold_token else 0
    # Rule `settings-on-disks` (K1, J1, J3): mode, policy and term base are on each disk, beside what was done. So they
    # outlive the coordinator's record. Without it:
    #   1. A key-ordered consumer group parks k:5, and acknowledges k:6.
    #   2. The coordinator is restored from a copy that is older than the consumer group.
    #   3. The rebuild can only make it exclusive. An exclusive consumer group has no lists: k:5 is never delivered.
    cursor = CursorState(
        served.segment.no, consumer_group.name, consumer_group.group_epoch, ledger.acked, ledger.reserved,
        served.segment.server_epoch, oldest, untold, settings=served.settings, term_base=record.term_base,
        serial=served.broker.new_serial(),
    )  # fmt: skip
    change = keyed_rows.take_changes(keyed) if keyed is not None else None
    confirms = tuple(
        (row.stream, row.subscription, row.ack_number)
        for row in (consumer_group.consumers if keyed is not None else ())
        if row.ack_number > row.ack_confirmed
    )
    send(served.broker, served.partition, served.segment, ledger, cursor, change, confirms)
    return cursor.serial


def send(
    broker: BrokerState,
    partition: Partition,
    segment: Segment,
    ledger: Ledger,
    cursor: CursorState,
    change: LedgerChange | None,
    confirms: tuple[tuple[int, int, int], ...] = (),
) -> None:
    """Write a new control record of a segment that is served here, and send it to the other members that must have it.

    A change of the rows goes to members that were sent all before it, and all rows go to the others. A member that lost
    its link in between lacks changes, and asks for all rows (`on_replicate_ledger`). It is not sent all of them for
    each new link. Without it:
      1. 100,000 keys wait. Their rows are so large that a slow machine takes a heartbeat's time to send them.
      2. The link counts as silent and is recreated, and all rows are sent once more.

    Rule `full-first` (J1, J2): a new server first sends all rows to each member, and they replace what was there.
    Without it:
      1. A takes an acknowledgement of k:5, which reaches its own disk only. B takes the right over.
      2. On B, the consumer fails on k:5, and B parks the key: k:5 to k:9 are set aside.
      3. A comes back, and gets only what changes from now on. It takes the right.
      4. A believes that k:5 is acknowledged and that k is not parked. It delivers k:10.

    Args:
        broker: This broker.
        partition: The partition.
        segment: The segment.
        ledger: It notes which members have not confirmed the record.
        cursor: The record. Its serial is new.
        change: What changes in the rows beside it; None: it has no rows.
        confirms: Requests of consumers that the record has (`CursorReplication`).
    """
    no, serial, epoch = segment.no, cursor.serial, segment.server_epoch
    _keep(broker, partition, cursor, change)
    broker.out.when_durable(CursorsReplicated(partition.id, no, epoch, serial))
    held = partition.rights.get(no)
    if held is not None and held.joining:
        held.joining = dict.fromkeys(held.joining, serial)
    joining = held.joining if held is not None else ()
    others = [member for member in dict.fromkeys((*segment.eligible, *joining)) if member != broker.member]
    waiting = dict.fromkeys((broker.member, *others))
    ledger.replications[serial] = CursorReplication(ledger.acked, ledger.reserved, cursor.oldest, waiting, confirms)
    ledger.dirty, ledger.eligible = False, segment.eligible
    if change is None:
        message = ReplicateCursors(partition.id, no, epoch, serial, (cursor,))
        for member in others:
            broker.send(member, message)
    else:
        previous = ledger.version or serial  # versions of an earlier time as the server are lower, and never return
        ledger.version = previous + 1
        for member in others:
            sent = change
            if member not in ledger.told and broker.is_linked(member):
                sent = LedgerChange(tuple(partition.ledger_rows.get(cursor.consumer_group, {}).items()), is_full=True)
                ledger.told[member] = None
            broker.send(member, ReplicateLedger(partition.id, no, epoch, serial, previous, cursor, sent))
    broker.poll(broker.config.silence_us, TimerKind.PUMP, partition.id, no)


def send_all(broker: BrokerState, partition: Partition, member: MemberId, no: int, server_epoch: int) -> int:
    """Send a joining member all control records of a segment. Returns the serial that it confirms when it has them.

    Rule `last-confirms` (I9, I11): only the confirmation of the last message counts. Without it:
      1. A member joins. It is sent the rows of a keyed group, and after them the record of another group.
      2. It confirms the rows, and is listed as eligible. The other record is still on its way.
      3. The member becomes the server, and delivers what the other group had acknowledged, without a flag.
    """
    plain: list[CursorState] = []
    for cursor in partition.cursors.values():
        if cursor.segment_no != no:
            continue
        rows = partition.ledger_rows.get(cursor.consumer_group)
        ledger = _ledger_with_rows(partition, cursor)
        if not rows and ledger is None:
            plain.append(cursor)
            continue
        version = 0
        if ledger is not None:
            version = ledger.version
            ledger.told[member] = None
        full = LedgerChange(tuple((rows or {}).items()), is_full=True)
        message = ReplicateLedger(partition.id, no, server_epoch, broker.new_serial(), version - 1, cursor, full)
        broker.send(member, message)
    serial = broker.new_serial()
    broker.send(member, ReplicateCursors(partition.id, no, server_epoch, serial, tuple(plain)))
    return serial


def _ledger_with_rows(partition: Partition, cursor: CursorState) -> Ledger | None:
    """The ledger of which this is the control record, if it is served here and has rows."""
    served = keyed_of(partition, cursor.consumer_group)
    if served is not None:
        return served.ledger if served.group.segment_no == cursor.segment_no else None
    firing = partition.firing.get(cursor.segment_no)
    return firing.ledger if firing is not None and firing.name == cursor.consumer_group else None


def _keep(broker: BrokerState, partition: Partition, cursor: CursorState, change: LedgerChange | None = None) -> None:
    """Write a control record, and drop the one of the same consumer group in an earlier segment."""
    known = partition.cursors.get(cursor.consumer_group)
    if change is None and cursor.consumer_group in partition.ledger_rows:
        change = LedgerChange(is_full=True)
    if change is not None:
        is_other = known is None or (known.segment_no, known.group_epoch) != (cursor.segment_no, cursor.group_epoch)
        change = replace(change, is_full=change.is_full or is_other)
    left = partition.keep_cursor(cursor, change)
    if partition.cursors.get(cursor.consumer_group) is not cursor:
        # Rule `later-stays` (J1): if this disk has a later control record, the earlier one is not written. Without it:
        #   1. In segment 1, k:5 is set aside. The consumer group crosses, and this member has its record in segment 2.
        #   2. This member joins segment 1 too, and is sent the record and the rows that the consumer group left there.
        #   3. It writes the record alone, because the rows in its memory are those of the later one. Now this disk says
        #      that k:5 is passed and in no list.
        return
    if change is None:
        broker.out.write(PutCursor(partition.id, cursor))
    else:
        held = partition.handoffs.get(cursor.consumer_group)
        if held is not None and (held.group_epoch, held.segment_no) <= (cursor.group_epoch, cursor.segment_no):
            partition.handoffs = drop(partition.handoffs, cursor.consumer_group)
            partition.handing = drop(partition.handing, cursor.consumer_group)
        broker.out.write(PutLedger(partition.id, cursor, change))
        if change.is_full:
            _write_handoff_again(broker, partition, cursor.segment_no, cursor.consumer_group)
    if left is not None:
        drop_on_disk(broker, partition, left.segment_no, left.consumer_group)


def drop_on_disk(broker: BrokerState, partition: Partition, no: int, consumer_group: str) -> None:
    """Drop a control record and its rows in a segment from the disk, but not a handoff that waits there."""
    broker.out.write(DropCursor(partition.id, no, consumer_group))
    _write_handoff_again(broker, partition, no, consumer_group)


def _write_handoff_again(broker: BrokerState, partition: Partition, no: int, consumer_group: str) -> None:
    """Write a handoff of the segment again, because it is kept beside a record that is dropped or replaced.

    Rule `hand-over-stays` (J5): a handoff that waits stays on the disk. Without it:
      1. An administrator moves the consumer group from segment 7 back to segment 4. It crosses to segment 7 again.
      2. As confirms the handoff to segment 7. Its disk still has the record of before in that segment.
      3. As is sent the record in segment 4, and drops the other one. The handoff goes with it.
      4. Am moves the cursor to segment 7, and dies. As serves there, and does not know the attempts and lists.
    The same happens if As is about to become eligible in segment 7, and is sent the handoff first, and then all rows
    of the group epoch before in that segment.
    """
    held = partition.handoffs.get(consumer_group)
    if held is not None and held.segment_no == no:
        broker.out.write(PutHandOver(partition.id, held))


def on_link_up(partition: Partition, member: MemberId) -> None:
    """A member is linked that may have missed control records: send the newest one of each consumer group."""
    for consumer_group in list(partition.consumer_groups.values()):
        served = consumer_group.serving
        if served is not None and member in served.ledger.waited_for:
            replicate(served)


# ---- another member -------------------------------------------------------------------------------------


def on_replicate_cursors(
    broker: BrokerState, partition: Partition, sender: MemberId, message: ReplicateCursors
) -> None:
    """The server sent control records: keep them, unless a newer server is known here."""
    groups = [cursor.consumer_group for cursor in message.cursors]
    if _is_of_older_server(partition, message.segment_no, message.server_epoch, groups):
        _refuse_server(broker, partition, sender)
        return
    for sent in message.cursors:
        # The sender may have it from the server before.
        cursor = replace(sent, server_epoch=message.server_epoch, serial=message.serial)
        if replaces(partition.cursor_in(cursor.segment_no, cursor.consumer_group), cursor):
            _keep(broker, partition, cursor)
    answer = CursorsReplicated(partition.id, message.segment_no, message.server_epoch, message.serial)
    broker.out.when_durable_send(sender, answer)


def on_replicate_ledger(broker: BrokerState, partition: Partition, sender: MemberId, message: ReplicateLedger) -> None:
    """The server sent a change of a consumer group's rows: keep it, or ask for all rows if a change is missing.

    All of a step is one message, and one write at each member. Without it:
      1. An administrator parks a key: the passed bit of k:5 and its entry in the list of k are written one after the
         other.
      2. The server dies between the two. Another member takes the right.
      3. k:5 is passed, and in no list: it is never delivered.
    """
    group = message.cursor.consumer_group
    if _is_of_older_server(partition, message.segment_no, message.server_epoch, (group,)):
        _refuse_server(broker, partition, sender)
        return
    cursor = replace(message.cursor, server_epoch=message.server_epoch, serial=message.serial)
    if replaces(partition.cursor_in(cursor.segment_no, group), cursor):
        known = partition.ledger_versions.get(group, LedgerVersion(0, 0))
        if not message.change.is_full and known[:2] != (message.server_epoch, message.previous):
            _want_ledger(broker, partition, sender, message, known)
            return
        _keep(broker, partition, cursor, message.change)
        version = LedgerVersion(message.server_epoch, message.previous + 1)
        partition.ledger_versions = put(partition.ledger_versions, group, version)
    answer = CursorsReplicated(partition.id, message.segment_no, message.server_epoch, message.serial)
    broker.out.when_durable_send(sender, answer)


def _is_of_older_server(partition: Partition, no: int, server_epoch: int, groups: Sequence[str]) -> bool:
    """Whether this member knows that the sender of control records is not the server any more.

    Rule `refused-unanswered` (K2, J2): then they are refused, and not answered. After a restart too: the chain record
    and the control records that are on the disk count, because the coordinator may not have answered yet. Without it:
      1. A is the server, and B the other eligible member. A is cut off. It has an acknowledgement of k:5 that B lacks.
      2. B takes the right over, and grants k:5 again. Then B starts again. It cannot reach the coordinator.
      3. A reaches B, and sends its control record. B keeps its own one, which is of a later server, but answers.
      4. A confirms the acknowledgement to its consumer. No later server has it: B grants k:5 once more.
    """
    chain = partition.decided
    if chain is not None and no <= chain.open_segment.no:
        segment = chain.segment(no)
        if segment is None or server_epoch < segment.server_epoch:
            return True
    known = [partition.cursor_in(no, group) for group in groups]
    return any(cursor is not None and server_epoch < cursor.server_epoch for cursor in known)


def _refuse_server(broker: BrokerState, partition: Partition, sender: MemberId) -> None:
    """Another member serves the segment now: notify the sender, and look at the record if only the disk has it."""
    if partition.chain is None:
        partition.read_chain(broker)
    if partition.decided is not None:
        updates.tell_member(broker, partition, sender)


def _want_ledger(
    broker: BrokerState, partition: Partition, sender: MemberId, message: ReplicateLedger, known: LedgerVersion
) -> None:
    """Ask the server for all rows, once for each link and server: each question costs it all rows."""
    group, epoch = message.cursor.consumer_group, message.server_epoch
    link = broker.links.by_broker.get(sender.broker)
    session = link.session if link is not None else 0
    if (known.server_epoch, known.wanted_in) != (epoch, session):
        partition.ledger_versions = put(partition.ledger_versions, group, LedgerVersion(epoch, 0, session))
        broker.send(sender, LedgerWanted(partition.id, message.segment_no, epoch, group))


def on_ledger_wanted(broker: BrokerState, partition: Partition, sender: MemberId, message: LedgerWanted) -> None:
    """A member lacks a change of the rows: send it all rows."""
    consumer_group = partition.consumer_groups.get(message.consumer_group)
    served = consumer_group.served if consumer_group is not None else None
    if served is not None and served.server_epoch == message.server_epoch:
        served.ledger.told.pop(sender, None)  # also while the cursor is written: it does not ask again
        if served.is_serving:
            replicate(served)


# ---- deleted consumer groups -------------------------------------------------------------------------------


def list_groups(partitions: Mapping[PartitionId, Partition], event: ListCursors) -> CursorsListed:
    """The consumer groups with a control record here in a group epoch up to `epoch_max`, by partition and name."""
    found: list[tuple[PartitionId, str]] = []
    first, after = event.after
    for id_ in sorted(id_ for id_, partition in partitions.items() if id_ >= first and partition.cursors):
        low = [
            cursor.consumer_group
            for cursor in partitions[id_].cursors.values()
            if cursor.group_epoch <= event.epoch_max
            and (id_ > first or cursor.consumer_group > after)
            and not is_ledger_name(cursor.consumer_group)
        ]
        found += [(id_, group) for group in sorted(low)]
        if len(found) >= event.limit:
            break
    return CursorsListed(event.request, tuple(found[: event.limit]))


def forget_consumer_group(broker: BrokerState, partition: Partition, event: ForgetConsumerGroup) -> None:
    """Drop the control record of a deleted consumer group, in memory and on the disk.

    Rule `forgets-below` (I11): only if its group epoch is at most `epoch_max`. Without it:
      1. The coordinator is read: the consumer group is deleted. Then a consumer makes it again, in a later group epoch.
      2. This member drops the new control record, and with it acknowledgements that were confirmed.
    """
    cursor = partition.cursors.get(event.consumer_group)
    if cursor is not None and cursor.group_epoch <= event.epoch_max:
        partition.forget_cursor(event.consumer_group)
        held = partition.handoffs.get(event.consumer_group)
        if held is not None and held.group_epoch <= event.epoch_max:
            partition.handoffs = drop(partition.handoffs, event.consumer_group)
        drop_on_disk(broker, partition, cursor.segment_no, cursor.consumer_group)


def replaces(known: CursorState | None, new: CursorState) -> bool:
    """Whether a control record of a server takes the place of the one on this disk, in the same segment.

    A record replaces the other one whole: nothing of the older one stays.

    Rule `older-server` (I9, I11): a record of an older server is refused, also after a restart of this member. So the
    server epoch is on the disk. Without it:
      1. B is the server. It delivers below a reservation of 200, which is on the disk of this member too.
      2. This member starts again, and has heard of no server. A, the server before B, reaches it with a reservation
         of 100. This member replaces the record.
      3. B dies. This member takes the right, and delivers messages between 100 and 200 a second time, without a flag.

    Rule `epochs-apart` (I8): a record of a later group epoch replaces one of an earlier group epoch, and is not merged
    with it. Without it:
      1. A consumer group has acknowledged all below 1:50 in group epoch 1, and is rewound to 1:0.
      2. In group epoch 2 it acknowledges 1:4. This member merges the two records, and keeps 1:50 in group epoch 2.
      3. It becomes the server, and the messages from 1:5 to 1:49 are not given again.
    """
    if known is None:
        return True
    return (new.group_epoch, new.server_epoch) >= (known.group_epoch, known.server_epoch)
