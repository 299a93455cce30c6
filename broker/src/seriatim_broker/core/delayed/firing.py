"""Firing: when delayed messages of a segment are due, its server has them appended to the open segment.

    row due ─▶ volley ─▶ body read ─▶ numbered ──number durable everywhere──▶ sent ──stored──▶ passed

The server is a producer of the partition, and sends as `state.numbered_sending` says: here is what is special about
delayed messages. A volley is up to 1,024 messages that are due, by due time and index. Its batch is an ordinary one for
readers. If its messages follow one another in the segment, its header says which these are. If not, a control batch
before it lists them, which readers pass. A volley is appended after everything that is in the log, so a delayed message
is in no order with others, not even with those of its key, before it is fired.

The producer id is a hash of the partition and the segment. Each server has a producer epoch of its own, and the
sequence counts messages. So a later server fences what an earlier one may still send (`volley_fence`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

from seriatim_api.batch import FLAG_DELAYED, FLAG_FIRED, make_header
from seriatim_api.delayed import fire_producer
from seriatim_api.ids import MemberId

from ..copies import producer_tables
from ..state.broker import BrokerState
from ..state.delayed import ALL, Firing, Volley
from ..state.numbered_sending import ANSWER_US
from ..state.partition import Partition
from ..state.segment_log import FRESH_MS, SegmentLog
from ..values.chain import Chain
from ..values.delayed import (
    ALONE_BYTES,
    VOLLEY_BYTES_MAX,
    VOLLEY_MESSAGES_MAX,
    Span,
    VolleyRow,
    parts_of,
    write_origins,
)
from ..values.delayed_messages import DueRead, FireVolleys, ReadDue, ReadVolley, VolleyRead, VolleysStored
from ..values.kinds import TimerKind
from ..values.log import DueRow
from ..values.segment import Segment
from ..values.segments import Changes
from . import cancelling, ledger, moving, retaining, serving, volley_fence

AHEAD_MS: Final = 2_000
"""Rows that are due within this time are in memory."""

ROWS_PER_READ: Final = 512
"""The server reads that many rows at once, and the next ones when fewer than half of them are left."""

CLOCK_SET_MS: Final = 100
"""Between two heartbeats, the wall clock goes by less than this faster or slower than the monotonic one."""

COMMIT_US: Final = 2_000
"""A batch that is due and not committed is looked at again after this long."""


def look(broker: BrokerState, partition: Partition, no: int) -> None:
    """Something has changed, or time has passed: continue with what is delayed in a segment, if it is served here."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    if segment is not None and segment.server != broker.member:
        serving.replace_missing(broker, partition, segment)
    known, log = partition.firing.get(no), partition.logs.get(no)
    if known is not None and log is not None:
        if not known.ahead.reading:  # what was appended during a read may be above what it finds, or in it
            _take_fresh(broker, known, log)
        ledger.finish(partition, known)
        if log.start > known.passed.floor:
            known.trim(log.start)
    elif ledger.is_done(partition, no):
        return
    firing = serving.take_up(broker, partition, no)
    if firing is not None:
        _go_on(broker, partition, firing)


def _take_fresh(broker: BrokerState, firing: Firing, log: SegmentLog) -> None:
    """Take rows that were appended: those that are due soon are kept, the others are read when their time comes.

    Rule `fresh-is-durable` (D1): a row is taken when it is on the disk. Without it:
      1. d is appended, due in a bit more than `AHEAD_MS`. Its row is not kept.
      2. Some milliseconds later the rows of the next `AHEAD_MS` are read. The disk is slow, and has no d yet.
      3. The read finds no more rows. d is never looked for again, as long as this member serves the segment.
    """
    waiting: list[DueRow] = []
    for row in log.take_fresh():
        if row.index < log.durable:
            firing.ahead.add(row, broker.now.wall_ms + AHEAD_MS)
        elif log.record.sealed_len is None or row.index < log.record.sealed_len:
            waiting.append(row)
    if waiting and log.delayed is not None:
        log.delayed.fresh = waiting
        wait_ms = min(max(min(waiting).due_ms - broker.now.wall_ms, 0), FRESH_MS)
        broker.poll(max(wait_ms * 1000, COMMIT_US), TimerKind.DELAYED, log.partition, log.no)


