"""Reads for consumer groups in which order is by key: keys of batches, and single messages.

Batches whose messages are granted in several pieces are kept opened, so that they are not read and taken
apart for each consumer. The cache drops those that were not used for longest. Messages on which consumers failed are
kept one by one (`retry_cache`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import structlog
from seriatim_api.batch import FLAG_CONTROL, FLAG_LZ4, FLAG_ZSTD, BatchHeader
from seriatim_api.errors import CorruptionError, SeriatimError, UnreadableBodyError
from seriatim_api.ids import PartitionId, make_offset, split_offset

from ...core.values import effects as fx
from ...core.values.events import DeadLetterRead, KeysRead, RowsRead
from ...core.values.keyed import KeyColumn
from ...core.values.log import Batch
from ...interfaces.bodies import Bodies, OpenedBody
from ...interfaces.storage import Storage
from . import retry_cache
from .retry_cache import RetryCache

CACHE_BYTES_MAX: Final = 64 << 20
READ_BYTES: Final = 1 << 20
TAKEN_BYTES_MAX: Final = 16 << 20
"""A read of messages that are not in memory stops when they have this many bytes. A frame has at most 2 MiB of them."""

HELD_BYTES_MAX: Final = 16 << 20
"""A read of messages from many batches holds this many bytes of opened batches. Of the others it takes its messages
out, because 1,000 messages may lie in 1,000 batches of 1 MiB."""

_log = structlog.get_logger(__name__)

_Found = tuple[OpenedBody, int, int]  # and the offsets of its messages: the first one, and the one after the last one
_Part = tuple[OpenedBody, range]
_Row = tuple[OpenedBody, int]

_NOWHERE: Final = OpenedBody(None, 0)
_TOO_MUCH: Final = -1


class KeyedReads:
    """Carries out `ReadKeys`, `ReadRows` and `ReadDeadLetter`.

    Args:
        storage: The disk.
        bodies: Looks into bodies.
        cache_bytes_max: Bytes of opened bodies that are kept.
        retry_cache_bytes_max: Bytes of messages on which consumers failed, and that are kept for their next attempts.
        is_needed: See `RetryCache`.
    """

    def __init__(
        self,
        storage: Storage,
        bodies: Bodies,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        retry_cache_bytes_max: int = retry_cache.CACHE_BYTES_MAX,
        is_needed: Callable[[PartitionId], bool] = lambda _partition: True,
    ) -> None:
        self._storage = storage
        self._bodies = bodies
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[tuple[PartitionId, int], _Found] = OrderedDict()  # by the first offset of a batch
        self._cache_bytes = 0
        self._firsts: dict[PartitionId, list[int]] = {}  # of the kept batches: their first offsets, ascending
        self.retry_cache = RetryCache(retry_cache_bytes_max, is_needed)

    async def keys(self, effect: fx.ReadKeys) -> KeysRead:
        """The keys of the batches that the effect asks for, without those after one that cannot be read."""
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
                header = batch.header
                if header.flags & FLAG_CONTROL:  # consumers pass it
                    columns.append(KeyColumn(header, None))
                    continue
                try:
                    keys = self._bodies.keys(batch)
                except UnreadableBodyError as exc:  # consumers are given the body, and say what is wrong with it
                    _log.error("body_not_readable", segment=header.segment, index=header.base_index, error=str(exc))
                    keys = None
                columns.append(KeyColumn(header, keys))
                if not header.flags & (FLAG_LZ4 | FLAG_ZSTD):  # others are taken apart when they are granted
                    self._keep(effect.partition, batch)
        except UnreadableBodyError as exc:
            _log.error("keys_not_read", partition=effect.partition, segment=effect.segment_no, error=str(exc))
        except SeriatimError as exc:
            is_damaged = isinstance(exc, CorruptionError)
            _log.error("keys_not_read", partition=effect.partition, segment=effect.segment_no, error=str(exc))
            return KeysRead(effect.serial, None, is_damaged)
        return KeysRead(effect.serial, tuple(columns))

    async def rows(self, effect: fx.ReadRows) -> RowsRead:
        """A body with the first messages that the effect asks for, or which of them are in bodies that cannot be read.

        If the messages that must be read are much more than fit, the first half of all is tried, until they fit.
        """
        bad: list[BatchHeader] = []  # batches that cannot be read
        offsets = effect.offsets
        try:
            for batch in effect.batches:
                self._keep_if_readable(effect.partition, batch, bad)
            while True:
                parts, missing = self._in_memory(effect.partition, offsets)
                known = self._first_that_fit(parts, effect.bytes_max)
                if not missing or known[2]:
                    break
                read = await self._read_missing(effect.partition, sorted(missing), bad, is_alone=len(offsets) == 1)
                if read is None:
                    return RowsRead(effect.serial, None)
                if _TOO_MUCH in read:
                    offsets = offsets[: len(offsets) // 2]
                    continue
                if len(read) < len(missing):
                    unreadable = tuple(offset for offset in missing if offset not in read)
                    return RowsRead(effect.serial, None, unreadable=unreadable)
                known = self._first_that_fit(_completed(parts, read), effect.bytes_max)
                break
            return RowsRead(effect.serial, self._bodies.join(known[0]), count=known[1])
        except SeriatimError as exc:
            _log.error("messages_not_read", partition=effect.partition, error=str(exc))
            return RowsRead(effect.serial, None, isinstance(exc, CorruptionError))

    def _first_that_fit(self, parts: Sequence[_Part], bytes_max: int) -> tuple[list[_Part], int, bool]:
        """The first messages that have at most this many bytes, how many they are, and whether others do not fit.

        The first message always fits: a message that is larger comes alone. A part without a body ends them.
        """
        found: list[_Part] = []
        count, left = 0, bytes_max
        for body, rows in parts:
            if body is _NOWHERE:
                break
            size_bytes = self._bodies.size_of(body, rows)
            if size_bytes <= left:
                found.append((body, rows))
                count, left = count + len(rows), left - size_bytes
                continue
            fits = bisect_right(range(1, len(rows)), left, key=lambda n: self._bodies.size_of(body, rows[:n]))
            fits = fits if count else max(fits, 1)
            if fits:
                found.append((body, rows[:fits]))
            return found, count + fits, True
        return found, count, False

    def _in_memory(self, partition: PartitionId, offsets: Sequence[int]) -> tuple[list[_Part], list[int]]:
        """Where the messages of a read are in memory, and the offsets of those that are not.

        A part without a body stands for the latter: in place of rows, it has their offsets.
        """
        parts: list[_Part] = []
        missing: list[int] = []
        body, first, end = _NOWHERE, 0, 0  # the body that was found last, and the offsets of its messages
        for run in _runs(offsets):
            at = run.start
            while at < run.stop:
                if not first <= at < end:
                    found = self._find(partition, at)
                    if found is None:
                        parts.append((_NOWHERE, range(at, run.stop)))
                        missing += range(at, run.stop)
                        break
                    body, first, end = found
                stop = min(run.stop, end)
                parts.append((body, range(at - first, stop - first)))
                at = stop
        return parts, missing

    async def _read_missing(
        self, partition: PartitionId, offsets: Sequence[int], bad: list[BatchHeader], *, is_alone: bool
    ) -> dict[int, _Row] | None:
        """Read messages that are not in memory, each batch once. Those of bodies that cannot be read are left out.

        Args:
            partition: The partition.
            offsets: Their offsets, ascending.
            bad: Batches that cannot be read. More are added.
            is_alone: It is the only message that is asked for, so it may be of any size.

        Returns:
            The messages by offset; None if one of them is not on this disk. If they have more than `TAKEN_BYTES_MAX`,
            the offset `_TOO_MUCH` is among them, and some are not read.
        """
        found: dict[int, _Row] = {}
        held_bytes = taken_bytes = at = end = 0
        while at < len(offsets):
            offset = offsets[at]
            kept = self._find(partition, offset)
            if kept is None and not _has(bad, offset):
                # A sequential read leaves its place open for the next one, and there is mostly none.
                kept = await self._read(partition, offset, bad, sequential=offset == end)
            if kept is None:
                if not _has(bad, offset):
                    return None
                at += 1
                continue
            body, first, end = kept
            wanted = [offset for offset in offsets[at : at + end - offset] if offset < end]
            at += len(wanted)
            rows = _runs([offset - first for offset in wanted])
            taken_bytes += sum(self._bodies.size_of(body, part) for part in rows)
            if taken_bytes > TAKEN_BYTES_MAX and not is_alone:
                found[_TOO_MUCH] = (body, 0)
                return found
            self._keep_failed(partition, wanted, body, first)
            if held_bytes + body.size_bytes <= HELD_BYTES_MAX:
                held_bytes += body.size_bytes
                found.update({offset: (body, offset - first) for offset in wanted})
            else:
                few = self._bodies.open_joined(
                    self._bodies.join([(body, rows) for rows in _runs([offset - first for offset in wanted])])
                )
                found.update({offset: (few, row) for row, offset in enumerate(wanted)})
        return found

    def keep(self, effect: fx.KeepMessage) -> None:
        """A consumer failed on a message: keep it for its next attempt."""
        partition, offset, body = effect.partition, effect.offset, b""
        if self.retry_cache.find(partition, offset) is None:
            found = self._find(partition, offset)
            body = self._bodies.join([(found[0], _one(offset - found[1]))]) if found is not None else b""
        self.retry_cache.put(partition, offset, body, effect.delay_ms / 1000)

    def _keep_failed(self, partition: PartitionId, offsets: Sequence[int], body: OpenedBody, first: int) -> None:
        """Keep those of the messages that were read on which consumers failed before."""
        for offset in offsets if len(self.retry_cache) else ():
            if self.retry_cache.is_wanted(partition, offset):
                self.retry_cache.put(partition, offset, self._bodies.join([(body, _one(offset - first))]), 0)

    def _keep_if_readable(self, partition: PartitionId, batch: Batch, bad: list[BatchHeader]) -> None:
        try:
            self._keep(partition, batch)
        except UnreadableBodyError as exc:
            header = batch.header
            _log.error("body_not_readable", segment=header.segment, index=header.base_index, error=str(exc))
            bad.append(header)

    async def dead_letter(self, effect: fx.ReadDeadLetter) -> DeadLetterRead:
        """The copy of one message for the dead-letter topic."""
        try:
            for batch in effect.batches:
                self._keep_if_readable(effect.partition, batch, [])
            found = self._find(effect.partition, effect.offset)
            if found is None:
                found = await self._read(effect.partition, effect.offset, [])
            if found is None:
                return DeadLetterRead(effect.serial, None)
            row = effect.offset - found[1]
            return DeadLetterRead(effect.serial, self._bodies.dead_letter(found[0], row, effect.origin))
        except SeriatimError as exc:
            _log.error("message_not_read", partition=effect.partition, error=str(exc))
            return DeadLetterRead(effect.serial, None, isinstance(exc, CorruptionError))

    async def _read(
        self, partition: PartitionId, offset: int, bad: list[BatchHeader], *, sequential: bool = False
    ) -> _Found | None:
        no, index = split_offset(offset)
        batches = await self._storage.read(partition, no, index, index + 1, READ_BYTES, sequential=sequential)
        for batch in batches:
            self._keep_if_readable(partition, batch, bad)
        return self._find(partition, offset)

    # ---- the cache -----------------------------------------------------------------------------------

    def _find(self, partition: PartitionId, offset: int) -> _Found | None:
        """An opened body with that message, if it is in memory: the message alone, or its batch."""
        single = self.retry_cache.find(partition, offset)
        if single is not None:
            return self._bodies.open_joined(single), offset, offset + 1
        firsts = self._firsts.get(partition, ())
        at = bisect_right(firsts, offset) - 1
        if at < 0:
            return None
        place = (partition, firsts[at])
        found = self._cache[place]
        if offset >= found[2]:
            return None
        self._cache.move_to_end(place)
        return found

    def _keep(self, partition: PartitionId, batch: Batch) -> None:
        header = batch.header
        first = make_offset(header.segment, header.base_index)
        if (partition, first) in self._cache:
            return
        opened = self._bodies.open(batch)
        self._cache[partition, first] = (opened, first, make_offset(header.segment, header.end_index))
        insort(self._firsts.setdefault(partition, []), first)
        self._cache_bytes += opened.size_bytes
        while self._cache_bytes > self._cache_bytes_max and len(self._cache) > 1:
            (gone_from, first), (gone, _, _) = self._cache.popitem(last=False)
            self._cache_bytes -= gone.size_bytes
            firsts = self._firsts[gone_from]
            firsts.remove(first)
            if not firsts:
                del self._firsts[gone_from]


def _runs(offsets: Sequence[int]) -> Iterator[range]:
    """Offsets that follow one another, in pieces as long as possible and in their order."""
    begin = end = offsets[0]
    for offset in offsets:
        if offset != end:
            yield range(begin, end)
            begin = offset
        end = offset + 1
    yield range(begin, end)


def _one(row: int) -> range:
    return range(row, row + 1)


def _completed(parts: Sequence[_Part], read: Mapping[int, _Row]) -> list[_Part]:
    """The parts of a read, with the messages that were missing."""
    whole: list[_Part] = []
    for body, rows in parts:
        if body is not _NOWHERE:
            whole.append((body, rows))
            continue
        last, end = _NOWHERE, 0
        for opened, row in map(read.__getitem__, rows):
            if opened is last and row == end:
                whole[-1] = (opened, range(whole[-1][1].start, row + 1))
            else:
                whole.append((opened, _one(row)))
            last, end = opened, row + 1
    return whole


def _has(headers: list[BatchHeader], offset: int) -> bool:
    """Whether a message is in one of these batches."""
    no, index = split_offset(offset)
    return any(header.segment == no and header.base_index <= index < header.end_index for header in headers)
