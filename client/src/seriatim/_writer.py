"""The writer as users see it: sets of rows for many partitions of a topic, all or nothing, exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from seriatim_api.errors import (
    BadRequestError,
    CapacityError,
    DeadlineExceededError,
    IllegalNameError,
    PreconditionError,
    RoutingError,
    SeriatimError,
    UnavailableError,
)
from seriatim_api.ids import is_legal_name
from seriatim_api.publications import SEQUENCE_MAX, digest_of, write_manifest
from seriatim_api.v1 import publications_pb2

from seriatim._batch import BytesLike, Headers
from seriatim._publishing.chunks import Chunk, Published, PublishedPart, manifest_of
from seriatim._publishing.staging import Stager, table_of
from seriatim._transport.unary import Caller

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPT_DEADLINE_S: Final = 15.0
"""For one broker's answer; then another is asked. What was decided goes on meanwhile."""

PAUSE_S: Final = 0.1

PUBLISH_TIMEOUT_S: Final = 120.0
OPEN_TIMEOUT_S: Final = 30.0


class Writer:
    """Publishes sets of rows, each under a sequence, all or nothing. Get one from `Client.writer`.

    `stage` sends rows to the brokers, where nobody sees them; a chunk is what it gives back. `publish` has all rows of
    some chunks appended to their partitions, at one decision: before it none of them is in any log, after it all will
    be. In a partition they stand in the order of the chunks, and of the rows in each. Sequences grow: 1, 2, 3 and so
    on, with gaps if you like. To publish a sequence a second time is harmless: it answers as before, or raises if the
    rows are others. So a program that was killed may simply run again.

    Attributes:
        topic: Name of the topic.
        name: The writer's.
        epoch: From `open`; 0: not opened.
    """

    def __init__(self, topic: str, name: str, epoch: int, owner: str, stager: Stager, caller: Caller) -> None:
        if not is_legal_name(name):
            raise IllegalNameError(f"{name!r} cannot name a writer")
        self.topic = topic
        self.name = name
        self.epoch = epoch
        self._owner = owner
        self._stager = stager
        self._caller = caller
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Take no more calls. What was decided is finished all the same."""
        self._is_closed = True

    # ---- the writer ----

    async def open(self, timeout_s: float = OPEN_TIMEOUT_S) -> int | None:
        """Take the writer over: whoever opened it before publishes nothing more.

        Open it before you read what there is to publish: else another program may publish in between.

        Args:
            timeout_s: For the answer.

        Returns:
            The sequence that was decided last; None: none was. It is finished whatever happens, so go on behind it.

        Raises:
            UnknownTopicError: There is no such topic.
            PreconditionError: A broker of an older version is in the cluster.
            UnavailableError: No broker answered. If cancelled, or after an error, the writer may be open.
        """
        self._check_open()
        request = publications_pb2.OpenWriterRequest(topic=self.topic, writer=self.name)
        answer: publications_pb2.OpenWriterResponse = await self._ask("OpenWriter", request, timeout_s)
        self.epoch = answer.epoch
        return answer.sequence if answer.HasField("sequence") else None

    # ---- staging ----

    async def stage(
        self,
        values: Sequence[BytesLike],
        keys: Sequence[BytesLike] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
        tags: Sequence[str | None] | None = None,
    ) -> Chunk:
        """Send rows to the brokers, where they wait for `publish`, for at most 24 hours. Nobody reads them before.

        A chunk may be pickled and published by another process. A chunk that is never published costs disk for a day.

        Args:
            values: The payloads; the other sequences, if given, are as long. All items have the types of
                `Producer.send`.
            keys: A key for each row, which says to which partition it goes.
            partition: One for all rows; overrides the keys.
            timestamps_ms: A time for each; now if absent.
            headers: Headers for each.
            tags: A tag for each.

        Raises:
            IllegalMessageError, MessageTooLargeError: A row cannot be a message; none was staged.
            BadRequestError: The sequences differ in length, or a row has neither key nor partition.
            PartitionOutOfRangeError: The topic has fewer partitions.
            SendFailedError, SendUnknownError: A part was not stored, or nobody knows: stage all of it again.
            UnknownTopicError, UnavailableError: There is no such topic, or no broker answered.

        After an error, or if cancelled, nothing that was staged is ever published.
        """
        return await self.stage_table(table_of(values, keys, timestamps_ms, headers, tags), partition)

    async def stage_table(
        self,
        table: pa.Table | pa.RecordBatch,
        partition: int | Sequence[int] | None = None,
        key_column: str = "key",
    ) -> Chunk:
        """The same for the rows of an Arrow table with the columns of `Producer.send_table`. Raises as `stage`.

        Args:
            table: The rows.
            partition: One for all rows, or one for each, also as an array of NumPy; overrides the keys.
            key_column: The column that holds the key, if it is not called key.
        """
        self._check_open()
        return await self._stager.stage(table, partition, key_column)

    # ---- publishing ----

    async def publish(
        self, sequence: int, chunks: Sequence[Chunk], *, ephemeral: bool = False, timeout_s: float = PUBLISH_TIMEOUT_S
    ) -> Published:
        """Have all rows of these chunks appended, or none. Returns when all of them are committed.

        Without rows nothing is decided, and the sequence stays free; it is refused like one with rows if it may not be
        published.

        Args:
            sequence: Above that of the last publication; or equal to it, to learn that it is done.
            chunks: In the order in which their rows are to stand.
            ephemeral: The writer is forgotten a day after this is done: for jobs without a name that lasts.
            timeout_s: For all of it.

        Raises:
            WriterFencedError: Somebody opened the writer since. What this call decided before is finished all the same:
                whoever opened it was told its sequence. UnknownWriterError: It was deleted since.
            WriterOwnedError: Another owner uses it.
            PublicationDiffersError: This sequence was published with other rows.
            SequencePassedError: A later one was published.
            StagedDataGoneError: A part of what was staged is gone: stage all rows again. Nothing was published.
            PublishedWithLossError: It is published, without rows whose disks were lost.
            BadRequestError: Chunks of another topic, or of a topic that grew between them; or too many batches.
            DeadlineExceededError, UnavailableError: It may be decided, and is finished then whatever happens. Publish
                the same sequence again to learn what became of it. The same holds if cancelled.
        """
        self._check_open()
        if not 0 <= sequence <= SEQUENCE_MAX:
            raise BadRequestError(f"a sequence is from 0 to {SEQUENCE_MAX}, not {sequence}")
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
            request.incarnation = manifest.incarnation
            request.digest = digest_of(manifest.parts)
        answer: publications_pb2.PublishResponse = await self._ask("Publish", request, timeout_s)
        parts = tuple(
            PublishedPart(part.partition_id, part.first_offset if part.HasField("first_offset") else None, part.rows)
            for part in answer.parts
        )
        return Published(sequence, rows, answer.was_done, parts)

    async def _ask(self, method: str, request: Any, timeout_s: float) -> Any:
        """A call that may be repeated: at one broker after another, until one answers or the time is over."""
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
