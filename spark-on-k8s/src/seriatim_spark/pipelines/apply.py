"""`apply`: merges a stream of changes into a table of the newest value of each key (`applying`).

Semantics: after each micro-batch, the table has its changes and all changes before, and it changes at one moment. If a
micro-batch is run again, the table does not change, because it knows its last micro-batch. If a driver was replaced and
ends its micro-batch late, the table does not change either (`batch_chain`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from seriatim_spark import applying
from seriatim_spark.applying import ApplyError, OrderBy, TableState
from seriatim_spark.columns import last_header
from seriatim_spark.directories import batch_chain
from seriatim_spark.directories.batch_chain import Link
from seriatim_spark.directories.files import remove_aside
from seriatim_spark.pipelines.micro_batches import BatchLog, check_seen, query_of
from seriatim_spark.pipelines.session import limited, quoted, session, wait

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from seriatim_spark.pipelines.metrics import PipelineMetrics

BUCKETS: Final = 64
"""The number of buckets of a new table, unless another number is given."""

_log = logging.getLogger("seriatim.spark")


def merge_buckets(
    batches: Iterator[pa.RecordBatch], directory: str, files: Mapping[str, str], order_by: OrderBy, from_us: int
) -> Iterator[pa.RecordBatch]:
    """Do the work of a task: merge the changes of its buckets. Give the names of the new files."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.Table.from_batches([batch for batch in batches if batch.num_rows] or [_empty()])
    if rows.column("key").null_count:
        raise ApplyError("there are messages without a key: they belong to no row of a table. Nothing was changed")
    incarnations = ",".join(sorted(pc.unique(rows.column("incarnation")).to_pylist()))
    for bucket in sorted(pc.unique(rows.column("bucket")).to_pylist()):
        changes = rows.filter(pc.equal(rows.column("bucket"), bucket))
        before = applying.read_bucket(directory, files.get(str(bucket)))
        merged = applying.merge(before, changes, order_by, from_us)
        name = applying.write_bucket(directory, bucket, merged)
        yield pa.RecordBatch.from_pydict(
            {"bucket": [bucket], "file": [name], "rows": [merged.num_rows], "incarnations": [incarnations]},
            schema=pa.schema(
                [("bucket", pa.int32()), ("file", pa.string()), ("rows", pa.int64()), ("incarnations", pa.string())]
            ),
        )


def _empty() -> pa.RecordBatch:
    import pyarrow as pa

    more = [pa.field("bucket", pa.int32()), pa.field("incarnation", pa.string())]
    return pa.RecordBatch.from_pylist([], schema=pa.schema([*applying.SCHEMA, *more]))


def is_header(name: str, value: str) -> str:
    """Return an SQL condition: a header has this value. It compares bytes, because a header need not be text."""
    return f"coalesce({last_header(quoted(name))} = X'{value.encode().hex()}', false)"


