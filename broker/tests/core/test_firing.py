"""Delayed messages: when they are fired, once each, and what a cancellation finds."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_api import errors
from seriatim_api.batch import FLAG_CONTROL, FLAG_DELAYED, FLAG_FIRED, parse_header
from seriatim_api.delayed import CancelOutcome, fire_producer
from seriatim_api.ids import INDEX_MAX, make_offset
from seriatim_broker.core.delayed.firing import AHEAD_MS
from seriatim_broker.core.state import delayed as delayed_state
from seriatim_broker.core.state.delayed import ALL, ROWS_MAX, Ahead
from seriatim_broker.core.values import delayed_messages as dm
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.delayed import (
    ALONE_BYTES,
    VOLLEY_MESSAGES_MAX,
    Fired,
    Span,
    VolleyRow,
    first_number,
    is_ledger_name,
    ledger_name,
    read_delay_rows,
    read_origins,
    spans_in,
)
from seriatim_broker.core.values.ledger_rows import LedgerRowError
from seriatim_broker.core.values.log import Batch, DueRow, PutBatch, StoredVolley, fired_in
from seriatim_broker.core.values.states import put

from .support import M01, M10, MS, Bench, P, first_chain, header, sealed_chain, unsettled_chain

SOON_MS = 500
NAME = ledger_name(1)


class Firing(Bench):
    """The master and server of open segment 1. The disk and the follower answer what they are asked."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.stored: list[Batch] = []
        self.answered: set[int] = set()
        self.next_sequence = 0
        self.unreadable: set[int] = set()
        self.lag = False  # the follower confirms no control record
        self.fits = 10_000  # how many messages fit into a body
        self.is_slow = False  # rows that are due are not read yet
        self.answers_fence = True

    @classmethod
    def opened(cls) -> Firing:
        """The master, its follower in step."""
        bench = cls()
        bench.open(first_chain())
        bench.follow(M01)
        bench.wait(100 * MS, (M01,))
        bench.clear()
        return bench

    def send(
        self, due_ms: int = SOON_MS, count: int = 1, *, committed: bool = True, is_written: bool = True,
        body: bytes = b"body",
    ) -> int:  # fmt: skip
        """A client sends a batch that is due so long from now. Returns its first index."""
        index = self.part.logs[1].tail
        self.requests += 1
        sent = header(self.next_sequence, count, flags=FLAG_DELAYED, due_time_ms=self.wall_ms + due_ms, body=body)
        self.do(ev.Append(self.requests, P, sent, body, 1, self.next_sequence == 0, ev.AckLevel.REPLICATED_FLUSHED))
        self.next_sequence += count
        if is_written:
            self.persist()
        if committed and is_written:
            self.ack(M01, index + count)
        return index

    def serve(self, rounds: int = 6) -> None:
        """Everything that was asked is answered."""
        for _ in range(rounds):
            self.persist()
            for effect in list(self.effects):
                self._answer(effect)

    def _answer(self, effect: Any) -> None:
        serial = getattr(effect, "serial", 0)
        if isinstance(effect, fx.Send) and isinstance(effect.message, msg.ReplicateLedger) and not self.lag:
            sent = effect.message
            if sent.serial not in self.answered:
                self.answered.add(sent.serial)
                self.hear(M01, msg.CursorsReplicated(P, 1, sent.server_epoch, sent.serial))
        elif not serial or serial in self.answered:
            return
        elif isinstance(effect, dm.ReadDue) and not self.is_slow:
            self.answered.add(serial)
            rows = [row for batch in self.batches() if (row := DueRow.of(batch.header)) and row[:2] > effect.after]
            self.do(dm.DueRead(serial, P, 1, tuple(sorted(rows))[: effect.count_max]))
        elif isinstance(effect, dm.ReadPending):
            self.answered.add(serial)
            rows = [row for batch in self.batches() if (row := DueRow.of(batch.header))]
            rows = [row for row in rows if row.index + row.message_count > effect.from_index]
            self.do(dm.PendingRead(serial, P, 1, tuple(rows[: effect.count_max])))
        elif isinstance(effect, dm.FireVolleys) and self.answers_fence and not effect.batches[0][1]:
            self.answered.add(serial)
            self.do(dm.VolleysStored(P, 1, serial, 1, None))
        elif isinstance(effect, dm.ReadVolley):
            self.answered.add(serial)
            is_bad = any(not self.unreadable.isdisjoint(span.indexes) for span in effect.spans)
            self.do(dm.VolleyRead(serial, P, 1, None if is_bad else self._row(effect.spans)))
        elif isinstance(effect, dm.FindDelayed):
            self.answered.add(serial)
            found = [batch.header for batch in self.batches() if _holds(batch, effect.index)]
            is_delayed = bool(found) and bool(found[0].flags & FLAG_DELAYED)
            self.do(dm.DelayedFound(serial, P, 1, found[0] if is_delayed else None))

    def _row(self, spans: tuple[Span, ...]) -> VolleyRow:
        indexes = [index for span in spans for index in span.indexes][: self.fits]
        batches = [
            batch for batch in self.batches() if any(_holds(batch, one) for span in spans for one in span.indexes)
        ]
        origin, headers = (P, make_offset(1, indexes[0])), tuple(batch.header for batch in batches)
        origins = tuple(Span(make_offset(1, span.first), span.message_count) for span in spans)
        return VolleyRow(repr(indexes).encode(), 7, 0, 0, len(indexes), 1, 2, origin, origins, headers)

    def batches(self) -> list[Batch]:
        """The batches that were written."""
        self.stored += [write.batch for write in self.writes(PutBatch)]
        self.effects = [one for one in self.effects if not isinstance(one, fx.Persist)]
        return self.stored

    def volleys(self) -> list[list[int]]:
        """The indexes in each volley that was sent, request by request."""
        bodies = [body for request in self.requested() for _, body in request.batches]
        return [eval(body) for body in bodies if body.startswith(b"[")]

    def requested(self) -> list[dm.FireVolleys]:
        """The requests that were not answered yet."""
        return [effect for effect in self.all(dm.FireVolleys) if effect.serial not in self.answered]

    def done(self, count: int | None = None, error: errors.SeriatimError | None = None) -> None:
        """The master of the open segment answers the request."""
        (request,) = self.requested()
        self.answered.add(request.serial)
        stored = len(request.batches) if count is None else count
        self.do(dm.VolleysStored(P, 1, request.serial, stored, error))
        self.serve()

    def fired(self) -> list[list[int]]:
        """The indexes in each volley, until nothing more is sent."""
        found: list[list[int]] = []
        while self.requested():
            found += self.volleys()
            self.done()
        return found

    def until_due(self, ms: int = SOON_MS) -> None:
        """Time passes, and what becomes due is sent."""
        self.serve()
        self.wait(ms * MS, (M01,))
        self.serve()

    def cancel(self, index: int) -> int:
        """A client cancels a message. Returns the request."""
        self.requests += 1
        self.do(dm.CancelDelayed(self.requests, P, make_offset(1, index)))
        return self.requests

    def outcome(self, request: int) -> CancelOutcome | None:
        """The answer to a cancellation; None: a refusal, or none yet."""
        return next((one.outcome for one in self.all(dm.DelayedCancelled) if one.request == request), None)

    def rows(self) -> Any:
        """The rows of the ledger."""
        return read_delay_rows(self.part.ledger_rows.get(NAME, {}).items())


