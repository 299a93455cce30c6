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
from ...core.values.delayed import VOLLEY_BYTES_MAX, VolleyRow
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
            batches = await self._batches(effect)
            if sum(batch.size_bytes for batch in batches) < THREAD_BYTES:
                row = self._row(effect, batches)
            else:
                row = await asyncio.to_thread(self._row, effect, batches)
        except SeriatimError as exc:
            _log.error("volley_not_read", partition=effect.partition, segment=effect.segment_no, error=str(exc))
            is_damaged = isinstance(exc, CorruptionError)
            return VolleyRead(effect.serial, effect.partition, effect.segment_no, None, is_damaged)
        return VolleyRead(effect.serial, effect.partition, effect.segment_no, row)

    async def _batches(self, effect: dm.ReadVolley) -> list[Batch]:
        """The batches with the messages of a volley."""
        found: list[Batch] = []
        at, until = effect.span.indexes.start, effect.span.indexes.stop
        while at < until:
            batches = await self._storage.read(effect.partition, effect.segment_no, at, until, READ_BYTES)
            if not batches or not _has(batches[0].header, at):
                # No damage: retention has dropped it meanwhile. A gap in the log is found by the storage.
                raise UnavailableError(f"segment {effect.segment_no} has no batch at index {at}")
            found += batches
            at = batches[-1].header.end_index
        return found

    def _row(self, effect: dm.ReadVolley, batches: Sequence[Batch]) -> VolleyRow:
        """The body of the first messages: a complete batch as it is, or those that fit into one body when joined.

        A compressed batch is joined with no other one. Without it: 1,000 batches of 1 KB may be 1 GB together.
        """
        indexes, headers = effect.span.indexes, tuple(batch.header for batch in batches)
        first = headers[0]
        is_complete = first.base_index == indexes.start and first.end_index <= indexes.stop
        if is_complete and (len(batches) == 1 or (first.flags & _COMPRESSED and not effect.is_numbered)):
            body, body_crc, flags, key_hash = batches[0].body, first.body_crc, first.flags & _OF_BODY, first.key_hash
            message_count, used = first.message_count, headers[:1]
        else:
            parts = self._parts(effect, batches, 1 << 62 if effect.is_numbered else BODY_BYTES_MAX)
            message_count, used = sum(len(rows) for _, rows in parts), headers[: len(parts)]
            body = self._bodies.join(parts)
            body_crc = google_crc32c.value(body)
            is_single = all(one.flags & FLAG_SINGLE_KEY and one.key_hash == first.key_hash for one in used)
            flags = FLAG_KEYED if any(one.flags & FLAG_KEYED for one in used) else 0
            flags, key_hash = (flags | FLAG_SINGLE_KEY, first.key_hash) if is_single else (flags, 0)
        return VolleyRow(
            body,
            body_crc,
            flags,
            key_hash,
            message_count,
            min(one.first_timestamp_ms for one in used),
            max(one.last_timestamp_ms for one in used),
            origin_of(effect.partition, first, indexes.start),
            headers,
        )

    def _parts(
        self, effect: dm.ReadVolley, batches: Sequence[Batch], left_bytes: int
    ) -> list[tuple[OpenedBody, range]]:
        """The opened bodies and rows of the first messages, as many as fit into a body, and at least one.

        Messages whose origins do not follow one another are in different bodies: the header has only the first origin.
        """
        parts: list[tuple[OpenedBody, range]] = []
        indexes, first = effect.span.indexes, batches[0].header
        place, offset = origin_of(effect.partition, first, indexes.start)
        for batch in batches:
            header = batch.header
            begin, end = max(indexes.start, header.base_index), min(indexes.stop, header.end_index)
            is_alone = bool((header.flags | first.flags) & _COMPRESSED) and not effect.is_numbered
            is_next = origin_of(effect.partition, header, begin) == (place, offset + begin - indexes.start)
            if parts and (is_alone or not is_next):
                break
            body = self._bodies.open(batch)
            begin, count, full = begin - header.base_index, end - begin, end - begin
            while count > 1 and self._bodies.size_of(body, range(begin, begin + count)) > left_bytes:
                count //= 2
            rows = range(begin, begin + count)
            size_bytes = self._bodies.size_of(body, rows)
            if parts and size_bytes > left_bytes:
                break
            left_bytes -= size_bytes
            parts.append((body, rows))
            if count < full:
                break
        return parts


def origin_of(partition: PartitionId, header: BatchHeader, index: int) -> tuple[int, int]:
    """The partition and the offset where the message at an index of a delayed batch was stored first."""
    if any(header.origin):
        place, offset = header.origin
        return place, offset + index - header.base_index
    return partition, make_offset(header.segment, index)


def _has(header: BatchHeader, index: int) -> bool:
    return header.base_index <= index < header.end_index
