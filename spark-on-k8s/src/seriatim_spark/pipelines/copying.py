"""The commands that write to topics: `replay` and `mirror`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from seriatim_api.ids import is_legal_name

from seriatim_spark.pipelines.command_line import (
    cluster_of,
    failures,
    metrics_option,
    sink_of,
    source_of,
    source_options,
)
from seriatim_spark.pipelines.metrics import served

F = TypeVar("F", bound=Callable[..., Any])

_SINK_HELP: Final = "An option of the sink, such as tlsCa=FILE, compression=zstd or writeTimeout=5m; may be repeated."


def _sink_options(command: F) -> F:
    command = click.option("--to-option", "to_more", multiple=True, metavar="NAME=VALUE", help=_SINK_HELP)(command)
    command = click.option(
        "--to-bootstrap", metavar="HOST:PORT", help="Brokers of the cluster to write to; without it, the same cluster."
    )(command)
    return click.option("--to-topic", required=True, metavar="NAME", help="The topic to write to.")(command)


@click.command()
@source_options(topic_required=False)
@click.option(
    "--archive", metavar="DIR",
    help="Replay the files of an archive in place of a topic; --bootstrap is then the cluster to write to.",
)  # fmt: skip
@_sink_options
@click.option(
    "--id", "replay_id", required=True, metavar="NAME", help="The replay's name: the writer, which publishes once."
)
@click.option(
    "--checkpoint", required=True, metavar="DIR", help="How far the replay is; it belongs to this replay for ever."
)
@click.option(
    "--rows-per-publication", "publication_rows", type=click.IntRange(min=1), default=1_000_000, show_default=True,
    help="Rows that become visible together; a replay that was interrupted goes on behind the last one.",
)  # fmt: skip
@click.option(
    "--to-partitions", type=click.Choice(["key", "same"]), default="key", show_default=True,
    help="Where a row goes: to the partition of its key, or to the one that has the number it had in the source.",
)  # fmt: skip
def replay(**given: Any) -> None:
    """Send rows of a topic, or of an archive, to a topic: each once, and each key in its order.

    Each row gets the header replay-of, which says where it stood: topic/partition/segment:index. A replay that ends in
    the middle is run again with the same options. Missing messages stop it before anything behind them is sent.
    """
    if bool(given["archive"]) == bool(given["topic"]):
        raise click.UsageError("give --topic, or --archive")
    source = source_of(given) if given["archive"] is None else {}
    if given["archive"] is not None and given["more"]:
        raise click.UsageError("--option is about the reading of a topic, and an archive is read")
    if not is_legal_name(given["replay_id"]):
        raise click.UsageError(f"--id is a name of letters, digits, '.', '_' and '-', not {given['replay_id']!r}")
    if given["archive"] is None and "," in given["topic"]:
        raise click.UsageError("a replay sends the messages of one topic")
    for name, value in source.items():
        if name.lower() in ("failondataloss", "ordering", "maxrowspertrigger"):
            raise click.UsageError(f"a replay chooses {name} itself, and not {value}")
    sink = sink_of(given, source or cluster_of(given))
    from seriatim_spark.pipelines import replay as pipeline

    options = {
        "publication_rows": given["publication_rows"], "same_partitions": given["to_partitions"] == "same",
    }  # fmt: skip
    with failures():
        if given["archive"] is None:
            pipeline.of_topic(source, sink, given["replay_id"], given["checkpoint"], **options)
            click.echo(f"{given['topic']} is in {given['to_topic']} up to where it ended when the replay was started")
        else:
            rows = pipeline.of_archive(given["archive"], sink, given["replay_id"], given["checkpoint"], **options)
            click.echo(f"{rows:,} rows sent to {given['to_topic']}; the replay is done")


@click.command()
@source_options(topic_required=True)
@_sink_options
@click.option(
    "--checkpoint", required=True, metavar="DIR", help="Spark's checkpoint; it belongs to this mirror for ever."
)
@click.option(
    "--offsets", "directory", metavar="DIR",
    help="Where it is kept which place of the source is which place of the target.",
)  # fmt: skip
@click.option("--shared", is_flag=True, help="Others may write to the target as well; then there is no map of offsets.")
@click.option(
    "--every", default="5 seconds", show_default=True, metavar="TIME", help="How often new messages are sent."
)
@click.option("--once", is_flag=True, help="Send what is there now, and end.")
@click.option("--group", metavar="NAME", help="Report progress under this group's name.")
@metrics_option
def mirror(**given: Any) -> None:
    """Copy a topic into a topic of another cluster: partition by partition, each row once, as it is and in order.

    The target has as many partitions, and nothing else writes to it (unless --shared is given). After each micro-batch
    a file in the directory of --offsets says which places of both topics are the same, so that consumers can be moved.
    """
    source = source_of(given)
    if "," in given["topic"]:
        raise click.UsageError("a mirror copies one topic")
    if (given["directory"] is None) != given["shared"]:
        raise click.UsageError("give --offsets DIR, or --shared")
    if any(name.lower() == "ordering" and value != "partition" for name, value in source.items()):
        raise click.UsageError("a mirror keeps the order of partitions: ordering is partition")
    sink = sink_of(given, source)
    from seriatim_spark.pipelines import mirror as pipeline

    with failures(), served(given["metrics_listen"]) as metrics:
        pipeline.run(
            source, sink, given["checkpoint"], given["directory"], every=None if given["once"] else given["every"],
            group=given["group"], metrics=metrics,
        )  # fmt: skip
    click.echo(f"{given['topic']} is in {given['to_topic']} up to the last micro-batch")
