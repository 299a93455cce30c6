"""The segments of a chain, oldest first: an immutable sequence that shares its parts with the sequence before it.

A partition may have 10,000 segments, and each write of its record changes one or two of them. So they are kept in
chunks. The sequence after a change has the same chunks, except those that changed. To make it, and to find the
differences between two sequences, takes one pass over the chunks and over the segments of the changed ones.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple, overload

from seriatim_api.ids import MemberId

from .segment import Segment

CHUNK_SEGMENTS: Final = 64
"""Segments in a chunk. A change copies one chunk; a chain of 10,000 segments has 157 chunks."""


class Changes(NamedTuple):
    """The differences from an earlier sequence: segments that are new or changed, and numbers that are gone."""

    changed: tuple[Segment, ...]
    gone: tuple[int, ...]


class Chunk:
    """Some consecutive segments, with results about them that are kept."""

    __slots__ = ("_digest", "_peers", "segments")

    def __init__(self, segments: tuple[Segment, ...]) -> None:
        assert segments
        self.segments = segments
        self._digest: int | None = None
        self._peers: tuple[MemberId, tuple[str, ...]] | None = None

    @property
    def digest(self) -> int:
        """The sum of the segments' digests: it does not depend on how a chain is cut into chunks."""
        if self._digest is None:
            self._digest = sum(map(_digest, self.segments)) & _MASK
        return self._digest

    def peers(self, member: MemberId) -> tuple[str, ...]:
        """Brokers with which the member shares an open segment or a serving right in this chunk."""
        if self._peers is not None and self._peers[0] == member:
            return self._peers[1]
        found: dict[str, None] = {}
        for segment in self.segments:
            parties = segment.parties
            if member in parties:
                found.update((party.broker, None) for party in parties if party != member)
        if (
            len(self.segments) == CHUNK_SEGMENTS
        ):  # keep it only for full chunks: the last chunk changes with each switch
            self._peers = member, tuple(found)
        return tuple(found)