def _holds(batch: Batch, index: int) -> bool:
    return batch.header.base_index <= index < batch.header.end_index


@pytest.fixture
def bench() -> Firing:
    return Firing.opened()


def test_a_delayed_message_is_fired_when_it_is_due_and_not_before(bench: Firing) -> None:
    bench.send()
    bench.until_due(SOON_MS - 1)
    assert bench.volleys() == []
    bench.until_due(1)
    assert bench.volleys() == [[0]]
    (request,) = bench.requested()
    fired = parse_header(request.batches[0][0])
    assert (fired.producer, fired.producer_epoch, fired.base_sequence) == (fire_producer(P, 1), 1, 1)
    assert fired.flags & FLAG_FIRED
    assert not fired.flags & FLAG_DELAYED
    assert fired.origin == (P, make_offset(1, 0))
    bench.done()
    assert list(bench.part.firing[1].passed.not_passed(0, 1)) == []
    bench.until_due(10_000)
    assert bench.volleys() == []


def test_a_clock_that_is_set_right_wakes_what_is_due(bench: Firing) -> None:
    bench.send()
    bench.serve()
    bench.wall_jump_ms = -3_600_000
    bench.until_due(SOON_MS + 1_000)
    assert bench.volleys() == []
    bench.wall_jump_ms = 0
    bench.until_due(200)
    assert bench.volleys() == [[0]]


