"""The producer table is the pure function of the committed log that docs/adr/0086 describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_api.batch import SPARED_ALL, BatchHeader, place
from seriatim_api.dead_letters import FORWARDER_MARK, REPLAY_MARK
from seriatim_api.ids import make_offset
from seriatim_api.publications import PRODUCER_MARK
from seriatim_broker.core.values.producers import (
    WINDOW_BATCHES,
    Entry,
    IdleBlock,
    ProducerTable,
    Rows,
    Table,
    Window,
    entries_of,
    pack_window,
)

from .support import header

IDS = [number.to_bytes(1, "big") * 16 for number in range(1, 10)]
MARKS = (PRODUCER_MARK, FORWARDER_MARK, REPLAY_MARK)
IDS += [number.to_bytes(8, "big") + mark for number in range(1, 4) for mark in MARKS]
KEPT = tuple([number.to_bytes(8, "big") + mark for number in range(1, 7)] for mark in MARKS)
"""Producers of the three rooms that may spare some, each room by itself."""


@dataclasses.dataclass
class Model:
    """The function, written as simply as it can be: a list for each room, the producer that goes next at its front."""

    limit: int
    rooms: dict[bytes, list[tuple[bytes, list[Entry]]]] = dataclasses.field(default_factory=dict)

    def read(self, batch: BatchHeader) -> None:
        mark = batch.producer[8:] if batch.producer[8:] in MARKS else b""
        limit = max(1, self.limit // 4) if mark else self.limit
        room = self.rooms.setdefault(mark, [])
        known = next((row for row in room if row[0] == batch.producer), None)
        if known is None:
            for _ in range(min(2, len(room) + 1 - limit)):
                if batch.spared < len(room):
                    room.pop(batch.spared)
            known = (batch.producer, [])
        else:
            room.remove(known)
        entry = Entry(
            batch.producer_epoch,
            batch.base_sequence,
            batch.message_count,
            make_offset(batch.segment, batch.base_index),
        )
        room.append((batch.producer, [*known[1], entry][-WINDOW_BATCHES:]))

    @property
    def content(self) -> dict[bytes, tuple[Entry, ...]]:
        return {producer: tuple(entries) for room in self.rooms.values() for producer, entries in room}


def _content(rows: Iterable[tuple[bytes, Window]]) -> dict[bytes, tuple[Entry, ...]]:
    return {producer: entries_of(window) for producer, window in rows}


class Member:
    """One member: a table, and what its disk has. Batches reach the disk with what was folded before them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.opened = Table()
        self.blocks: dict[bytes, IdleBlock] = {}
        self.table = ProducerTable(limit=limit)
        self.disk: dict[bytes, Window] = {}
        self.log: list[BatchHeader] = []
        self.known_commit = 0  # how many of the log's batches the last batch on the disk says are committed
        self.commit = 0

    def append(self, batch: BatchHeader) -> None:
        self.table.add(batch)
        self._write()
        self.known_commit = self.commit
        self.log.append(batch)

    def _write(self) -> None:
        for producer, window in self.table.take_unwritten():
            self.disk.pop(producer, None)
            if window is not None:
                self.disk[producer] = window

    def fold(self, count: int, block_rows: int) -> None:
        self.commit = max(self.commit, count)
        if self.commit:
            self.table.fold(_offset(self.log[self.commit - 1]) + 1)
        self.table.make_blocks(block_rows)
        self.blocks |= {block.id: block for block in self.table.blocks}

    def restart(self) -> None:
        self.commit = self.known_commit
        rows: Rows = tuple(sorted(self.disk.items()))
        self.table = ProducerTable(self.opened, rows, self.blocks, self.limit)
        known = max((entries_of(window)[-1].offset for _, window in rows), default=0)
        for batch in self.log[self.known_commit :]:
            if _offset(batch) > known:
                self.table.add(batch)

    def seal(self, count: int) -> Table:
        """Cut the log to this many batches; returns the table of the next segment."""
        asked = self.table.as_of(_offset(self.log[count - 1]) + 1 if count else 0)
        if count < len(self.log):
            self.table.cut(_offset(self.log[count]))
        del self.log[count:]
        if count:
            self.table.fold(_offset(self.log[-1]) + 1)
        self._write()
        sealed = self.table.at_rest()
        assert sealed == asked, "the fence answers what the seal leaves"
        return sealed

    def open(self, table: Table, limit: int) -> None:
        twin = Member(limit)
        twin.opened, twin.blocks = table, self.blocks
        twin.table = ProducerTable(table, (), self.blocks, limit)
        self.__dict__ = twin.__dict__


