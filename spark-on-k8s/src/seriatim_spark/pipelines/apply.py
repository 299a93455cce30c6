"""`apply`: a stream of changes into a table of the newest value of each key (`applying`).

Semantics: after each micro-batch the table is what its changes, and all before, make of it; it changes at one moment.
A micro-batch that is run again changes nothing: the table knows the last one that is in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from seriatim_spark import applying
from seriatim_spark.applying import ApplyError, OrderBy, TableState
from seriatim_spark.pipelines.session import quoted, session, wait

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_log = logging.getLogger("seriatim.spark")


def merge_buckets(
    batches: Iterator[pa.RecordBatch], directory: str, files: Mapping[str, str], order_by: OrderBy, from_us: int
) -> Iterator[pa.RecordBatch]:
    """What a task does: merge the changes of its buckets, and name the new files."""
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


class _Applying:
    """Merges micro-batches; the table belongs to one query."""

    def __init__(
        self, directory: str, topic: str, buckets: int, order_by: OrderBy, delete: str, tombstones_kept_s: float
    ) -> None:
        self._directory = directory
        self._topic = topic
        self._buckets = buckets
        self._order_by: OrderBy = order_by
        self._delete = delete
        self._kept_s = tombstones_kept_s
        self._begun = False
        self.changes = 0

    def __call__(self, rows: DataFrame, batch: int) -> None:
        from pyspark.sql import functions as f

        owner = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if owner is None:
            raise RuntimeError("Spark does not say which query this is: another one might own the table")
        state = self._state(owner, batch)
        if batch <= state.batch:
            return
        changed = (
            rows.withColumn("deleted", f.expr(self._delete))
            .withColumn("value", f.expr("case when deleted then null else value end"))
            .withColumn("bucket", f.expr(f"cast(pmod(xxhash64(key), {state.buckets}) as int)"))
            .select(*applying.SCHEMA.names, "bucket", "incarnation")
            .repartition("bucket")
        )
        task: Callable[..., Any] = partial(
            merge_buckets, directory=self._directory, files=state.files, order_by=self._order_by,
            from_us=int((time.time() - self._kept_s) * 1_000_000),
        )  # fmt: skip
        done = changed.mapInArrow(task, "bucket int, file string, rows bigint, incarnations string").collect()
        if not done:
            return
        incarnations = {row["incarnations"] for row in done} | ({state.incarnation} - {""})
        if len(incarnations) > 1:
            raise ApplyError(f"{self._directory} holds changes of another topic that was called {state.topic}")
        state = replace(state, incarnation=incarnations.pop())
        after, gone = applying.next_state(
            state, batch, {row["bucket"]: (row["file"], row["rows"]) for row in done}, time.time()
        )
        applying.write_state(self._directory, after)
        applying.remove(self._directory, gone)
        self.changes += 1

    def _state(self, owner: str, batch: int) -> TableState:
        found = applying.read_state(self._directory)
        state = found or TableState(owner, -1, self._topic, "", self._buckets)
        if state.query != owner or state.batch > batch:
            raise ApplyError(
                f"{self._directory} is kept by the query {state.query}, whose last micro-batch is {state.batch}, and "
                f"this is micro-batch {batch} of {owner}: its checkpoint is another one, or an older copy. Use another "
                "directory, or the checkpoint that belongs to it"
            )
        if not self._begun:
            removed = applying.remove_unnamed(self._directory, found)
            if removed:
                _log.info("%d files of attempts that failed were removed", removed)
            self._begun = True
        return state


def run(
    source: Mapping[str, str], directory: str, checkpoint: str, *, every: str | None, buckets: int, order_by: OrderBy,
    delete_header: str | None, delete_value: str, tombstones_kept_s: float, group: str | None,
) -> dict[str, int]:  # fmt: skip
    """Apply until the query ends: with `every` None when all is in that is there now, else at SIGTERM or Ctrl-C.

    Returns numbers for people: keys and tombstones of the table.
    """
    spark = session("apply")
    columns = "partition,offset,append_time,key,value,incarnation"
    delete = "value is null or octet_length(value) = 0"
    if delete_header is not None:
        columns += ",headers"
        delete = f"coalesce(decode(headers[{quoted(delete_header)}], 'UTF-8') = {quoted(delete_value)}, false)"
    applier = _Applying(directory, source["topic"], buckets, order_by, delete, tombstones_kept_s)
    stream = spark.readStream.format("seriatim").options(**source).option("columns", columns).load()
    writer = stream.writeStream.queryName("apply").foreachBatch(applier).option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    wait(spark, writer, source, group)
    state = applying.read_state(directory)
    return {"rows": 0 if state is None else sum(state.rows.values()), "batches": applier.changes}
