"""`mirror`: a topic into a topic of another cluster, partition by partition, each row once and as it is.

A micro-batch is published under its number, by a writer that has the source's incarnation as its name. Behind it,
`mirroring` notes which place of the source is which place of the target.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from seriatim_spark import archiving, mirroring
from seriatim_spark.brokers import Place, TopicAt
from seriatim_spark.connection import connected
from seriatim_spark.errors import translated
from seriatim_spark.mirroring import Entry, MirrorError, OffsetMap
from seriatim_spark.offsets import from_json
from seriatim_spark.options import Target, parse
from seriatim_spark.pipelines.session import limited, session, wait
from seriatim_spark.sink_options import parse_sink
from seriatim_spark.writers import OpenedWriter, open_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = "partition,key,value,timestamp,headers,tag"
QUESTION_S: Final = 30.0

_log = logging.getLogger("seriatim.spark")


def ends_of(target: Target, topic: str) -> TopicAt:
    """Where the partitions of a topic end.

    Raises:
        SourceError: No broker says so.
    """

    async def ask() -> Any:
        with translated(topic, target.bootstrap):
            return await connection.client.offsets(topic, "end", timeout_s=QUESTION_S)

    connection = connected(target)
    rows = connection.run(ask(), 2 * QUESTION_S)
    return TopicAt(
        rows[0].incarnation, {row.partition: Place(row.offset, row.position, row.bytes_before) for row in rows}
    )


class _Mirroring:
    """Writes micro-batches to the target, and notes where they end."""

    def __init__(self, opened: OpenedWriter, offsets: OffsetMap | None, directory: str, checkpoint: str) -> None:
        self._opened = opened
        self._sink = parse_sink(opened.options, streaming=True)
        self._offsets = offsets
        self._directory = directory
        self._checkpoint = checkpoint

    def __call__(self, rows: DataFrame, batch: int) -> None:
        was_sent = self._opened.sequence is not None and batch <= self._opened.sequence
        if self._offsets is not None and not was_sent:
            self._offsets.check_alone(_positions(self._ends()))
        written = rows.write.format("seriatim").mode("append")
        written.options(**self._opened.options, sequence=str(batch)).save()
        if self._offsets is not None:
            ends = self._ends()
            entry = Entry(
                batch,
                _read_to(self._checkpoint, batch),
                {str(number): place.offset for number, place in ends.places.items()},
                _positions(ends),
            )
            self._offsets = self._offsets.with_entry(entry)
            mirroring.store(self._directory, self._offsets)

    def _ends(self) -> TopicAt:
        return ends_of(self._sink.target, self._sink.topic)


def _positions(ends: TopicAt) -> dict[str, int]:
    return {str(number): place.position for number, place in ends.places.items()}


def _read_to(checkpoint: str, batch: int) -> dict[str, int]:
    """Where a micro-batch ends in the source: Spark writes it down before the micro-batch runs."""
    files, root = archiving.file_system(checkpoint)
    with files.open_input_stream(f"{root}/offsets/{batch}") as log:
        last = log.read(1 << 26).decode().splitlines()[-1]
    (places,) = from_json(json.loads(last)).values()
    return {str(number): offset for number, offset in places.places.items()}


def run(
    source: Mapping[str, str], sink: Mapping[str, str], checkpoint: str, directory: str | None, *, every: str | None,
    group: str | None,
) -> None:  # fmt: skip
    """Mirror until the query ends: with `every` None when all is sent that is there now, else at SIGTERM or Ctrl-C.

    Args:
        source, sink: Options.
        checkpoint: Spark's.
        directory: Of the map of offsets; None: others write to the target as well, and there is no map.
        every: How often.
        group: The name under which progress is reported.

    Raises:
        MirrorError: The target has fewer partitions, or messages of others.
    """
    spark = session("mirror")
    reading, writing = parse(source), parse_sink(sink, streaming=True)
    from_ends, to_ends = ends_of(reading.target, reading.topics[0]), ends_of(writing.target, writing.topic)
    if len(to_ends.places) < len(from_ends.places):
        raise MirrorError(
            f"topic {writing.topic} has {len(to_ends.places)} partitions, and {reading.topics[0]} has "
            f"{len(from_ends.places)}: each goes to the partition of its number. Give the target as many"
        )
    offsets = None
    if directory is not None:
        offsets = mirroring.load(directory, from_ends.incarnation, to_ends.incarnation)
    opened = open_writer(sink, from_ends.incarnation)
    if offsets is not None and opened.sequence is None:
        offsets.check_alone(_positions(to_ends))
    mirror = _Mirroring(opened, offsets, directory or "", checkpoint)
    stream = spark.readStream.format("seriatim").options(**limited(source)).option("columns", COLUMNS).load()
    writer = stream.writeStream.queryName("mirror").foreachBatch(mirror).option("checkpointLocation", checkpoint)
    wait(spark, writer, source, group, every)
