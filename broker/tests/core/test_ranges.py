"""Range reads: any in-sync member gives what the chain says, below the commit, and says where it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.batch import FLAG_CONTROL
from seriatim_api.ids import INDEX_MAX, make_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, Seal, declare_lost, settle, trim
from seriatim_broker.core.values.log import Batch, RecoveredPartition
from seriatim_broker.core.values.positions import Place
from seriatim_broker.core.values.producers import ProducerTable, pack_table
from seriatim_broker.core.values.segment import Start

from .support import (
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    SECOND,
    Bench,
    P,
    batches_of,
    checksum_of,
    first_chain,
    opened_master,
    opened_slave,
    recovered,
    replicate,
    sealed_chain,
    unsettled_chain,
)

_REQUEST = 77


class Reading(Bench):
    """A member with segments on its disk, read by ranges; the disk answers at once."""

    def __init__(self, *found: tuple[int, tuple[Batch, ...]], sealed: bool = True, member: object = M00) -> None:
        self.by_no = dict(found)
        segments = tuple(
            recovered(no, batches, commit=len(batches), sealed=sealed, incomplete=no > 1) for no, batches in found
        )
        super().__init__(member, 1, (RecoveredPartition(P, segments),))  # type: ignore[arg-type]

    def step(self, start: Place, until: Place, *, raw: bool = False) -> fx.RangeRead | None:
        """One step of a range; None if it waits for something. Before a refusal the record is read, as it is known."""
        self.clear()
        self.do(ev.ReadRange(_REQUEST, P, start, until, 1 << 20, raw, self.now_us + 2 * SECOND))
        if self.all(fx.ReadChain):
            self.read_chain(self.part.chain)
        self.disk()
        return self.answer_of()

    def disk(self, empty: bool = False) -> None:
        for read in self.all(fx.ReadLog):
            batches = tuple(
                batch
                for batch in self.by_no.get(read.segment_no, ())
                if batch.header.end_index > read.from_index and batch.header.base_index < read.until_index
            )
            self.do(ev.LogRead(read.serial, () if empty else batches))

    def answer_of(self) -> fx.RangeRead | None:
        answers = self.all(fx.RangeRead)
        assert len(answers) <= 1
        return answers[0] if answers else None

    def answered(self) -> fx.RangeRead:
        answer = self.answer_of()
        assert answer is not None
        return answer


def _two_segments() -> tuple[Reading, Chain]:
    """Segment 1 with 5 messages is complete here, segment 2 is open elsewhere."""
    batches = batches_of(1, (2, 3))
    bench = Reading((1, batches))
    chain = sealed_chain(first_chain(), 5, checksum_of(batches))
    bench.read_chain(chain)
    return bench, chain


def _given(answer: fx.RangeRead | None) -> list[int]:
    assert answer is not None
    return [
        index
        for event in answer.events
        if isinstance(event, fx.RangeBatches)
        for batch in event.batches
        for index in range(batch.header.base_index, batch.header.end_index)
    ]


def test_a_whole_member_reads_a_sealed_segment_without_any_right_and_says_its_end() -> None:
    bench, chain = _two_segments()
    answer = bench.step(Place(1, 0), Place(2, 0))
    assert _given(answer) == [0, 1, 2, 3, 4]
    assert answer is not None
    assert (answer.place, answer.is_done) == (Place(1, 5), False)
    answer = bench.step(answer.place, Place(2, 0))
    assert answer == fx.RangeRead(
        _REQUEST,
        (fx.RangeSegmentEnd(1, 5, chain.segments[0].sealed_checksum or 0),),
        Place(2, 0),
        True,
        (),
        None,
    )


def test_a_range_ends_within_a_segment_and_is_done_there() -> None:
    bench, _ = _two_segments()
    answer = bench.step(Place(1, 1), Place(1, 2))
    assert _given(answer) == [0, 1], "batches are complete"
    assert answer is not None
    assert answer.is_done


def test_an_empty_range_is_done_at_once() -> None:
    bench, _ = _two_segments()
    answer = bench.step(Place(1, 3), Place(1, 3))
    assert answer == fx.RangeRead(_REQUEST, (), Place(1, 3), True, (), None)


def test_what_is_elsewhere_names_those_who_have_it() -> None:
    bench, _ = _two_segments()
    answer = bench.step(Place(2, 0), Place(2, 4))
    assert answer == fx.RangeRead(_REQUEST, (), Place(2, 0), False, (M10.broker, M11.broker), None)


def test_a_copy_under_way_is_not_read() -> None:
    batches = batches_of(1, (2, 3))
    bench = Reading((1, batches[:1]), sealed=False)
    bench.read_chain(sealed_chain(first_chain(), 5, checksum_of(batches)))
    answer = bench.step(Place(1, 0), Place(2, 0))
    assert answer == fx.RangeRead(_REQUEST, (), Place(1, 0), False, (M01.broker,), None)


def test_nothing_read_is_not_the_end() -> None:
    bench, _ = _two_segments()
    bench.clear()
    bench.do(ev.ReadRange(_REQUEST, P, Place(1, 0), Place(2, 0), 1 << 20, False, bench.now_us + SECOND))
    bench.disk(empty=True)
    answer = bench.answered()
    assert (answer.place, answer.is_done, answer.brokers) == (Place(1, 0), False, (M01.broker,))
    assert isinstance(answer.error, errors.NotServingError)


def test_the_master_reads_below_its_commit_and_says_where_the_end_is() -> None:
    bench = opened_master()
    bench.append(0, 3, starts=True)
    bench.append(3, 2)
    bench.persist()
    bench.ack(M01, 3)
    bench.clear()
    bench.do(ev.ReadRange(_REQUEST, P, Place(1, 0), Place(1, 3), 1 << 20, False, bench.now_us + SECOND))
    (read,) = bench.all(fx.ReadLog)
    assert (read.from_index, read.until_index) == (0, 3)
    bench.do(ev.ReadRange(_REQUEST + 1, P, Place(1, 0), Place(1, 4), 1 << 20, False, bench.now_us + SECOND))
    bench.read_chain(bench.part.chain)
    (answer,) = bench.all(fx.RangeRead)
    assert isinstance(answer.error, errors.OffsetOutOfRangeError)
    assert answer.error.details["end"] == str(make_offset(1, 3))


def test_a_slave_reads_below_the_commit_that_it_knows_and_sends_on_for_the_rest() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, (2, 3)), commit=2)
    bench.persist()
    bench.clear()
    bench.do(ev.ReadRange(_REQUEST, P, Place(1, 0), Place(1, 5), 1 << 20, False, bench.now_us + SECOND))
    (read,) = bench.all(fx.ReadLog)
    assert read.until_index == 2
    bench.do(ev.ReadRange(_REQUEST + 1, P, Place(1, 2), Place(1, 5), 1 << 20, False, bench.now_us + SECOND))
    (answer,) = bench.all(fx.RangeRead)
    assert (answer.place, answer.is_done, answer.brokers, answer.error) == (Place(1, 2), False, (M00.broker,), None)


def test_a_lost_segment_is_a_gap() -> None:
    bench, chain = _two_segments()
    chain = sealed_chain(chain, 4, 9, (M00, M01))
    bench.read_chain(declare_lost(chain, 2))
    answer = bench.step(Place(2, 1), Place(3, 0))
    assert answer is not None
    assert (answer.events, answer.place, answer.is_done) == (
        (fx.RangeGap(2, 1, "declared lost"),),
        Place(3, 0),
        True,
    )


def _trimmed(chain: Chain, no: int, start: int, checksum: int) -> Chain:
    return trim(chain, no, Start(start, checksum, 100), 1)


def test_a_reader_is_told_of_what_retention_dropped_and_goes_on_behind_it() -> None:
    bench, chain = _two_segments()
    batches = batches_of(1, (2, 3))
    bench.read_chain(_trimmed(chain, 1, 2, batches[0].header.checksum))
    answer = bench.step(Place(1, 1), Place(2, 0))
    assert answer is not None
    assert answer.events[0] == fx.RangeDropped(Place(1, 1), Place(1, 2), batches[0].header.checksum)
    assert _given(answer) == [2, 3, 4]
    answer = bench.step(Place(1, 2), Place(2, 0))
    assert answer is not None
    assert not any(isinstance(event, fx.RangeDropped) for event in answer.events)


def test_a_reader_is_told_of_what_is_dropped_while_it_reads() -> None:
    bench, chain = _two_segments()
    batches = batches_of(1, (2, 3))
    bench.clear()
    bench.do(ev.ReadRange(_REQUEST, P, Place(1, 0), Place(2, 0), 1 << 20, False, bench.now_us + SECOND))
    (read,) = bench.all(fx.ReadLog)
    bench.read_chain(_trimmed(chain, 1, 2, batches[0].header.checksum))
    bench.do(ev.LogRead(read.serial, ()))
    bench.effects.remove(read)
    bench.disk()
    answer = bench.answered()
    assert answer.events[0] == fx.RangeDropped(Place(1, 0), Place(1, 2), batches[0].header.checksum)
    assert _given(answer) == [2, 3, 4]


def test_a_range_in_segments_that_are_gone_is_dropped() -> None:
    bench, chain = _two_segments()
    gone = trim(_trimmed(chain, 1, 5, chain.segments[0].sealed_checksum or 0), 2, None, 2)
    bench.read_chain(gone)
    answer = bench.step(Place(1, 3), Place(2, 0))
    assert answer is not None
    assert (answer.events, answer.is_done) == ((fx.RangeDropped(Place(1, 3), Place(2, 0), 0),), True)


def test_numbers_of_folded_segments_are_passed_over_and_the_reader_is_told() -> None:
    bench, chain = _two_segments()
    last = replace(chain.open_segment, no=5, folded=3)
    bench.read_chain(replace(chain, epoch=chain.epoch + 1, segments=(chain.segments[0], last)))
    for start, until in ((Place(2, 0), Place(5, 0)), (Place(4, 0), Place(5, 0))):
        answer = bench.step(start, until)
        assert answer is not None
        assert (answer.events, answer.place, answer.is_done) == ((fx.RangeSegmentEnd(4, 0, 0),), Place(5, 0), True)
    answer = bench.step(Place(3, 1), Place(5, 0))
    assert answer is not None
    assert isinstance(answer.error, errors.OffsetOutOfRangeError)
    assert answer.error.details["end"] == str(make_offset(3, 0))


def test_nothing_behind_an_unsettled_segment_is_read() -> None:
    batches = batches_of(1, (2,))
    bench = Reading((1, batches), sealed=False)
    chain = unsettled_chain(first_chain(), (M00, M01))
    bench.read_chain(chain)
    for start in (Place(1, 0), Place(2, 0)):
        answer = bench.step(start, Place(2, 1))
        assert answer is not None
        assert isinstance(answer.error, errors.OffsetOutOfRangeError)
        assert answer.error.details["end"] == str(make_offset(1, 0))
        bench.wait(SECOND // 10)


def test_what_is_staged_is_read_by_its_place_though_a_segment_before_is_not_settled() -> None:
    batches = batches_of(2, (2, 3))
    bench = Reading((2, batches), sealed=False)
    bench.read_chain(unsettled_chain(first_chain(), (M00, M01)))
    bench.part.logs[2].commit = 5
    for staged in (False, True):
        bench.clear()
        bench.do(ev.ReadRange(_REQUEST, P, Place(2, 2), Place(2, 5), 1, True, bench.now_us + 2 * SECOND, staged=staged))
        if not staged:
            bench.read_chain(bench.part.chain)
        bench.disk()
        answer = bench.answered()
        if staged:
            assert answer.events == (fx.RangeBatches(2, batches[1:]),)
            assert answer.is_done
        else:
            assert isinstance(answer.error, errors.OffsetOutOfRangeError)


def test_an_end_that_no_offset_has_is_refused() -> None:
    bench = opened_master()
    start, until = Place(2, INDEX_MAX), Place(2, INDEX_MAX + 1)
    bench.do(ev.ReadRange(_REQUEST, P, start, until, 1, True, bench.now_us + SECOND, staged=True))
    assert isinstance(bench.all(fx.RangeRead)[-1].error, errors.OffsetOutOfRangeError)


def test_an_offset_behind_the_end_of_a_sealed_segment_is_refused() -> None:
    bench, _ = _two_segments()
    for start, until in ((Place(1, 6), Place(2, 0)), (Place(1, 0), Place(1, 6))):
        answer = bench.step(start, until)
        assert answer is not None
        assert isinstance(answer.error, errors.OffsetOutOfRangeError)
        assert answer.error.details["end"] == str(make_offset(1, 5))


def _behind_unsettled() -> tuple[Reading, tuple[Batch, ...]]:
    """Segment 2 was opened over segment 1, and has the batch that segment 1 has, and another one. It is here."""
    first, second = batches_of(1, (2,)), batches_of(2, (2, 3))
    bench = Reading((2, second))
    chain = unsettled_chain(first_chain(), (M00, M01))
    chain = settle(chain, 1, Seal(2, checksum_of(first), M01, (M01, M00), None, (), 0))
    chain = sealed_chain(chain, 5, checksum_of(second))
    bench.read_chain(chain)
    return bench, second


def test_a_repeat_behind_an_unsettled_segment_is_skipped_unless_it_is_read_raw() -> None:
    bench, second = _behind_unsettled()
    assert bench.step(Place(2, 0), Place(3, 0)) is None, "the table of segment 1 has to be asked for"
    table = ProducerTable()
    for batch in batches_of(1, (2,)):
        table.record(batch.header)
    bench.link(M01)
    bench.hear(M01, msg.TableAnswer(P, 1, pack_table(tuple(table.windows.items()))))
    bench.wait(SECOND // 10)
    bench.disk()
    answer = bench.answered()
    assert answer.events[0] == fx.RangeSkip(2, 0, 2, second[0].header.checksum)
    assert _given(answer) == [2, 3, 4]
    assert _given(bench.step(Place(2, 0), Place(3, 0), raw=True)) == [0, 1, 2, 3, 4]


def test_a_control_batch_is_skipped_also_if_it_is_read_raw() -> None:
    first, second, third = batches_of(1, (2, 1, 2))
    control = second._replace(header=second.header._replace(flags=FLAG_CONTROL))
    bench = Reading((1, (first, control, third)))
    bench.read_chain(sealed_chain(first_chain(), 5, third.header.checksum))
    answer = bench.step(Place(1, 0), Place(2, 0), raw=True)
    assert _given(answer) == [0, 1, 3, 4]
    assert answer is not None
    assert fx.RangeSkip(1, 2, 3, control.header.checksum) in answer.events


def test_what_does_not_come_in_time_ends_with_an_error() -> None:
    bench, _ = _behind_unsettled()
    assert bench.step(Place(2, 0), Place(3, 0)) is None
    bench.wait(3 * SECOND)
    answer = bench.answered()
    assert isinstance(answer.error, errors.DeadlineExceededError)
    assert not bench.part.range_waits


# ---- an old record -----------------------------------------------------------------------------------------


def _left_behind() -> tuple[Reading, Chain, Chain]:
    """A member of segment 1 that knows segment 2 as UNSETTLED; it was settled, and this member has not heard of it."""
    batches = batches_of(1, (2, 3))
    bench = Reading((1, batches))
    sealed = sealed_chain(first_chain(), 5, checksum_of(batches))
    unsettled = unsettled_chain(sealed, (M20, M21))
    bench.read_chain(unsettled)
    bench.clear()
    return bench, unsettled, settle(unsettled, 2, Seal(4, 9, M10, (M10, M11), None, (), 0))


def _ask(bench: Bench, request: int, epoch: int) -> None:
    due_us = bench.now_us + 9 * SECOND
    bench.do(ev.ReadRange(request, P, Place(1, 0), Place(3, 2), 1 << 20, False, due_us, epoch=epoch))


@pytest.mark.parametrize("later", [-1, 0, 1], ids=["before", "same", "after"])
def test_an_old_record_refuses_no_range(later: int) -> None:
    """The reader has seen the record before the one that is known here, the same one, or the one after it."""
    bench, unsettled, settled = _left_behind()
    _ask(bench, _REQUEST, unsettled.epoch + later)
    assert bench.answer_of() is None
    assert len(bench.all(fx.ReadChain)) == 1
    bench.read_chain(settled)
    bench.disk()
    assert _given(bench.answer_of()) == [0, 1, 2, 3, 4]


def test_a_record_older_than_the_readers_refuses_no_range() -> None:
    bench, unsettled, settled = _left_behind()
    _ask(bench, _REQUEST, settled.epoch)
    bench.read_chain(unsettled)
    answer = bench.answered()
    assert isinstance(answer.error, errors.CoordinatorUnavailableError)


def test_a_read_that_shows_nothing_new_allows_the_refusal() -> None:
    bench, unsettled, _ = _left_behind()
    _ask(bench, _REQUEST, 0)
    bench.read_chain(unsettled)
    answer = bench.answered()
    assert isinstance(answer.error, errors.OffsetOutOfRangeError)


def test_a_read_that_began_before_the_request_does_not_count() -> None:
    bench, unsettled, settled = _left_behind()
    _ask(bench, _REQUEST, 0)
    _ask(bench, _REQUEST + 1, 0)
    bench.read_chain(unsettled)
    (refused,) = bench.all(fx.RangeRead)
    assert refused.request == _REQUEST
    bench.clear()
    bench.wait(SECOND // 10)
    assert len(bench.all(fx.ReadChain)) == 1
    bench.read_chain(settled)
    bench.disk()
    assert _given(bench.answer_of()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("exists", [True, False])
def test_a_flood_of_refusals_reads_the_record_20_times_a_second(exists: bool) -> None:
    left, unsettled, _ = _left_behind()
    bench = left if exists else Bench()
    reads = answers = 0
    for request in range(1_000):
        _ask(bench, _REQUEST + request, unsettled.epoch)
        bench.wait(SECOND // 1_000)
        if bench.all(fx.ReadChain):
            reads += 1
            bench.read_chain(unsettled if exists else None)
        answers += len(bench.all(fx.RangeRead))
        bench.clear()
    assert 19 <= reads <= 21
    assert answers > 900


@pytest.mark.parametrize("answers", [True, False])
def test_a_coordinator_that_is_away_makes_a_refusal_retriable(answers: bool) -> None:
    bench, _, settled = _left_behind()
    _ask(bench, _REQUEST, settled.epoch)
    if answers:
        bench.read_chain(None, failed=True)
    else:
        bench.wait(SECOND + 1)
    answer = bench.answered()
    assert isinstance(answer.error, errors.CoordinatorUnavailableError)
    assert answer.error.retriable
    assert not bench.part.range_waits


def test_a_member_without_a_record_says_so_within_a_second() -> None:
    bench = Bench()
    _ask(bench, _REQUEST, 3)
    bench.wait(SECOND + 1)
    (answer,) = bench.all(fx.RangeRead)
    assert isinstance(answer.error, errors.CoordinatorUnavailableError)


def test_a_deleted_partition_answers_and_leaves_nothing() -> None:
    bench = Bench()
    bench.do(ev.ReadRange(_REQUEST, P, Place(1, 0), Place(1, 5), 1 << 20, False, bench.now_us + SECOND))
    bench.do(ev.SurveyPartition(_REQUEST + 1, P, 0, 0, bench.now_us + SECOND))
    bench.read_chain(None)
    assert not bench.all(fx.PartitionSurveyed), "that read began before the second question"
    bench.read_chain(None)
    (answer,) = bench.all(fx.RangeRead)
    assert isinstance(answer.error, errors.UnknownTopicError)
    (told,) = bench.all(fx.PartitionSurveyed)
    assert isinstance(told.error, errors.UnknownTopicError)
    assert P not in bench.core.partitions


def test_a_survey_waits_for_the_record_that_is_asked_for() -> None:
    bench, chain = _two_segments()
    bench.clear()
    bench.do(ev.SurveyPartition(1, P, chain.epoch, 1, bench.now_us + SECOND))
    assert bench.all(fx.PartitionSurveyed) == [fx.PartitionSurveyed(1, bench.part.chain, 5, False, None)]
    bench.clear()
    bench.do(ev.SurveyPartition(2, P, chain.epoch + 1, 0, bench.now_us + SECOND))
    assert not bench.all(fx.PartitionSurveyed)
    bench.read_chain(None, failed=True)
    assert not bench.all(fx.PartitionSurveyed)
    bench.wait(2 * SECOND)
    (told,) = bench.all(fx.PartitionSurveyed)
    assert isinstance(told.error, errors.CoordinatorUnavailableError)


def test_a_survey_of_the_open_segment_tells_the_commit_of_its_master() -> None:
    bench = opened_master()
    bench.append(0, 3, starts=True)
    bench.persist()
    bench.ack(M01, 3)
    bench.clear()
    bench.do(ev.SurveyPartition(1, P, 0, 0, bench.now_us + SECOND))
    (told,) = bench.all(fx.PartitionSurveyed)
    assert (told.readable_below, told.is_master) == (3, True)
