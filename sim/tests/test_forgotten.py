"""Whom a producer table knows, to the judge: exactly those that the rule makes of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from seriatim_api.batch import BatchHeader
from seriatim_api.errors import SequenceGapError
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import (
    Batch,
    LocalSegment,
    Preparation,
    PutBatch,
    PutBlock,
    PutPreparation,
    PutSegment,
)
from seriatim_broker.core.values.producers import ProducerTable, merge, pack_table
from seriatim_broker.testing.memory_disk import MemoryDisk

from sim.basics.batches import header_of, placed
from sim.basics.limits import IDLE_LIMITS
from sim.basics.schedule import Schedule, Violation
from sim.judge import Judge

ONE = PartitionId(1)
MEMBERS = A, B = MemberId("a-0", "a" * 32), MemberId("b-0", "b" * 32)
LIMITS = replace(BrokerConfig(), append_time_ahead_ms_max=2_000, producers_max=14, **IDLE_LIMITS)
FULL = LIMITS.producers_max
LONG_US = LIMITS.producer_protect_us


class Slot:
    """As much of a broker as the judge looks at."""

    def __init__(self, member: MemberId) -> None:
        self.name = member.broker
        self.member = member
        self.disk = self.real_disk = MemoryDisk()
        self.process: Any = type("Process", (), {"run": 1})()
        self.suspect_before_run = 0


class Partition:
    """One partition on two members that have everything, the producer table of their open segment, and a judge."""

    def __init__(self) -> None:
        self.slots: Any = {member.broker: Slot(member) for member in MEMBERS}
        self.schedule = Schedule(0)
        self.judge = Judge(self.schedule, self.slots, limits=LIMITS, ahead_ms_max=LIMITS.append_time_ahead_ms_max)
        self.table = ProducerTable(limit=FULL)
        self.no, self.tail, self.last_checksum = 1, 0, 0
        self.sequences: dict[bytes, int] = {}
        opening = self._prepared()
        self.chain = chains.create(ONE, "t", 0, True, ("g", "h"), opening, 0)
        self._opened(opening)
        self.judge.chain_written("a-0", None, self.chain, None)

    def append(self, name: str, after_us: int = 0) -> BatchHeader:
        """The master takes a batch of a producer after a pause."""
        self.schedule.run_until(self.schedule.now_us + after_us, 100)
        producer = name.encode().ljust(16)
        sequence = self.sequences.get(producer, -1) + 1
        self.sequences[producer] = sequence
        body = len(self.sequences).to_bytes(8, "big")
        header = header_of(1, producer, body, sequence=sequence)
        header = placed(header, self.tail, self.last_checksum, segment=self.no, time_ms=1)
        self.table.record(header)
        self.tail, self.last_checksum = header.end_index, header.checksum
        self._write(PutBatch(ONE, Batch(header, body), self.tail, self.table.take_unwritten()), wall_ms=1)
        return header

    def switch(self) -> None:
        """Seal the segment, and open the next one with the table."""
        seal = self._seal()
        opening = self._next()
        self._become(chains.seal_and_open(self.chain, seal, opening, 0, 1), opening)

    def open_over(self) -> Callable[[], None]:
        """Open the next segment without a table; the call that is returned settles this one, and merges both tables."""
        seal, no, before = self._seal(), self.no, self.table
        self.table = ProducerTable(limit=FULL)
        opening = self._next(incomplete=True)
        for slot in self.slots.values():
            slot.process.run = 2
        self._become(chains.open_over(self.chain, opening, 0), opening)

        def settle() -> None:
            self._become(chains.settle(self.chain, no, seal))
            self.table = merge([before, self.table])

        return settle

    def _seal(self) -> chains.Seal:
        return chains.Seal(self.tail, self.last_checksum, A, MEMBERS, None, (), self.tail)

    def _next(self, *, incomplete: bool = False) -> chains.Opening:
        self.no, self.tail, self.last_checksum = self.no + 1, 0, 0
        return self._prepared(incomplete=incomplete)

    def _become(self, after: chains.Chain, opening: chains.Opening | None = None) -> None:
        """The chain record is written; with `opening`, it opens a segment."""
        before, self.chain = self.chain, after
        if opening is not None:
            self._opened(opening)
        self.judge.chain_written("a-0", before, after, before.open_segment.master_run_id)

    def refuse(self, name: str, expected: int) -> None:
        """A broker refuses a batch of a producer, because it expects another sequence."""
        producer = name.encode().ljust(16).hex()
        self.judge.denied("a-0", 1, SequenceGapError("a gap", expected=expected, producer=producer))

    def change(self, changed: Callable[[dict[bytes, bytes]], None]) -> None:
        """The table becomes another one."""
        windows = dict(self.table.items())
        changed(windows)
        self.table = ProducerTable(pack_table(windows), limit=FULL)

    def _prepared(self, *, incomplete: bool = False) -> chains.Opening:
        table, blocks = self.table.at_rest(), {block.id: block for block in self.table.blocks}
        self.table = ProducerTable(table, (), blocks, FULL)
        attempt = bytes([self.no])
        for block in blocks.values():
            self._write(PutBlock(ONE, block.id, block.data))
        prepared = Preparation(self.no, attempt, MEMBERS, True, incomplete, table, None, 1, producers_max=FULL)
        self._write(PutPreparation(ONE, prepared))
        return chains.Opening(attempt, "gh"[self.no % 2], MEMBERS, 1, incomplete, producers_max=FULL)

    def _opened(self, opening: chains.Opening) -> None:
        incomplete = opening.incomplete_table
        record = LocalSegment(self.no, opening.switch_attempt, MEMBERS, True, incomplete, producers_max=FULL)
        self._write(PutSegment(ONE, record))

    def _write(self, write: Any, wall_ms: int | None = None) -> None:
        for slot in self.slots.values():
            self.judge.writes(slot.name, (write,), wall_ms)
            slot.disk.flush(slot.disk.submit((write,)))


def _filled() -> Partition:
    partition = Partition()
    for number in range(FULL):
        partition.append(f"p{number}")
    return partition


def test_producer_pushed_out_after_long_silence_is_forgotten() -> None:
    partition = _filled()
    partition.append("new", LONG_US)
    assert partition.table.last(b"p0".ljust(16)) is None
    partition.switch()


def test_producer_pushed_out_soon_after_its_batch_is_a_fault() -> None:
    partition = _filled()
    partition.append("new", LONG_US // 2)
    with pytest.raises(Violation, match=r"TABLE: .* is pushed out"):
        partition.switch()


def test_producer_that_is_missing_in_a_table_with_room_is_a_fault() -> None:
    partition = _filled()
    partition.change(lambda windows: windows.__delitem__(b"p3".ljust(16)))
    with pytest.raises(Violation, match="TABLE"):
        partition.switch()


def test_producer_that_should_be_gone_is_a_fault() -> None:
    """Two members with other limits would come to this."""
    partition = _filled()
    known = dict(partition.table.items())[b"p0".ljust(16)]
    partition.append("new", LONG_US)
    partition.change(lambda windows: windows.__setitem__(b"p0".ljust(16), known))
    with pytest.raises(Violation, match="the rule says"):
        partition.switch()


def test_forgotten_producer_may_be_told_so_and_others_may_not() -> None:
    partition = _filled()
    partition.append("new", LONG_US)
    partition.refuse("p0", expected=0)
    for name, expected in (("p1", 0), ("p0", 1)):
        with pytest.raises(Violation, match="GAP"):
            partition.refuse(name, expected)


def _brought_back() -> Partition:
    """Producer p0 sends to a segment that is opened over, and to the next one, which forgets it. Both tables merge."""
    partition = _filled()
    settle = partition.open_over()
    partition.append("p0")
    for number in range(FULL):
        partition.append(f"q{number}", LONG_US)
    assert partition.table.last(b"p0".ljust(16)) is None
    settle()
    return partition


def test_merged_table_may_know_of_a_forgotten_producer_what_one_part_knew() -> None:
    partition = _brought_back()
    partition.switch()
    partition.refuse("p0", expected=1)
    for expected in (2, 3):
        with pytest.raises(Violation, match="GAP"):
            partition.refuse("p0", expected)


def test_merged_table_that_knows_what_no_part_knew_is_a_fault() -> None:
    partition = _brought_back()
    partition.append("p0", LONG_US)
    known = dict(partition.table.items())[b"p0".ljust(16)]
    partition.append("p0")
    for number in range(FULL + 1):
        partition.append(f"r{number}", LONG_US)
    partition.change(lambda windows: windows.__setitem__(b"p0".ljust(16), known))
    with pytest.raises(Violation, match="TABLE"):
        partition.switch()
