"""`audit`: checks that the messages of a topic or an archive are complete, in order and without repeats.

Tasks follow the rows of each range and leave a summary. The driver puts the ranges of a partition one after another
(`audits.coverage`). For a topic it also compares the brokers' count of messages, for an archive the checksums of each
file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from seriatim_api.ids import format_offset
from seriatim_api.key_names import key_shown

from seriatim_spark.audits import coverage
from seriatim_spark.audits.coverage import Cover, CoverCheck, Finding, PartitionReport, cover_from
from seriatim_spark.audits.expected_counts import frozen, with_brokers, with_notes
from seriatim_spark.columns import last_header
from seriatim_spark.directories import archive_files
from seriatim_spark.directories.archive_notes import notes_of
from seriatim_spark.directories.files import DirectoryError, file_system
from seriatim_spark.options import parse
from seriatim_spark.pipelines.session import quoted, session
from seriatim_spark.reading.batch_plan import Planned, ranges_of
from seriatim_spark.reading.brokers import RealBrokers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PLACE_COLUMNS: Final = ("topic", "incarnation", "partition", "range_start", "range_end")
PLACE_IN_PATH: Final = r".*/topic=([^/]+)/incarnation=([^/]+)/partition=(\d+)/"
FILES_A_TASK: Final = 8
KEYS_SHOWN: Final = 20

Report = list[PartitionReport]


# ---- in tasks ----


def check_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check rows of the source. Give a summary of each range."""
    check: CoverCheck | None = None
    place: tuple[Any, ...] | None = None
    for batch in batches:
        for part in _parts(batch):
            here = tuple(part.column(name)[0].as_py() for name in PLACE_COLUMNS)
            if here != place:
                if check is not None:
                    yield _summary(check.finish(), check.findings)
                place, check = here, CoverCheck(Cover(*here))
            assert check is not None
            check.take(part)
    if check is not None:
        yield _summary(check.finish(), check.findings)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch at each row where another range begins."""
    import numpy as np

    if not batch.num_rows:
        return
    changes = np.zeros(batch.num_rows - 1, bool)
    for name in ("partition", "range_start", "range_end"):
        changes |= np.diff(batch.column(name).to_numpy(zero_copy_only=False)) != 0
    for name in ("topic", "incarnation"):
        changes |= np.diff(batch.column(name).dictionary_encode().indices.to_numpy(zero_copy_only=False)) != 0
    at = 0
    for upto in [*(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]:
        yield batch.slice(at, upto - at)
        at = upto


def check_files(batches: Iterator[pa.RecordBatch], directory: str, whole: bool) -> Iterator[pa.RecordBatch]:
    """Check the files of an archive that the column `file` names. Give a summary of each."""
    files, root = file_system(directory)
    for batch in batches:
        for path in batch.column("file").to_pylist():
            yield _summary(*check_file(files, root, path, whole))


def check_file(files: Any, root: str, path: str, whole: bool = True) -> tuple[Cover | None, list[Finding]]:
    """Check a file. Return its cover and its findings. Keys, values and checksums are checked only if `whole`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = path.removeprefix(f"{root}/")
    try:
        with files.open_input_file(path) as source, pq.ParquetFile(source) as file:
            footer = archive_files.footer_of(file, name)
            cover = Cover(footer.topic, footer.incarnation, footer.partition, footer.start, footer.end, source=name)
            check = CoverCheck(cover)
            checksums = archive_files.Checksums()
            columns = tuple(dict.fromkeys((*coverage.COLUMNS, *(("key", "value") if whole else ()))))
            for batch in archive_files.batches_of(file, columns):
                check.take(batch)
                if whole:
                    checksums.take(batch)
            check.finish()
    except (DirectoryError, pa.ArrowException, OSError) as exc:
        return None, [Finding("footer", "", "", 0, 0, 1, f"{name} cannot be read: {exc}")]
    cover.size_bytes = checksums.size_bytes
    findings = check.findings
    if (cover.rows, cover.passed) != (footer.rows, footer.passed):
        held, said = f"{cover.rows} rows ({cover.passed} passed over)", f"{footer.rows} ({footer.passed})"
        text = f"{name} holds {held}, and its footer says {said}"
        findings.append(Finding("footer", *cover.where, cover.start, abs(cover.rows - footer.rows), text))
    wrong = sorted(part for part in footer.checksums if checksums.values.get(part) != footer.checksums[part])
    if whole and (wrong or set(checksums.values) != set(footer.checksums)):
        text = f"{name} does not hold what was written: the checksums of {', '.join(wrong) or 'its columns'} differ"
        findings.append(Finding("checksum", *cover.where, cover.start, cover.rows, text))
    if not name.endswith(archive_files.path_of(footer, 0).rpartition("/")[2]):
        findings.append(Finding("footer", *cover.where, cover.start, 1, f"{name} is not called as its footer says"))
    return cover, findings