def test_what_is_appended_during_a_read_is_fired(bench: Firing) -> None:
    bench.is_slow = True
    bench.send()
    bench.serve()
    (read,) = bench.all(dm.ReadDue)
    bench.is_slow = False
    bench.answered.add(read.serial)
    bench.send()  # after the disk was read, and before the core has the rows
    bench.wait(SOON_MS * MS, (M01,))  # it looks meanwhile
    bench.do(dm.DueRead(read.serial, P, 1, (next(row for b in bench.batches() if (row := DueRow.of(b.header))),)))
    bench.serve()
    assert sorted(index for volley in bench.fired() for index in volley) == [0, 1]


def test_what_is_not_on_the_disk_yet_is_not_looked_for_there(bench: Firing) -> None:
    bench.send(60_000)
    bench.serve()
    bench.send(AHEAD_MS + 50, is_written=False)
    bench.send(10, is_written=False)  # the server looks
    bench.is_slow = True
    bench.wait(100 * MS, (M01,))  # it is due so soon that it must be in memory
    for read in bench.all(dm.ReadDue):
        if read.serial not in bench.answered:
            bench.answered.add(read.serial)
            bench.do(dm.DueRead(read.serial, P, 1, ()))
    bench.is_slow = False
    bench.persist()
    bench.ack(M01, 3)
    bench.until_due(AHEAD_MS)
    assert sorted(bench.fired()) == [[1], [2]]


def test_a_row_that_waits_for_the_disk_is_left_when_its_segment_is_sealed(bench: Firing) -> None:
    bench.send(10)
    bench.until_due(20)
    assert bench.fired() == [[0]]
    bench.send(is_written=False)
    log = bench.part.logs[1]
    bench.read_chain(sealed_chain(first_chain(), log.tail, log.tail_checksum))
    bench.wait(50 * MS, (M01,))
    assert log.record.sealed_len is not None
    assert bench.part.firing[1].is_done is False
    bench.until_due()
    assert bench.fired() == [[1]]


def test_messages_are_fired_by_due_time_in_one_volley(bench: Firing) -> None:
    for due_ms in (30, 10, 20):
        bench.send(due_ms, count=2)
    bench.serve()
    bench.wall_jump_ms += 50
    bench.until_due(20)
    assert bench.volleys() == [[2, 3, 4, 5, 0, 1]]
    (request,) = bench.requested()
    listed, fired = (parse_header(header) for header, _ in request.batches)
    assert (listed.flags, listed.base_sequence, fired.base_sequence) == (FLAG_CONTROL, 1, 2)
    assert read_origins(request.batches[0][1]) == ((make_offset(1, 2), 4), (make_offset(1, 0), 2))
    bench.done(1, errors.NotServingError("the master ended after the list"))
    bench.until_due(20)
    assert bench.requested()[0].batches == request.batches, "both are sent again"
    assert bench.fired() == [[2, 3, 4, 5, 0, 1]]
    assert bench.part.firing[1].passed.not_passed(0, 6) == []
    bench.send(10)
    bench.until_due(20)
    assert parse_header(bench.requested()[0].batches[0][0]).base_sequence == 8


