"""Reads for delayed messages: the rows that are due next, single batches, and the bodies of volleys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import google_crc32c
import structlog
from seriatim_api.batch import (
    FLAG_DELAYED,
    FLAG_KEYED,
    FLAG_LZ4,
    FLAG_SINGLE_KEY,
    FLAG_ZSTD,
    BatchHeader,
)
from seriatim_api.errors import CorruptionError, SeriatimError, UnavailableError
from seriatim_api.ids import PartitionId, make_offset

from ...core.values import delayed_messages as dm
from ...core.values.delayed import VOLLEY_BYTES_MAX, Span, VolleyRow
from ...core.values.delayed_messages import DelayedFound, DueRead, PendingRead, VolleyRead
from ...core.values.log import Batch
from ...interfaces.bodies import Bodies, OpenedBody
from ...interfaces.storage import Storage

READ_BYTES: Final = 1 << 20

DUE_MS_MAX: Final = 1 << 62

BODY_BYTES_MAX: Final = 2 * VOLLEY_BYTES_MAX
"""The largest body of a volley that was joined, but for one message."""

THREAD_BYTES: Final = 64 << 10
"""Bodies of this many bytes together are joined in a thread."""

_COMPRESSED: Final = FLAG_LZ4 | FLAG_ZSTD
_OF_BODY: Final = FLAG_KEYED | FLAG_SINGLE_KEY | _COMPRESSED

_log = structlog.get_logger(__name__)


class DelayedReads:
    """Carries out `ReadDue`, `ReadPending`, `ReadVolley` and `FindDelayed`.

    Args:
        storage: The disk.
        bodies: Takes bodies apart and joins messages.
    """

    def __init__(self, storage: Storage, bodies: Bodies) -> None:
        self._storage = storage
        self._bodies = bodies

    async def due(self, effect: dm.ReadDue) -> DueRead:
        """The next rows of delayed batches."""
        try:
            rows = await self._storage.read_due(
                effect.partition, effect.segment_no, effect.after, DUE_MS_MAX, effect.count_max
            )
        except SeriatimError as exc:
            _log.error("due_not_read", partition=effect.partition, segment=effect.segment_no, error=str(exc))
            return DueRead(effect.serial, effect.partition, effect.segment_no, None)
        return DueRead(effect.serial, effect.partition, effect.segment_no, tuple(rows))

    async def pending(self, effect: dm.ReadPending) -> PendingRead:
        """Rows of delayed batches by index."""
        try:
            rows = await self._storage.read_delayed(
                effect.partition, effect.segment_no, effect.from_index, effect.count_max
            )
        except SeriatimError as exc:
            _log.error("pending_not_read", partition=effect.partition, segment=effect.segment_no, error=str(exc))
            return PendingRead(effect.serial, effect.partition, effect.segment_no, None)
        return PendingRead(effect.serial, effect.partition, effect.segment_no, tuple(rows))

    async def find(self, effect: dm.FindDelayed) -> DelayedFound:
        """The header of the delayed batch that has an index."""
        try:
            batches = await self._storage.read(
                effect.partition, effect.segment_no, effect.index, effect.index + 1, READ_BYTES
            )
        except SeriatimError as exc:
            _log.error("message_not_read", partition=effect.partition, segment=effect.segment_no, error=str(exc))
            return DelayedFound(effect.serial, effect.partition, effect.segment_no, None, failed=True)
        header = batches[0].header if batches else None
        found = header if header is not None and header.flags & FLAG_DELAYED and _has(header, effect.index) else None
        return DelayedFound(effect.serial, effect.partition, effect.segment_no, found)

    async def volley(self, effect: dm.ReadVolley) -> VolleyRead:
        """The body of a volley. Nothing is read of it if one of its batches cannot be."""
        try:
            wanted = await self._parts_of(effect)
            if sum({batch.header.base_index: batch.size_bytes for batch, _ in wanted}.values()) < THREAD_BYTES:
                row = self._row(effect, wanted)
            else:
                row = await asyncio.to_thread(self._row, effect, wanted)
        except SeriatimError as exc:
            _log.error("volley_not_read", partition=effect.partition, segment=effect.segment_no, error=str(exc))
            is_damaged = isinstance(exc, CorruptionError)
            return VolleyRead(effect.serial, effect.partition, effect.segment_no, None, is_damaged)
        return VolleyRead(effect.serial, effect.partition, effect.segment_no, row)

    async def _parts_of(self, effect: dm.ReadVolley) -> list[tuple[Batch, range]]:
        """The batches with the messages of a volley, each with the indexes that are wanted of it.

        If the volley has no number yet, these end with a compressed batch, or before one, because it is joined with no
        other one.
        """
        found: list[tuple[Batch, range]] = []
        for span in effect.spans:
            at, until = span.first, span.indexes.stop
            while at < until:
                batches: Sequence[Batch] = [found[-1][0]] if found and _has(found[-1][0].header, at) else ()
                batches = batches or await self._storage.read(
                    effect.partition, effect.segment_no, at, until, READ_BYTES
                )
                if not batches or not _has(batches[0].header, at):
                    # No damage: retention has dropped it meanwhile. A gap in the log is found by the storage.
                    raise UnavailableError(f"segment {effect.segment_no} has no batch at index {at}")
                for batch in batches:
                    is_alone = batch.header.flags & _COMPRESSED and not effect.is_numbered
                    if is_alone and found and found[0][0].header.base_index != batch.header.base_index:
                        return found
                    found.append((batch, range(max(at, batch.header.base_index), min(until, batch.header.end_index))))
                    if is_alone and found[-1][1].stop == batch.header.end_index:
                        return found
                at = batches[-1].header.end_index
        return found

    def _row(self, effect: dm.ReadVolley, wanted: Sequence[tuple[Batch, range]]) -> VolleyRow:
        """The body of the first messages: a complete batch as it is, or those that fit into one body when joined.

        A compressed batch is joined with no other one. Without it: 1,000 batches of 1 KB may be 1 GB together.
        """
        batch, indexes = wanted[0]
        first = batch.header
        is_complete = len(indexes) == first.message_count
        if is_complete and (len(wanted) == 1 or (first.flags & _COMPRESSED and not effect.is_numbered)):
            body, body_crc, flags, key_hash = batch.body, first.body_crc, first.flags & _OF_BODY, first.key_hash
            taken = [(first, indexes)]
        else:
            parts, taken = self._joined(effect, wanted, 1 << 62 if effect.is_numbered else BODY_BYTES_MAX)
            body = self._bodies.join(parts)
            body_crc = google_crc32c.value(body)
            headers = [header for header, _ in taken]
            is_single = all(one.flags & FLAG_SINGLE_KEY and one.key_hash == first.key_hash for one in headers)
            flags = FLAG_KEYED if any(one.flags & FLAG_KEYED for one in headers) else 0
            flags, key_hash = (flags | FLAG_SINGLE_KEY, first.key_hash) if is_single else (flags, 0)
        return VolleyRow(
            body,
            body_crc,
            flags,
            key_hash,
            sum(len(indexes) for _, indexes in taken),
            min(header.first_timestamp_ms for header, _ in taken),
            max(header.last_timestamp_ms for header, _ in taken),
            origin_of(effect.partition, first, indexes.start),
            _origins(effect.partition, taken),
            tuple({batch.header.base_index: batch.header for batch, _ in wanted}.values()),
        )

    def _joined(
        self, effect: dm.ReadVolley, wanted: Sequence[tuple[Batch, range]], left_bytes: int
    ) -> tuple[list[tuple[OpenedBody, range]], list[tuple[BatchHeader, range]]]:
        """The opened bodies and rows of the first messages, as many as fit into a body, and at least one; and of which
        batches and indexes these are.
        """
        parts: list[tuple[OpenedBody, range]] = []
        taken: list[tuple[BatchHeader, range]] = []
        opened: dict[int, OpenedBody] = {}  # a batch with holes is wanted in several parts
        first = wanted[0][0].header
        for batch, indexes in wanted:
            header = batch.header
            is_alone = bool((header.flags | first.flags) & _COMPRESSED) and not effect.is_numbered
            if is_alone and header.base_index != first.base_index:
                break
            if header.base_index not in opened:
                opened[header.base_index] = self._bodies.open(batch)
            body = opened[header.base_index]
            begin, count = indexes.start - header.base_index, len(indexes)
            while count > 1 and self._bodies.size_of(body, range(begin, begin + count)) > left_bytes:
                count //= 2
            rows = range(begin, begin + count)
            size_bytes = self._bodies.size_of(body, rows)
            if parts and size_bytes > left_bytes:
                break
            left_bytes -= size_bytes
            parts.append((body, rows))
            taken.append((header, indexes[:count]))
            if count < len(indexes):
                break
        return parts, taken


def _origins(partition: PartitionId, taken: Sequence[tuple[BatchHeader, range]]) -> tuple[Span, ...]:
    """Where the messages at some indexes of batches were stored first, one span for those that follow one another."""
    found: list[Span] = []
    for header, indexes in taken:
        _, offset = origin_of(partition, header, indexes.start)
        if found and found[-1].indexes.stop == offset:
            found[-1] = Span(found[-1].first, found[-1].message_count + len(indexes))
        else:
            found.append(Span(offset, len(indexes)))
    return tuple(found)


def origin_of(partition: PartitionId, header: BatchHeader, index: int) -> tuple[int, int]:
    """The partition and the offset where the message at an index of a delayed batch was stored first."""
    if any(header.origin):
        place, offset = header.origin
        return place, offset + index - header.base_index
    return partition, make_offset(header.segment, index)


def _has(header: BatchHeader, index: int) -> bool:
    return header.base_index <= index < header.end_index