class Segments(Sequence["Segment"]):
    """The sequence that the module describes. It is equal to any sequence of the same segments."""

    __slots__ = ("_chunks", "_ends")

    def __init__(self, chunks: tuple[Chunk, ...]) -> None:
        self._chunks = chunks
        ends = tuple(accumulate(len(chunk.segments) for chunk in chunks))
        self._ends = _shared(ends) if len(ends) == 1 else ends

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> Segments:
        """A sequence of these segments, whose numbers must ascend."""
        return cls(tuple(_cut(tuple(segments))))

    # ---- the sequence ----

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Segment]:
        for chunk in self._chunks:
            yield from chunk.segments

    def __reversed__(self) -> Iterator[Segment]:
        for chunk in reversed(self._chunks):
            yield from reversed(chunk.segments)

    @overload
    def __getitem__(self, place: int) -> Segment: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Segment, ...]: ...
    def __getitem__(self, place: int | slice) -> Segment | tuple[Segment, ...]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                return tuple(self)[place]
            return tuple(self._between(start, stop))
        if place < 0:
            place += len(self)
        if not 0 <= place < len(self):
            raise IndexError(place)
        chunk = bisect_right(self._ends, place)
        return self._chunks[chunk].segments[place - self._ends[chunk]]

    def _between(self, start: int, stop: int) -> Iterator[Segment]:
        while start < stop:
            chunk = bisect_right(self._ends, start)
            end = self._ends[chunk]
            segments = self._chunks[chunk].segments
            yield from segments[start - end : (stop - end) or None if stop < end else None]
            start = end

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Segments):
            return self._chunks == other._chunks or tuple(self) == tuple(other)
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    @property
    def newest(self) -> Segment:
        """The last segment, which each append asks for. The sequence must not be empty."""
        return self._chunks[-1].segments[-1]

    # ---- by number ----

    def position(self, no: int) -> int | None:
        """The position of the segment of that number; None if there is none."""
        place = self.place(no)
        return place if place < len(self) and self[place].no == no else None

    def place(self, no: int) -> int:
        """How many segments have lower numbers: the position that a segment of that number has, or would have."""
        at = bisect_right(self._chunks, no, key=_first) - 1
        if at < 0:
            return 0
        segments = self._chunks[at].segments
        return self._ends[at] - len(segments) + bisect_left(segments, no, key=_number)

    def at(self, no: int) -> Segment | None:
        """The segment of that number; None if there is none."""
        chunks = self._chunks
        at = bisect_right(chunks, no, key=_first) - 1 if len(chunks) > 1 else len(chunks) - 1
        if at < 0:
            return None
        segments = chunks[at].segments
        place = bisect_left(segments, no, key=_number)
        return segments[place] if place < len(segments) and segments[place].no == no else None

    # ---- the next sequence ----

    def with_changes(self, changes: Changes) -> Segments:
        """The next sequence: changed segments replace those of the same numbers, new ones come last, some are gone."""
        last = self._chunks[-1].segments[-1].no if self._chunks else 0
        new = {segment.no: segment for segment in changes.changed}
        gone = set(changes.gone)
        touched = {self._chunk_of(no) for no in (*new, *gone) if no <= last}
        chunks: list[Chunk] = []
        for at, chunk in enumerate(self._chunks):
            if at not in touched:
                chunks.append(chunk)
                continue
            kept = {segment.no: segment for segment in chunk.segments if segment.no not in gone}
            low = _first(chunk) if at else 0
            high = _first(self._chunks[at + 1]) if at + 1 < len(self._chunks) else last + 1
            kept.update((no, segment) for no, segment in new.items() if low <= no < high)
            chunks.extend(_cut(tuple(kept[no] for no in sorted(kept))))
        behind = tuple(new[no] for no in sorted(new) if no > last)
        if behind and chunks and len(chunks[-1].segments) < CHUNK_SEGMENTS:
            behind = (*chunks.pop().segments, *behind)
        return Segments((*chunks, *_cut(behind)))

    def _chunk_of(self, no: int) -> int:
        return max(0, bisect_right(self._chunks, no, key=_first) - 1)

    def changes_since(self, before: Segments) -> Changes:
        """The differences from `before`. Chunks that both sequences share are not read."""
        own, theirs = {id(chunk) for chunk in self._chunks}, {id(chunk) for chunk in before._chunks}
        after = [s for chunk in self._chunks if id(chunk) not in theirs for s in chunk.segments]
        known = {s.no: s for chunk in before._chunks if id(chunk) not in own for s in chunk.segments}
        changed = tuple(s for s in after if (old := known.get(s.no)) is not s and old != s)
        numbers = {segment.no for segment in after}
        return Changes(changed, tuple(no for no in known if no not in numbers))

    def sharing(self, before: Segments) -> Segments:
        """This sequence, with the objects of `before` in place of equal ones, to save memory."""
        return before.with_changes(self.changes_since(before))

    # ---- of all segments ----

    def peers(self, member: MemberId) -> tuple[str, ...]:
        """Brokers with which the member shares an open segment or a serving right."""
        return tuple(dict.fromkeys(broker for chunk in self._chunks for broker in chunk.peers(member)))

    @property
    def digest(self) -> int:
        """A number of 64 bits that two different sequences almost never have in common."""
        return sum(chunk.digest for chunk in self._chunks) & _MASK


_MASK: Final = (1 << 64) - 1


def _cut(segments: tuple[Segment, ...]) -> Iterator[Chunk]:
    for start in range(0, len(segments), CHUNK_SEGMENTS):
        yield Chunk(segments[start : start + CHUNK_SEGMENTS])


@lru_cache(CHUNK_SEGMENTS)
def _shared(ends: tuple[int, ...]) -> tuple[int, ...]:
    """One object for all equal ones, to save memory: thousands of partitions have one chunk with a few segments."""
    return ends


def _first(chunk: Chunk) -> int:
    return chunk.segments[0].no


_number: Final = attrgetter("no")


def _name(member: MemberId) -> tuple[str, str]:
    return member.broker, member.incarnation


def _digest(segment: Segment) -> int:
    """The digest of all fields of a segment. A field that is added later must not change it while it is not set."""
    lists = (segment.members, segment.eligible, segment.tail_copies)
    said: tuple[object, ...] = (
        segment.no,
        segment.switch_attempt,
        segment.broker_group,
        [[_name(member) for member in members] for members in lists],
        segment.master_run,
        segment.state.value,
        segment.base,
        _name(segment.server),
        segment.server_epoch,
        segment.opened_at_ms,
        segment.sealed_len,
        segment.sealed_checksum,
        segment.tail_from,
        segment.incomplete_table,
        segment.sealed_at_ms,
        segment.records_lost,
        segment.append_floor_ms,
        segment.folded,
        tuple(segment.begin),
        segment.sealed_bytes,
        segment.producers_max,
    )
    if segment.delayed_until_ms:
        said += (segment.delayed_until_ms,)
    return int.from_bytes(hashlib.blake2b(repr(said).encode(), digest_size=8).digest(), "big")
