"""`mirror`: copies a topic into a topic of another cluster, partition by partition, each row once and unchanged.

A micro-batch is published under its number. The writer's name is the incarnation of the source. Then `offset_map` notes
which offset of the target belongs to which offset of the source.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from seriatim_spark.connection import connected
from seriatim_spark.directories import offset_map
from seriatim_spark.directories.files import file_system
from seriatim_spark.directories.offset_map import Entry, MirrorError, OffsetMap
from seriatim_spark.errors import UnsettledError, written
from seriatim_spark.offsets import from_json
from seriatim_spark.options import ReadOptions, parse
from seriatim_spark.pipelines.session import limited, session, wait
from seriatim_spark.reading.brokers import RealBrokers, TopicAt, ends_of
from seriatim_spark.reading.task import read_units
from seriatim_spark.reading.task_plan import Unit
from seriatim_spark.reading.units import Clock, Key, Sleep, when_settled
from seriatim_spark.writing.sink_options import SinkOptions, parse_sink
from seriatim_spark.writing.writers import OpenedWriter, open_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from seriatim_spark.pipelines.metrics import PipelineMetrics

COLUMNS: Final = "partition,key,value,timestamp,headers,tag"

_log = logging.getLogger("seriatim.spark")


class _Mirroring:
    """Writes micro-batches to the target, and notes where they end."""

    def __init__(
        self, opened: OpenedWriter, offsets: OffsetMap | None, directory: str, checkpoint: str,
        metrics: PipelineMetrics | None,
    ) -> None:  # fmt: skip
        self._opened = opened
        self._sink = parse_sink(opened.options, streaming=True)
        self._offsets = offsets
        self._directory = directory
        self._checkpoint = checkpoint
        self._metrics = metrics

    def __call__(self, rows: DataFrame, batch: int) -> None:
        was_sent = self._opened.sequence is not None and batch <= self._opened.sequence
        if self._offsets is not None and not was_sent:
            self._offsets.check_alone(_positions(settled_ends(self._sink)))
        written = rows.write.format("seriatim").mode("append")
        written.options(**self._opened.options, sequence=str(batch)).save()
        if self._metrics is not None and not was_sent:
            self._metrics.wrote(_published(self._sink, batch))
        if self._offsets is not None:
            ends = settled_ends(self._sink)
            self._check_growth(self._offsets.before(batch), ends, batch)
            entry = Entry(
                batch,
                _read_to(self._checkpoint, batch),
                {str(number): place.offset for number, place in ends.places.items()},
                _positions(ends),
            )
            self._offsets.note(entry)

    def _check_growth(self, before: Entry | None, ends: TopicAt, batch: int) -> None:
        """Check that the target has grown only by this micro-batch. An earlier run may have sent the micro-batch.

        Raises:
            MirrorError: The target has messages that this mirror has not written.
        """
        known = before.positions if before is not None else {}
        grown = sum(_positions(ends).values()) - sum(known.values())
        published = _published(self._sink, batch)
        if grown != published and _rows_behind(self._sink, before, ends) != published:
            raise offset_map.of_others(
                f"the target has grown by {grown} messages while {published} were sent: it has messages"
            )


def settled_ends(sink: SinkOptions, clock: Clock = time.monotonic, sleep: Sleep = time.sleep) -> TopicAt:
    """Return where the partitions of the target end. Wait up to `writeTimeout` for segments that are not settled.

    Raises:
        UnsettledError: A segment did not become settled, so brokers cannot say how many messages there are.
    """

    def look() -> tuple[TopicAt, list[Key]]:
        found = ends_of(sink.target, sink.topic)
        return found, [(sink.topic, number) for number, place in found.places.items() if place.blocked]

    found, unsettled = when_settled(look, sink.write_timeout_s, clock, sleep)
    if unsettled:
        raise UnsettledError(
            f"{len(unsettled)} partitions of the target {sink.topic} have a segment of which no member answers, such "
            f"as partition {unsettled[0][1]}, so the mirror cannot note where it ends. Start the brokers of that "
            "segment (seriatim chain show shows them), and start the mirror again"
        )
    return found


def _published(sink: SinkOptions, batch: int) -> int:
    """Return the rows of a micro-batch that are in the target; 0 if it has no rows, because it was not published."""
    connection = connected(sink.target)

    async def ask() -> int:
        with written(sink.topic, sink.target.bootstrap):
            found = await connection.client.admin().describe_writer(sink.topic, sink.writer or "")
        return found.rows - found.lost_rows if found.sequence == batch else 0

    return connection.run(ask(), sink.write_timeout_s)


def _rows_behind(sink: SinkOptions, before: Entry | None, ends: TopicAt) -> int:
    """Count the rows of the target after an entry, without repeats, because a switch of the target may have stored
    rows twice.
    """
    reading = ReadOptions(sink.target, (sink.topic,), columns=("offset",))
    first = RealBrokers(reading).at("earliest", {sink.topic: ends.incarnation})[sink.topic].places
    known = before.target if before is not None else {}
    units = [
        Unit(sink.topic, number, known.get(str(number), first[number].offset), place.offset, ends.incarnation, 1)
        for number, place in ends.places.items()
    ]
    return sum(batch.num_rows for batch in read_units([unit for unit in units if unit.start < unit.end], reading))


def _positions(ends: TopicAt) -> dict[str, int]:
    return {str(number): place.position for number, place in ends.places.items()}


def _read_to(checkpoint: str, batch: int) -> dict[str, int]:
    """Return where a micro-batch ends in the source. Spark writes this down before the micro-batch runs."""
    files, root = file_system(checkpoint)
    with files.open_input_stream(f"{root}/offsets/{batch}") as log:
        last = log.read(1 << 26).decode().splitlines()[-1]
    (places,) = from_json(json.loads(last)).values()
    return {str(number): offset for number, offset in places.places.items()}


def run(
    source: Mapping[str, str], sink: Mapping[str, str], checkpoint: str, directory: str | None, *, every: str | None,
    group: str | None, metrics: PipelineMetrics | None = None,
) -> None:  # fmt: skip
    """Mirror until the query ends. If `every` is None, it ends after the present messages. Otherwise it ends at SIGTERM
    or Ctrl-C.

    Args:
        source, sink: The options of source and sink.
        checkpoint: The directory of Spark's checkpoint.
        directory: The directory of the map of offsets; None: no map, because other programs write to the target too.
        every: The time between micro-batches, such as `5 seconds`.
        group: The consumer group as which the mirror reports its progress; None: it does not.
        metrics: The numbers for Prometheus; None: nothing serves them.

    Raises:
        MirrorError: The target has fewer partitions than the source, is the source, or has messages of other programs.
    """
    spark = session("mirror")
    reading, writing = parse(source), parse_sink(sink, streaming=True)
    from_ends, to_ends = ends_of(reading.target, reading.topics[0]), ends_of(writing.target, writing.topic)
    if to_ends.incarnation == from_ends.incarnation:
        raise MirrorError(f"{writing.topic} is both source and target: the mirror would read its own rows for ever")
    if len(to_ends.places) < len(from_ends.places):
        raise MirrorError(
            f"topic {writing.topic} has {len(to_ends.places)} partitions, and {reading.topics[0]} has "
            f"{len(from_ends.places)}: each goes to the partition of its number. Give the target as many"
        )
    offsets = None
    if directory is not None:
        to_ends = settled_ends(writing)
        offsets = offset_map.load(directory, from_ends.incarnation, to_ends.incarnation)
    opened = open_writer(sink, from_ends.incarnation)
    if offsets is not None and opened.sequence is None:
        offsets.check_alone(_positions(to_ends))
    mirror = _Mirroring(opened, offsets, "" if directory is None else directory, checkpoint, metrics)
    stream = spark.readStream.format("seriatim").options(**limited(source)).option("columns", COLUMNS).load()
    writer = stream.writeStream.queryName("mirror").foreachBatch(mirror).option("checkpointLocation", checkpoint)
    wait(spark, writer, source, group, every, metrics)
