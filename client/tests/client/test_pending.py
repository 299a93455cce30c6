"""Messages that wait for a batch: tables that leave together keep their order, their bytes and their receipts."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from seriatim._bodies.arrow import SCHEMA
from seriatim._core.producer import Outcome
from seriatim._producing.deliveries import Deliveries, Settlement
from seriatim._producing.pending import Cut, Pending, split_rows

TIMEOUT_S = 120.0


def table(first: int, sizes: list[int]) -> pa.RecordBatch:
    """A row for each size. Its value begins with its number, counted from `first`."""
    values = [(first + at).to_bytes(8, "big").ljust(size, b"x") for at, size in enumerate(sizes)]
    count = len(sizes)
    columns = [[None] * count, values, [7] * count, [None] * count, [None] * count]
    return pa.RecordBatch.from_pydict(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


def add(pending: Pending, batch: pa.RecordBatch, *, keyed: bool = False) -> Deliveries:
    deliveries = Deliveries(batch.num_rows)
    pending.add_record_batch(batch, deliveries.slice(range(batch.num_rows)), keyed, batch.nbytes + batch.num_rows)
    return deliveries


def numbers(cut: Cut) -> list[int]:
    return [int.from_bytes(value[:8], "big") for value in cut.batch.column(1).to_pylist()]


def settle(cut: Cut, offset: int) -> None:
    at = 0
    for sink in cut.sinks:
        at += sink.settle(at, Settlement(Outcome.OK, 0, offset, 1, None, True))
    assert at == cut.body.message_count


def test_tables_that_wait_leave_in_one_batch() -> None:
    pending = Pending(TIMEOUT_S, 0.005)
    for number in range(20):
        add(pending, table(100 * number, [50] * 100))
    cut = pending.peek(1 << 20, None)
    assert cut.body.message_count == 2_000
    pending.drop(cut)
    assert not pending
    assert pending.payload_bytes == 0


@pytest.mark.parametrize("fills", [False, True])
def test_tables_that_are_staged_leave_one_by_one(fills: bool) -> None:
    pending = Pending(TIMEOUT_S, 0.005, joins_tables=False)
    for number in range(3):
        add(pending, table(100 * number, [50] * 100))
    for _ in range(3):
        cut = pending.peek(9_000, None, fills=fills)
        assert cut.body.message_count == 100
        pending.drop(cut)
    assert not pending


@pytest.mark.parametrize("fills", [False, True])
def test_joined_tables_lose_no_row_and_no_receipt(fills: bool) -> None:
    rng, pending, limit = random.Random(3), Pending(TIMEOUT_S, 0.005), 20_000
    sent, waiting = 0, []
    for _ in range(60):
        batch = table(sent, [rng.randint(8, 2_000) for _ in range(rng.randint(1, 40))])
        sent += batch.num_rows
        waiting += [add(pending, piece) for piece, _ in split_rows(batch, limit // 3)]
    found: list[int] = []
    sizes: list[int] = []
    while pending:
        cut = pending.peek(limit, None, fills=fills)
        assert numbers(pending.peek(limit, None, fills=fills)) == numbers(cut), "it changes nothing"
        pending.drop(cut)
        settle(cut, len(found))
        found += numbers(cut)
        sizes.append(cut.payload_bytes)
    assert found == list(range(sent))
    assert pending.payload_bytes == 0
    assert max(sizes) <= limit
    assert sum(sizes) / len(sizes) > limit * (0.8 if fills else 0.5)
    assert all(deliveries.done for deliveries in waiting)
    offsets = [
        part.offset + at for deliveries in waiting for part in deliveries.parts for at in range(len(part.positions))
    ]
    assert offsets == list(range(sent))


def test_a_table_with_keys_does_not_join_one_without() -> None:
    pending = Pending(TIMEOUT_S, 0.005)
    add(pending, table(0, [50]))
    add(pending, table(1, [50]), keyed=True)
    cut = pending.peek(1 << 20, None)
    assert numbers(cut) == [0]
    pending.drop(cut)
    assert numbers(pending.peek(1 << 20, None)) == [1]


def test_tables_that_came_far_apart_do_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have different deadlines, and a batch has one."""
    clock = [10.0]
    monkeypatch.setattr("seriatim._producing.pending.time.monotonic", lambda: clock[0])
    pending = Pending(TIMEOUT_S, 0.005)
    add(pending, table(0, [50]))
    clock[0] += 1.0
    add(pending, table(1, [50]))
    clock[0] += 1.0
    add(pending, table(2, [50]))
    assert numbers(pending.peek(1 << 20, None)) == [0, 1]