def test_large_batches_are_volleys_by_themselves(bench: Firing) -> None:
    for size in (10, ALONE_BYTES, 10):
        bench.send(10, body=bytes(size))
    bench.serve()
    bench.wall_jump_ms += 50
    bench.until_due(20)
    assert bench.fired() == [[0], [1], [2]]


def test_messages_too_large_for_one_body_are_several_volleys(bench: Firing) -> None:
    bench.fits = 3
    for count in (2, 5, 1):
        bench.send(10, count=count)
    bench.serve()
    bench.wall_jump_ms += 50
    bench.until_due(20)
    assert [index for volley in bench.fired() for index in volley] == list(range(8))


def test_the_rest_of_a_volley_is_fired_by_the_next_server(bench: Firing) -> None:
    bench.fits = 3
    bench.send(10, count=5)
    bench.until_due(20)
    rows = bench.rows()
    assert rows.volleys[0].spans == ((0, 3),)
    next_server = delayed_state.Firing.of(1, 2, 0, rows._replace(volleys=rows.volleys[:1]))
    assert next_server.left_of(DueRow(10, 0, 5, 1)) == (Span(3, 2),)


def test_a_volley_has_a_limited_number_of_messages(bench: Firing) -> None:
    for _ in range(3):
        bench.send(10, count=VOLLEY_MESSAGES_MAX // 2)
    bench.serve()
    bench.wall_jump_ms += 50
    bench.until_due(20)
    assert [len(volley) for volley in bench.fired()] == [VOLLEY_MESSAGES_MAX, VOLLEY_MESSAGES_MAX // 2]


def test_nothing_is_sent_before_its_number_is_on_every_disk(bench: Firing) -> None:
    bench.send()
    bench.serve()
    bench.lag = True
    bench.until_due()
    assert bench.volleys() == []
    assert [volley.spans for volley in bench.rows().volleys] == [((0, 1),)]
    bench.lag = False
    bench.serve()
    assert bench.volleys() == [[0]]


def test_an_uncommitted_message_is_not_fired(bench: Firing) -> None:
    index = bench.send(committed=False)
    bench.until_due()
    assert bench.volleys() == []
    bench.ack(M01, index + 1)
    bench.until_due(10)
    assert bench.volleys() == [[0]]


def test_a_volley_without_an_answer_is_sent_again_unchanged(bench: Firing) -> None:
    bench.send()
    bench.until_due()
    first = bench.requested()[0].batches
    bench.send(1)
    bench.done(0, errors.NotServingError("no master"))
    bench.until_due(20)
    (request,) = bench.requested()
    assert request.batches[: len(first)] == first


def test_a_cancelled_message_is_not_fired(bench: Firing) -> None:
    bench.send(count=3)
    bench.serve()
    request = bench.cancel(1)
    assert bench.outcome(request) is None
    bench.serve()
    assert bench.outcome(request) is CancelOutcome.CANCELLED
    bench.until_due()
    assert bench.fired() == [[0, 2]]


def test_a_cancellation_is_answered_when_every_disk_has_it(bench: Firing) -> None:
    bench.send()
    bench.serve()
    bench.lag = True
    requests = [bench.cancel(0), bench.cancel(0)]
    bench.serve()
    assert [bench.outcome(request) for request in requests] == [None, None]
    bench.lag = False
    bench.serve()
    assert [bench.outcome(request) for request in requests] == [CancelOutcome.CANCELLED] * 2
    again = bench.cancel(0)
    bench.serve()
    assert bench.outcome(again) is CancelOutcome.CANCELLED


def test_a_cancellation_before_a_durable_number_is_refused(bench: Firing) -> None:
    bench.send()
    bench.serve()
    bench.lag = True
    bench.until_due()
    request = bench.cancel(0)
    bench.serve()
    (refused,) = [one for one in bench.all(dm.DelayedCancelled) if one.request == request]
    assert refused.error is not None
    assert refused.error.retriable


def test_a_ledger_does_not_wait_for_a_joiner_that_is_gone(bench: Firing) -> None:
    bench.send()
    bench.serve()
    firing = bench.part.firing[1]
    right = bench.part.rights[1]
    bench.link(M10)
    right.joining = put(right.joining, M10, 1)
    bench.cancel(0)
    bench.serve()
    assert firing.ledger.replications
    bench.do(ev.LinkDown(M10.broker, bench.sessions[M10.broker], refused=True))
    bench.wait(500 * MS, (M01,))
    assert not firing.ledger.replications


def test_a_message_that_is_due_and_not_committed_wakes_seldom(bench: Firing) -> None:
    bench.send(10, committed=False)
    bench.until_due(20)
    steps = len(bench.wait(100 * MS, (M01,)))
    begun = bench.core.state.serial
    bench.wait(100 * MS, (M01,))
    assert bench.core.state.serial - begun < 100, "every 2 ms"
    assert steps < 100


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_cancellation_of_a_message_in_a_volley_is_too_late(bench: Firing, is_stored: bool) -> None:
    bench.send()
    bench.until_due()
    if is_stored:
        bench.done()
    request = bench.cancel(0)
    bench.serve()
    assert bench.outcome(request) is CancelOutcome.TOO_LATE


def test_a_cancellation_of_an_ordinary_message_finds_none(bench: Firing) -> None:
    bench.send()
    bench.requests += 1
    bench.do(ev.Append(bench.requests, P, header(1), b"body", 1, False, ev.AckLevel.REPLICATED_FLUSHED))
    bench.persist()
    bench.ack(M01, 2)
    bench.serve()
    requests = [bench.cancel(1), bench.cancel(99)]
    bench.serve()
    assert [bench.outcome(request) for request in requests] == [CancelOutcome.NOT_FOUND] * 2


def test_messages_that_cannot_be_read_hold_up_only_themselves(bench: Firing) -> None:
    bench.send(10, body=bytes(ALONE_BYTES))
    bench.send(11)
    bench.unreadable = {0}
    bench.until_due(300)
    assert bench.volleys() == [[1]]
    bench.unreadable = set()
    bench.done()
    bench.until_due(300)
    assert bench.volleys() == [[0]]


def test_a_message_that_cannot_be_read_leaves_the_others_of_its_volley(bench: Firing) -> None:
    for _ in range(5):
        bench.send(10)
    bench.unreadable = {3}
    bench.until_due(50)
    found = []
    for _ in range(10):
        found += bench.fired()
        bench.until_due(200)
    assert sorted(index for volley in found for index in volley) == [0, 1, 2, 4]
    bench.unreadable = set()
    bench.until_due(300)
    assert bench.fired() == [[3]]


def test_rows_of_a_ledger_are_read_as_they_were_written(bench: Firing) -> None:
    for due_ms in (10, 20, 900):
        bench.send(due_ms, count=2)
    bench.serve()
    bench.cancel(4)
    bench.until_due(30)
    rows = bench.rows()
    assert next((volley.number, volley.spans) for volley in rows.volleys) == (first_number(1), ((0, 2),))
    assert rows.cancelled == {0: 1 << 4}
    assert rows.next_number > 1
    with pytest.raises(LedgerRowError):
        read_delay_rows([(b"x", b"")])
    with pytest.raises(LedgerRowError):
        read_delay_rows([(b"n" + bytes(8), b"short")])


def test_rows_in_memory_have_a_limit() -> None:
    ahead = Ahead(upto=(1 << 63, 0))
    for index in range(ROWS_MAX + 1):
        ahead.add(DueRow(10 + index % 7, index, 1, 1), 100)
    assert len(ahead.rows) == ROWS_MAX // 2
    assert ahead.upto == max(row[:2] for row in ahead.rows)
    ahead.add(DueRow(99, 5, 1, 1), 100)
    assert len(ahead.rows) == ROWS_MAX // 2, "it is on the disk"


def test_the_name_of_a_ledger_is_no_name_of_a_group() -> None:
    assert is_ledger_name(NAME)
    assert not is_ledger_name("delayed")


def test_a_read_before_the_first_message_names_an_index_that_can_be() -> None:
    ahead = Ahead(upto=ALL)
    ahead.add(DueRow(500, 0, 1, 1), 100)
    assert ahead.upto == (499, INDEX_MAX)


def _learns(bench: Firing, last_epoch: int, *fired: Span) -> None:
    """The server reads what was fired, and what the log says."""
    bench.serve()
    (asked,) = [one for one in bench.all(dm.ReadFired) if one.serial not in bench.answered]
    bench.answered.add(asked.serial)
    bench.do(dm.FiredRead(asked.serial, P, 1, fired, last_epoch, None))
    bench.serve()


def test_a_server_fences_before_its_first_volley(bench: Firing) -> None:
    bench.answers_fence = False
    bench.send()
    bench.until_due()
    (request,) = bench.requested()
    (header,) = (parse_header(header) for header, _ in request.batches)
    assert (header.producer, header.producer_epoch, header.base_sequence) == (fire_producer(P, 1), 1, 0)
    assert header.flags == FLAG_CONTROL
    bench.done()
    assert bench.fired() == [[0]]
    again = delayed_state.Firing.of(1, 2, 0, bench.rows())
    assert again.fence.epoch == 2, "the next server's, or this one's after a restart"


@pytest.mark.parametrize("is_volley", [False, True])
def test_a_server_that_is_outdated_reads_what_was_fired(bench: Firing, is_volley: bool) -> None:
    bench.answers_fence = is_volley
    bench.send(count=3)
    bench.until_due()
    gap = errors.SequenceGapError("this partition has forgotten the producer", expected=0)
    fenced = errors.ProducerFencedError("epoch 4 is the current one", epoch=4)
    bench.done(0, gap if is_volley else fenced)
    assert bench.part.firing[1].fence.epoch == (2 if is_volley else 5)
    request = bench.cancel(2)
    assert bench.outcome(request) is None
    bench.answers_fence = True
    bench.until_due(20)
    rows = bench.rows()
    assert rows.learns
    assert len(rows.volleys) == is_volley, "it may be stored"
    again = delayed_state.Firing.of(1, 2, 0, rows)
    assert again.fence.learns
    assert again.fence.epoch > bench.part.firing[1].fence.epoch, "the next server's, or this one's after a restart"
    assert not again.volleys.waiting
    _learns(bench, 0, Span(0, 2))
    bench.until_due(20)
    assert bench.fired() == [[2]]
    assert bench.rows().volleys == ()
    assert not bench.rows().learns


def test_failed_reads_of_the_log_are_repeated_less_often(bench: Firing) -> None:
    bench.answers_fence = False
    bench.send()
    bench.until_due()
    bench.done(0, errors.ProducerFencedError("epoch 4 is the current one", epoch=4))
    bench.answers_fence = True
    for _ in range(1_500):
        bench.wait(20 * MS, (M01,))
        bench.serve(2)
        for asked in [one for one in bench.all(dm.ReadFired) if one.serial not in bench.answered]:
            bench.answered.add(asked.serial)
            bench.do(dm.FiredRead(asked.serial, P, 1, (), 0, errors.NotServingError("no member answers")))
    assert 7 <= len(bench.all(dm.ReadFired)) <= 10, "in 30 s"


def test_the_log_is_not_read_while_a_later_segment_is_unsettled(bench: Firing) -> None:
    bench.send()
    bench.serve()
    log = bench.part.logs[1]
    sealed = sealed_chain(first_chain(), log.tail, log.tail_checksum)
    bench.read_chain(unsettled_chain(sealed))
    bench.part.firing[1].learn(4)
    bench.until_due(5_000)
    assert bench.part.firing[1].fence.is_stored
    assert bench.all(dm.ReadFired) == []


def test_a_blind_server_reads_the_log_once(bench: Firing) -> None:
    bench.part.rights[1].blind = True
    bench.send()
    bench.until_due()
    _learns(bench, 0)
    bench.until_due(20)
    assert bench.fired() == [[0]]
    del bench.part.firing[1]  # as if nothing had been left for a while
    bench.send()
    bench.until_due()
    assert bench.fired() == [[1]]
    assert len(bench.all(dm.ReadFired)) == 1


def test_a_fence_below_an_epoch_in_the_log_is_stored_again(bench: Firing) -> None:
    bench.answers_fence = False
    bench.send()
    bench.until_due()
    bench.done(0, errors.ProducerFencedError("epoch 4 is the current one", epoch=4))
    bench.answers_fence = True
    bench.until_due(20)
    _learns(bench, 5)
    bench.until_due(300)
    assert bench.part.firing[1].fence.epoch == 6
    _learns(bench, 5)
    bench.until_due(20)
    assert bench.fired() == [[0]]


def test_origins_are_mapped_to_the_segment_that_they_were_moved_to() -> None:
    origins = [Span(make_offset(2, 3), 4), Span(make_offset(1, 10), 6), Span(make_offset(1, 90), 1)]
    fired = [Fired(span, 100, is_moved=False) for span in origins]
    moved = [(40, Span(make_offset(1, 12), 2)), (50, Span(make_offset(1, 14), 9))]
    assert spans_in(2, fired, moved) == (Span(3, 4), Span(40, 2), Span(50, 2))
    fired = [Fired(span, 50, is_moved=True) for span in origins]
    assert spans_in(2, fired, moved) == (Span(3, 4), Span(40, 2)), "at 50 is the copy that the volley has made"
    many = [Fired(Span(make_offset(2, index), 1), 10_000, is_moved=False) for index in range(0, 2_000, 2)]
    odd = [(index, Span(make_offset(1, index), 1)) for index in range(1, 2_000, 2)]
    many += [Fired(span, 10_000, is_moved=False) for _, span in odd]
    assert spans_in(2, many, odd) == (Span(0, 2_000),), "neighbours are one span"


def test_what_readers_skip_was_not_fired() -> None:
    def volley(epoch: int, *origins: Span, is_list: bool = False) -> StoredVolley:
        return StoredVolley(0, b"p", epoch, origins, is_list)

    two, one = (Span(10, 2), Span(20, 1)), Span(10, 3)
    begun = [volley(2), volley(2, *two, is_list=True)]

    def found(*segments: list[StoredVolley]) -> tuple[list[Span], int, bool]:
        fired, last_epoch, is_fenced = fired_in(enumerate(segments, 2), 1, 3)
        return [one.origins for one in fired], last_epoch, is_fenced

    assert found(begun) == ([], 2, False), "the list was stored, and not its volley"
    assert found(begun, [volley(2, *two, is_list=True), volley(2, one), volley(2, Span(5, 1))])[0] == [*two, Span(5, 1)]
    late = [volley(2, Span(7, 1)), volley(4, Span(8, 1))]
    assert found([*begun, volley(3)], late) == ([Span(8, 1)], 4, True), "7 is below a fence in a segment before"
    assert found([volley(3)])[1] == 0, "its own fence"
    assert found([volley(3), volley(3, Span(8, 1))])[1] == 3, "another server has that epoch, too"