class _Applying:
    """Merges micro-batches. The table belongs to one query, and to the last driver that took it over."""

    def __init__(
        self, directory: str, checkpoint: str, topic: str, buckets: int | None, order_by: OrderBy | None, delete: str,
        tombstones_kept_s: float, metrics: PipelineMetrics | None,
    ) -> None:  # fmt: skip
        self._directory = directory
        self._log = BatchLog(checkpoint)
        self._topic = topic
        self._buckets = buckets
        self._order_by: OrderBy | None = order_by
        self._delete = delete
        self._kept_s = tombstones_kept_s
        self._link: Link | None = None  # the last link that this driver has made
        self._metrics = metrics
        self.changes = 0

    def __call__(self, rows: DataFrame, batch: int) -> None:
        spark = rows.sparkSession
        query, ends = query_of(spark), self._log.ends(spark, batch)
        assert ends is not None, "Spark notes the end of a micro-batch before it runs"
        start = self._log.ends(spark, batch - 1) if batch else None
        if self._link is None:
            self._link = self._taken_over(query, batch, start, ends)
        if batch_chain.is_repeat(self._directory, self._link, query, batch, start, ends):
            return
        state = applying.state_of(self._link)
        done = self._merged(rows, state)
        check_seen(self._directory, [row["file"] for row in done])
        incarnations = {row["incarnations"] for row in done} | ({state.incarnation} - {""})
        if len(incarnations) > 1:
            raise ApplyError(f"{self._directory} holds changes of another topic that was called {state.topic}")
        state = replace(state, incarnation=next(iter(incarnations), ""))
        after, gone = applying.next_state(
            state, {row["bucket"]: (row["file"], row["rows"]) for row in done}, time.time()
        )  # fmt: skip
        link = Link(self._link.serial + 1, query, batch, ends, asdict(after))
        batch_chain.append(self._directory, link)
        self._link = link
        applying.remove(self._directory, gone)
        self.changes += bool(done)
        if self._metrics is not None:
            self._metrics.wrote(sum(row["rows"] for row in done))

    def _merged(self, rows: DataFrame, state: TableState) -> list[Any]:
        """Write new files of the changed buckets. Return rows with bucket, file, rows and incarnations."""
        from pyspark.sql import functions as f

        changed = (
            rows.withColumn("deleted", f.expr(self._delete))
            .withColumn("value", f.expr("case when deleted then null else value end"))
            .withColumn("bucket", f.expr(f"cast(pmod(xxhash64(key), {state.buckets}) as int)"))
            .select(*applying.SCHEMA.names, "bucket", "incarnation")
            .repartition("bucket")
        )
        task: Callable[..., Any] = partial(
            merge_buckets, directory=self._directory, files=state.files, order_by=state.order_by,
            from_us=int((time.time() - self._kept_s) * 1_000_000),
        )  # fmt: skip
        done: list[Any] = changed.mapInArrow(
            task, "bucket int, file string, rows bigint, incarnations string"
        ).collect()
        return done

    def _taken_over(self, query: str, batch: int, start: dict[str, Any] | None, ends: dict[str, Any]) -> Link:
        """Make a link, so that earlier drivers can make none. Remove the files that they have left."""
        last = batch_chain.newest(self._directory)
        batch_chain.is_repeat(self._directory, last, query, batch, start, ends)
        if last is None:
            new = TableState(self._topic, "", self._buckets or BUCKETS, self._order_by or "offset")
            link = Link(0, query, batch_chain.NONE_YET, None, asdict(new))
        else:
            state = applying.with_settings(applying.state_of(last), self._topic, self._buckets, self._order_by)
            link = replace(last, serial=last.serial + 1, content=asdict(state))
        batch_chain.append(self._directory, link)
        remove_aside(self._directory)
        removed = applying.remove_unnamed(self._directory, applying.state_of(link))
        if removed:
            _log.info("%d files of attempts that failed were removed", removed)
        return link


def run(
    source: Mapping[str, str], directory: str, checkpoint: str, *, every: str | None, buckets: int | None,
    order_by: OrderBy | None, delete_header: str | None, delete_value: str, tombstones_kept_s: float, group: str | None,
    metrics: PipelineMetrics | None = None,
) -> dict[str, int]:  # fmt: skip
    """Apply changes until the query ends. If `every` is None, it ends when all present changes are in the table.
    Otherwise it ends at SIGTERM or Ctrl-C.

    Returns the numbers of keys and tombstones in the table.
    """
    spark = session("apply")
    columns = "partition,offset,append_time,key,value,incarnation"
    delete = "value is null or octet_length(value) = 0"
    if delete_header is not None:
        columns += ",headers"
        delete = is_header(delete_header, delete_value)
    applier = _Applying(directory, checkpoint, source["topic"], buckets, order_by, delete, tombstones_kept_s, metrics)
    stream = spark.readStream.format("seriatim").options(**limited(source)).option("columns", columns).load()
    writer = stream.writeStream.queryName("apply").foreachBatch(applier).option("checkpointLocation", checkpoint)
    wait(spark, writer, source, group, every, metrics)
    state = applying.read_state(directory)
    return {"rows": 0 if state is None else sum(state.rows.values()), "batches": applier.changes}
