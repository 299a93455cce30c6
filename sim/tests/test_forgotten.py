"""Which producers a table may have forgotten, to the judge, if the clocks of masters are set."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from seriatim_api.batch import make_header, parse_header, place
from seriatim_api.ids import MemberId, PartitionId, make_offset
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
from seriatim_broker.core.values.producers import ProducerTable
from seriatim_broker.testing.memory_disk import MemoryDisk

from sim.cluster import checksum
from sim.judge import Judge
from sim.schedule import Schedule, Violation
from sim.world import IDLE_LIMITS

ONE = PartitionId(1)
MEMBERS = A, B = MemberId("a-0", "a" * 32), MemberId("b-0", "b" * 32)
LIMITS = replace(BrokerConfig(), append_time_ahead_ms_max=2_000, **IDLE_LIMITS)
NOW_MS = 1_000_000
BEHIND_MS = 6_000


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
        self.judge = Judge(Schedule(0), self.slots, limits=LIMITS, ahead_ms_max=LIMITS.append_time_ahead_ms_max)
        self.table = ProducerTable()
        self.no, self.tail, self.last_ms, self.last_checksum = 1, 0, 0, 0
        self.shorter = (0, 0, 0)  # tail, checksum and append time without the last batch
        self.sequences: dict[bytes, int] = {}
        opening = self._prepared()
        self.chain = chains.create(ONE, "t", 0, True, ("g", "h"), opening, 0)
        self._opened(opening)
        self.judge.chain_written("a-0", None, self.chain, None)

    def append(self, name: str, wall_ms: int) -> None:
        """The master takes a batch of a producer, by its own wall clock."""
        producer = name.encode().ljust(16)
        sequence = self.sequences.get(producer, -1) + 1
        self.sequences[producer] = sequence
        raw = make_header(
            partition=1,
            message_count=1,
            producer=producer,
            producer_epoch=0,
            base_sequence=sequence,
            first_timestamp_ms=0,
            last_timestamp_ms=0,
            body_length=8,
            body_crc=0,
        )
        self.shorter = (self.tail, self.last_checksum, self.last_ms)
        believes = self.last_ms - wall_ms <= LIMITS.append_time_ahead_ms_max
        before_ms, self.last_ms = self.last_ms, max(self.last_ms, wall_ms) if believes else wall_ms
        header = place(
            parse_header(raw),
            segment=self.no,
            base_index=self.tail,
            append_time_ms=self.last_ms,
            previous_checksum=self.last_checksum,
            checksum=checksum,
        )
        window = self.table.record(header)
        self.table.tidy(LIMITS, before_ms, self.last_ms, make_offset(self.no, self.tail))
        self.tail, self.last_checksum = header.end_index, header.checksum
        batch = Batch(header, len(self.sequences).to_bytes(8, "big"))
        self._write(PutBatch(ONE, batch, self.tail, window), wall_ms=wall_ms)

    def look(self, wall_ms: int) -> None:
        """The master refuses one producer too many, and tidies its table by its wall clock before."""
        self.judge.rules.tables.looked(ONE, wall_ms)
        for now_ms in range(self.last_ms, wall_ms + 1, LIMITS.tidy_ms):
            self.table.tidy(LIMITS, now_ms - LIMITS.tidy_ms, now_ms, make_offset(self.no, self.tail))

    def switch(self) -> None:
        """Seal the segment, and open the next one with the table."""
        seal = chains.Seal(self.tail, self.last_checksum, A, MEMBERS, None, (), 0)
        self.no, self.tail, self.last_checksum = self.no + 1, 0, 0
        opening = self._prepared()
        before = self.chain
        self.chain = chains.seal_and_open(before, seal, opening, 0, self.last_ms)
        self._opened(opening)
        self.judge.chain_written("a-0", before, self.chain, None)

    def cut_last(self) -> None:
        """The next switch cuts the last batch."""
        self.tail, self.last_checksum, self.last_ms = self.shorter

    def forget(self, name: str) -> None:
        """The table loses a producer."""
        windows = dict(self.table.windows)
        del windows[name.encode().ljust(16)]
        self.table.windows = windows

    def knows(self, name: str) -> bool:
        """Whether the table knows a producer."""
        return self.table.last(name.encode().ljust(16)) is not None

    def _prepared(self) -> chains.Opening:
        table, blocks = self.table.at_rest(), {block.id: block for block in self.table.blocks}
        self.table = ProducerTable(table, (), blocks)
        attempt = bytes([self.no])
        for block in blocks.values():
            self._write(PutBlock(ONE, block.id, block.data))
        self._write(PutPreparation(ONE, Preparation(self.no, attempt, MEMBERS, True, False, table, None, 1)))
        return chains.Opening(attempt, "gh"[self.no % 2], MEMBERS, 1, False)

    def _opened(self, opening: chains.Opening) -> None:
        self._write(PutSegment(ONE, LocalSegment(self.no, opening.switch_attempt, MEMBERS, True, False)))

    def _write(self, write: Any, wall_ms: int | None = None) -> None:
        for slot in self.slots.values():
            self.judge.writes(slot.name, (write,), wall_ms)
            slot.disk.flush(slot.disk.submit((write,)))


def _behind_and_back(partition: Partition, behind_for_ms: int) -> None:
    """A producer sends. The next master's clock is behind; the one of the master after it is right again."""
    partition.append("silent", NOW_MS)
    partition.switch()
    partition.append("first", NOW_MS + 10 - BEHIND_MS)
    partition.append("second", NOW_MS + 10 + behind_for_ms - BEHIND_MS)
    partition.switch()
    partition.append("third", NOW_MS + 20 + behind_for_ms)