def on_learned(broker: BrokerState, partition: Partition, chain: Chain, changes: Changes) -> None:
    """The chain record changed: continue with everything that is served here, and stop with the rest."""
    for no, firing in list(partition.firing.items()):
        segment = chain.segment(no)
        if segment is not None and serving.is_server(broker, segment) and segment.server_epoch == firing.server_epoch:
            ledger.expect_only_eligible(broker, partition, segment, firing)
            if set(segment.eligible) - set(firing.ledger.eligible):
                ledger.write(broker, partition, segment, firing)  # a new eligible member must have the newest one
    if not broker.has_delayed:
        return
    for no in dict.fromkeys((*partition.firing, *partition.rights, *(segment.no for segment in changes.changed))):
        log = partition.logs.get(no)
        if no in partition.firing or (log is not None and log.has_delayed):
            look(broker, partition, no)


def on_peer_dead(broker: BrokerState, partition: Partition, dead: str) -> None:
    """A broker counts as dead: it may be the server of segments in which something is delayed."""
    assert partition.chain is not None
    for segment in partition.chain.segments if broker.has_delayed else ():
        if segment.server.broker == dead:
            serving.replace_missing(broker, partition, segment)


def look_at_clock(broker: BrokerState, partitions: Iterable[Partition]) -> None:
    """If the wall clock was set, other messages are due than the timers know: look at all that waits here.

    Without it: 1. The clock is an hour behind, and a message that is due in a second waits for its timer, up to
    `LOOK_US`. 2. The clock is set right. 3. The message is late by what is left of that.
    """
    before_ms, broker.clock_ahead_ms = broker.clock_ahead_ms, broker.now.wall_ms - broker.now.mono_us // 1000
    if abs(broker.clock_ahead_ms - before_ms) >= CLOCK_SET_MS:
        for partition in partitions:
            for no in partition.firing:
                broker.poll(0, TimerKind.DELAYED, partition.id, no)