def _offset(batch: BatchHeader) -> int:
    return make_offset(batch.segment, batch.base_index)


def _placed(sequence: int, producer: bytes, index: int, segment: int = 1, spared: int = 0) -> BatchHeader:
    return place(
        header(sequence, producer=producer),
        segment=segment,
        base_index=index,
        append_time_ms=7,
        previous_checksum=0,
        checksum=lambda _seed, _data: 0,
        spared=spared,
    )


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_table_is_the_function_of_the_committed_log(data: st.DataObject) -> None:
    """Two members, with other commits, other blocks and restarts of their own, know the same after each segment."""
    ids = data.draw(st.sampled_from((IDS, *KEPT)))
    limits = st.integers(1, 16 if ids in KEPT else 8)
    model = Model(data.draw(limits))
    members = [Member(model.limit), Member(model.limit)]
    rows = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    sequences = dict.fromkeys(ids, 0)
    for segment in range(1, data.draw(st.integers(1, 4)) + 1):
        batches: list[BatchHeader] = []
        committed = 0
        for _ in range(data.draw(st.integers(0, 25))):
            step = data.draw(st.integers(0, 9))
            if step <= 6:
                producer = data.draw(st.sampled_from(ids))
                spared = data.draw(st.sampled_from((0, 0, 1, 2, SPARED_ALL))) if ids in KEPT else 0
                batch = _placed(sequences[producer], producer, len(batches), segment, spared)
                sequences[producer] += 1
                batches.append(batch)
                for member in members:
                    member.append(batch)
            elif step <= 8:
                committed = data.draw(st.integers(committed, len(batches)))
                for member, block_rows in zip(members, rows, strict=True):
                    member.fold(data.draw(st.integers(member.commit, committed)), block_rows)
            else:
                data.draw(st.sampled_from(members)).restart()
        length = data.draw(st.integers(committed, len(batches)))
        for batch in batches[:length]:
            model.read(batch)
        sealed = [member.seal(length) for member in members]
        for member in members:
            assert _content(member.table.items()) == model.content
            assert member.table.producer_count == len(model.content)
            member.restart()
            assert _content(member.table.items()) == model.content, "and from the disk"
            if ids in KEPT:  # one room, so its order is that of the table
                assert list(_content(member.table.items())) == list(model.content)
        limit = data.draw(limits)
        model.limit = limit
        source = data.draw(st.integers(0, 1))
        for member in members:
            member.blocks |= members[source].blocks
        for member in members:
            member.open(sealed[source], limit)
            assert _content(member.table.items()) == model.content


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(IDS), st.booleans()), max_size=40), st.integers(1, 6))
def test_questions_are_answered_as_if_all_were_committed(steps: list[tuple[bytes, bool]], limit: int) -> None:
    table, model = ProducerTable(limit=limit), Model(limit)
    for index, (producer, commits) in enumerate(steps):
        batch = header(index, producer=producer)._replace(segment=1, base_index=index)
        if producer not in model.content:
            before = set(model.content)
            pushed_out = {gone for gone, _ in table.pushed_out_by(producer)}
            table.add(batch)
            model.read(batch)
            assert pushed_out == before - set(model.content)
        else:
            table.add(batch)
            model.read(batch)
        if commits:
            table.fold(make_offset(1, index) + 1)
        for known in IDS:
            found = table.entries(known)
            assert found[-WINDOW_BATCHES:] == model.content.get(known, ())
        assert table.producer_count == len(model.content)
    table.fold(make_offset(2, 0))
    assert _content(table.items()) == model.content


