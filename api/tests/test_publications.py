"""Manifests: a written manifest can be read again, and other bytes are refused before anything is built from them."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from dataclasses import replace

import pytest
from seriatim_api import publications
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import INDEX_MAX, TopicIncarnation, make_offset
from seriatim_api.publications import (
    Manifest,
    ManifestPart,
    Span,
    StagedBatch,
    StagedBatches,
    content_digest_of,
    digest_of,
    pieces_of,
    read_manifest,
    write_manifest,
)

CHUNK = b"c" * 16
INCARNATION = TopicIncarnation("0123456789abcdef" * 2)


def part(partition: int, *rows: int, value_bytes: int = 10) -> ManifestPart:
    """A part with batches of this many rows, one after the other at its stage partition."""
    batches = StagedBatches(
        StagedBatch(90 + partition, count, 1000 * number, CHUNK) for number, count in enumerate(rows)
    )
    return ManifestPart(partition, value_bytes, batches)


MANIFEST = Manifest(INCARNATION, (part(3, 1, 2), part(8, 5)))


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert read_manifest(write_manifest(MANIFEST)) == MANIFEST
    assert MANIFEST.rows == 8
    assert MANIFEST.part_of(8) == part(8, 5)
    assert MANIFEST.part_of(4) is None


def test_parts_are_written_with_their_partitions_ascending() -> None:
    turned = Manifest(INCARNATION, MANIFEST.parts[::-1])
    assert write_manifest(turned) == write_manifest(MANIFEST)


@pytest.mark.parametrize("length", range(len(write_manifest(MANIFEST))))
def test_a_manifest_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(BadRequestError):
        read_manifest(write_manifest(MANIFEST)[:length])


def test_what_stands_behind_a_manifest_is_refused() -> None:
    with pytest.raises(BadRequestError, match="ends with"):
        read_manifest(write_manifest(MANIFEST) + b"\0")


def test_staged_batches_are_a_sequence_of_values() -> None:
    batches = [StagedBatch(90, 2, make_offset(1, 5), CHUNK), StagedBatch(91, 3, make_offset(2, 0), b"d" * 16)]
    found = StagedBatches(batches)
    assert list(found) == batches
    assert (len(found), found[1], found[-2]) == (2, batches[1], batches[0])
    assert list(found[1:]) == batches[1:]
    assert list(found.first_rows) == [0, 2, 5]
    with pytest.raises(IndexError):
        found[2]
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert hash(again) == hash(found)
    assert found != StagedBatches(batches[1:])
    assert list(again.first_rows) == [0, 2, 5]


def test_what_a_manifest_needs_of_each_segment() -> None:
    batches = [StagedBatch(90, 2, make_offset(1, 5), CHUNK), StagedBatch(90, 3, make_offset(2, 0), CHUNK)]
    others = [StagedBatch(90, 4, make_offset(1, 9), CHUNK), StagedBatch(91, 1, make_offset(1, 3), CHUNK)]
    manifest = Manifest(
        INCARNATION, (ManifestPart(3, 1, StagedBatches(batches)), ManifestPart(4, 1, StagedBatches(others)))
    )
    assert manifest.spans == {(90, 1): Span(5, 13, 6), (90, 2): Span(0, 3, 3), (91, 1): Span(3, 4, 1)}
    assert manifest.reaches_below(90, make_offset(1, 6))
    assert not manifest.reaches_below(90, make_offset(1, 5))
    assert manifest.reaches_below(91, make_offset(2, 0))
    assert not manifest.reaches_below(92, make_offset(9, 0))


def test_what_is_read_takes_little_more_memory_than_its_bytes() -> None:
    """A publication may have half a million staged batches, and brokers keep several."""
    data = write_manifest(Manifest(INCARNATION, (part(3, *([1] * 20_000)),)))
    tracemalloc.start()
    manifest = read_manifest(data)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(manifest.spans) == 1
    assert used < 1.5 * len(data)
    assert manifest.size_bytes > len(data)


def test_a_manifest_of_more_partitions_than_a_topic_has_is_refused() -> None:
    count = publications.PARTS_MAX + 1
    with pytest.raises(BadRequestError, match="partitions"):
        read_manifest(write_manifest(Manifest(INCARNATION, tuple(part(number, 1) for number in range(count)))))


def test_something_else_is_refused() -> None:
    with pytest.raises(BadRequestError, match="not a manifest"):
        read_manifest(b"SQM2" + write_manifest(MANIFEST)[4:])


def test_partitions_that_do_not_ascend_are_refused() -> None:
    twice = write_manifest(Manifest(INCARNATION, (part(3, 1), part(8, 1)))).replace(
        struct.pack("<II", 8, 1), struct.pack("<II", 3, 1)
    )
    with pytest.raises(BadRequestError, match="ascend"):
        read_manifest(twice)


def test_a_part_without_batches_is_refused() -> None:
    with pytest.raises(BadRequestError, match="no batches"):
        read_manifest(write_manifest(Manifest(INCARNATION, (ManifestPart(3, 0, StagedBatches()),))))


def test_a_batch_without_rows_is_refused() -> None:
    with pytest.raises(BadRequestError, match="without rows"):
        read_manifest(write_manifest(Manifest(INCARNATION, (part(3, 0),))))


def test_an_offset_that_is_none_is_refused() -> None:
    for offset, rows in ((1 << 63, 1), (make_offset(1, INDEX_MAX - 1), 2)):
        batch = StagedBatch(1, rows, offset, CHUNK)
        with pytest.raises(BadRequestError, match="at no offset"):
            read_manifest(write_manifest(Manifest(INCARNATION, (ManifestPart(3, 1, StagedBatches([batch])),))))


def test_rows_that_do_not_add_up_are_refused() -> None:
    data = write_manifest(Manifest(INCARNATION, (part(3, 4),)))
    wrong = data.replace(struct.pack("<IIQ", 3, 1, 4), struct.pack("<IIQ", 3, 1, 5))
    with pytest.raises(BadRequestError, match="says 5"):
        read_manifest(wrong)


def test_a_count_of_batches_that_cannot_be_is_refused_before_they_are_read() -> None:
    data = write_manifest(Manifest(INCARNATION, (part(3, 4),)))
    wrong = data.replace(struct.pack("<II", 3, 1), struct.pack("<II", 3, (1 << 32) - 1))
    with pytest.raises(BadRequestError, match="fewer than it says"):
        read_manifest(wrong)


def test_more_than_a_manifest_may_have_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_manifest(MANIFEST)
    monkeypatch.setattr(publications, "MANIFEST_BYTES_MAX", len(data) - 1)
    with pytest.raises(BadRequestError, match="at most"):
        read_manifest(data)
    with pytest.raises(BadRequestError, match="publish fewer rows"):
        write_manifest(MANIFEST)


def test_pieces_make_the_manifest_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publications, "PIECE_BYTES_MAX", 7)
    data = write_manifest(MANIFEST)
    pieces = pieces_of(data)
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) == 7


def test_the_digest_tells_rows_and_bytes_of_each_partition_and_nothing_else() -> None:
    known = digest_of(MANIFEST.parts)
    assert digest_of(MANIFEST.parts[::-1]) == known
    assert digest_of((part(3, 2, 1), part(8, 5))) == known, "how the rows were cut does not matter"
    assert digest_of((part(3, 1, 1), part(8, 5))) != known
    assert digest_of((part(3, 1, 2), part(9, 5))) != known
    assert digest_of((part(3, 1, 2), part(8, 5, value_bytes=11))) != known


@pytest.mark.parametrize("other", [(b"aaaabbbb", b"cccc"), (b"bbbbaaaa", b"dddd"), (b"aaaabbbb", b"")])
def test_contents_have_a_digest_of_their_own(other: tuple[bytes, bytes]) -> None:
    def digest(first: bytes, second: bytes) -> bytes:
        return content_digest_of([replace(part(8, 5), contents=second), replace(part(3, 1, 2), contents=first)])

    known = digest(b"aaaabbbb", b"dddd")
    assert len(known) == 16
    parts = [replace(part(3, 1, 2), contents=b"aaaabbbb"), replace(part(8, 5), contents=b"dddd")]
    assert content_digest_of(parts) == known
    assert digest(*other) != known
    assert digest(b"aaaabbbb", b"") == b"", "one part is not known"
