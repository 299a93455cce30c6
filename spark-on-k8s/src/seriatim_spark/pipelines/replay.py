"""`replay`: sends rows of a topic or an archive to a topic, once and in the order of the source.

Rows of a key are in one partition of the source, so they come in their order. Each row gets the header `replay-of` with
its old place. A topic is replayed as a stream that ends, an archive as one job for each publication.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from seriatim_spark.columns import HEADERS, arrow_schema
from seriatim_spark.directories import archive_files, archive_notes, replay_plan
from seriatim_spark.directories.files import file_system
from seriatim_spark.directories.replay_plan import ArchivedFile, Replay, ReplayError
from seriatim_spark.options import parse
from seriatim_spark.pipelines.session import session, wait
from seriatim_spark.reading.brokers import ends_of
from seriatim_spark.writing.sink_options import parse_sink
from seriatim_spark.writing.writers import open_writer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

HEADER: Final = "replay-of"

ROWS: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, tag string, "
    f"headers {HEADERS}"
)
_READ: Final = ("offset", "timestamp", "key", "value", "tag", "headers")
COLUMNS: Final = "topic,partition,offset,timestamp,key,value,tag,headers"

_log = logging.getLogger("seriatim.spark")


def outgoing(rows: DataFrame, *, same_partitions: bool) -> DataFrame:
    """Return the rows as they are sent: with the header, and with their partition if it stays the same."""
    place = "concat(topic, '/', partition, '/', shiftright(offset, 40), ':', offset & 1099511627775)"
    others = f"filter(coalesce(headers, cast(array() as {HEADERS})), header -> header.key != '{HEADER}')"
    added = f"named_struct('key', '{HEADER}', 'value', encode({place}, 'UTF-8'))"
    headers = f"concat({others}, array({added})) as headers"
    columns = ["key", "value", "timestamp", "tag", headers, *(["partition"] if same_partitions else [])]
    return rows.selectExpr(*columns)


def of_topic(
    source: Mapping[str, str], sink: Mapping[str, str], replay_id: str, checkpoint: str, *, publication_rows: int,
    same_partitions: bool,
) -> None:  # fmt: skip
    """Replay the present messages of a topic that no earlier run has sent.

    Raises:
        ReplayError: The topic is also the target.
        SourceError: An error of the kinds in `errors`.
    """
    spark = session("replay")
    reading, writing = parse(source), parse_sink(sink, streaming=True)
    from_topic, to_topic = ends_of(reading.target, reading.topics[0]), ends_of(writing.target, writing.topic)
    if from_topic.incarnation == to_topic.incarnation:
        raise ReplayError(
            f"{writing.topic} is the topic that is read: run again, a replay would send what it has sent. Name another "
            "--to-topic"
        )
    opened = open_writer(sink, replay_id)
    stream = (
        spark.readStream.format("seriatim")
        .options(**source)
        .option("columns", COLUMNS)
        .option("maxRowsPerTrigger", str(publication_rows))
        .load()
    )
    writer = (
        outgoing(stream, same_partitions=same_partitions)
        .writeStream.queryName("replay")
        .format("seriatim")
        .options(**opened.options)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    wait(spark, writer, source, None)


def of_archive(
    archive: str, sink: Mapping[str, str], replay_id: str, checkpoint: str, *, publication_rows: int,
    same_partitions: bool,
) -> int:  # fmt: skip
    """Replay the files that an archive had when the replay began. Return the number of rows that this run has sent.

    Raises:
        ReplayError: Files are missing, or the checkpoint belongs to another replay.
    """
    spark = session("replay")
    opened = open_writer(sink, replay_id)
    wanted = Replay(replay_id, archive, publication_rows, replay_plan.checked(_files(archive)))
    replay = replay_plan.begin(checkpoint, wanted, opened.sequence is None)
    sent = 0
    # The last publication is published again. It may be decided and not done. Then this call waits until it is done.
    for number in range(opened.sequence or 0, replay.publications):
        pieces = replay.pieces(number)
        # Spark gives the pieces to tasks in this order. So tasks and rows are in the order of each partition.
        asked = spark.createDataFrame(pieces, "path string, first bigint, last bigint")
        task: Callable[..., Any] = partial(read_pieces, archive=archive)
        rows = outgoing(asked.mapInArrow(task, ROWS), same_partitions=same_partitions)
        rows.write.format("seriatim").mode("append").options(**opened.options, sequence=str(number)).save()
        if number != opened.sequence:
            sent += sum(piece.last - piece.first for piece in pieces)
        _log.info("publication %d of %d is in the topic", number + 1, replay.publications)
    return sent


def _files(archive: str) -> Iterator[ArchivedFile]:
    import pyarrow.parquet as pq

    files, _ = file_system(archive)
    ends: set[tuple[str, str, int, int]] = set()
    for path in archive_files.files_of(archive):
        with files.open_input_file(path) as opened, pq.ParquetFile(opened) as file:
            footer = archive_files.footer_of(file, path)
        ends.add((footer.topic, footer.incarnation, footer.partition, footer.end))
        yield ArchivedFile(
            path, footer.topic, footer.incarnation, footer.partition, footer.start, footer.end, footer.rows
        )
    for note in archive_notes.notes_of(archive):  # a range that holds only repeats has no file
        if (note.topic, note.incarnation, note.partition, note.end) not in ends and note.excuses:
            yield ArchivedFile("", note.topic, note.incarnation, note.partition, note.reached, note.end, 0)


def read_pieces(batches: Iterator[pa.RecordBatch], archive: str) -> Iterator[pa.RecordBatch]:
    """Do the work of a task: read pieces of files, in their order."""
    import pyarrow.parquet as pq

    files, _ = file_system(archive)
    for batch in batches:
        for piece in batch.to_pylist():
            with files.open_input_file(piece["path"]) as opened, pq.ParquetFile(opened) as file:
                footer = archive_files.footer_of(file, piece["path"])
                yield from _rows(file, footer, piece["first"], piece["last"])


def _rows(file: Any, footer: archive_files.Footer, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Read rows [first, last) of a file. Row groups before and after are not read."""
    groups: list[int] = []
    before = skipped = 0
    for number in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(number).num_rows
        if before + count <= first:
            skipped += count
        elif before < last:
            groups.append(number)
        before += count
    at = skipped
    for batch in file.iter_batches(archive_files.ROW_GROUP_ROWS, row_groups=groups, columns=list(_READ)):
        begin, end = max(first - at, 0), min(last - at, batch.num_rows)
        at += batch.num_rows
        if begin < end:
            yield _named(batch.slice(begin, end - begin), footer)


def _named(batch: pa.RecordBatch, footer: archive_files.Footer) -> pa.RecordBatch:
    import pyarrow as pa

    count = batch.num_rows
    topic = pa.repeat(pa.scalar(footer.topic), count)
    partition = pa.repeat(pa.scalar(footer.partition, pa.int32()), count)
    kind = arrow_schema(("headers",)).field("headers").type
    read = [batch.column(name).cast(kind) if name == "headers" else batch.column(name) for name in _READ]
    columns: Sequence[Any] = [topic, partition, *read]
    return pa.RecordBatch.from_arrays(columns, names=["topic", "partition", *_READ])
