"""Reads for consumer groups in which order is by key: keys of batches, and single messages.

Batches whose messages are granted in several pieces are kept opened, so that they are not read and taken
apart for each consumer. The cache drops those that were not used for longest.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import structlog
from seriatim_api.batch import FLAG_LZ4, FLAG_ZSTD, BatchHeader
from seriatim_api.errors import CorruptionError, SeriatimError
from seriatim_api.ids import PartitionId, make_offset, split_offset

from ..core.values import effects as fx
from ..core.values.events import DeadLetterRead, KeysRead, RowsRead
from ..core.values.keyed import KeyColumn
from ..core.values.log import Batch
from ..interfaces.bodies import Bodies, OpenedBody, UnreadableBodyError
from ..interfaces.storage import Storage

CACHE_BYTES_MAX: Final = 64 << 20
READ_BYTES: Final = 1 << 20

_log = structlog.get_logger(__name__)

_Place = tuple[PartitionId, int, int]


class KeyedReads:
    """Carries out `ReadKeys`, `ReadRows` and `ReadDeadLetter`.

    Args:
        storage: The disk.
        bodies: Looks into bodies.
        cache_bytes_max: Bytes of opened bodies that are kept.
    """

    def __init__(self, storage: Storage, bodies: Bodies, cache_bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._storage = storage
        self._bodies = bodies
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[_Place, tuple[OpenedBody, int, int]] = OrderedDict()  # -> (body, base, end)
        self._cache_bytes = 0
        self._prepared: asyncio.Future[None] | None = None
        self._bases: dict[tuple[PartitionId, int], list[int]] = {}  # of the kept batches of a segment, ascending

    async def _prepare(self) -> None:
        """Load what bodies need, once, beside the event loop: heartbeats must not wait for it."""
        self.prepare_soon()
        if self._prepared is not None and not self._bodies.is_prepared:
            await asyncio.shield(self._prepared)

    def prepare_soon(self) -> None:
        """Begin to load what bodies need, because this broker may have to read some.

        Without it, consumers wait for that when this broker takes over from one that was killed.
        """
        if self._prepared is None and not self._bodies.is_prepared:
            self._prepared = asyncio.ensure_future(asyncio.to_thread(self._bodies.prepare))

    async def keys(self, effect: fx.ReadKeys) -> KeysRead:
        """The keys of the batches that the effect asks for, without those behind one that cannot be read."""
        await self._prepare()
        columns: list[KeyColumn] = []
        try:
            batches = await self._storage.read(
                effect.partition,
                effect.segment_no,
                effect.from_index,
                effect.until_index,
                effect.max_bytes,
                sequential=True,
            )
            for batch in batches:
                columns.append(KeyColumn(batch.header, self._keys_of(batch)))
                if not batch.header.flags & (FLAG_LZ4 | FLAG_ZSTD):  # others are taken apart when they are granted
                    self._keep(effect.partition, batch)
        except UnreadableBodyError as exc:
            _log.error("keys_not_read", partition=effect.partition, segment=effect.segment_no, error=str(exc))
        except SeriatimError as exc:
            is_damaged = isinstance(exc, CorruptionError)
            _log.error("keys_not_read", partition=effect.partition, segment=effect.segment_no, error=str(exc))
            return KeysRead(effect.serial, None, is_damaged)
        return KeysRead(effect.serial, tuple(columns))

    def _keys_of(self, batch: Batch) -> tuple[bytes | None, ...] | None:
        try:
            return self._bodies.keys(batch)
        except UnreadableBodyError as exc:  # consumers are given the body as it is, and say what is wrong with it
            _log.error("body_not_readable", segment=batch.header.segment, index=batch.header.base_index, error=str(exc))
            return None

    async def rows(self, effect: fx.ReadRows) -> RowsRead:
        """A body with the messages that the effect asks for, or which of them are in bodies that cannot be read."""
        await self._prepare()
        bad: list[BatchHeader] = []  # batches that cannot be read
        try:
            for batch in effect.batches:
                self._keep_if_readable(effect.partition, batch, bad)
            parts: list[tuple[OpenedBody, range]] = []
            unreadable: list[int] = []
            found: tuple[OpenedBody, int, int] | None = None
            first = end = 0  # the offsets that the last opened body has
            for run in _runs(effect.offsets):
                at = run.start
                while at < run.stop:
                    if not first <= at < end:
                        no, index = split_offset(at)
                        found = self._find(effect.partition, no, index)
                        if found is None and not _has(bad, no, index):
                            found = await self._read(effect.partition, no, index, bad)
                        if found is None and _has(bad, no, index):
                            unreadable.append(at)
                            at += 1
                            continue
                        if found is None:
                            return RowsRead(effect.serial, None)
                        first, end = make_offset(no, found[1]), make_offset(no, found[2])
                    assert found is not None
                    stop = min(run.stop, end)
                    parts.append((found[0], range(at - first, stop - first)))
                    at = stop
            if unreadable:
                return RowsRead(effect.serial, None, unreadable=tuple(unreadable))
            return RowsRead(effect.serial, self._bodies.join(parts))
        except SeriatimError as exc:
            _log.error("messages_not_read", partition=effect.partition, error=str(exc))
            return RowsRead(effect.serial, None, isinstance(exc, CorruptionError))
        except UnreadableBodyError as exc:
            _log.error("messages_not_read", partition=effect.partition, error=str(exc))
            return RowsRead(effect.serial, None)

    def _keep_if_readable(self, partition: PartitionId, batch: Batch, bad: list[BatchHeader]) -> None:
        try:
            self._keep(partition, batch)
        except UnreadableBodyError as exc:
            header = batch.header
            _log.error("body_not_readable", segment=header.segment, index=header.base_index, error=str(exc))
            bad.append(header)

    async def dead_letter(self, effect: fx.ReadDeadLetter) -> DeadLetterRead:
        """The copy of one message for the dead-letter topic."""
        await self._prepare()
        no, index = split_offset(effect.offset)
        try:
            for batch in effect.batches:
                self._keep_if_readable(effect.partition, batch, [])
            found = self._find(effect.partition, no, index) or await self._read(effect.partition, no, index, [])
            if found is None:
                return DeadLetterRead(effect.serial, None)
            return DeadLetterRead(effect.serial, self._bodies.dead_letter(found[0], index - found[1], effect.origin))
        except (SeriatimError, UnreadableBodyError) as exc:
            _log.error("message_not_read", partition=effect.partition, error=str(exc))
            return DeadLetterRead(effect.serial, None, isinstance(exc, CorruptionError))

    async def _read(
        self, partition: PartitionId, no: int, index: int, bad: list[BatchHeader]
    ) -> tuple[OpenedBody, int, int] | None:
        batches = await self._storage.read(partition, no, index, index + 1, READ_BYTES, sequential=True)
        for batch in batches:
            self._keep_if_readable(partition, batch, bad)
        return self._find(partition, no, index)

    # ---- the cache -----------------------------------------------------------------------------------

    def _find(self, partition: PartitionId, no: int, index: int) -> tuple[OpenedBody, int, int] | None:
        """The opened batch with that message, if it is kept."""
        bases = self._bases.get((partition, no), ())
        at = bisect_right(bases, index) - 1
        if at < 0:
            return None
        place = (partition, no, bases[at])
        found = self._cache[place]
        if index >= found[2]:
            return None
        self._cache.move_to_end(place)
        return found

    def _keep(self, partition: PartitionId, batch: Batch) -> None:
        header = batch.header
        place = (partition, header.segment, header.base_index)
        if place in self._cache:
            return
        opened = self._bodies.open(batch)
        self._cache[place] = (opened, header.base_index, header.end_index)
        insort(self._bases.setdefault(place[:2], []), header.base_index)
        self._cache_bytes += opened.size_bytes
        while self._cache_bytes > self._cache_bytes_max and len(self._cache) > 1:
            (gone_from, no, base), (gone, _, _) = self._cache.popitem(last=False)
            self._cache_bytes -= gone.size_bytes
            bases = self._bases[gone_from, no]
            bases.remove(base)
            if not bases:
                del self._bases[gone_from, no]


def _runs(offsets: Sequence[int]) -> Iterator[range]:
    """Offsets that follow one another, in pieces as long as possible and in their order."""
    begin = end = offsets[0]
    for offset in offsets:
        if offset != end:
            yield range(begin, end)
            begin = offset
        end = offset + 1
    yield range(begin, end)


def _has(headers: list[BatchHeader], no: int, index: int) -> bool:
    """Whether a message is in one of these batches."""
    return any(header.segment == no and header.base_index <= index < header.end_index for header in headers)
