"""Staging: cuts rows into batches, and sends them to the stage topic, in which they wait for their publication."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa
from seriatim_api.batch import FLAG_PUBLISH
from seriatim_api.bodies import SCHEMA
from seriatim_api.errors import BadRequestError, PartitionOutOfRangeError
from seriatim_api.ids import check_name
from seriatim_api.publications import (
    CHUNK_BYTES,
    CONTENT_BYTES,
    LAYOUTS_MAX,
    STAGED_BODY_BYTES,
    ManifestPart,
    PartSummary,
    RowLayout,
    StagedBatch,
    StagedBatches,
    make_chunk_id,
    pieces_of,
)
from seriatim_api.v1 import broker_pb2, publications_pb2, records_pb2

from seriatim._bodies import arrow
from seriatim._producing import checks
from seriatim._producing.checks import Limits
from seriatim._producing.deliveries import Deliveries
from seriatim._producing.pending import split_rows
from seriatim._producing.producer import BATCH_BYTES_DEFAULT, BATCH_OVERHEAD_BYTES, Producer
from seriatim._producing.routes import route_of
from seriatim._publishing.chunks import Chunk, Repeat
from seriatim._transport.append import AppendLinks
from seriatim._transport.unary import Caller
from seriatim._values.partitioner import Partitioner
from seriatim._values.records import Topic
from seriatim._values.settings import ProducerSettings
from seriatim._values.topics import told_topic

QUESTION_DEADLINE_S: Final = 10.0

Partitions = int | Sequence[int] | Callable[[int], int] | None
"""Where rows go: one partition for all, one for each, what a function of the partition count says, or by their keys."""


@dataclass(slots=True, eq=False)
class Stager:
    """Stages rows for one topic, for one client.

    Args:
        name: The name of the topic.
        settings: The settings of the producers to the stage topic.
        caller: Asks any broker.
        links: The client's append streams.
        client_name: The client's name in the brokers' logs.
    """

    _name: str
    _settings: ProducerSettings
    _caller: Caller
    _links: AppendLinks
    _client_name: str

    # ---- rows ----

    async def stage(self, table: Any, partition: Partitions, key_column: str, writer: str) -> Chunk:
        """Stage the rows of a table, in their order, for that writer.

        Raises:
            IllegalMessageError: A row has a part that a message cannot hold; no row was staged.
            MessageTooLargeError: A row is over the limit; no row was staged.
            PartitionOutOfRangeError: The topic has fewer partitions; no row was staged.
            BadRequestError: A row has neither key nor partition; no row was staged.
            SendFailedError: A part of the rows was not stored: stage all of them again.
            SendUnknownError: It is not known whether a part of the rows was stored: stage all of them again.
            UnknownTopicError: The cluster has no such topic.
            UnavailableError: No broker answered in time.

        If the call raises or is cancelled, the rows that it has staged are never published.
        """
        topic, groups = await self._topic()
        table = checks.check_table(table, key_column, int(time.time() * 1000))
        fits = max(1, (topic.settings.batch_size_bytes_max or BATCH_BYTES_DEFAULT) - BATCH_OVERHEAD_BYTES)
        limits = Limits(min(topic.settings.message_size_bytes_max or fits, fits), fits)
        layout = RowLayout(topic.partition_count, min(STAGED_BODY_BYTES, fits))
        pieces = _pieces(table, partition, topic.name, self._settings.partitioner, layout)
        for _, piece, size_bytes in pieces:
            checks.check_rows(piece, size_bytes, limits)
        largest = max((int(arrow.row_sizes(piece)[0].max()) for _, piece, _ in pieces), default=0)
        chunk = make_chunk_id(os.urandom(CHUNK_BYTES), fits + BATCH_OVERHEAD_BYTES, largest)
        stage, stage_groups, earlier = await self._stage(writer)
        repeats = tuple(self._repeats(table, partition, topic, layout, earlier))
        places = {number: _place(groups[number], stage_groups) for number in {number for number, _, _ in pieces}}
        sent: list[tuple[int, int, bytes, Deliveries]] = []
        checked = 0
        async with self._producer(stage, chunk) as producer:
            for number, piece, _ in pieces:
                deliveries = await producer.send_table(piece, partition=places[number])
                content = arrow.content_crc(piece).to_bytes(CONTENT_BYTES, "little")
                sent.append((number, arrow.value_bytes(piece), content, deliveries))
                while checked < len(sent) and sent[checked][3].done:
                    # Rows that are not stored end the call. Otherwise it would wait for room again and again, once the
                    # delivery timeout for each `buffer_size_bytes` of rows.
                    await sent[checked][3]
                    checked += 1
            found = [
                (number, size, content, await _batches(stage, deliveries, chunk))
                for number, size, content, deliveries in sent
            ]
        parts: dict[int, tuple[int, bytearray, list[StagedBatch]]] = {}
        for number, value_bytes, content, batches in found:
            known, contents, all_batches = parts.setdefault(number, (0, bytearray(), []))
            all_batches += batches
            contents += content.ljust(CONTENT_BYTES * len(batches), b"\0")
            parts[number] = known + value_bytes, contents, all_batches
        return Chunk(
            topic.name,
            topic.incarnation,
            topic.partition_count,
            chunk,
            tuple(
                ManifestPart(topic.partition_ids[number], value_bytes, StagedBatches(batches), bytes(contents))
                for number, (value_bytes, contents, batches) in sorted(parts.items())
            ),
            layout.batch_bytes,
            repeats,
        )

    def _repeats(
        self, table: Any, partition: Partitions, topic: Topic, layout: RowLayout, earlier: Iterable[RowLayout]
    ) -> Iterator[Repeat]:
        """The rows as they would lie in earlier layouts, if they can.

        Rule `repeats-as-decided` (PUB): this program may be run again, and it repeats what was decided for fewer
        partitions. Without it, the brokers could not compare the rows, and would refuse them.
        """
        for known in earlier:
            if known == layout or known.partition_count > topic.partition_count:
                continue
            try:
                pieces = _pieces(table, partition, topic.name, self._settings.partitioner, known)
            except PartitionOutOfRangeError:
                continue  # the topic did not have that partition then, so these are other rows
            parts: dict[int, PartSummary] = {}
            for number, piece, _ in pieces:
                content = arrow.content_crc(piece).to_bytes(CONTENT_BYTES, "little")
                part = PartSummary(topic.partition_ids[number], piece.num_rows, arrow.value_bytes(piece), content)
                parts[number] = parts[number].followed_by(part) if number in parts else part
            yield Repeat(known, tuple(parts[number] for number in sorted(parts)))

    async def stage_manifest(self, data: bytes) -> records_pb2.ManifestReference:
        """Stage a manifest.

        Raises:
            SendFailedError: A piece was not stored. Nothing was published.
            SendUnknownError: It is not known whether a piece was stored. Nothing was published.
            UnavailableError: No broker answered in time. Nothing was published.
        """
        id_ = os.urandom(16)
        stage, _, _ = await self._stage("")
        partition = random.randrange(len(stage.topic.partition_ids))  # noqa: S311 - spreads load, hides nothing
        now_ms = int(time.time() * 1000)
        offsets: list[int] = []
        async with self._producer(stage, id_) as producer:
            sent = [
                await producer.send_body(
                    arrow.Body(piece, google_crc32c.value(piece), 1, now_ms, now_ms, FLAG_PUBLISH), partition
                )
                for piece in pieces_of(data)
            ]
            for deliveries in sent:
                (part,) = await deliveries
                offsets.append(part.offset)
        return records_pb2.ManifestReference(
            stage_partition_id=stage.topic.partition_ids[partition],
            offsets=offsets,
            length=len(data),
            crc=google_crc32c.value(data),
            id=id_,
        )

    # ---- where ----

    def _producer(self, stage: broker_pb2.GetTopicResponse, chunk: bytes) -> Producer:
        routes = list(map(route_of, stage.routes))
        return Producer(told_topic(stage), routes, self._settings, self._caller, self._links, None, chunk)

    async def _topic(self) -> tuple[Topic, list[str]]:
        """The target topic, and for each partition the broker group of its open segment."""
        check_name(self._name, "topic")
        request = broker_pb2.GetTopicRequest(topic=self._name)
        answer: broker_pb2.GetTopicResponse = await self._caller.routing("GetTopic", request, QUESTION_DEADLINE_S)
        groups = {broker.broker: broker.group for broker in answer.brokers}
        return told_topic(answer), [groups.get(route.master_broker, "") for route in answer.routes]

    async def _stage(self, writer: str) -> tuple[broker_pb2.GetTopicResponse, list[str], list[RowLayout]]:
        """The stage topic, the broker group of each open segment, and layouts of the last publication of a writer."""
        request = publications_pb2.PrepareStagingRequest(client=self._client_name, topic=self._name, writer=writer)
        answer: publications_pb2.PrepareStagingResponse = await self._caller.publications(
            "PrepareStaging", request, QUESTION_DEADLINE_S
        )
        self._caller.learn(broker.address for broker in answer.stage.brokers)
        earlier = [RowLayout(one.partition_count, one.batch_bytes) for one in answer.earlier[:LAYOUTS_MAX]]
        return answer.stage, list(answer.groups), earlier


async def _batches(stage: broker_pb2.GetTopicResponse, deliveries: Deliveries, chunk: bytes) -> list[StagedBatch]:
    """Wait until the rows of one call are stored, and return the places of their batches."""
    return [
        StagedBatch(stage.topic.partition_ids[part.partition], len(part.positions), part.offset, chunk)
        for part in sorted(await deliveries, key=lambda part: part.positions[0])
    ]


def _place(group: str, stage_groups: Sequence[str]) -> int:
    """A stage partition with its open segment on that broker group, so that the rows do not travel again.

    If there is none, any stage partition.
    """
    numbers = [number for number, known in enumerate(stage_groups) if known == group]
    return random.choice(numbers or range(len(stage_groups)))  # noqa: S311 - spreads load, hides nothing


def _pieces(
    table: Any, partition: Partitions, topic: str, partitioner: Partitioner, layout: RowLayout
) -> list[tuple[int, Any, int]]:
    """One item for each batch to be: the partition's number, the rows, and their size."""
    pieces: list[tuple[int, Any, int]] = []
    for number, positions in _spread(table, partition, topic, partitioner, layout.partition_count):
        part = table if len(positions) == table.num_rows else table.take(arrow.row_numbers(positions))
        for batch in part.combine_chunks().to_batches():
            pieces += [(number, piece, size) for piece, size in split_rows(batch, layout.batch_bytes)]
    return pieces