def on_pump_due(broker: BrokerState, partition: Partition, no: int) -> None:
    """Time has passed, or a certificate or a record has come: members may be silent for which a record waits."""
    log, firing = partition.logs.get(no), partition.firing.get(no)
    if firing is not None and firing.ledger.replications:
        ledger.chase(broker, partition, firing)
        broker.poll(broker.config.heartbeat_us, TimerKind.PUMP, partition.id, no)
    if log is not None and log.has_delayed:
        look(broker, partition, no)


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A member is linked that may have missed control records: send the newest ones."""
    for no, firing in partition.firing.items():
        segment = partition.chain.segment(no) if partition.chain is not None else None
        if segment is not None and member in firing.ledger.waited_for:
            ledger.write(broker, partition, segment, firing)


def _go_on(broker: BrokerState, partition: Partition, firing: Firing) -> None:
    assert partition.chain is not None
    segment, log = partition.chain.segment(firing.no), partition.logs[firing.no]
    assert segment is not None
    cancelling.confirm(broker, firing)
    retaining.confirm(broker, firing)
    _read_ahead(broker, partition, firing)
    _make_volleys(broker, partition, firing, log)
    moving.go_on(broker, partition, firing, log)
    _read(broker, partition, firing)
    is_waiting = log.delayed is not None and bool(log.delayed.fresh)  # for the disk: see `_take_fresh`
    if firing.is_done is False and firing.has_none_left and not is_waiting and log.record.sealed_len is not None:
        firing.is_done = True
    _write(broker, partition, segment, firing)
    _send(broker, partition, firing)
    left_us = firing.kept_until_us - broker.now.mono_us
    if firing.is_idle and left_us > 0:
        broker.poll(left_us, TimerKind.DELAYED, partition.id, firing.no)
    elif firing.is_idle:
        serving.stop(broker, partition, firing)
    else:
        _wait(broker, partition, firing)


# ---- which messages are due -----------------------------------------------------------------------------


def _read_ahead(broker: BrokerState, partition: Partition, firing: Firing) -> None:
    """Read the rows that come next."""
    ahead, horizon_ms = firing.ahead, broker.now.wall_ms + AHEAD_MS
    if ahead.reading or len(ahead.rows) > ROWS_PER_READ // 2 or ahead.next_due_ms > horizon_ms:
        return
    ahead.reading = broker.new_serial()
    broker.out.emit(ReadDue(ahead.reading, partition.id, firing.no, ahead.upto, ROWS_PER_READ))


def on_due_read(broker: BrokerState, partition: Partition, event: DueRead) -> None:
    """Rows were read: those that are due soon are kept."""
    firing = partition.firing.get(event.segment_no)
    if firing is None or firing.ahead.reading != event.serial:
        return
    if event.rows is None:
        firing.ahead.reading = 0
        broker.poll(broker.config.retry_us, TimerKind.DELAYED, partition.id, firing.no)
        return
    horizon_ms = broker.now.wall_ms + AHEAD_MS
    firing.ahead.end_read(event.rows, is_all=len(event.rows) < ROWS_PER_READ, horizon_ms=horizon_ms)
    look(broker, partition, firing.no)


def _make_volleys(broker: BrokerState, partition: Partition, firing: Firing, log: SegmentLog) -> None:
    """Put messages that are due into volleys.

    Rule `fire-above-commit` (D1, D5): only what is committed is fired. Without it:
      1. d is due, and on the server's disk only. The server fires it.
      2. The segment is sealed below d, and its producer sends it again. Segment 2 takes it, and its server fires it.
    """
    rows, now_ms = firing.ahead.rows, broker.now.wall_ms
    while len(firing.volleys.waiting) < firing.volleys.limits.items_max and rows and rows[0].due_ms <= now_ms:
        spans: list[Span] = []
        messages = size_bytes = due_ms = 0
        while rows and rows[0].due_ms <= now_ms:
            row = rows[0]
            if row.index + row.message_count > log.readable_below:
                if log.record.sealed_len is None:
                    broker.poll(COMMIT_US, TimerKind.DELAYED, partition.id, firing.no)
                    break
                heapq.heappop(rows)  # it was cut off
                continue
            left = firing.left_of(row)
            is_large = row.size_bytes >= ALONE_BYTES
            if left and spans:
                is_too_much = messages + row.message_count > VOLLEY_MESSAGES_MAX
                if is_too_much or is_large or size_bytes + row.size_bytes > VOLLEY_BYTES_MAX:
                    break
            while rows and rows[0].index == row.index:
                heapq.heappop(rows)  # perhaps twice: it was appended while the rows were read
            if left:
                messages, size_bytes, due_ms = messages + row.message_count, size_bytes + row.size_bytes, row.due_ms
                if spans and spans[-1].indexes.stop == left[0].first:
                    spans[-1] = Span(spans[-1].first, spans[-1].message_count + left[0].message_count)
                    left = left[1:]
                spans += left
                if is_large:
                    break
        if not spans:
            return
        firing.add_volley(due_ms, tuple(spans))


# ---- reading and numbering ------------------------------------------------------------------------------


def _read(broker: BrokerState, partition: Partition, firing: Firing) -> None:
    """Read the bodies of the next volleys."""
    for volley in firing.volleys.to_read(broker.now.mono_us):
        wait_us = volley.from_us - broker.now.mono_us
        if wait_us <= 0 and not broker.has_forwarding_room(VOLLEY_BYTES_MAX):
            wait_us = firing.volleys.limits.pause_us
        if wait_us > 0:
            broker.poll(wait_us, TimerKind.DELAYED, partition.id, firing.no)
            continue
        volley.reading = broker.new_serial()
        broker.out.emit(ReadVolley(volley.reading, partition.id, firing.no, volley.spans, bool(volley.number)))
        _count_bytes(broker, partition, firing)


def _count_bytes(broker: BrokerState, partition: Partition, firing: Firing) -> None:
    size_bytes = sum(
        VOLLEY_BYTES_MAX if volley.reading else len(volley.row.body) if volley.row is not None else 0
        for volley in firing.volleys.first
    )
    broker.count_forwarding((partition.id, firing.name), size_bytes)


def on_volley_read(broker: BrokerState, partition: Partition, event: VolleyRead) -> None:
    """The body of a volley was read and made: number it."""
    firing = partition.firing.get(event.segment_no)
    volley = firing.end_read(event.serial) if firing is not None else None
    if firing is None or volley is None:
        return
    if event.row is None:
        pause_us = firing.volleys.read_failed(volley, broker.now.mono_us)
        if not volley.number and volley.tries > 1 and volley.message_count > 1:
            firing.keep_first(volley, volley.message_count // 2)  # so that only what cannot be read waits
        if volley.tries == 5:
            broker.out.note("delayed_waits", partition.id, segment=firing.no, error="messages cannot be read now")
        broker.poll(pause_us, TimerKind.DELAYED, partition.id, firing.no)
    elif not _drop_repeats(broker, partition, firing, volley, event.row):
        if event.row.message_count != volley.message_count and not volley.number:
            firing.keep_first(volley, event.row.message_count)
        if event.row.message_count == volley.message_count:
            volley.row, volley.tries = event.row, 0
    look(broker, partition, firing.no)


def _drop_repeats(broker: BrokerState, partition: Partition, firing: Firing, volley: Volley, row: VolleyRow) -> bool:
    """Pass what readers would skip, because it is stored in a segment before. Returns whether the volley is made again.

    Rule `fire-repeat` (D1): a repeat is passed, and not fired. Without it:
      1. d is in segment 1, which is opened over. Its producer sends d again, and segment 2 takes it.
      2. Segment 1 is settled with d in it. The server of segment 1 fires d.
      3. The server of segment 2 fires d too.
    """
    assert partition.chain is not None
    segment = partition.chain.segment(firing.no)
    if volley.number or segment is None or not segment.incomplete_table:
        return False
    before = producer_tables.want_before(broker, partition, firing.no)
    if before is None:
        pause_us = firing.volleys.read_failed(volley, broker.now.mono_us)
        broker.poll(pause_us, TimerKind.DELAYED, partition.id, firing.no)
        return True
    repeats = [header for header in row.headers if before.covers(header)]
    if not repeats:
        return False
    for header, span in product(repeats, volley.spans):
        first, until = max(header.base_index, span.first), min(header.end_index, span.indexes.stop)
        firing.passed.pass_over(range(first, until))
    firing.drop_volley(volley)
    left = [span for one in volley.spans for span in firing.left_of(DueRow(volley.due_ms, *one, 0))]
    for spans in [(span,) for span in left] if volley.is_move else [tuple(left)] if left else []:
        firing.add_volley(volley.due_ms, spans, is_move=volley.is_move)
    return True


def _write(broker: BrokerState, partition: Partition, segment: Segment, firing: Firing) -> None:
    """Number the volleys whose bodies were read, in their order, and write the ledger if it changed.

    One control record at a time is on its way. The next one has everything that came meanwhile.

    Rule `volley-is-kept` (D1): the row of a number has the indexes of its volley. Without it:
      1. Number 1 is d1 and d2, and it is stored. Its server dies.
      2. The next server makes a volley of d1 alone, because d2 was cancelled meanwhile, under number 1.
      3. The master finds number 1 stored. d2 counts as cancelled, and it was fired.
    """
    if firing.ledger.replications:
        return
    for volley in firing.volleys.first:
        if volley.number:
            continue
        if volley.row is None:
            break
        if not firing.fence.is_stored:  # after the volleys that the server before has numbered
            if not any(volley.number for volley in firing.volleys.first):
                volley_fence.look(broker, partition, firing)
            break
        firing.give_number(volley)
    if firing.is_changed:
        ledger.write(broker, partition, segment, firing)


# ---- sending --------------------------------------------------------------------------------------------


def _send(broker: BrokerState, partition: Partition, firing: Firing) -> None:
    """Send the volleys with the lowest numbers, if no request is under way."""
    volleys, now_us = firing.volleys, broker.now.mono_us
    if now_us < volleys.send_from_us:
        broker.poll(volleys.send_from_us - now_us, TimerKind.DELAYED, partition.id, firing.no)
        return
    ready = volleys.ready(lambda serial: ledger.is_common(firing, serial))
    if not ready:
        return
    volleys.begin(broker.new_serial(), ready, now_us)
    producer = fire_producer(partition.id, firing.no)
    batches = [batch for volley in ready for batch in _batches(broker, partition, producer, volley)]
    firing.sent_batches = tuple(volley.batch_count for volley in ready)
    broker.out.emit(FireVolleys(volleys.sending, partition.id, firing.no, tuple(batches)))
    broker.poll(ANSWER_US, TimerKind.DELAYED, partition.id, firing.no)


def _batches(
    broker: BrokerState, partition: Partition, producer: bytes, volley: Volley
) -> Iterator[tuple[bytes, bytes]]:
    """The headers and bodies of a volley: its batch, and before it the list of its messages if the header cannot say
    which they are.
    """
    row, (producer_epoch, sequence) = volley.row, parts_of(volley.number)
    assert row is not None
    if volley.batch_count > 1:
        body = write_origins(row.origins)
        crc = broker.checksum(0, body)
        yield volley_fence.control_header(partition, producer, (producer_epoch, sequence), len(body), crc), body
        sequence += 1
    yield _header(partition, producer, (producer_epoch, sequence), volley, row), row.body


def _header(partition: Partition, producer: bytes, number: tuple[int, int], volley: Volley, row: VolleyRow) -> bytes:
    producer_epoch, sequence = number
    return make_header(
        partition=partition.id,
        message_count=row.message_count,
        producer=producer,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        first_timestamp_ms=row.first_timestamp_ms,
        last_timestamp_ms=row.last_timestamp_ms,
        body_length=len(row.body),
        body_crc=row.body_crc,
        flags=row.flags | (FLAG_DELAYED if volley.is_move else FLAG_FIRED),
        due_time_ms=volley.due_ms,
        key_hash=row.key_hash,
        origin=row.origin,
    )


def on_stored(broker: BrokerState, partition: Partition, event: VolleysStored) -> None:
    """The master of the open segment has answered, or there is no answer: pass what is stored."""
    firing = partition.firing.get(event.segment_no)
    if firing is None:
        return
    stored = firing.volleys.answered(event.serial, firing.stored_count(event.stored_count))
    if stored is None:
        return
    for volley in stored:
        firing.end_volley(volley)
    if firing.fence.serial == event.serial:
        volley_fence.on_stored(firing, event.stored_count, event.error)
    elif isinstance(event.error, volley_fence.OUTDATED):
        firing.learn(int(event.error.details.get("epoch", 0)))
    if event.error is not None:
        if firing.volleys.refused(event.error.message, broker.now.mono_us):
            broker.out.note("firing_refused", partition.id, segment=firing.no, error=event.error.message)
    elif firing.volleys.taken():
        broker.out.note("firing_taken", partition.id, segment=firing.no)
    _count_bytes(broker, partition, firing)
    look(broker, partition, firing.no)


def _wait(broker: BrokerState, partition: Partition, firing: Firing) -> None:
    """Look again when the next message is due, or when its row must be in memory."""
    ahead, now_ms = firing.ahead, broker.now.wall_ms
    if ahead.rows:
        next_ms = ahead.rows[0].due_ms
        if next_ms <= now_ms or len(firing.volleys.waiting) >= firing.volleys.limits.items_max:
            return  # it is not committed, and `_make_volleys` has it looked at again, or a volley must end first
    elif not ahead.reading and ahead.next_due_ms != ALL[0]:
        next_ms = ahead.next_due_ms - AHEAD_MS
    else:
        return  # the next append wakes it
    wait_us = min(max(next_ms - now_ms, 1) * 1000, serving.LOOK_US)
    broker.poll(wait_us, TimerKind.DELAYED, partition.id, firing.no)
