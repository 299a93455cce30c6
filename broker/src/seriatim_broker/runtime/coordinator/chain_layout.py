"""The layout of chains in the coordinator: the newest segments are in the record, older ones in pages.

The core keeps whole chains, and the coordinator takes no value over 1.5 MB. So the record holds at most
`RECORD_SEGMENTS_MAX` (80) segments, the newest ones. When it would grow over that, the oldest go to pages, and
`RECORD_SEGMENTS_MIN` (64) stay. Several leave at a time, so a switch of a long chain seldom writes a page. They never
come back.

A page is written only in a transaction that compares the record's revision and also writes the record. So the record's
revision covers all pages: a broker that has read the pages at that revision knows the chain, and a broker whose
comparison failed wrote nothing anywhere. Therefore an UNSETTLED segment may be in a page like any other. Its settlement
writes its page, and the segments after it whose positions are known now, in one transaction with the record. (If an
UNSETTLED segment had to stay in the record, all segments after it would stay too, and the record could grow over the
limit.)

The core's chain does not have everything. `ChainArchive` remembers the rest from the last read or write of a partition:
which segments are in pages, and messages with fields of a newer version. For a short chain of this version it remembers
only the revision.

The record also has a digest of each page. A page that was read or written here before, and still has that digest, is
not read again. So most reads of a long chain read only its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from seriatim_api.errors import CorruptionError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import records_pb2

from ...core.values.chain import Chain
from ...core.values.segment import Segment
from ...core.values.segments import Segments
from .records import (
    PAGE_SEGMENTS,
    chain_from_record,
    chain_to_record,
    has_unknown_fields,
    join_pages,
    page_numbers,
    parse_page,
    parse_record,
    put_page_numbers,
    record_name,
    segments_from_record,
    segments_to_record,
)

RECORD_SEGMENTS_MIN = 64
"""Segments that stay in the record when others leave it."""

RECORD_SEGMENTS_MAX = 80
"""Segments that a record may have: about 30 KB. So a hundred records can be read in one transaction."""

MOVED_SEGMENTS_MAX = 1024
"""Segments that leave a record at once. If there are more, for example after a rebuild, they go in several steps."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A chain as it is to be written in place of the version that was seen last.

    Attributes:
        record: The value of its key.
        pages: Values of the pages that change, by number; None for a page that is deleted.
        paged: The segments that are in pages afterwards.
        digests: Of the segments in each page, afterwards.
    """

    partition: PartitionId
    record: bytes
    pages: tuple[tuple[int, bytes | None], ...]
    paged: tuple[Segment, ...]
    digests: Mapping[int, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Size of all its values."""
        return len(self.record) + sum(len(value) for _, value in self.pages if value is not None)


@dataclass(slots=True)
class _Kept:
    """What the core's chain does not have. Messages are kept for their unknown fields; those of segments by number."""

    paged: tuple[Segment, ...] = ()
    digests: Mapping[int, int] = field(default_factory=dict)
    record: records_pb2.ChainRecord | None = None
    pages: dict[int, records_pb2.ChainPage] = field(default_factory=dict)
    segments: dict[int, records_pb2.SegmentRecord] = field(default_factory=dict)


_NOTHING_KEPT = _Kept()


class PagesNeededError(Exception):
    """A page that was left out is not held here (any more): all pages must be read."""