def test_who_was_idle_when_append_time_leapt_forward_to_the_true_time_may_be_forgotten() -> None:
    """By the append times of its last batch and of the newest one, the producer was silent for 320 ms.

    The table counted half of `producer_idle_ms` for the leap back, and 300 ms until the leap forward. So the producer
    was idle before that, and the leap forward counted whole.
    """
    partition = Partition()
    _behind_and_back(partition, 300)
    assert [partition.knows(name) for name in ("silent", "first", "second", "third")] == [False, True, True, True]
    partition.switch()
    assert "producer forgotten" in partition.judge.seen.states


@pytest.mark.parametrize("name", ["silent", "third"])
def test_who_was_not_idle_before_the_leap_forward_must_be_known(name: str) -> None:
    partition = Partition()
    _behind_and_back(partition, 240)
    assert partition.knows(name)
    partition.forget(name)
    with pytest.raises(Violation, match="TABLE"):
        partition.switch()


def test_who_was_silent_as_long_by_true_clocks_must_be_known() -> None:
    partition = Partition()
    partition.append("silent", NOW_MS)
    partition.switch()
    partition.append("first", NOW_MS + 600)
    partition.forget("silent")
    with pytest.raises(Violation, match="TABLE"):
        partition.switch()


@pytest.mark.parametrize("is_cut", [True, False])
def test_producer_silent_before_a_cut_leap_must_be_known(is_cut: bool) -> None:
    """No time has passed if the batch with which append time leapt is cut."""
    partition = Partition()
    for name, wall_ms in (("silent", NOW_MS), ("leap", NOW_MS + 4 * LIMITS.producer_expiry_ms)):
        partition.append(name, wall_ms)
    partition.forget("silent")
    if is_cut:
        partition.cut_last()
        partition.forget("leap")
        with pytest.raises(Violation, match="TABLE"):
            partition.switch()
    else:
        partition.switch()


@pytest.mark.parametrize("told", [True, False])
def test_a_full_table_may_forget_by_the_present_time(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """No batch tells the judge of that time, but the refusal of one producer too many does."""
    partition = Partition()
    if not told:
        monkeypatch.setattr(partition.judge.rules.tables, "looked", lambda *_: None)
    for number in range(LIMITS.producer_count_max):
        partition.append(f"p{number}", NOW_MS + number)
    partition.look(NOW_MS + LIMITS.producer_evict_ms + 2 * LIMITS.producer_count_max)
    assert not partition.knows("p0")
    if told:
        partition.switch()
    else:
        with pytest.raises(Violation, match="TABLE"):
            partition.switch()


def test_the_judge_knows_whom_a_table_may_forget_whatever_the_clocks_say() -> None:
    reached: set[str] = set()
    for seed in range(150):
        rng = random.Random(seed)
        partition, true_ms = Partition(), NOW_MS
        for _ in range(rng.randrange(2, 8)):
            wrong_ms = rng.choice((0, 0, -300, 900, -BEHIND_MS, -3 * BEHIND_MS, BEHIND_MS))
            for _ in range(rng.randrange(6)):
                true_ms += rng.choice((0, 5, 40, 200, 450, 700))
                partition.append(f"p{rng.randrange(14)}", true_ms + wrong_ms)
            partition.switch()
        reached |= partition.judge.seen.states
    assert {"producer forgotten", "idle blocks named"} <= reached