def _spread(
    table: Any, partition: Partitions, topic: str, partitioner: Partitioner, count: int
) -> list[tuple[int, Sequence[int]]]:
    """The positions of the rows for each partition.

    Raises:
        PartitionOutOfRangeError: The topic has fewer partitions.
        BadRequestError: A row has no key, and no partition is named.
    """
    if callable(partition):
        partition = partition(count)
    if partition is not None and np.ndim(partition):
        return _spread_as_told(partition, table.num_rows, topic, count)
    if partition is not None:
        number = checks.check_partition(partition)  # type: ignore[arg-type]  # it is no sequence
        _check_number(number, topic, count)
        return [(number, range(table.num_rows))]
    if table.column(0).null_count:
        raise BadRequestError(
            "a row has no key and no partition: give all rows keys, or name the partition. Otherwise a program that "
            "runs again could not put the same rows into the same partitions"
        )
    found: dict[int, list[int]] = {}
    for position, key in enumerate(table.column(0).to_pylist()):
        found.setdefault(partitioner(key, count), []).append(position)
    return sorted(found.items())


def _spread_as_told(partitions: Any, rows: int, topic: str, count: int) -> list[tuple[int, Any]]:
    numbers = np.asarray(partitions)
    if numbers.shape != (rows,) or (rows and numbers.dtype.kind not in "iu"):
        raise BadRequestError(f"a partition is an integer, one for all rows or one for each of the {rows}")
    if not rows:
        return []
    _check_number(int(numbers.min()), topic, count)
    _check_number(int(numbers.max()), topic, count)
    by_number = np.argsort(numbers, kind="stable")  # rows of a partition stay in their order
    found, begins = np.unique(numbers[by_number], return_index=True)
    return [(int(number), positions) for number, positions in zip(found, np.split(by_number, begins[1:]), strict=True)]


def _check_number(number: int, topic: str, count: int) -> None:
    if not 0 <= number < count:
        raise PartitionOutOfRangeError(
            f"{topic} has partitions 0 to {count - 1}, not {number}", partition=number, partition_count=count
        )


def table_of(
    values: Sequence[Any],
    keys: Sequence[Any] | None,
    timestamps_ms: Sequence[int] | None,
    headers: Sequence[Any] | None,
    tags: Sequence[str | None] | None,
) -> Any:
    """A table of rows that are given as columns.

    Raises:
        IllegalMessageError: A row has a part that a message cannot hold.
        BadRequestError: The columns differ in length.
    """
    unlimited = Limits(1 << 40, 1 << 40)
    messages, _ = checks.check_messages(values, keys, timestamps_ms, headers, tags, unlimited)
    count = len(messages.values)
    if not count:
        return pa.Table.from_batches([], SCHEMA)
    times = messages.timestamps_ms if timestamps_ms is not None else [int(time.time() * 1000)] * count
    rows = arrow.record_batch(messages.values, messages.keys, times, messages.headers, messages.tags)
    return pa.Table.from_batches([rows])
