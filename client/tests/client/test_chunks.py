"""Chunks: what was staged, joined to one manifest; and rows that cannot be spread are refused."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from seriatim import Chunk, TopicSettings, partition_of_key
from seriatim._bodies import arrow
from seriatim._publishing.chunks import manifest_of, repeats_of
from seriatim._publishing.staging import Stager, _pieces, _place, table_of
from seriatim._values.records import Topic
from seriatim._values.settings import ProducerSettings
from seriatim_api.errors import BadRequestError, IllegalMessageError, PartitionOutOfRangeError
from seriatim_api.publications import (
    CONTENT_BYTES,
    LaidOut,
    ManifestPart,
    PartSummary,
    RowLayout,
    StagedBatch,
    StagedBatches,
    content_digest_of,
    digest_of,
)

INCARNATION = "ab" * 16
TOPIC = Topic("orders", INCARNATION, "READY", (3, 4, 5), TopicSettings(), 0)


def chunk(number: int, *partitions: int) -> Chunk:
    """A chunk with one batch of two rows for each of these partitions."""
    id_ = bytes([number]) * 16
    parts = tuple(
        ManifestPart(partition, 10, StagedBatches([StagedBatch(90, 2, 100 * number + partition, id_)]))
        for partition in partitions
    )
    return Chunk("orders", INCARNATION, 3, id_, parts)


def test_a_chunk_survives_pickling() -> None:
    known = chunk(1, 3, 5)
    assert pickle.loads(pickle.dumps(known)) == known
    assert known.rows == 4


def test_chunks_stand_in_their_order_in_each_partition() -> None:
    manifest = manifest_of("orders", [chunk(2, 5, 3), chunk(1, 3)])
    assert manifest.incarnation == INCARNATION
    assert [(part.partition, part.value_bytes, part.rows) for part in manifest.parts] == [(3, 20, 4), (5, 10, 2)]
    assert [batch.offset for batch in manifest.parts[0].batches] == [203, 103]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (replace(chunk(2, 3), topic="flights"), "staged for topic"),
        (replace(chunk(2, 3), partition_count=4), "grew"),
        (replace(chunk(2, 3), batch_bytes=1000), "another limit of batches"),
        (replace(chunk(2, 3), incarnation="cd" * 16), "made again"),
        (chunk(1, 3), "twice"),
    ],
)
def test_chunks_that_do_not_belong_together_are_refused(wrong: Chunk, text: str) -> None:
    with pytest.raises(BadRequestError, match=text):
        manifest_of("orders", [chunk(1, 3), wrong])


def test_a_chunk_with_no_incarnation_is_refused() -> None:
    with pytest.raises(BadRequestError, match="32 hexadecimal digits"):
        manifest_of("orders", [replace(chunk(1, 2), incarnation="other")])


def test_rows_are_spread_by_their_keys_and_stay_in_order() -> None:
    keys = [b"k%d" % (number % 7) for number in range(50)]
    table = table_of([b"%d" % number for number in range(50)], keys, None, None, None)
    pieces = _pieces(table, None, "orders", partition_of_key, RowLayout(3, 1 << 20))
    found = {number: piece.column(1).to_pylist() for number, piece, _ in pieces}
    for number, values in found.items():
        assert values == [b"%d" % at for at, key in enumerate(keys) if partition_of_key(key, 3) == number]
    assert sum(map(len, found.values())) == 50


def test_each_row_may_name_its_partition() -> None:
    table = table_of([b"%d" % number for number in range(6)], None, None, None, None)
    pieces = _pieces(table, np.array([2, 0, 2, 2, 0, 2], np.int32), "orders", partition_of_key, RowLayout(3, 1 << 20))
    assert [(number, piece.column(1).to_pylist()) for number, piece, _ in pieces] == [
        (0, [b"1", b"4"]),
        (2, [b"0", b"2", b"3", b"5"]),
    ]
    assert _pieces(table.slice(0, 0), [], "orders", partition_of_key, RowLayout(3, 1 << 20)) == []
    for wrong in ([0, 1], [0, 1, 2, 0, 1, "2"], np.zeros((6, 1), np.int32)):
        with pytest.raises(BadRequestError, match="one for each of the 6"):
            _pieces(table, wrong, "orders", partition_of_key, RowLayout(3, 1 << 20))
    for number in (-1, 3):
        with pytest.raises(PartitionOutOfRangeError, match=f"not {number}"):
            _pieces(table, [0, 1, number, 0, 1, 2], "orders", partition_of_key, RowLayout(3, 1 << 20))


def test_pieces_are_no_larger_than_a_staged_batch() -> None:
    table = table_of([bytes(1000)] * 100, None, None, None, None)
    pieces = _pieces(table, 1, "orders", partition_of_key, RowLayout(3, 20_000))
    assert max(size for _, _, size in pieces) <= 20_000
    assert sum(piece.num_rows for _, piece, _ in pieces) == 100
    assert {number for number, _, _ in pieces} == {1}


def test_rows_that_can_go_nowhere_are_refused() -> None:
    with pytest.raises(BadRequestError, match="no key and no partition"):
        _pieces(
            table_of([b"x", b"y"], [b"k", None], None, None, None),
            None,
            "orders",
            partition_of_key,
            RowLayout(3, 1 << 20),
        )
    with pytest.raises(PartitionOutOfRangeError):
        _pieces(table_of([b"x"], None, None, None, None), 3, "orders", partition_of_key, RowLayout(3, 1 << 20))
    with pytest.raises(IllegalMessageError):
        table_of(["text"], None, None, None, None)
    assert _pieces(table_of([], None, None, None, None), 0, "orders", partition_of_key, RowLayout(3, 1 << 20)) == []


def test_rows_are_staged_where_their_partition_is_if_that_can_be() -> None:
    assert {_place("g1", ["g0", "g1", "g0"]) for _ in range(20)} == {1}
    assert _place("g7", ["g0", "g1"]) in (0, 1)


def test_the_content_of_rows_ignores_times_and_cuts_of_the_table() -> None:
    def contents(values: list[bytes], keys: list[bytes | None], time_ms: int, begin: int = 0) -> list[int]:
        table = table_of(values, keys, [time_ms] * len(values), None, None).slice(begin)
        pieces = _pieces(table, 0, "orders", partition_of_key, RowLayout(3, 1 << 20))
        return [arrow.content_crc(piece) for _, piece, _ in pieces]

    known = contents([b"a=10", b"b"], [b"k", None], 1)
    assert contents([b"a=10", b"b"], [b"k", None], 2) == known
    assert contents([b"before", b"a=10", b"b"], [b"x", b"k", None], 2, begin=1) == known
    for values, keys in (
        ([b"a=20", b"b"], [b"k", None]),
        ([b"a=10", b"b"], [b"l", None]),
        ([b"a=10", b"b"], [b"k", b""]),
        ([b"b", b"a=10"], [b"k", None]),
        ([b"a=1", b"0b"], [b"k", None]),
    ):
        assert contents(values, keys, 1) != known


def batches_of(part: PartSummary) -> StagedBatches:
    """As many batches as the part has, with all its rows."""
    others = len(part.contents) // CONTENT_BYTES - 1
    return StagedBatches(StagedBatch(90, rows, 0, bytes(16)) for rows in [part.rows - others] + [1] * others)


def staged(
    topic: Topic, batch_bytes: int, tables: list[Any], partition: Any = None, earlier: Sequence[RowLayout] = ()
) -> list[Chunk]:
    """Chunks as `Stager.stage` makes them of these tables."""
    stager = Stager(topic.name, ProducerSettings(), *cast(Any, [None] * 2), "test")
    layout = RowLayout(topic.partition_count, batch_bytes)
    found = []
    for number, table in enumerate(tables):
        repeats = tuple(stager._repeats(table, partition, topic, layout, earlier))
        (own,) = stager._repeats(table, partition, topic, RowLayout(0, 0), [layout])
        parts = tuple(ManifestPart(one.partition, one.value_bytes, batches_of(one), one.contents) for one in own.parts)
        id_ = bytes([number]) * 16
        found.append(Chunk(topic.name, INCARNATION, topic.partition_count, id_, parts, batch_bytes, repeats))
    return found


@pytest.mark.parametrize("partition", [None, lambda count: 5 % count, 1], ids=["keys", "count", "told"])
def test_rows_for_a_topic_that_grew_keep_their_partitions(partition: Any) -> None:
    values = [b"%d" % number * (number % 9) for number in range(40)]
    table = table_of(values, [b"key %d" % (number % 7) for number in range(40)], None, None, None)
    halves, then, now = [table.slice(0, 25), table.slice(25)], RowLayout(2, 300), RowLayout(3, 400)
    small = replace(TOPIC, partition_ids=TOPIC.partition_ids[:2])
    decided = staged(small, 300, halves, partition)
    manifest = manifest_of("orders", decided)
    (again,) = repeats_of(staged(TOPIC, 400, halves, partition, [then]))
    assert again == LaidOut(then, digest_of(manifest.parts), content_digest_of(manifest.parts))
    grown = manifest_of("orders", staged(TOPIC, 400, halves, partition))
    assert again.content_digest != content_digest_of(grown.parts), "the layout matters"
    assert repeats_of(staged(TOPIC, 400, halves, partition, [now])) == [], "it is laid out so anyway"
    assert repeats_of([*decided, *staged(TOPIC, 400, halves, partition)]) == []


def test_rows_for_a_partition_that_was_not_there_repeat_nothing() -> None:
    table = table_of([b"a", b"b"], None, None, None, None)
    for earlier in (RowLayout(2, 0), RowLayout(4, 0)):
        assert repeats_of(staged(TOPIC, 400, [table], [1, 2], [earlier])) == []