class ChainArchive:
    """Converts chains from and to the coordinator's values.

    It remembers the revision at which it last saw each record. If another writer has written the record since, it must
    be read again before it is written over.
    """

    def __init__(self) -> None:
        self._kept: dict[PartitionId, _Kept] = {}
        self._revisions: dict[PartitionId, int] = {}

    def unread(self, value: bytes) -> tuple[int, ...] | None:
        """Which pages of a record are not held here; None: all pages must be read.

        Raises:
            CorruptionError: The value is no chain record.
        """
        record = parse_record(value)
        kept = self._kept.get(PartitionId(record.partition_id), _NOTHING_KEPT)
        digests = _digests_in(record)
        if kept.record is not None or kept.pages or kept.segments:
            return None
        return tuple(number for number, digest in digests.items() if kept.digests.get(number) != digest)

    def parse(
        self, value: bytes, revision: int, pages: Sequence[bytes] = (), numbers: Sequence[int] | None = None
    ) -> Chain:
        """The chain in `value` and its `pages` at `revision`. Remembers what `lay_out` must keep.

        Args:
            value: The record.
            revision: The revision of its key.
            pages: Values of pages.
            numbers: The numbers of these pages, as `unread` reported them; None: all pages.

        Raises:
            CorruptionError: The value is no chain record, or these are not its pages.
            PagesNeededError: A page that was left out is not held here any more.
        """
        if numbers is not None:
            return self._parse_part(value, revision, dict(zip(numbers, map(parse_page, pages), strict=True)))
        joined = join_pages(value, pages)
        chain = chain_from_record(joined)
        has_unknown = has_unknown_fields(joined) or any(has_unknown_fields(parse_page(page)) for page in pages)
        if pages or has_unknown:
            kept = _Kept()
            record = parse_record(value)
            kept.paged = chain.parts[: -len(record.segments)] if pages else ()
            kept.digests = _digests_in(record)
            if has_unknown:
                _keep_messages(kept, joined, pages)
            self._kept[chain.partition] = kept
        else:
            self._kept.pop(chain.partition, None)
        self._revisions[chain.partition] = revision
        return chain

    def _parse_part(self, value: bytes, revision: int, read: Mapping[int, records_pb2.ChainPage]) -> Chain:
        """Do the same for a record with only those pages that are not held here."""
        record = parse_record(value)
        partition = PartitionId(record.partition_id)
        kept, digests = self._kept.get(partition, _NOTHING_KEPT), _digests_in(record)
        if has_unknown_fields(record) or any(map(has_unknown_fields, read.values())):
            raise PagesNeededError
        held = _by_page(kept.paged)
        paged: list[Segment] = []
        for number, digest in digests.items():
            if number in read:
                if (read[number].partition_id, read[number].page) != (partition, number):
                    raise CorruptionError(f"the pages of {record_name(record)} are not those of its record")
                paged.extend(segments_from_record(read[number].segments))
            elif kept.digests.get(number) == digest and number in held:
                paged.extend(held[number])
            else:
                raise PagesNeededError
        newest = chain_from_record(record)
        chain = replace(newest, segments=(*paged, *newest.segments))
        if any(later.previous_no != earlier.no for earlier, later in pairwise(chain.segments)):
            raise CorruptionError(f"segments of {record_name(record)} are missing between its pages")
        self._kept[partition] = _Kept(tuple(paged), digests)
        self._revisions[partition] = revision
        return chain

    def has_seen(self, partition: PartitionId, revision: int) -> bool:
        """Whether `lay_out` knows all of the record that has `revision` (0: there is no record)."""
        return revision == 0 or self._revisions.get(partition) == revision

    def has_seen_newer(self, partition: PartitionId, revision: int) -> bool:
        """Whether the record was last seen at a higher revision. Then a write that compares this one is out of date."""
        return 0 < revision < self._revisions.get(partition, 0)

    def lay_out(self, chain: Chain) -> Layout:
        """The values to write in place of the version that was seen last.

        Rule `old-pages-stay` (CORE): a page that changed is written together with the record. Without it:
          1. Segment 3 is UNSETTLED and in a page. It is settled.
          2. The record is written, and says that the chain continues. The page still says UNSETTLED.
          3. A broker that reads both holds a chain that never existed.
        """
        kept = self._kept.get(chain.partition, _NOTHING_KEPT)
        count = _paged_count(chain, kept.paged)
        paged = chain.parts[:count]
        before, after = _by_page(kept.paged), _by_page(paged)
        record = chain_to_record(chain, kept.record, kept.segments, paged_count=count)
        digests = {
            number: kept.digests[number]
            if number in kept.digests and segments == before.get(number)
            else Segments.of(segments).digest
            for number, segments in after.items()
        }
        record.page_digests[:] = digests.values()
        put_page_numbers(record, tuple(after))
        changed: list[tuple[int, bytes | None]] = [(number, None) for number in before if number not in after]
        for number, segments in after.items():
            if segments != before.get(number):
                changed.append((number, _page_value(chain.partition, number, segments, kept)))
        return Layout(chain.partition, record.SerializeToString(), tuple(changed), paged, digests)

    def written(self, layout: Layout, revision: int) -> None:
        """The coordinator has this layout at `revision` now."""
        self._revisions[layout.partition] = revision
        kept = self._kept.get(layout.partition)
        if kept is not None:
            kept.paged, kept.digests = layout.paged, layout.digests
        elif layout.paged:
            self._kept[layout.partition] = _Kept(layout.paged, layout.digests)

    def forget(self, partition: PartitionId) -> None:
        """The partition does not exist any more."""
        self._kept.pop(partition, None)
        self._revisions.pop(partition, None)


def _paged_count(chain: Chain, paged: Sequence[Segment]) -> int:
    """How many of the oldest segments are in pages after this write."""
    count = chain.parts.place(paged[-1].no + 1) if paged else 0
    assert count < len(chain.segments), "the open segment is in the record"
    in_record = len(chain.segments) - count
    if in_record > RECORD_SEGMENTS_MAX:
        count += min(in_record - RECORD_SEGMENTS_MIN, MOVED_SEGMENTS_MAX)
    return count


def _digests_in(record: records_pb2.ChainRecord) -> dict[int, int]:
    """The digests in a record, by page number.

    Raises:
        CorruptionError: It has not one for each page.
    """
    numbers = page_numbers(record)
    if len(record.page_digests) != len(numbers):
        raise CorruptionError(f"the chain record of {record_name(record)} has not a digest for each page")
    return dict(zip(numbers, record.page_digests, strict=True))


def _by_page(segments: Iterable[Segment]) -> dict[int, tuple[Segment, ...]]:
    return {number: tuple(group) for number, group in groupby(segments, lambda segment: segment.no // PAGE_SEGMENTS)}


def _page_value(partition: PartitionId, number: int, segments: Iterable[Segment], kept: _Kept) -> bytes:
    page = records_pb2.ChainPage()
    if number in kept.pages:
        page.CopyFrom(kept.pages[number])
    page.partition_id = partition
    page.page = number
    segments_to_record(page.segments, segments, kept.segments)
    return page.SerializeToString()


def _keep_messages(kept: _Kept, joined: records_pb2.ChainRecord, pages: Sequence[bytes]) -> None:
    """Keep the messages that have unknown fields, each without the segments in it."""
    kept.segments = {segment.no: segment for segment in joined.segments if has_unknown_fields(segment)}
    shell = records_pb2.ChainRecord()
    shell.CopyFrom(joined)
    del shell.segments[:]
    if has_unknown_fields(shell):
        kept.record = shell
    for page in map(parse_page, pages):
        del page.segments[:]
        if has_unknown_fields(page):
            kept.pages[page.page] = page
