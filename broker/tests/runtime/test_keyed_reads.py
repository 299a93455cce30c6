"""Reads of single messages: a body that cannot be read is named, and spoils no other message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.log import Batch
from seriatim_broker.interfaces.bodies import OpenedBody, UnreadableBodyError
from seriatim_broker.runtime.keyed_reads import KeyedReads
from seriatim_broker.testing.simulated_bodies import SimulatedBodies, messages_in

P = PartitionId(1)


class SomeUnreadable(SimulatedBodies):
    """Bodies that begin with these messages cannot be read."""

    def __init__(self, *bad: bytes) -> None:
        self._bad = bad

    def open(self, batch: Batch) -> OpenedBody:
        """The numbers of the messages."""
        if batch.body in self._bad:
            raise UnreadableBodyError("no record batch")
        return super().open(batch)


class Disk:
    """It gives the batch with an index."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self.reads = 0

    async def read(self, _partition: PartitionId, _no: int, index: int, *_: Any, **__: Any) -> list[Batch]:
        self.reads += 1
        return [batch for batch in self._batches if batch.header.base_index <= index < batch.header.end_index]


def batch_at(base: int, count: int) -> Batch:
    """A batch of segment 1, whose messages have the numbers of their indexes."""
    header = SimpleNamespace(segment=1, base_index=base, end_index=base + count, message_count=count, flags=0)
    return cast(Batch, SimpleNamespace(header=header, body=base.to_bytes(8, "big"), size_bytes=100))


def test_the_messages_of_an_unreadable_body_are_named() -> None:
    batches = [batch_at(0, 2), batch_at(2, 3), batch_at(5, 1)]
    disk = Disk(batches)
    reads = KeyedReads(cast(Any, disk), SomeUnreadable(batches[1].body))
    offsets = tuple(make_offset(1, index) for index in (0, 2, 4, 5))
    answer = asyncio.run(reads.rows(fx.ReadRows(1, P, offsets)))
    assert (answer.body, answer.unreadable) == (None, (offsets[1], offsets[2]))
    assert disk.reads == 3  # the unreadable batch once
    answer = asyncio.run(reads.rows(fx.ReadRows(2, P, (offsets[0], offsets[3]))))
    assert answer.body is not None
    assert messages_in(answer.body) == [0, 5]
    assert answer.unreadable == ()


def test_messages_come_in_the_order_in_which_they_are_asked_for() -> None:
    reads = KeyedReads(cast(Any, Disk([batch_at(0, 4), batch_at(4, 3), batch_at(7, 9)])), SimulatedBodies())
    for indexes in ([1, 2, 3, 4, 5, 6, 7, 8], [6, 7, 0, 1, 15, 3, 4, 2], [5], [2, 1, 0]):
        answer = asyncio.run(reads.rows(fx.ReadRows(1, P, tuple(make_offset(1, index) for index in indexes))))
        assert answer.body is not None
        assert messages_in(answer.body) == indexes
