"""Which new producers a master admits, and what its members know afterwards."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.batch import SPARED_ALL
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import PutBatch, RecoveredPartition, Truncate
from seriatim_broker.core.values.producers import (
    FORGOTTEN_MARK,
    Entry,
    ProducerTable,
    entries_of,
    pack_table,
    pack_window,
)

from .support import (
    M00,
    M01,
    SECOND,
    Bench,
    P,
    first_chain,
    opened_master,
    opened_slave,
    prepared,
    recovered,
    replicate,
)

FULL, SLACK = 12, 3
BLOCK_ROWS = 4
QUICK = replace(BrokerConfig(), producers_max=FULL, producer_protect_us=5 * SECOND, idle_block_rows=BLOCK_ROWS)
MANY = replace(QUICK, producers_max=100)
"""So that blocks are made, and no producer goes."""


def _id(number: int) -> bytes:
    """As random as a client's."""
    return random.Random(number).randbytes(16)


def _append(bench: Bench, number: int, sequence: int = 0, run: int = 0, starts: bool = True) -> int:
    """A batch of a producer; it is committed at once."""
    request = bench.append(sequence, producer=_id(number), run=run, starts=starts)
    bench.persist()
    if bench.part.logs[1].unbroken:
        bench.ack(M01, bench.part.logs[1].tail)
    return request


def make_block(bench: Bench) -> None:
    """Producers 0 to 3 get into a block, 13 others have windows."""
    for number in (*range(4), *range(100, 113)):
        _append(bench, number)


def full_master(config: BrokerConfig = QUICK) -> Bench:
    """A master that knows as many producers as it may, as its segment's record says."""
    chain = first_chain()
    segment = replace(chain.segments[0], producers_max=config.producers_max)
    bench = Bench(config=config)
    bench.open(replace(chain, segments=(segment,)))
    bench.follow(M01)
    bench.clear()
    for number in range(FULL):
        _append(bench, number)
    return bench


def crowded_master() -> Bench:
    """A master that has no room for a new producer, while all others were heard."""
    bench = full_master()
    for number in range(FULL, FULL + SLACK):
        assert _append(bench, number) in bench.accepted()
    return bench


def _table(bench: Bench) -> ProducerTable:
    return bench.part.logs[1].live_table


def test_new_producers_come_above_the_limit_while_all_others_were_heard() -> None:
    """A quarter more. The batch says that no producer goes; later each new producer pushes out two."""
    bench = crowded_master()
    assert {put.batch.header.spared for put in bench.writes(PutBatch)[-SLACK:]} == {SPARED_ALL}
    assert _table(bench).producer_count == FULL + SLACK
    bench.wait(5 * SECOND, (M01,))
    for number, count in ((20, 14), (21, 13), (22, 12), (23, 12)):
        _append(bench, number)
        assert _table(bench).producer_count == count


def test_new_producer_is_refused_until_the_oldest_was_silent_for_long() -> None:
    bench = crowded_master()
    late = _append(bench, 20)
    refusal = bench.refused()[late]
    assert isinstance(refusal, errors.TooManyProducersError)
    assert refusal.retriable
    assert refusal.outcome_known
    assert _id(20) not in bench.part.logs[1].runs, "of one that is not taken up nothing is kept"
    known = _append(bench, 3, 1, starts=False)
    assert known in bench.accepted(), "who is known continues"
    bench.wait(5 * SECOND, (M01,))
    assert _append(bench, 20, run=1) in bench.accepted(), "although nothing was appended meanwhile"
    assert _table(bench).last(_id(0)) is None
    refused = _append(bench, 0, 1, run=1)
    assert isinstance(bench.refused()[refused], errors.SequenceGapError)
    assert _id(0) not in bench.part.logs[1].runs or bench.part.logs[1].runs[_id(0)][1]


def test_flood_of_new_producers_pushes_out_none_that_was_heard() -> None:
    bench = full_master()
    bench.wait(4 * SECOND, (M01,))
    _append(bench, 0, 1, starts=False)
    bench.wait(2 * SECOND, (M01,))
    admitted = [number for number in range(20, 60) if _append(bench, number) in bench.accepted()]
    assert admitted == list(range(20, 20 + FULL - 1 + SLACK)), "all but producer 0, which sent two seconds ago"
    assert _table(bench).last(_id(0)) is not None


def test_wrong_wall_clock_changes_nothing() -> None:
    bench = crowded_master()
    for wrong_ms in (10**10, -(10**10)):
        bench.wall_jump_ms = wrong_ms
        refused = _append(bench, 20)
        assert isinstance(bench.refused()[refused], errors.TooManyProducersError)


def test_new_master_counts_silence_from_its_opening() -> None:
    """Rule `protected-from-opening`."""
    rows = {_id(number): pack_window([Entry(0, 0, 1, number)], 1) for number in range(FULL)}
    chain = first_chain()
    bench = Bench(config=QUICK)
    bench.open(replace(chain, segments=(replace(chain.segments[0], producers_max=FULL),)), table=pack_table(rows))
    bench.follow(M01)
    for number in range(100, 100 + SLACK):
        assert _append(bench, number) in bench.accepted()
    refused = _append(bench, 20)
    assert isinstance(bench.refused()[refused], errors.TooManyProducersError)
    bench.wait(5 * SECOND, (M01,))
    assert _append(bench, 20, run=1) in bench.accepted()


