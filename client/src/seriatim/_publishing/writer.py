"""The writer as users see it: it publishes sets of rows to many partitions of a topic, each set as a whole and once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from seriatim_api.errors import (
    BadRequestError,
    CapacityError,
    DeadlineExceededError,
    PreconditionError,
    RoutingError,
    SeriatimError,
    UnavailableError,
)
from seriatim_api.ids import check_name
from seriatim_api.publications import SEQUENCE_MAX, RowLayout, content_digest_of, digest_of, write_manifest
from seriatim_api.v1 import publications_pb2, records_pb2

from seriatim._publishing.chunks import Chunk, Published, PublishedPart, manifest_of, repeats_of
from seriatim._publishing.staging import Stager, table_of
from seriatim._recorder import Recorder
from seriatim._runtime.closing import Closing
from seriatim._transport.unary import Caller
from seriatim._values.headers import BytesLike, Headers

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPT_DEADLINE_S: Final = 15.0
"""Seconds for one broker's answer. Then the client asks another one. A decided publication continues meanwhile."""

PAUSE_S: Final = 0.1

PUBLISH_TIMEOUT_S: Final = 120.0
OPEN_TIMEOUT_S: Final = 30.0


class Writer(Closing):
    """Publishes sets of rows, each under a sequence, all or nothing. Get one from `Client.writer`.

    `stage` sends rows to the brokers, which show them to no reader, and returns a chunk. `publish` takes one decision
    for all rows of some chunks: before it none of them is in any partition, and after it the brokers append all of
    them. In a partition the rows have the order of the chunks, and in each chunk the order of its rows.

    Sequences grow, and may have gaps: 1, 2, 5 and so on. To publish the last sequence again is harmless. If the rows
    are the same, the call answers as before; else it raises. So a program that was killed may simply run again.

    Attributes:
        topic: The topic's name.
        name: The writer's name.
        epoch: The epoch that `open` gave; 0: not opened.
    """

    def __init__(
        self,
        topic: str,
        name: str,
        epoch: int,
        owner: str,
        stager: Stager,
        caller: Caller,
        recorder: Recorder | None = None,
    ) -> None:
        check_name(name, "writer")
        self.topic = topic
        self.name = name
        self.epoch = epoch
        self._owner = owner
        self._stager = stager
        self._caller = caller
        self._recorder = recorder
        self._is_closed = False

    async def close(self) -> None:
        """Take no more calls. The brokers finish a publication that is decided."""
        self._is_closed = True

    # ---- the writer ----

    async def open(self, timeout_s: float = OPEN_TIMEOUT_S) -> int | None:
        """Take the writer over. A program that opened it before can publish nothing more.

        Open the writer before you read what to publish. Otherwise another program may publish in between.

        Args:
            timeout_s: Seconds to wait for the answer (default 30).

        Returns:
            The sequence that was decided last; None: no publication was decided yet. The brokers finish a decided
            publication in any case, so continue with a higher sequence.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            PreconditionError: The writer is closed.
            UnavailableError: No broker answered in time.

        If the call is cancelled, or raises, the writer may have been opened, and an earlier program fenced.
        """
        self._check_open()
        request = publications_pb2.OpenWriterRequest(topic=self.topic, writer=self.name)
        answer: publications_pb2.OpenWriterResponse = await self._ask("OpenWriter", request, timeout_s)
        self.epoch = answer.epoch
        return answer.sequence if answer.HasField("sequence") else None

    # ---- staging ----

    async def stage(
        self,
        values: Sequence[BytesLike | None],
        keys: Sequence[BytesLike] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
        tags: Sequence[str | None] | None = None,
    ) -> Chunk:
        """Send rows to the brokers, where they wait for `publish` for at most 24 hours. No reader gets them before.

        A chunk may be pickled, and another process may publish it. If a chunk is never published, its rows take disk
        space for a day.

        Args:
            values: The payloads. The other sequences, if given, have the same length. All items have the types of
                `Producer.send`.
            keys: A key for each row. It chooses the row's partition.
            partition: One partition for all rows; it overrides the keys.
            timestamps_ms: A time for each row, in milliseconds since 1970. None: now.
            headers: Headers for each row.
            tags: A tag for each row.

        Raises:
            IllegalMessageError: A row has a part that a message cannot hold; no row was staged.
            MessageTooLargeError: A row is over the limit; no row was staged.
            BadRequestError: The sequences differ in length, or a row has neither key nor partition.
            PartitionOutOfRangeError: The topic has fewer partitions.
            SendFailedError: A part of the rows was not stored: stage all of them again.
            SendUnknownError: It is not known whether a part of the rows was stored: stage all of them again.
            PreconditionError: The writer is closed.
            UnknownTopicError: The cluster has no such topic.
            UnavailableError: No broker answered within 10 s.

        If the call raises or is cancelled, the rows that it has staged are never published.
        """
        return await self.stage_table(table_of(values, keys, timestamps_ms, headers, tags), partition)

    async def stage_table(
        self,
        table: pa.Table | pa.RecordBatch,
        partition: int | Sequence[int] | Callable[[int], int] | None = None,
        key_column: str = "key",
    ) -> Chunk:
        """Stage the rows of an Arrow table with the columns of `Producer.send_table`. The errors are those of `stage`.

        Args:
            table: The rows.
            partition: One partition for all rows, or one for each row, also as a NumPy array. It overrides the keys. If
                it depends on the number of partitions, give a function, which gets that number and returns one
                partition for all rows. Then a program that is run again after the topic grew repeats what it published.
            key_column: The name of the column with the keys, if it is not `key`.
        """
        self._check_open()
        return await self._stager.stage(table, partition, key_column, self.name)

    # ---- publishing ----

    async def publish(
        self, sequence: int, chunks: Sequence[Chunk], *, ephemeral: bool = False, timeout_s: float = PUBLISH_TIMEOUT_S
    ) -> Published:
        """Have all rows of these chunks appended, or none. The call returns when all of them are committed.

        If the chunks have no rows, nothing is decided, and the sequence stays free. The brokers still refuse a sequence
        that may not be published.

        Args:
            sequence: A number above that of the last publication. Or the same number again, to learn whether that
                publication is done.
            chunks: The chunks, in the order that their rows will have.
            ephemeral: The cluster forgets the writer a day after this publication is done. For jobs that never use the
                writer's name again.
            timeout_s: Seconds to wait for the whole publication (default 120).

        Raises:
            WriterFencedError: Another program has opened the writer since. If this publication was decided before, the
                brokers finish it, and that program got its sequence.
            UnknownWriterError: The writer was deleted since, or never opened.
            WriterOwnedError: Another owner uses the writer.
            PublicationDiffersError: This sequence was published with other rows.
            SendFailedError: The manifest (the list of the staged batches) was not stored. Nothing was published.
            SendUnknownError: It is not known whether the manifest was stored. Nothing was published.
            SequencePassedError: A later sequence was published.
            StagedDataGoneError: Some staged rows are gone: stage all rows again. Nothing was published.
            PublishedWithLossError: The publication is done, except for rows whose disks were declared lost.
            BadRequestError: A chunk is of another topic, or the topic grew between the chunks, or a chunk is given
                twice, or the chunks have too many batches.
            PreconditionError: The writer is closed.
            DeadlineExceededError: The publication may be decided. Then the brokers finish it. Publish the same sequence
                again to learn the outcome.
            UnavailableError: As `DeadlineExceededError`.

        If the call is cancelled, the publication may be decided. Then too, publish the same sequence again.
        """
        self._check_open()
        if not 0 <= sequence <= SEQUENCE_MAX:
            raise BadRequestError(f"a sequence is from 0 to {SEQUENCE_MAX}, not {sequence}")
        if self._recorder is not None:
            self._recorder.topic("publish", self.topic)
        full = [chunk for chunk in chunks if chunk.rows]
        request = publications_pb2.PublishRequest(
            topic=self.topic,
            writer=self.name,
            epoch=self.epoch,
            owner=self._owner,
            sequence=sequence,
            digest=digest_of(()),
            ephemeral=ephemeral,
        )
        rows = 0
        if full:
            manifest = manifest_of(self.topic, full)
            rows = manifest.rows
            reference = await self._stager.stage_manifest(write_manifest(manifest))
            request.manifest.CopyFrom(reference)
            request.manifest.content_digest = content_digest_of(manifest.parts)
            request.incarnation = manifest.incarnation
            request.digest = digest_of(manifest.parts)
            request.manifest.layout.CopyFrom(_layout_to(full[0].layout))
            for one in repeats_of(full):
                request.repeats.add(layout=_layout_to(one.layout), digest=one.digest, content_digest=one.content_digest)
        answer: publications_pb2.PublishResponse = await self._ask("Publish", request, timeout_s)
        parts = tuple(
            PublishedPart(part.partition_id, part.first_offset if part.HasField("first_offset") else None, part.rows)
            for part in answer.parts
        )
        return Published(sequence, rows, answer.was_done, parts)

    async def _ask(self, method: str, request: Any, timeout_s: float) -> Any:
        """Send a request that may be repeated to one broker after another, until one answers or the time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        said: SeriatimError | None = None
        while (left_s := until - loop.time()) > 0:
            try:
                return await self._caller.publications(method, request, min(left_s, ATTEMPT_DEADLINE_S))
            except (UnavailableError, RoutingError, CapacityError) as exc:
                said = exc
            await asyncio.sleep(min(PAUSE_S, max(until - loop.time(), 0.0)))
        if said is not None:
            raise said
        raise DeadlineExceededError(f"no time is left to ask for {method}")

    def _check_open(self) -> None:
        if self._is_closed:
            raise PreconditionError("the writer is closed")


def _layout_to(layout: RowLayout) -> records_pb2.RowLayout:
    return records_pb2.RowLayout(partition_count=layout.partition_count, batch_bytes=layout.batch_bytes)