def _summary(cover: Cover | None, findings: Sequence[Finding]) -> pa.RecordBatch:
    import pyarrow as pa

    text = json.dumps(
        {"cover": None if cover is None else cover.as_dict(), "findings": [asdict(finding) for finding in findings]}
    )
    return pa.RecordBatch.from_pydict({"summary": [text]}, schema=pa.schema([("summary", pa.string())]))


# ---- in the driver ----


def run(
    source: Mapping[str, str], archive: str | None, *, whole: bool, per_key: bool, key_sequence: str | None,
    output: str | None, run_name: str,
) -> Report:  # fmt: skip
    """Audit a topic (`source`) or an archive. Keys and values of an archive are read only if `whole`."""
    spark = session("audit")
    planned: Planned | None = None
    if archive is not None:
        summaries = _summaries_of_files(spark, archive, archive_files.files_of(archive), whole)
    else:
        options = parse(source)
        brokers = RealBrokers(options)
        planned = ranges_of(options, brokers)
        source = frozen(source, planned)
        columns = ",".join(dict.fromkeys((*PLACE_COLUMNS, *coverage.COLUMNS)))
        rows = spark.read.format("seriatim").options(**source).option("columns", columns).load()
        summaries = [json.loads(row["summary"]) for row in rows.mapInArrow(check_rows, "summary string").collect()]
    covers = [cover_from(one["cover"]) for one in summaries if one["cover"] is not None]
    findings = [Finding(**found) for one in summaries for found in one["findings"]]
    if per_key or key_sequence:
        keyed = _keyed(spark, source, archive, key_sequence)
        findings += _keys_in_partitions(keyed) if per_key else []
        findings += _keys_that_go_back(keyed, key_sequence) if key_sequence else []
    if archive is not None:
        report = with_notes(covers, findings, notes_of(archive))
    else:
        assert planned is not None
        report = with_brokers(covers, findings, planned, options, brokers)
    if output is not None:
        _write(spark, report, covers, f"{output.rstrip('/')}/run={run_name}")
    return report