def test_a_cut_brings_no_producer_back_since_none_had_gone() -> None:
    table = ProducerTable(limit=2)
    for index, producer in enumerate(IDS[:2]):
        table.record(header(0, producer=producer)._replace(segment=1, base_index=index))
    table.add(header(0, producer=IDS[2])._replace(segment=1, base_index=2))
    assert table.last(IDS[0]) is None, "to the master it is gone"
    table.cut(make_offset(1, 2))
    assert [producer for producer, _ in table.items()] == IDS[:2]
    assert table.last(IDS[0]) is not None


@pytest.mark.parametrize("ids", KEPT, ids=("writers", "forwarders", "replays"))
def test_those_that_are_spared_stay_and_are_known_after_a_restart(ids: list[bytes]) -> None:
    """Writers, forwarders and replays alike, and in the same order, because a later batch says how many stay."""
    before = ProducerTable(limit=12)  # room for three
    for index, producer in enumerate(ids[:3]):
        before.record(_placed(0, producer, index))
    opened = before.at_rest()
    table, disk = ProducerTable(opened, (), {}, 12), dict[bytes, Window]()
    for index, (newcomer, spared, known) in enumerate(
        [(3, 1, (0, 2, 3)), (4, SPARED_ALL, (0, 2, 3, 4)), (5, 1, (0, 4, 5))]
    ):
        table.record(_placed(0, ids[newcomer], index, 2, spared))
        assert [producer for producer, _ in table.items()] == [ids[number] for number in known]
        for producer, window in table.take_unwritten():
            disk.pop(producer, None)
            if window is not None:
                disk[producer] = window
        again = ProducerTable(opened, tuple(sorted(disk.items())), {}, 12)
        assert list(again.items()) == list(table.items()), "in the same order too"


def test_a_limit_that_became_smaller_takes_effect_two_by_two() -> None:
    table = ProducerTable(limit=6)
    for index, producer in enumerate(IDS[:6]):
        table.record(header(0, producer=producer)._replace(segment=1, base_index=index))
    smaller = ProducerTable(table.at_rest(), (), {}, 3)
    counts = []
    for index, producer in enumerate([IDS[6], IDS[7], IDS[8], IDS[0]]):
        smaller.record(header(0, producer=producer)._replace(segment=2, base_index=index))
        counts.append(smaller.producer_count)
    assert counts == [5, 4, 3, 3]


def test_a_block_has_whole_windows_and_joins_its_neighbour() -> None:
    table = ProducerTable(limit=100)
    ids = [number.to_bytes(2, "big") * 8 for number in range(1, 30)]
    index = 0
    for producer in ids[:17]:
        for sequence in range(2):
            table.record(header(sequence, producer=producer)._replace(segment=1, base_index=index))
            index += 1
        table.make_blocks(4)
    assert [block.producer_count for block in table.blocks] == [4]
    assert [entry.base_sequence for entry in table.entries(ids[0])] == [0, 1]
    for producer in (*ids[1:4], *ids[17:21], *ids[5:8], *ids[21:29]):
        table.record(header(2, producer=producer)._replace(segment=1, base_index=index))
        table.make_blocks(4)
        index += 1
    visible = [block.producer_count for block in table.blocks]
    assert sum(visible) - sum(bits.bit_count() for bits in table.rooms[0].hidden.values()) + len(table.windows) == 29
    assert all(one + other > 4 for one, other in pairwise(visible))
    assert table.producer_count == 29


def test_a_table_too_large_for_a_message_keeps_the_newest_batch_of_each() -> None:
    table = ProducerTable()
    for index in range(60):
        table.record(header(index, producer=IDS[index % 3])._replace(segment=1, base_index=index))
    whole = table.at_rest()
    assert table.spelled_out(whole.size_bytes) == whole
    small = table.spelled_out(whole.size_bytes - 1)
    assert small is not None
    assert {producer: len(entries_of(window)) for producer, window in small} == dict.fromkeys(IDS[:3], 1)
    assert table.spelled_out(small.size_bytes - 1) is None
    assert pack_window(entries_of(dict(small)[IDS[0]])) == dict(small)[IDS[0]]
