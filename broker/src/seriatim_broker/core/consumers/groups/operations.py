"""What administrators do to a consumer group: rewind, skip, pause, resume, configure. The server of its cursor segment
does it.

    asked ──chain and cursor read──▶ refused, or done before
      └──right held──▶ written ──done──▶ answered; a rewind or skip begins the next group epoch
                          ├── conflict: read both again, at most 8 times
                          └── no answer: the consumer group is given nothing until the outcome is known

Only a member that may deliver at that moment carries out an operation. No other member may deliver then, until a newer
chain record names it. The transaction compares the chain record.

A rewind or a skip first stops the consumer group. Then one transaction moves its cursor and raises its group epoch.
All that was given or acknowledged in the group epoch before is void from then on, because acknowledgements name a token
and control records name a group epoch. The consumers stay. With its next grant, each learns the new group epoch
and which operation began it.

A change of settings that keeps the mode keeps the group epoch too, and counts at once: a key that waits keeps the time
of its next attempt, and its attempts count on. Another mode begins a new group epoch, at the first message that is not
acknowledged; so do the beginning and the end of at-most-once delivery.

A pause does not change the group epoch. The server gives out nothing more, but the consumers may acknowledge what they
have. If they acknowledge all of a sealed segment, the consumer group crosses to the next segment.

Rule `operation-compares-chain` (I11): the transaction compares the chain record, which names the server. Without it:
  1. A serves the consumer group and is frozen. B takes the right over, and delivers.
  2. A wakes up. It has not heard of B, and rewinds the consumer group.
  3. B continues in the old group epoch, and does not notify its consumers. What it confirms counts for nothing.
Because of this rule, a rewind also cannot go to messages that retention has just dropped.

Rule `operation-once` (ONCE): a repeated request is carried out once. The cursor keeps the ids of the last operations.
Without it:
  1. An administrator rewinds a consumer group to 1:0. The server writes that, and the answer is lost.
  2. The consumer group works up to 1:50. The administrator repeats the request with the same id.
  3. The server rewinds the consumer group a second time.

Rule `mode-without-consumers` (I4): another mode begins only while the consumer group has no consumers. Without it:
  1. c1 and c2 share the keys of a consumer group that is key_ordered. An administrator makes it exclusive.
  2. c1 is the active consumer now, and is given k:5. c2 still works on k:5, under its grant.

Rule `aside-stays` (J1): a rewind, a skip or another mode does not drop messages that were set aside, unless the
administrator says so. Without it:
  1. k:5 failed, and is parked. All others below 1:50 are acknowledged, so the consumer group is at 1:50.
  2. An administrator skips to 1:60, or goes back to 1:40. Records of keys end with their group epoch.
  3. k:5 is never delivered, and the administrator was not told that it waited.

Rule `unknown-holds` (I11): a consumer group gets nothing until its move is known to be done. The server tries the same
transaction again: it succeeds, or finds that the first one did. Without it:
  1. A rewinds the consumer group. The coordinator does not answer. A reads the cursor, finds it unchanged, and
     delivers.
  2. Now the coordinator carries out the first write. A serves the old group epoch until it crosses. All that it
     confirms is void.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.ids import INDEX_MAX, format_offset, make_offset, split_offset

from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroupPhase, Operation, Seat, Served
from ...state.partition import Partition
from ...values.chain import Chain
from ...values.effects import ConsumerGroupOperated, Paused
from ...values.events import REQUESTS_KEPT, ConsumerGroupOperation, CursorRecord, OperateConsumerGroup, WriteOutcome
from ...values.keyed import ConsumerGroupSettings, KeyCounts
from ...values.kinds import TimerKind
from ...values.ledger_rows import count_keys
from ...values.positions import Place, end_of_drops, position_of
from ...values.segment import SegmentState
from ...values.targets import named, place_of
from ..cursors import control_records, crossing, delivery_attempts
from ..cursors.consumer_group import consumer_group_of, forget_if_unused, tell, unanswered
from ..exclusive import assignment
from . import progress

OPERATIONS_MAX = 8
"""Maximum number of operations that wait for one consumer group on one partition."""

TRIES_MAX = 8
"""An operation is given up if this many of its transactions came into conflict with other ones."""


def ask(broker: BrokerState, partition: Partition, event: OperateConsumerGroup) -> None:
    """An administrator asks for an operation: read the chain and the cursor first."""
    consumer_group = partition.consumer_groups.get(event.consumer_group)
    if consumer_group is not None and len(consumer_group.operations) >= OPERATIONS_MAX:
        error = errors.OverloadedError(
            f"{OPERATIONS_MAX} operations on group {event.consumer_group} wait already: try again later",
            retry_after_ms=200,
        )
        broker.out.emit(ConsumerGroupOperated(event.request, None, False, error))
        return
    if consumer_group is None:
        consumer_group = consumer_group_of(broker, partition, event.consumer_group)
    consumer_group.operations.append(Operation(event))
    partition.read_chain(broker)  # the cursor is read after it
    broker.wake(event.deadline_us, TimerKind.OPERATIONS, partition.id, event.consumer_group)
    broker.poll(broker.config.retry_us, TimerKind.OPERATIONS, partition.id, event.consumer_group)


def on_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """Time has passed: answer the operations whose deadline has passed, and try the others again."""
    consumer_group = partition.consumer_groups.get(group)
    if consumer_group is None or not consumer_group.operations:
        return
    for operation in list(consumer_group.operations):
        if broker.now.mono_us >= operation.event.deadline_us:
            text = "it is not known whether the operation was carried out: repeat it with the same id"
            _answer(broker, operation, None, errors.DeadlineExceededError(text))
            if not operation.is_begun:
                consumer_group.operations.remove(operation)
    if consumer_group.operations:
        if consumer_group.cursor_write is None:
            partition.read_chain(broker)
        broker.poll(broker.config.retry_us, TimerKind.OPERATIONS, partition.id, group)
    forget_if_unused(partition, consumer_group)


def fail(seat: Seat, error: errors.SeriatimError) -> None:
    """Answer every operation with this error: the consumer group, or its partition, is not there."""
    for operation in seat.group.operations:
        _answer(seat.broker, operation, None, error)
    seat.group.operations = []


# ---- the cursor was read --------------------------------------------------------------------------------


def is_unsettled(seat: Seat, record: CursorRecord, revision: int) -> bool:
    """Whether the outcome of an operation is still not known.

    Then the place of the consumer group is not known either.
    """
    consumer_group = seat.group
    operation = consumer_group.writing
    if operation is None:
        return False
    if consumer_group.cursor_write is not None:
        return True
    if was_done(record, operation.event):
        consumer_group.operations.pop(0)
        _answer(seat.broker, operation, record, None)
        return False
    operation.is_begun = False
    if revision != consumer_group.cursor_revision:
        return False  # another transaction came first, so this one can never be carried out
    if not _is_server(seat.broker, seat.partition, record):
        consumer_group.operations.pop(0)
        text = "another broker serves the group now, and it is not known whether the operation was carried out"
        _answer(seat.broker, operation, None, errors.UnavailableError(f"{text}: repeat it with the same id"))
        return False
    try:
        following = after(record, operation.event, seat.chain, *_known_here(seat))
    except errors.SeriatimError as exc:  # retention has dropped the messages at that place meanwhile
        consumer_group.operations.pop(0)
        _answer(seat.broker, operation, None, exc)
        return False
    _write(seat, operation, following)
    return True


def take_up(served: Served, record: CursorRecord, revision: int) -> None:
    """The cursor is in the same place as before. If the consumer group was paused or resumed, notify its consumers."""
    known = served.group.cursor
    was_paused = known is not None and known.paused
    served.take_up(record, revision)
    if known is not None and record.settings != known.settings:
        control_records.replicate(served)  # the settings are on disks too
        assignment.changed(served)
    if record.paused != was_paused:
        for consumer in served.group.consumers:
            tell(served.broker, consumer, Paused(record.paused))
    if was_paused and not record.paused:
        progress.pump_consumer_group(served)


def go_on(seat: Seat) -> None:
    """The chain and the cursor are known: carry out the operations that wait, one after another."""
    consumer_group = seat.group
    while consumer_group.operations and consumer_group.cursor_write is None and seat.partition.read_floor is None:
        is_crossing = consumer_group.phase is ConsumerGroupPhase.CROSSING
        if consumer_group.cursor is None or is_crossing or unanswered(consumer_group) is not None:
            return
        operation = consumer_group.operations[0]
        chain = seat.partition.chain
        segment = chain.segment(consumer_group.cursor.segment_no) if chain is not None else None
        # Rule `operation-by-new-record` (I13): a chain record that is older than the one that was read for the caller
        # decides no operation. Without it:
        #   1. A cursor is in segment 1, whose server is notified of no later segment. The last one is segment 5.
        #   2. An administrator skips to 5:10. The server's read of the chain record fails, and its read of the cursor
        #      does not.
        #   3. The server answers that 5:10 is beyond the end, because the last segment that it knows is segment 3.
        if (
            chain is None
            or chain.epoch < operation.event.epoch
            or segment is None
            or segment.state is SegmentState.LOST
        ):
            return  # the cursor moves to another segment now, or the chain record here is older
        try:
            record = _decide(seat, operation.event, chain)
        except errors.SeriatimError as exc:
            _answer(seat.broker, operation, None, exc)
        else:
            if record is not consumer_group.cursor and not _is_alone(seat):
                return  # another member may still deliver; `on_due`, or a newer record, tries again
            if record is not consumer_group.cursor:
                _write(seat, operation, record)
                return
            _answer(seat.broker, operation, record, None, was_done=True)
        consumer_group.operations.pop(0)
    forget_if_unused(seat.partition, consumer_group)


def _decide(seat: Seat, event: OperateConsumerGroup, chain: Chain) -> CursorRecord:
    """The cursor after the operation; the same cursor if there is nothing to do.

    Raises:
        GroupHeadElsewhereError: Another broker serves the consumer group.
        StaleGroupEpochError: The consumer group was moved since the caller looked.
        OffsetOutOfRangeError: There is no such place, or a rewind would go forward, or a skip would go back.
        CoordinatorRefusedError: The coordinator refuses writes at this moment.
    """
    cursor = seat.cursor
    if was_done(cursor, event):
        return cursor
    if not _is_server(seat.broker, seat.partition, cursor):
        segment = chain.segment(cursor.segment_no)
        server = segment.server.broker if segment is not None else ""
        raise errors.GroupHeadElsewhereError(f"segment {cursor.segment_no} is served by {server}", server=server)
    if event.group_epoch not in (0, cursor.group_epoch):
        raise errors.StaleGroupEpochError(
            f"group {event.consumer_group} is in group epoch {cursor.group_epoch}, not {event.group_epoch}: since you "
            "looked, another operation moved it, or its acknowledgements were lost; nothing was changed; look again",
            group_epoch=cursor.group_epoch,
        )
    if event.operation.moves:
        place = place_of(chain, event.segment_no, event.index, event.known_len)
        _check_direction(seat, event, place)
        _check_aside(seat, event, place)
    elif event.operation is ConsumerGroupOperation.CONFIGURE:
        if not _check_settings(seat, event):
            return cursor
    elif cursor.paused == (event.operation is ConsumerGroupOperation.PAUSE):
        return cursor
    if seat.partition.write_wait_us(seat.broker):
        raise errors.CoordinatorRefusedError(
            "the coordinator takes no writes now: nothing was changed; try again later"
        )
    return after(cursor, event, chain, *_known_here(seat))


def _check_direction(seat: Seat, event: OperateConsumerGroup, place: Place) -> None:
    """Refuse a rewind that goes forward and a skip that goes back, from where the consumer group is by now.

    Without this check:
      1. An administrator sees the consumer group at 1:10, and decides to skip to 1:50.
      2. Its consumers read up to 1:90.
      3. The skip gives them 40 messages again.
    """
    here = _here(seat)
    if event.operation is ConsumerGroupOperation.SKIP and place < here:
        raise errors.OffsetOutOfRangeError(
            f"group {event.consumer_group} has passed {named(place)} already and is at {named(here)}, so there is "
            "nothing to skip: nothing was changed; to go back, use a rewind",
            here=named(here),
        )
    if event.operation is ConsumerGroupOperation.REWIND and place > here:
        raise errors.OffsetOutOfRangeError(
            f"group {event.consumer_group} is at {named(here)} and has not reached {named(place)}: "
            "use a skip to go forward",
            here=named(here),
        )


def _check_settings(seat: Seat, event: OperateConsumerGroup) -> bool:
    """Refuse settings that the consumer group cannot have now. Returns whether they differ from those that it has."""
    cursor = seat.cursor
    settings = event.wanted.over(cursor.settings)
    if settings == cursor.settings:
        return False
    if _keeps_epoch(cursor, settings):
        return True
    if seat.group.consumers:
        what = "another mode" if settings.mode is not cursor.mode else "another delivery guarantee"
        raise errors.PreconditionError(
            f"consumer {seat.group.consumers[0].name} is in group {event.consumer_group}, and {what} begins "
            "without consumers: nothing was changed; stop the group's consumers first"
        )
    _check_aside(seat, event, _here(seat))
    return True


def _keeps_epoch(cursor: CursorRecord, settings: ConsumerGroupSettings) -> bool:
    """Whether the settings count at once. Otherwise they begin without consumers, in a new group epoch.

    At-most-once delivery begins so too. Without it:
      1. c1 was given k:5, and has not acknowledged it. An administrator changes the group to at most once.
      2. The broker dies. The next one finds that k:5 is not acknowledged, so that it was never given, and gives it
         without a flag.
    """
    return (settings.mode, settings.at_most_once) == (cursor.mode, cursor.at_most_once)


def _check_aside(seat: Seat, event: OperateConsumerGroup, place: Place) -> None:
    """Refuse to begin a new group epoch there if parked keys, or messages that were set aside, would be lost."""
    cursor = seat.cursor
    if event.drop_aside or not cursor.mode.is_keyed:
        return
    counts, oldest = KeyCounts(), cursor.oldest
    keyed = seat.group.keyed
    if keyed is not None and keyed.handoff.unread is None and seat.is_serving:
        counts, oldest = keyed.counts(keyed.window.floor), keyed.lists.oldest
    elif (rows := control_records.rows_at_rest(seat.partition, seat.group.name, cursor)) is not None:
        counts = count_keys(rows.items(), 0)
        known = control_records.known_in_epoch(seat.partition, seat.group.name, cursor.segment_no, cursor.group_epoch)
        oldest = known.oldest if known is not None else cursor.oldest
    is_lost = 0 < oldest < make_offset(*place)
    if not (counts.parked or counts.forwarding or is_lost):
        return
    held = counts.parked + counts.forwarding
    raise errors.PreconditionError(
        f"group {event.consumer_group} has {held:,} parked key{'s' * (held != 1)}, and {counts.aside:,} "
        f"message{'s' * (counts.aside != 1)} set aside (the oldest is {format_offset(oldest)}): a new group epoch "
        "would forget them, so nothing was changed; release or skip these keys first, or drop them (drop_aside)"
    )


def _here(seat: Seat) -> Place:
    """The place below which the consumer group has acknowledged all, as far as this server knows."""
    cursor = seat.cursor
    served = seat.group.serving
    if served is not None:
        return Place(served.segment.no, served.ledger.acked)
    known = control_records.known_in_epoch(seat.partition, seat.group.name, cursor.segment_no, cursor.group_epoch)
    return Place(cursor.segment_no, max(known.acked if known is not None else 0, cursor.start_index))


def _given_below(seat: Seat) -> int:
    """Below which index of the cursor segment consumers may have been given messages in this group epoch."""
    cursor = seat.cursor
    no = cursor.segment_no
    log, held = seat.partition.logs.get(no), seat.partition.rights.get(no)
    tail = log.tail if log is not None else INDEX_MAX  # nothing after it was given, although it may be reserved
    served = seat.group.serving
    if served is not None:
        return min(served.ledger.reserved, tail)
    if held is not None and held.blind:
        return tail
    known = control_records.known_in_epoch(seat.partition, seat.group.name, no, cursor.group_epoch)
    return min(known.reserved if known is not None else 0, tail)


def _noted(seat: Seat) -> tuple[int, int | None]:
    """From which offset on messages are gone, of which no consumer may have been notified yet, and its position.

    0: there are none. None: this server does not know the position.
    """
    cursor, served = seat.cursor, seat.group.serving
    if served is not None:
        return served.ledger.dropped_from, served.ledger.dropped_position
    known = control_records.known_in_epoch(seat.partition, seat.group.name, cursor.segment_no, cursor.group_epoch)
    if known is None or (not known.untold and known.acked <= cursor.start_index):
        return cursor.dropped_from, cursor.dropped_position
    return known.untold, cursor.dropped_position if known.untold == cursor.dropped_from else None


def _known_here(seat: Seat) -> tuple[Place, int, int, int | None]:
    """What this server knows of a consumer group that gets another mode: see `after`."""
    return (
        _here(seat),
        _given_below(seat),
        *_noted(seat),
    )


def was_done(cursor: CursorRecord, event: OperateConsumerGroup) -> bool:
    """Whether an earlier request with the same id was carried out."""
    return event.operation_id in cursor.requests


def _is_alone(seat: Seat) -> bool:
    """Whether no other member may deliver at this moment.

    Rule `operates-alone` (I11). Without it:
      1. B takes the right over from A. A has not heard of it, and may deliver until `serve_lease_us` has passed.
      2. B rewinds the consumer group.
      3. A delivers messages in the group epoch that has ended.
    """
    return right.has_right(seat.broker, seat.partition, seat.segment)


def _is_server(broker: BrokerState, partition: Partition, cursor: CursorRecord) -> bool:
    segment = partition.chain.segment(cursor.segment_no) if partition.chain is not None else None
    return segment is not None and segment.server == broker.member


def after(
    cursor: CursorRecord,
    event: OperateConsumerGroup,
    chain: Chain,
    here: Place,
    given_below: int = 0,
    noted: int = 0,
    noted_at: int | None = None,
) -> CursorRecord:
    """The cursor that the operation makes of this one. With another mode, the consumer group continues at `here`.

    Rule `new-mode-is-flagged` (I9, K4): then what consumers may have been given, below `given_below`, comes again with
    the flag. After a rewind or a skip nothing is flagged for that reason, because an administrator asked for these
    messages. Without it:
      1. An exclusive consumer group is given 1:0 to 1:9, and works on all of them. It acknowledges none.
      2. An administrator makes it key_ordered. The new group epoch has no control record, so nothing counts as given.
      3. A handler gets 1:0 as the first attempt, without the flag. It cannot know that the work was done.

    Rule `new-mode-keeps-note` (I1): what is gone from the offset `noted` on is reported in the new mode too. An
    exclusive consumer is notified only if nothing is left between that offset and its place. Without it:
      1. Key k is parked. The consumer group has no consumers, and retention drops k:5. The server passes it.
      2. An administrator changes the mode. The group continues after k:5, because k:6 to k:9 are acknowledged.
      3. A consumer comes, and no broker tells it that k:5 is missing.
    The same without its position `noted_at` (None: the chain reports it), because the segment may have left the record:
    then no broker can tell how many messages are gone.

    Rule `operation-raises-epoch` (I11): a rewind or skip begins a new group epoch. Without it:
      1. A consumer group has acknowledged all below 1:50, and is rewound to 1:0 in the same group epoch.
      2. An eligible member has the control record of 1:50, and merges it with the newer one.
      3. It becomes the server, and the cursor leaps from 1:5 to 1:50. The messages between are not given again.
    """
    requests = (*cursor.requests, event.operation_id)[-REQUESTS_KEPT:]
    if event.operation is ConsumerGroupOperation.CONFIGURE:
        settings = event.wanted.over(cursor.settings)
        if _keeps_epoch(cursor, settings):
            return replace(cursor.with_settings(settings), requests=requests)
        moved = _to_place(cursor.with_settings(settings), chain, here)
        if not settings.mode.is_keyed and noted and end_of_drops(chain, split_offset(noted)[0]) < here:
            noted = 0
        position = position_of(chain, noted) if noted_at is None else noted_at
        moved = replace(moved, dropped_from=noted, dropped_position=position if noted else 0)
        return replace(moved, requests=requests).repeated_below(here.segment_no, given_below)
    if not event.operation.moves:
        return replace(cursor, paused=event.operation is ConsumerGroupOperation.PAUSE, requests=requests)
    place = place_of(chain, event.segment_no, event.index, event.known_len)
    moved = _to_place(cursor, chain, place)
    return replace(
        moved, begun_by=event.operation, requests=requests, dropped_from=0, dropped_position=0, repeated_to=0,
        repeated_index=0,
    )  # fmt: skip


def _to_place(cursor: CursorRecord, chain: Chain, place: Place) -> CursorRecord:
    """The cursor at another place, in a new group epoch and under a new term base."""
    moved = cursor.moved_to(place.segment_no, place.index, new_epoch=True)
    left, following = chain.segment(cursor.segment_no), chain.segment(place.segment_no)
    return moved.after_term(left.server_epoch if left else chain.epoch, following.server_epoch if following else 0)


# ---- the transaction ------------------------------------------------------------------------------------


def _write(seat: Seat, operation: Operation, record: CursorRecord) -> None:
    """Start one transaction under the revisions of the cursor and of the chain that were read."""
    if not seat.partition.revision:  # a member reported the record, without its revision: read it
        seat.partition.read_chain(seat.broker)
        return
    served = seat.group.serving
    if served is not None and _begins_epoch(seat, record):
        _stop(served)
    operation.is_begun = True
    operation.tries += 1
    crossing.write_cursor(seat, record, seat.group.cursor_revision, seat.partition.revision)


def _begins_epoch(seat: Seat, record: CursorRecord) -> bool:
    return seat.group.cursor is None or record.group_epoch != seat.group.cursor.group_epoch


def _stop(served: Served) -> None:
    """Give out nothing more, and take no acknowledgement. The consumers stay.

    Rule `stops-first` (I11): a consumer group is stopped before it is moved. Without it:
      1. The server starts the transaction of a rewind. The coordinator carries it out.
      2. Before the answer comes, the server delivers messages and confirms acknowledgements in the old group epoch.
      3. That group epoch has ended: these acknowledgements count for nothing.
    """
    control_records.write_if_dirty(served)  # they still count if the transaction fails
    served.group.look_again()


def on_written(seat: Seat, operation: Operation, written: CursorRecord, outcome: WriteOutcome, revision: int) -> None:
    """The transaction of an operation ended: answer it, or try it again."""
    broker, consumer_group = seat.broker, seat.group
    event = operation.event
    if outcome is WriteOutcome.UNKNOWN:
        seat.poll(broker.config.retry_us, TimerKind.OPERATIONS)
        return
    operation.is_begun = False
    if outcome is WriteOutcome.DONE:
        consumer_group.operations.pop(0)
        consumer_group.cursor_revision = revision
        seat.note("group operated", what=event.operation.name.lower())
        if _begins_epoch(seat, written):
            consumer_group.cursor = written
            delivery_attempts.forget(seat.partition, consumer_group.name)
        elif (served := seat.group.serving) is not None:
            take_up(served, written, revision)
        _answer(broker, operation, written, None)
    elif outcome is WriteOutcome.REFUSED:
        consumer_group.operations.pop(0)
        text = "the coordinator refuses to write, and it is not known whether it stored this write"
        _answer(broker, operation, None, errors.CoordinatorRefusedError(f"{text}: repeat it with the same id"))
    elif operation.tries >= TRIES_MAX:
        consumer_group.operations.pop(0)
        text = f"other transactions on group {consumer_group.name} came first each time: nothing was changed; try again"
        _answer(broker, operation, None, errors.NotServingError(text, retry_after_ms=200))
    if outcome is WriteOutcome.CONFLICT:
        seat.partition.read_chain(broker)
    elif consumer_group.phase is ConsumerGroupPhase.LOADING or consumer_group.operations:
        seat.read_cursor()
    elif (served := seat.group.serving) is not None:
        progress.go_on(served)


def _answer(
    broker: BrokerState,
    operation: Operation,
    record: CursorRecord | None,
    error: errors.SeriatimError | None,
    *,
    was_done: bool = False,
) -> None:
    if not operation.is_answered:
        operation.is_answered = True
        broker.out.emit(ConsumerGroupOperated(operation.event.request, record, was_done, error))
