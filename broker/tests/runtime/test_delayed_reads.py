"""Bodies of volleys: what is joined, what stays as it is, and how much fits into one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from seriatim_api.batch import FLAG_DELAYED, FLAG_ZSTD
from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values.delayed import Span, VolleyRow
from seriatim_broker.core.values.delayed_messages import FindDelayed, ReadVolley
from seriatim_broker.core.values.log import Batch
from seriatim_broker.runtime.driver import delayed_reads
from seriatim_broker.runtime.driver.delayed_reads import DelayedReads
from seriatim_broker.testing.simulated_bodies import SimulatedBodies, messages_in

from .test_keyed_reads import Disk, P

SIZES = (2, 4, 3)


def _batches(flags: Sequence[int] = (0, 0, 0)) -> list[Batch]:
    found, base = [], 0
    for count, flag in zip(SIZES, flags, strict=True):
        header = SimpleNamespace(
            segment=1, base_index=base, end_index=base + count, message_count=count, flags=flag | FLAG_DELAYED,
            body_crc=base, key_hash=0, first_timestamp_ms=base, last_timestamp_ms=base, origin=(0, 0),
        )  # fmt: skip
        found.append(cast(Batch, SimpleNamespace(header=header, body=base.to_bytes(8, "big"), size_bytes=100)))
        base += count
    return found


def _volley(batches: Sequence[Batch], *spans: tuple[int, int], is_numbered: bool = False) -> VolleyRow:
    reads = DelayedReads(cast(Any, Disk(batches)), SimulatedBodies())
    asked = ReadVolley(1, PartitionId(P), 1, tuple(Span(*span) for span in spans or ((0, 9),)), is_numbered)
    row = asyncio.run(reads.volley(asked)).row
    assert row is not None
    return row


def test_a_volley_of_one_complete_batch_keeps_its_body() -> None:
    batches = _batches()
    row = _volley(batches, (2, 4))
    assert (row.body, row.body_crc, row.origin) == (batches[1].body, 2, (P, make_offset(1, 2)))


def test_parts_of_batches_are_joined_in_their_order() -> None:
    row = _volley(_batches(), (6, 3), (0, 1), (3, 2))
    assert messages_in(row.body) == [6, 7, 8, 0, 3, 4]
    assert row.origins == tuple((make_offset(1, first), count) for first, count in ((6, 3), (0, 1), (3, 2)))
    assert (row.first_timestamp_ms, row.last_timestamp_ms, row.message_count) == (0, 6, 6)


def test_a_compressed_batch_is_joined_with_no_other() -> None:
    assert _volley(_batches((0, FLAG_ZSTD, 0))).message_count == 2
    assert _volley(_batches((FLAG_ZSTD, 0, 0))).message_count == 2
    assert _volley(_batches((FLAG_ZSTD, 0, 0)), is_numbered=True).message_count == 9


def test_origins_that_follow_one_another_are_one_span() -> None:
    batches = _batches()
    for batch, offset in zip(batches, (10, 12, 30), strict=True):
        batch.header.origin = (P, offset)
    row = _volley(batches)
    assert (row.message_count, row.origin, row.origins) == (9, (P, 10), ((10, 6), (30, 3)))


def test_a_batch_with_holes_is_read_and_opened_once() -> None:
    disk, bodies = Disk(_batches()), SimulatedBodies()
    opened: list[Any] = []
    open_one = bodies.open
    bodies.open = lambda batch: (opened.append(batch), open_one(batch))[1]  # type: ignore[method-assign]
    asked = ReadVolley(1, PartitionId(P), 1, (Span(2, 1), Span(4, 1), Span(6, 1), Span(8, 1)))
    row = asyncio.run(DelayedReads(cast(Any, disk), bodies).volley(asked)).row
    assert row is not None
    assert messages_in(row.body) == [2, 4, 6, 8]
    assert (len(opened), len(row.headers)) == (2, 2)


def test_a_volley_has_as_many_messages_as_fit(monkeypatch: Any) -> None:
    monkeypatch.setattr(delayed_reads, "BODY_BYTES_MAX", 32)  # four messages
    assert _volley(_batches()).message_count == 4
    assert _volley(_batches(), (0, 6), is_numbered=True).message_count == 6


def test_the_header_of_a_delayed_batch_is_found_by_an_index() -> None:
    batches = _batches()
    reads = DelayedReads(cast(Any, Disk(batches)), SimulatedBodies())
    found = asyncio.run(reads.find(FindDelayed(1, PartitionId(P), 1, 3)))
    assert found.header is batches[1].header
    assert asyncio.run(reads.find(FindDelayed(1, PartitionId(P), 1, 99))).header is None


def test_a_batch_that_retention_dropped_is_no_damage() -> None:
    reads = DelayedReads(cast(Any, Disk(())), SimulatedBodies())
    found = asyncio.run(reads.volley(ReadVolley(1, PartitionId(P), 1, (Span(0, 1),))))
    assert (found.row, found.is_damaged) == (None, False)
