"""The command line of the pipelines: one command for each. The commands that write to topics are in `copy_commands`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from seriatim_spark.pipelines.command_line import failures, metrics_option, seconds, source_of, source_options
from seriatim_spark.pipelines.copy_commands import mirror, replay
from seriatim_spark.pipelines.metrics import served

FINDINGS_STATUS: Final = 3
"""Exit status of `audit` if it has findings. 1 is a failure, 2 a wrong command line."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Pipelines that read and write topics of Seriatim.

    Run a pipeline on this machine with `python -m seriatim_spark NAME ...`, or on a Spark cluster with
    `spark-submit "$(python -m seriatim_spark path)" NAME ...`.
    """


@main.command()
def path() -> None:
    """Print the path of the file to give to spark-submit."""
    click.echo(Path(__file__).resolve().parent.parent / "__main__.py")


@main.command()
@source_options(topic_required=False)
@click.option("--archive", metavar="DIR", help="Audit the files of an archive in place of a topic.")
@click.option(
    "--checksums/--no-checksums",
    default=True,
    show_default=True,
    help="Read keys and values of an archive too, and compare their checksums. --no-checksums is many times faster.",
)
@click.option("--per-key", is_flag=True, help="Find keys that have messages in several partitions (shuffles all keys).")
@click.option(
    "--key-sequence", metavar="HEADER", help="A header with a number that must rise with each message of a key."
)
@click.option(
    "--output",
    metavar="DIR",
    help="Write a row for each range, as Parquet, to DIR/run=NAME, and overwrite what was there.",
)
@click.option(
    "--run",
    "run_name",
    default="latest",
    show_default=True,
    metavar="NAME",
    help="The name of this audit's folder below --output.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw an SVG of the partitions with the places of the findings.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs in place of a table.")
def audit(**given: Any) -> None:
    """Check that the messages of a topic or an archive are complete, in order and without repeats.

    The audit reads all messages of a topic (or those between startingOffsets and endingOffsets), or all files of an
    archive. It checks that no offset is missing or comes twice, that append times do not go back, that the sequences
    and epochs of each producer rise, and that files hold what their footers say. Exit status: 0 without findings, 3
    with findings, 1 if the audit could not read everything.
    """
    source = source_of(given)
    if bool(given["archive"]) == bool(source):
        raise click.UsageError("give --bootstrap and --topic, or --archive")
    from seriatim_spark.pipelines import audit as pipeline

    with failures():
        report = pipeline.run(
            source, given["archive"], whole=given["checksums"], per_key=given["per_key"],
            key_sequence=given["key_sequence"], output=given["output"], run_name=given["run_name"],
        )  # fmt: skip
    if given["picture"] is not None:
        given["picture"].write_text(pipeline.picture(report))
    click.echo(json.dumps(pipeline.as_json(report)) if given["as_json"] else pipeline.as_text(report))
    sys.exit(FINDINGS_STATUS if pipeline.findings_of(report) else 0)


@main.command()
@source_options(topic_required=True)
@click.option(
    "--to",
    "directory",
    required=True,
    metavar="DIR",
    help="The archive's directory: a path, or a URL that pyarrow knows.",
)
@click.option(
    "--checkpoint", required=True, metavar="DIR", help="Spark's checkpoint. Use it for no other archive or query."
)
@click.option(
    "--every", default="30 seconds", show_default=True, metavar="TIME", help="Time between two writes of new messages."
)
@click.option("--once", is_flag=True, help="Write the messages that are there now, and end.")
@click.option(
    "--file-rows", type=click.IntRange(min=1), default=2_000_000, show_default=True, help="Most rows in one file."
)
@click.option(
    "--group", metavar="NAME",
    help="Report progress as this consumer group: `seriatim group describe` shows the lag.",
)  # fmt: skip
@metrics_option
def archive(**given: Any) -> None:
    """Write all messages of topics to Parquet files, each message once.

    Each partition, micro-batch and day gets a file of its own. The name of a file is the range of offsets that it
    covers. After a failure the archive writes the same range again, into the same file. `audit --archive DIR` checks
    the files.
    """
    source = source_of(given)
    if any(name.lower() == "ordering" and value != "partition" for name, value in source.items()):
        raise click.UsageError("the files of an archive are named by ranges, which needs ordering=partition")
    from seriatim_spark.pipelines import archive as pipeline

    with failures(), served(given["metrics_listen"]) as metrics:
        rows = pipeline.run(
            source, given["directory"], given["checkpoint"], every=None if given["once"] else given["every"],
            file_rows=given["file_rows"], group=given["group"], metrics=metrics,
        )  # fmt: skip
    click.echo(f"{rows:,} rows written to {given['directory']}")


@main.command()
@source_options(topic_required=True)
@click.option(
    "--to",
    "directory",
    required=True,
    metavar="DIR",
    help="The table's directory: a path, or a URL that pyarrow knows.",
)
@click.option(
    "--checkpoint", required=True, metavar="DIR", help="Spark's checkpoint. Use it for no other table or query."
)
@click.option(
    "--every", default="30 seconds", show_default=True, metavar="TIME", help="Time between two merges of new changes."
)
@click.option("--once", is_flag=True, help="Merge the messages that are there now, and end.")
@click.option(
    "--buckets",
    type=click.IntRange(1, 10_000),
    help="Number of files of a new table; it cannot change later. A micro-batch rewrites only the files whose keys "
    "change.  [default for a new table: 64]",
)
@click.option(
    "--order-by",
    type=click.Choice(["offset", "append_time"]),
    help="What decides which message of a key is the newest. append_time also works for keys that changed their "
    "partition; a table cannot change back from it to offset.  [default for a new table: offset]",
)
@click.option(
    "--delete-header",
    metavar="NAME",
    help="The header by which a message deletes its key. Without this option, an empty or null value deletes it.",
)
@click.option(
    "--delete-value", default="d", show_default=True, metavar="TEXT",
    help="The value of --delete-header that deletes the key.",
)  # fmt: skip
@click.option(
    "--tombstones-kept",
    "kept",
    default="30d",
    show_default=True,
    metavar="TIME",
    help="How long deleted keys stay in the table as rows without a value.",
)
@click.option("--group", metavar="NAME", help="Report progress as this consumer group.")
@metrics_option
def apply(**given: Any) -> None:
    """Keep a table with the newest value of each key of a topic.

    All changes of a micro-batch enter the table at one moment. The newest file in _batches names the files of the
    table for programs that read it (in Python: seriatim_spark.applying.read_table).
    """
    source = source_of(given)
    if "," in given["topic"]:
        raise click.UsageError("a table holds the changes of one topic")
    kept_s = seconds(given["kept"])
    from seriatim_spark.pipelines import apply as pipeline

    with failures(), served(given["metrics_listen"]) as metrics:
        done = pipeline.run(
            source, given["directory"], given["checkpoint"], every=None if given["once"] else given["every"],
            buckets=given["buckets"], order_by=given["order_by"], delete_header=given["delete_header"],
            delete_value=given["delete_value"], tombstones_kept_s=kept_s, group=given["group"],
            metrics=metrics,
        )  # fmt: skip
    click.echo(
        f"{done['rows']:,} rows in the table {given['directory']}, tombstones included; {done['batches']} changes"
    )


@main.command()
@source_options(topic_required=True)
@click.option("--last", default="1h", show_default=True, metavar="TIME", help="Count the messages of this last time.")
@click.option("--top", type=click.IntRange(0, 1000), default=20, show_default=True, help="Number of keys to show.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw an SVG of rate, partitions, keys and lag.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs in place of tables.")
def traffic(**given: Any) -> None:
    """Show the traffic of a topic: rates, partitions, the keys with most messages, and the lag of consumer groups."""
    source = source_of(given)
    if "," in given["topic"]:
        raise click.UsageError("traffic looks at one topic")
    if {"startingoffsets", "startingtimestamp"} & {name.lower() for name in source}:
        raise click.UsageError("--last says where to begin: leave startingOffsets and startingTimestamp out")
    from seriatim_spark.pipelines import traffic as pipeline

    with failures():
        found = pipeline.run(source, last_s=seconds(given["last"]), top=given["top"])
    if given["picture"] is not None:
        given["picture"].write_text(pipeline.picture(found))
    click.echo(json.dumps(found.as_dict()) if given["as_json"] else pipeline.as_text(found))


main.add_command(replay)
main.add_command(mirror)
