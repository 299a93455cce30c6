"""The producer table against the plain list of everything that was ever appended."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_api.batch import BatchHeader
from seriatim_api.ids import make_offset
from seriatim_broker.core.values.producers import (
    WINDOW_BATCHES,
    ProducerTable,
    append_time_of,
    entries_of,
    merge,
    newest_of,
)

from .support import header

QUICK = settings(max_examples=50, deadline=None)

PRODUCERS = [bytes([letter]) * 16 for letter in range(3)]


@dataclass(frozen=True)
class Appended:
    """A batch and its place."""

    header: BatchHeader
    offset: int


def _header(producer: bytes, epoch: int, sequence: int, count: int, segment: int, index: int) -> BatchHeader:
    sent = header(sequence, count, epoch, producer, b"", partition=1)
    return sent._replace(segment=segment, base_index=index)


@st.composite
def logs(draw: st.DrawFn) -> list[Appended]:
    """Segments one after another; each producer's sequences without a gap, sometimes a new epoch from 0."""
    log: list[Appended] = []
    state = dict.fromkeys(PRODUCERS, (0, 0))
    for segment in range(1, draw(st.integers(1, 3)) + 1):
        index = 0
        for _ in range(draw(st.integers(0, 30))):
            producer = draw(st.sampled_from(PRODUCERS))
            epoch, sequence = state[producer]
            if draw(st.integers(0, 9)) == 0:
                epoch, sequence = epoch + 1, 0
            count = draw(st.integers(1, 4))
            log.append(Appended(_header(producer, epoch, sequence, count, segment, index), make_offset(segment, index)))
            index += count
            state[producer] = (epoch, sequence + count)
    return log


def _table(log: list[Appended]) -> ProducerTable:
    table = ProducerTable()
    for appended in log:
        table.record(appended.header)
    return table


def _last(log: list[Appended], producer: bytes) -> Appended | None:
    return next((entry for entry in reversed(log) if entry.header.producer == producer), None)


@QUICK
@given(logs())
def test_the_last_of_each_producer_is_the_last_appended(log: list[Appended]) -> None:
    table = _table(log)
    for producer in PRODUCERS:
        expected, found = _last(log, producer), table.last(producer)
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert (found.epoch, found.last_sequence, found.offset) == (
                expected.header.producer_epoch,
                expected.header.last_sequence,
                expected.offset,
            )


@QUICK
@given(logs())
def test_a_repeat_within_the_window_is_found_at_its_own_offset(log: list[Appended]) -> None:
    table = _table(log)
    for producer in PRODUCERS:
        own = [entry for entry in log if entry.header.producer == producer]
        for entry in own[-WINDOW_BATCHES:]:
            found = table.find(entry.header)
            assert found is not None
            assert found.offset == entry.offset


@QUICK
@given(logs())
def test_another_batch_under_the_same_sequence_is_no_repeat(log: list[Appended]) -> None:
    table = _table(log)
    for entry in log[-WINDOW_BATCHES:]:
        assert table.find(entry.header._replace(message_count=entry.header.message_count + 1)) is None
        assert table.find(entry.header._replace(producer_epoch=entry.header.producer_epoch + 100)) is None


@QUICK
@given(logs())
def test_a_table_at_rest_is_bounded_and_comes_back(log: list[Appended]) -> None:
    rest = _table(log).at_rest()
    assert rest.is_sound
    assert rest.row_count == len({entry.header.producer for entry in log})
    assert all(0 < len(entries_of(window)) <= WINDOW_BATCHES for _, window in rest)
    assert ProducerTable(rest).at_rest() == rest


def _ranks(table: ProducerTable) -> dict[bytes, tuple[int, int]]:
    newest = {producer: newest_of(window) for producer, window in table.windows.items()}
    return {producer: (entry.epoch, entry.last_sequence) for producer, entry in newest.items()}


@QUICK
@given(logs(), logs(), logs())
def test_merging_takes_the_highest_in_whatever_order(a: list[Appended], b: list[Appended], c: list[Appended]) -> None:
    tables = [_table(log) for log in (a, b, c)]
    merged = merge(tables)
    assert _ranks(merged) == _ranks(merge(reversed(tables))) == _ranks(merge([merge(tables[:2]), tables[2]]))
    assert merge([merged, merged]).at_rest() == merged.at_rest()
    for producer, rank in _ranks(merged).items():
        assert rank == max(found for table in tables if (found := _ranks(table).get(producer)) is not None)


@QUICK
@given(logs())
def test_a_table_covers_what_its_log_holds_and_nothing_newer(log: list[Appended]) -> None:
    table = ProducerTable(_table(log).at_rest())
    for entry in log:
        assert table.covers(entry.header)
    for producer in PRODUCERS:
        last = _last(log, producer)
        next_sequence = 0 if last is None else last.header.last_sequence + 1
        epoch = 0 if last is None else last.header.producer_epoch
        assert not table.covers(_header(producer, epoch, next_sequence, 1, 9, 0))
        assert not table.covers(_header(producer, epoch + 1, 0, 1, 9, 0))


@QUICK
@given(logs(), st.integers(0, 1 << 40))
def test_a_window_knows_when_its_newest_batch_was_appended(log: list[Appended], append_time_ms: int) -> None:
    table = ProducerTable()
    for at, entry in enumerate(log):
        table.record(entry.header._replace(append_time_ms=append_time_ms + at))
    for producer, window in table.at_rest():
        newest = max(at for at, entry in enumerate(log) if entry.header.producer == producer)
        assert append_time_of(window) == append_time_ms + newest