def test_batches_that_are_not_committed_push_out_in_their_turn() -> None:
    bench = full_master()
    bench.wait(6 * SECOND, (M01,))
    for number in (20, 21):
        bench.append(0, producer=_id(number), starts=True)
    table = _table(bench)
    assert [table.last(_id(number)) is None for number in range(3)] == [True, True, False]
    assert len(dict(table.rooms[0].items())) == FULL, "no committed producer went"
    again = bench.append(1, producer=_id(0), run=5, starts=True)
    assert isinstance(bench.refused()[again], errors.SequenceGapError)
    log = bench.part.logs[1]
    assert set(dict(log.table_as_of(log.commit))) == {_id(number) for number in range(FULL)}
    assert _id(20) in dict(log.table_as_of(log.tail))


def test_producer_that_is_back_before_it_goes_keeps_its_run() -> None:
    bench = full_master()
    bench.wait(6 * SECOND, (M01,))
    bench.append(0, producer=_id(20), starts=True)
    bench.append(0, epoch=1, producer=_id(0), run=5, starts=True)
    bench.persist()
    bench.ack(M01, FULL + 1)
    assert _id(0) not in dict(_table(bench).rooms[0].items()), "it goes when the batch of 20 is committed"
    assert bench.refusal(1, epoch=1, producer=_id(0), run=5) is None


def test_broker_without_memory_for_tables_neither_admits_nor_forgets() -> None:
    bench = opened_master(config=replace(MANY, producers_bytes_max=1))
    _append(bench, 0)
    bench.wait(2 * SECOND, (M01,))
    assert _append(bench, 0, 1, starts=False) in bench.accepted()
    request = _append(bench, 1)
    refused = bench.refused()[request]
    assert isinstance(refused, errors.TooManyProducersError)
    assert "producer_tables_size_bytes_max" in str(refused)
    assert _table(bench).last(_id(0)) is not None
    bench.part.logs[1].seal(bench.core.state, 2, bench.part.logs[1].tail_checksum)
    assert bench.core.state.producer_bytes == 0


def test_new_producer_takes_the_place_of_a_silent_one_without_memory() -> None:
    """The table takes no more memory than before."""
    bench = full_master()
    bench.core.state.config = replace(bench.core.state.config, producers_bytes_max=1)
    request = _append(bench, 50)
    assert isinstance(bench.refused()[request], errors.TooManyProducersError)
    bench.wait(6 * SECOND, (M01,))
    assert _append(bench, 51) in bench.accepted()
    assert _table(bench).last(_id(0)) is None


@pytest.mark.parametrize("mark", [FORGOTTEN_MARK, b"/writer/"])
def test_client_cannot_use_an_id_of_brokers(mark: bytes) -> None:
    bench = opened_master()
    request = bench.append(0, producer=b"c" * 8 + mark, starts=True)
    assert isinstance(bench.refused()[request], errors.BadRequestError)


def test_members_with_other_settings_have_equal_tables_after_a_restart() -> None:
    """The limit is that of the segment's record, and the disk has what the log says."""
    master = full_master()
    small = replace(QUICK, producers_max=3, producer_protect_us=SECOND, idle_block_rows=1)
    slave = opened_slave(config=small)
    slave.part.logs[1].record = replace(slave.part.logs[1].record, producers_max=FULL)
    slave.part.logs[1].live_table.limit = FULL
    replicate(slave, tuple(put.batch for put in master.writes(PutBatch)), 0)
    chance = random.Random(5)
    for run in range(1, 80):
        number = chance.randrange(30)
        last = _table(master).last(_id(number))
        _append(master, number, last.base_sequence + 1 if last is not None else 0, run=run)
        put = master.writes(PutBatch)[-1]
        replicate(slave, (put.batch,), master.part.logs[1].commit)
        master.wait(chance.randrange(3 * SECOND), (M01,))
        slave.wait(SECOND, (M00,))
    log = master.part.logs[1]
    whole = {producer: entries_of(window) for producer, window in _table(master).items()}
    assert FULL <= len(whole) <= FULL + SLACK
    assert any(put.batch.header.spared for put in master.writes(PutBatch))
    assert _id(0) not in whole
    assert {producer: entries_of(window) for producer, window in _table(slave).items()} == whole

    slave.persist()
    disk: dict[bytes, bytes] = {}
    for write in (*slave.writes(PutBatch), *slave.writes(Truncate)):
        for producer, window in write.windows or ():
            disk.pop(producer, None)
            if window is not None:
                disk[producer] = window
    puts = slave.writes(PutBatch)
    batches = tuple(put.batch for put in puts)
    found = recovered(1, batches, commit=puts[-1].commit)
    found = replace(found, windows=tuple(sorted(disk.items())), record=replace(found.record, producers_max=FULL))
    again = Bench(M01, 2, (RecoveredPartition(P, (found,), (prepared(1, (M00, M01)),)),), config=small)
    restarted = again.part.logs[1]
    assert {producer: entries_of(window) for producer, window in restarted.live_table.items()} == whole
    blocks = {block.id: block for block in restarted.live_table.blocks}
    told = ProducerTable(restarted.table_as_of(restarted.tail), (), blocks)
    assert told.blocks, "its own settings decide only about blocks"
    assert {producer: entries_of(window) for producer, window in told.items()} == whole
    asked = ProducerTable(log.table_as_of(log.tail))
    assert {producer: entries_of(window) for producer, window in asked.items()} == whole


def test_master_and_slave_come_to_the_same_blocks() -> None:
    master, slave = opened_master(config=MANY), opened_slave(config=MANY)
    chance = random.Random(3)
    for run in range(120):
        number = chance.randrange(40)
        last = _table(master).last(_id(number))
        _append(master, number, last.base_sequence + 1 if last is not None else 0, run=run)
        log = master.part.logs[1]
        replicate(slave, (master.writes(PutBatch)[-1].batch,), log.commit)
    assert _table(master).blocks
    assert [block.id for block in _table(master).blocks] == [block.id for block in _table(slave).blocks]
