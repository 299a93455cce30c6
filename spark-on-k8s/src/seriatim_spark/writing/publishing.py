"""Exactly once: tasks stage their rows, which no consumer reads yet, and the driver publishes the staged rows.

A task tells the driver in a message which chunks it staged. The driver publishes the chunks of all messages together,
in the order of the tasks, by one decision under (writer, sequence). Brokers drop all other staged chunks after 24
hours. Such chunks are left by tasks that failed, by the slower of two attempts of a task, and by a killed driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from seriatim_api.errors import (
    CapacityError,
    RoutingError,
    StagedDataGoneError,
    TlsHandshakeError,
    UnavailableError,
)

from seriatim_spark.connection import Connection, connected
from seriatim_spark.errors import ReplayDiffersError, SinkError, written
from seriatim_spark.options import Target
from seriatim_spark.writing.outgoing_rows import Slice, goes_by_task, slices
from seriatim_spark.writing.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from seriatim import Chunk, Client, Published

SLICES_AT_ONCE: Final = 2
"""The most pieces that a task stages at the same time. Meanwhile it makes the next one."""

RETRY_PAUSE_S: Final = 0.2

GONE_S: Final = 15.0
"""Seconds for which the driver asks again if no broker has the staged rows. A broker that died a moment ago has a
successor by then. If the rows are really gone, Spark stages them again."""

SLACK_S: Final = 30.0
"""Seconds beyond the client's own deadlines. Then a call is given up that should have ended before."""

_log = logging.getLogger("seriatim.spark")


@dataclass(frozen=True, slots=True)
class Identity:
    """The writer and sequence under which rows are published. All messages of a micro-batch or job have the same.

    Attributes:
        writer: The name of the writer.
        owner: Spark's id of the query; empty if a job runs, and no query.
        sequence: The sequence of the publication.
        ephemeral: Whether the writer has a random name. Such a writer is forgotten a day later.
    """

    writer: str
    owner: str
    sequence: int
    ephemeral: bool = False


def stage(batches: Iterable[pa.RecordBatch], options: SinkOptions, writer: str, task: int) -> tuple[Chunk, ...]:
    """Stage the rows of a task, in their order.

    Args:
        batches: The rows of the task.
        options: The options of the sink.
        writer: The writer's name.
        task: The index of the task. It chooses the partition of rows without key and partition.

    Raises:
        SourceError: The rows could not be staged, for a reason of `errors.written`. None of them is published then.
    """
    connection = connected(options.target)
    wait_s = 2 * options.write_timeout_s + SLACK_S
    found: list[Chunk] = []
    under_way: deque[Future[Chunk]] = deque()
    try:
        for one in slices(batches):
            if len(under_way) >= SLICES_AT_ONCE:
                found.append(connection.wait(under_way.popleft(), wait_s))
            under_way.append(connection.begin(_stage_slice(connection.client, one, options, writer, task)))
        while under_way:
            found.append(connection.wait(under_way.popleft(), wait_s))
    finally:
        for waiting in under_way:
            waiting.cancel()
    return tuple(found)


async def _stage_slice(client: Client, one: Slice, options: SinkOptions, writer: str, task: int) -> Chunk:
    """Stage rows, and stage them again if a part was not stored or its outcome is unknown.

    This is safe, because chunks that no message of a task names are never published.
    """
    from seriatim import SendError

    with written(options.topic, options.target.bootstrap):
        until = asyncio.get_running_loop().time() + options.write_timeout_s
        # A function of the count, because Spark may repeat the micro-batch after the topic grew.
        partitions = (lambda count: task % count) if goes_by_task(one.table, one.partitions) else one.partitions
        while True:
            try:
                async with client.writer(options.topic, writer, compression=options.compression) as opened:
                    return await opened.stage_table(one.table, partitions)
            except TlsHandshakeError:
                raise
            except (SendError, UnavailableError, RoutingError, CapacityError) as exc:
                if asyncio.get_running_loop().time() > until:
                    raise
                _log.warning("rows of a task are staged again: %s", exc)
            await asyncio.sleep(RETRY_PAUSE_S)


def identity_of(messages: Sequence[Identity | None]) -> Identity | None:
    """The identity that all messages of tasks name; None if there are no messages, and so no rows.

    Raises:
        SinkError: A message is missing, or two messages name different identities.
    """
    if any(message is None for message in messages):
        raise SinkError("Spark asks to publish, but some of the tasks have not ended. Nothing was published")
    kinds = set(messages)
    if len(kinds) > 1:
        raise SinkError(f"tasks have staged rows of different micro-batches: {kinds}. Nothing was published")
    return next(iter(kinds), None)


def publish(options: SinkOptions, identity: Identity, chunks: Sequence[Chunk]) -> Published | None:
    """Publish the rows that all tasks have staged. The driver calls it.

    Args:
        options: The options of the sink.
        identity: The writer and the sequence to publish under.
        chunks: The chunks of all tasks, in the order of the tasks.

    Returns:
        The publication; None if other rows are published under this sequence and the options accept that.

    Raises:
        SourceError: Nothing was published, or the outcome is unknown, for a reason of `errors.written`.
    """
    connection = connected(options.target)
    try:
        published: Published = connection.run(
            _publish(connection, options, identity, chunks), 2 * options.write_timeout_s + SLACK_S
        )
    except ReplayDiffersError as exc:
        if options.on_mismatch == "fail":
            raise
        _log.warning("onReplayMismatch=accept: the topic keeps the rows that were published before. %s", exc)
        return None
    _log.info(
        "publication %d of writer %s: %d rows%s", published.sequence, identity.writer, published.rows,
        " had been published before" if published.was_done else "",
    )  # fmt: skip
    return published


async def _publish(
    connection: Connection, options: SinkOptions, identity: Identity, chunks: Sequence[Chunk]
) -> Published:
    from seriatim import SendError

    epoch, owner = options.writer_epoch, identity.owner
    with written(options.topic, options.target.bootstrap):
        until = asyncio.get_running_loop().time() + options.write_timeout_s
        gone_until = min(until, asyncio.get_running_loop().time() + GONE_S)
        while True:
            left_s = max(until - asyncio.get_running_loop().time(), 1.0)
            try:
                async with connection.client.writer(options.topic, identity.writer, epoch=epoch, owner=owner) as writer:
                    return await writer.publish(
                        identity.sequence, chunks, ephemeral=identity.ephemeral, timeout_s=left_s
                    )
            except SendError:  # the manifest was not stored, so nothing was decided
                if asyncio.get_running_loop().time() > until:
                    raise
            except StagedDataGoneError as exc:  # nothing was decided either
                if asyncio.get_running_loop().time() >= gone_until:
                    raise
                _log.warning("no broker has the staged rows now; the driver asks again: %s", exc)
            await asyncio.sleep(RETRY_PAUSE_S)


def open_now(target: Target, topic: str, writer: str, timeout_s: float) -> tuple[int, int | None]:
    """Take a writer over. Returns its epoch, and the sequence of its last publication.

    Raises:
        SourceError: The writer was not taken over, or this is unknown, for a reason of `errors.written`.
    """

    async def ask() -> tuple[int, int | None]:
        with written(topic, target.bootstrap):
            async with connection.client.writer(topic, writer) as opened:
                last = await opened.open(timeout_s)
                return opened.epoch, last

    connection = connected(target)
    return connection.run(ask(), timeout_s + SLACK_S)