def _summaries_of_files(spark: SparkSession, archive: str, paths: Sequence[str], whole: bool) -> list[Any]:
    from functools import partial

    if not paths:
        return []
    tasks = max(1, min(-(-len(paths) // FILES_A_TASK), 10 * spark.sparkContext.defaultParallelism))
    files = spark.createDataFrame([(path,) for path in paths], "file string").repartition(tasks)
    found = files.mapInArrow(partial(check_files, directory=archive, whole=whole), "summary string").collect()
    return [json.loads(row["summary"]) for row in found]


def _keyed(spark: SparkSession, source: Mapping[str, str], archive: str | None, key_sequence: str | None) -> DataFrame:
    if archive is not None:
        rows = _of_archive(spark, archive).selectExpr("* except (headers)", "map_entries(headers) as headers")
    else:
        columns = "topic,incarnation,partition,offset,key" + (",headers" if key_sequence else "")
        rows = spark.read.format("seriatim").options(**source).option("columns", columns).load()
    return rows.where("key is not null")


def _of_archive(spark: SparkSession, archive: str) -> DataFrame:
    """Read rows of an archive, or of a part such as DIR/topic=orders, with topic, incarnation and partition.

    These three are taken from the path of each file. Spark's own partition columns would not do: Spark turns a name of
    digits into a number, and it does not see folders above `archive`.
    """
    from pyspark.sql import functions as f

    rows = spark.read.option("recursiveFileLookup", "true").parquet(archive)
    path = f.col("_metadata.file_path")
    for number, (column, kind) in enumerate((("topic", "string"), ("incarnation", "string"), ("partition", "int")), 1):
        rows = rows.withColumn(column, f.regexp_extract(path, PLACE_IN_PATH, number).cast(kind))
    return rows


def _keys_in_partitions(rows: DataFrame) -> list[Finding]:
    """Keys whose messages are in more than one partition."""
    from pyspark.sql import functions as f

    spread = (
        rows.groupBy("topic", "incarnation", "key")
        .agg(f.sort_array(f.collect_set("partition")).alias("partitions"), f.min("offset").alias("first"))
        .where("size(partitions) > 1")
    )
    findings = [
        Finding(
            "key", row["topic"], row["incarnation"], int(row["partitions"][0]), row["first"], 1,
            f"key {key_shown(row['key'])} stands in partitions {', '.join(map(str, row['partitions']))}",
        )
        for row in spread.orderBy("first").limit(KEYS_SHOWN).collect()
    ]  # fmt: skip
    more = spread.count() - KEYS_SHOWN
    if more > 0:
        findings.append(Finding("key", findings[0].topic, findings[0].incarnation, 0, 0, more, f"and {more} more keys"))
    return findings


def _keys_that_go_back(rows: DataFrame, key_sequence: str) -> list[Finding]:
    """Partitions in which the number of a key, which the header `key_sequence` has, does not grow."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    number = f.expr(f"try_cast(cast({last_header(quoted(key_sequence))} as string) as bigint)")
    order = Window.partitionBy("topic", "incarnation", "partition", "key").orderBy("offset")
    numbered = rows.withColumn("number", number).where("number is not null")
    back = numbered.withColumn("before", f.lag("number").over(order)).where("number <= before")
    per_partition = back.groupBy("topic", "incarnation", "partition").agg(
        f.count("*").alias("count"),
        f.min_by(f.struct("offset", "key", "number", "before"), "offset").alias("first"),
    )
    return [
        Finding(
            "key", row["topic"], row["incarnation"], int(row["partition"]), row["first"]["offset"], row["count"],
            f"{key_sequence} of key {key_shown(row['first']['key'])} goes from {row['first']['before']} to "
            f"{row['first']['number']}",
        )
        for row in per_partition.collect()
    ]  # fmt: skip


def _write(spark: SparkSession, report: Report, covers: Sequence[Cover], path: str) -> None:
    counts: dict[coverage.Where, int] = {one.where: len(one.findings) for one in report}
    rows = [
        (
            cover.topic, cover.incarnation, cover.partition, cover.start, cover.end, cover.rows, cover.passed,
            cover.source, counts.get(cover.where, 0),
        )
        for cover in sorted(covers, key=lambda cover: (cover.where, cover.start))
    ]  # fmt: skip
    schema = (
        "topic string, incarnation string, partition int, range_start bigint, range_end bigint, rows bigint, "
        "passed bigint, file string, findings_of_partition int"
    )
    spark.createDataFrame(rows, schema).coalesce(1).write.mode("overwrite").parquet(path)


# ---- for humans and programs ----


def findings_of(report: Report) -> list[Finding]:
    """Return the findings of all partitions."""
    return [finding for partition in report for finding in partition.findings]


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as plain data for programs."""
    return {
        "rows": sum(one.rows for one in report),
        "passed": sum(one.passed for one in report),
        "partitions": [
            {
                "topic": one.where.topic, "incarnation": one.where.incarnation, "partition": one.where.partition,
                "from": format_offset(one.start), "to": format_offset(one.end), "rows": one.rows, "passed": one.passed,
                "ranges": one.covers, "all_producers_followed": not one.untold,
                "findings": [asdict(finding) for finding in one.findings],
            }
            for one in report
        ],
        "findings": len(findings_of(report)),
    }  # fmt: skip


def as_text(report: Report) -> str:
    """Return a table, the findings, and one line with the result."""
    header = ("topic", "partition", "from", "to", "rows", "repeats passed", "findings")
    lines = [
        (
            one.where.topic, str(one.where.partition), format_offset(one.start), format_offset(one.end),
            f"{one.rows:,}", f"{one.passed:,}", f"{len(one.findings):,}",
        )
        for one in report
    ]  # fmt: skip
    widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]
    table = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in [header, *lines]
    ]
    found = findings_of(report)
    table += [f"{one.kind}: {one.topic}/{one.partition}: {one.text} ({one.count:,})" for one in found]
    rows = sum(one.rows for one in report)
    verdict = f"{len(found):,} findings" if found else "whole, in order, without repeats"
    if any(one.untold for one in report):
        verdict += (
            f" (repeats were looked for among the first {coverage.PRODUCERS_MAX:,} producers of a partition only)"
        )
    return "\n".join([*table, f"{rows:,} messages in {len(report)} partitions: {verdict}"])


WIDTH: Final = 900
ROW_HEIGHT: Final = 22
LEFT: Final = 200


def picture(report: Report) -> str:
    """Draw an SVG: a bar for each partition, as long as its number of messages, with a red mark for each finding."""
    from xml.sax.saxutils import escape

    most = max([one.rows for one in report], default=0) or 1
    height = ROW_HEIGHT * (len(report) + 2)
    count = len(findings_of(report))
    told = f"each red mark is a finding, {count:,} in all" if count else "nothing differs"
    header = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + LEFT + 120}" height="{height}" '
    parts = [
        header + 'font-family="sans-serif" font-size="13">',
        f'<text x="10" y="16">messages of each partition; {told}</text>',
    ]
    for number, one in enumerate(report, 1):
        top = number * ROW_HEIGHT + 6
        width = max(2, WIDTH * one.rows // most)
        name = escape(f"{one.where.topic}/{one.where.partition}")
        parts.append(f'<text x="10" y="{top + 13}">{name}</text>')
        parts.append(f'<rect x="{LEFT}" y="{top}" width="{width}" height="{ROW_HEIGHT - 6}" fill="#5b8db8"/>')
        parts.append(f'<text x="{LEFT + width + 6}" y="{top + 13}">{one.rows:,}</text>')
        span = max(one.end - one.start, 1)
        for finding in one.findings:
            at = LEFT + min(max(width * (finding.offset - one.start) / span, 0), width)
            title = escape(finding.text)
            parts.append(
                f'<rect x="{at:.1f}" y="{top - 2}" width="3" height="{ROW_HEIGHT - 2}" fill="#c0392b">'
                f"<title>{title}</title></rect>"
            )
    return "\n".join([*parts, "</svg>", ""])
