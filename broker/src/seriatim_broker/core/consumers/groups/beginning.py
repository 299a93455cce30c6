"""The server of the cursor segment begins to serve a consumer group, at what its disk knows of the acknowledgements.

If its disk knows too little, the consumer group begins in a new group epoch, or waits until an administrator mends
the coordinator.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.ids import make_offset, split_offset

from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroupPhase, KeyedServed, Seat, Served
from ...state.keyed import rows as keyed_rows
from ...state.keyed.dispatcher import KeyedDispatcher
from ...state.ledger import Ledger
from ...state.partition import Partition
from ...values import tokens
from ...values.chain import Chain
from ...values.effects import SubscriptionRefused
from ...values.events import CursorRecord
from ...values.kinds import TimerKind
from ...values.log import NO_HAND_OVER, CursorState, HandOverState
from ...values.positions import Place, first_kept, position_of
from ...values.segment import Segment
from ..cursors import control_records, crossing, delivery_attempts
from ..cursors.consumer_group import forget_if_unused, serving_of, tell
from ..keyed import handoff, outcomes, waiting_keys
from . import cursor_notes, operations, progress, questions, subscriptions


def begin(seat: Seat, segment: Segment, record: CursorRecord) -> None:
    """Begin to serve the consumer group, at what this disk knows of its acknowledgements."""
    partition, consumer_group = seat.partition, seat.group
    frozen = consumer_group.served
    if isinstance(frozen, KeyedServed) and handoff.is_still_served(frozen, record, segment):
        consumer_group.phase = ConsumerGroupPhase.SERVING
        frozen.take_up(record, consumer_group.cursor_revision)
        subscriptions.welcome_new(frozen)
        frozen.keyed.handoff.outgoing = None
        outcomes.thaw(frozen)
        progress.go_on(frozen)
        return
    if _is_behind_for_good(partition, consumer_group.name, segment.no, record):
        _wait_for_rebuild(seat, record)
        return
    term = record.term_base + segment.server_epoch
    if record.mode.is_keyed and term > tokens.TERM_MAX:
        text = f"group {consumer_group.name} has used up its tokens in {partition.name}"
        refuse(seat, errors.PreconditionError(f"{text}: consume under another group name"))
        return
    known = control_records.known_in_epoch(partition, consumer_group.name, segment.no, record.group_epoch)
    if known is None and record.handoff != NO_HAND_OVER and _handed_over(seat, record) is None:
        begin_at_oldest(seat, record)
        return
    has_note = record.dropped_from or (known is not None and known.untold)
    if has_note and not _has_read_chain(seat):
        return
    ledger = Ledger()
    ledger.begin(known, record)
    if record.mode.is_keyed and ((known is not None and known.untold) or ledger.dropped_from):
        offset = known.untold if known is not None and known.untold else ledger.dropped_from
        newest_token = tokens.first_of(term) + seat.broker.streams.tokens - consumer_group.tokens_from
        ledger.note_dropped(offset, position_of(seat.chain, offset), newest_token)
    consumer_group.passes_alone = False
    is_behind = segment.no <= record.repeated_to or control_records.was_further(
        partition, consumer_group.name, segment.no, record.group_epoch
    )
    if partition.rights[segment.no].blind or is_behind:
        ledger.distrust(partition.logs[segment.no].tail)
        if record.at_most_once and known is None:
            _skip_what_may_have_been_given(seat, ledger, segment.no)
    if record.at_most_once:
        ledger.repeated_below = 0  # what was given is acknowledged, on this disk too
    if segment.no == record.repeated_to + 1:
        ledger.repeated_below = max(ledger.repeated_below, record.repeated_index)  # rule `new-mode-is-flagged`
    if not record.mode.is_keyed:
        delivery_attempts.take_up(partition, consumer_group)
    consumer_group.phase = ConsumerGroupPhase.SERVING
    consumer_group.drop_deliveries()
    if record.mode.is_keyed:
        keyed = _dispatcher_of(seat, record, known, ledger)
        served: Served = KeyedServed(seat, record, segment, ledger, keyed)
    else:
        served = Served(seat, record, segment, ledger)
    consumer_group.served = served
    subscriptions.begin(served)
    _go_on_begun(served)


def _go_on_begun(served: Served) -> None:
    """Read the keys, some in each step, and then continue. Until then the consumer group is frozen.

    No step reads all of many keys. Without it:
      1. 100,000 keys failed, because a database was away. Their server dies.
      2. The next server reads their records for seconds, and answers no heartbeat.
      3. Others believe that it is dead, and the next one begins with the same.
    """
    if isinstance(served, KeyedServed) and served.keyed.handoff.unread is not None:
        keyed = served.keyed
        if not keyed_rows.read_some(keyed, served.broker.config.keys_at_once, served.broker.now):
            served.go_on_next_step(TimerKind.KEYS)
            return
        served.group.forwards_alone = False  # from now on, what waits in `keyed.forwarder` keeps it here
        for consumer in served.group.consumers:
            outcomes.claim(served, consumer)
        if keyed.handoff.is_begun:
            outcomes.thaw(served)
    # send what this disk has of the server before to every eligible member
    control_records.replicate(served)
    if served.group.name in served.partition.consumer_groups:
        cursor_notes.look(served.broker, served.partition, served.group.name)
        progress.go_on(served)


def on_keys_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """A delay or a deadline of a key may be over, or keys are not read yet, or a handoff has no answer."""
    served = serving_of(partition, group)
    if not isinstance(served, KeyedServed):
        return
    if served.keyed.handoff.unread is not None:
        _go_on_begun(served)
    else:
        progress.on_keys_due(served)


def _is_behind_for_good(partition: Partition, group: str, no: int, record: CursorRecord) -> bool:
    """Whether this disk proves that the coordinator has lost something of the group that no flag on messages mends."""
    if record.mode.is_keyed:
        return control_records.was_further(partition, group, no, record.group_epoch)
    # Rule `move-stays` (I11): what an administrator did to an exclusive group is not undone either. Without it:
    #   1. An administrator rewinds the consumer group from 4:0 to 2:0, which begins group epoch 2, and is told that it
    #      is done.
    #   2. The coordinator is restored as it was before, and the servers read that the group is in group epoch 1.
    #   3. The group continues as if it had not been moved. The servers write control records of group epoch 1 over
    #      those of group epoch 2, so a rebuild finds nothing of the rewind.
    known = partition.cursors.get(group)
    return known is not None and known.group_epoch > record.group_epoch


def _has_read_chain(seat: Seat) -> bool:
    """Whether a read of the chain that began after this cursor was read has ended. If not, it is begun.

    Rule `note-reads-chain` (I1): if it is noted that messages are gone, the group is served only with a chain record
    that may say why. Without it:
      1. Segment 1 is declared lost. The cursor moves to segment 2, and has a note of that.
      2. The server of segment 2 has not heard of the loss. A consumer joins, is notified of nothing, and acknowledges
         2:0.
      3. That ends the note. The server hears of the loss, and tells it to no consumer.
    """
    revision, left = seat.group.chain_reads
    if revision != seat.group.cursor_revision:
        left = 1 + (seat.partition.read_floor is not None)  # the read that is under way may have begun earlier
        seat.group.chain_reads = (seat.group.cursor_revision, left)
        seat.partition.read_chain(seat.broker)  # and then the cursor
    return not left


def _wait_for_rebuild(seat: Seat, record: CursorRecord) -> None:
    """This disk proves that the cursor is of an older copy of the coordinator: give nothing until an administrator
    mends that.

    The same for an exclusive group in a later group epoch: `_is_behind_for_good`.

    Rule `further-waits` (K2, J1, J3): where order is by key, a consumer group is not served at an older place. Without
    it:
      1. This member serves the consumer group in segment 4. Its control record there has replaced the one of segment 2.
      2. The coordinator is restored as it was when the consumer group was in segment 2.
      3. This member grants all of segment 2 again, also what is confirmed, and under lower tokens. The rows that it
         writes are not kept beside the later control record.
    """
    why = f"group {seat.group.name} was at a later place of {seat.partition.name} than segment {record.segment_no}"
    error = errors.CoordinatorBehindError(
        f"the coordinator has lost decisions: {why}. Nothing is delivered to the group here. Remedy: run seriatim "
        "coordinator rebuild"
    )
    seat.note("cursor_behind", segment=record.segment_no)
    operations.fail(seat, error)
    waiting_keys.fail(seat, error)
    questions.fail(seat, error)
    seat.poll(seat.broker.config.behind_read_us, TimerKind.CURSOR)


def _skip_what_may_have_been_given(seat: Seat, ledger: Ledger, no: int) -> None:
    """No member knows what this at-most-once group was given in the segment: pass over all that it has.

    Rule `at-most-once-doubt` (I9): what may have been given does not come again. Without it:
      1. The consumer group is given 1:0 to 1:9. The disks that know it are lost.
      2. A third member, which has the messages, takes over. It gives 1:0 a second time.
    """
    tail = seat.partition.logs[no].tail
    if ledger.acknowledge(tail):
        seat.note("at most once in doubt", segment=no, below=tail)


def _dispatcher_of(seat: Seat, record: CursorRecord, known: CursorState | None, ledger: Ledger) -> KeyedDispatcher:
    """Continue with the keys where the rows on this disk end, or where the server of the segment before handed over.

    Rule `begun-first` (J3): nothing is granted and no carried grant ends before every eligible member knows that this
    server has begun. Without it:
      1. The handoff has a grant of k:5 under token 7. Its deadline passes, and this server grants k:5 under token 8.
      2. This server dies. The next one begins from the same handoff, in which token 7 counts.
      3. The consumer with token 7 acknowledges k:5, while another one works on it under token 8.
    That counts each time that a member begins in this segment, also with the control record on its own disk, because
    another member may lack that. So it happens to a server that waits, too: its only consumer leaves and joins again,
    and the server starts over, with its own record, in which no carried grant is left.
    """
    rows = tuple(seat.partition.ledger_rows.get(seat.group.name, {}).items()) if known is not None else ()
    handed_over = _handed_over(seat, record) if known is None else None
    if handed_over is not None:
        rows = handed_over.rows
    keyed = keyed_rows.dispatcher_of(record.segment_no, ledger.acked, rows, from_before=handed_over is not None)
    ledger.acked = keyed.window.floor
    keyed.handoff.is_begun = record.handoff == NO_HAND_OVER
    return keyed


def _handed_over(seat: Seat, record: CursorRecord) -> HandOverState | None:
    """The handoff that the cursor names, if this disk has it.

    Rule `exactly-the-one-named` (J5): not another one. Without it:
      1. A hands over, and crashes. A2 hands over later, and writes the cursor, which names A2's handoff.
      2. The handoff of A arrives late. The next server begins from it.
      3. What A2 confirmed between the two comes again.
    """
    return control_records.named_handoff(seat.partition, seat.group.name, record)


def renew_epoch(seat: Seat, record: CursorRecord) -> None:
    """No member is left that knew the acknowledgements: begin at the cursor on this disk, in a new group epoch."""
    known = control_records.known_in_epoch(seat.partition, seat.group.name, record.segment_no, record.group_epoch)
    oldest = known.oldest if known is not None else record.oldest
    start = known.acked if known is not None else record.start_index
    # The lists may be as old as the acknowledgements on this disk. Keys that are set aside early may be newer than the
    # first message that is not acknowledged. Without the comparison: 1. 3:8 is granted. 2. 3:14 is set aside. 3. A
    # blind server begins at 3:14, and 3:8 never comes again.
    if oldest and oldest < make_offset(record.segment_no, start):
        begin_at_oldest(seat, replace(record, oldest=oldest))
        return
    renewed = crossing.with_term(seat, record.moved_to(record.segment_no, start, new_epoch=True))
    if start > record.start_index:  # a later message was acknowledged, so the consumer was notified
        renewed = replace(renewed, dropped_from=0, dropped_position=0)
    crossing.write_cursor(seat, renewed, seat.group.cursor_revision, seat.partition.revision)


def begin_at_oldest(seat: Seat, record: CursorRecord) -> None:
    """No member is left that has what was handed over: begin again at the oldest message of it, in a new group epoch.

    Rule `blind-goes-back` (J1): if the rows of a consumer group are lost, it goes back to the oldest message that was
    set aside. Without it:
      1. k:5 of segment 1 was handed over to the members of segment 2. Both disks are lost.
      2. A third member serves segment 2 from its beginning, or segment 2 is declared lost, and the consumer group
         continues in segment 3. k:5 is never delivered.

    Rule `back-is-flagged` (I9): all that comes again up to the segment that it leaves is flagged. Without it:
      1. k:5 and k:6 of segment 1 are delivered. k:6 is acknowledged, k:5 is handed over to segment 2, which is lost.
      2. The consumer group goes back to k:5. The server of segment 1 knows nothing of the group epoch that has ended,
         and delivers k:6 again without a flag.
    """
    renewed = record.moved_to(record.segment_no, record.start_index, new_epoch=True)
    if record.at_most_once:
        tail = seat.partition.logs[record.segment_no].tail
        renewed = record.moved_to(record.segment_no, max(tail, record.start_index), new_epoch=True)
    elif record.oldest:
        renewed = _back_at(seat.chain, record, Place(*split_offset(before_place(record))))
        renewed = renewed.repeated_below(record.segment_no + 1, 0)
    renewed = crossing.with_term(seat, renewed)
    crossing.write_cursor(seat, renewed, seat.group.cursor_revision)


def _back_at(chain: Chain, record: CursorRecord, place: Place) -> CursorRecord:
    """The cursor back at a place, or at the first message that retention kept. Then consumers are told what is gone."""
    first = first_kept(chain)
    if place >= first:
        return record.moved_to(*place, new_epoch=True)
    return noting_drop(chain, record, place, record.moved_to(*first, new_epoch=True))


def before_place(record: CursorRecord) -> int:
    """The oldest offset that a consumer group may not have finished, if only its cursor is known.

    Keys may be set aside before older messages are done with, as in `renew_epoch`.
    """
    place = make_offset(record.segment_no, record.start_index)
    return min(record.oldest or place, place)


def noting_drop(chain: Chain, record: CursorRecord, place: Place, moved: CursorRecord) -> CursorRecord:
    """The cursor that was moved, with the note that messages are gone from a place on."""
    dropped_from = min(make_offset(*place), record.dropped_from or make_offset(*place))
    is_noted = dropped_from == record.dropped_from
    position = record.dropped_position if is_noted else position_of(chain, dropped_from)
    return replace(moved, dropped_from=dropped_from, dropped_position=position)


def refuse(seat: Seat, refusal: errors.SeriatimError) -> None:
    """Refuse everything that waits for a consumer group that cannot be served."""
    for consumer in seat.group.consumers:
        tell(seat.broker, consumer, SubscriptionRefused(refusal, 0, ""))
    seat.group.consumers = []
    operations.fail(seat, refusal)
    waiting_keys.fail(seat, refusal)
    questions.fail(seat, refusal)
    forget_if_unused(seat.partition, seat.group)
