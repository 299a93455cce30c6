"""The commands that write to topics: `replay` and `mirror`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from seriatim_api.ids import NAME_RULE, is_legal_name

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
        "--to-bootstrap", metavar="HOST:PORT", help="Brokers of the cluster to write to.  [default: the same cluster]"
    )(command)
    return click.option("--to-topic", required=True, metavar="NAME", help="The topic to write to.")(command)


@click.command()
@source_options(topic_required=False)
@click.option(
    "--archive", metavar="DIR",
    help="Replay the files of an archive in place of a topic. --bootstrap or --to-bootstrap then names the cluster to "
    "write to.",
)  # fmt: skip
@_sink_options
@click.option(
    "--id",
    "replay_id",
    required=True,
    metavar="NAME",
    help="The name of this replay. Its writer has this name, and publishes each row once.",
)
@click.option(
    "--checkpoint",
    required=True,
    metavar="DIR",
    help="Where the replay keeps how far it is. Use it for no other replay or query.",
)
@click.option(
    "--rows-per-publication", "publication_rows", type=click.IntRange(min=1), default=1_000_000, show_default=True,
    help="Rows that become visible together. A replay that was interrupted continues after its last publication.",
)  # fmt: skip
@click.option(
    "--to-partitions", type=click.Choice(["key", "same"]), default="key", show_default=True,
    help="Where a row goes. key: to the partition of its key. same: to the partition with the number of its old one.",
)  # fmt: skip
def replay(**given: Any) -> None:
    """Send the rows of a topic or of an archive to a topic: each row once, and the rows of each key in their order.

    Each row gets the header replay-of with its old place: topic/partition/segment:index. If a replay ends before it is
    done, run it again with the same options. If messages are missing, it stops before it sends anything after them.
    """
    if bool(given["archive"]) == bool(given["topic"]):
        raise click.UsageError("give --topic, or --archive")
    source = source_of(given) if given["archive"] is None else {}
    if given["archive"] is not None and given["more"]:
        raise click.UsageError("--option is for reading a topic, and --archive reads none: leave one of them out")
    if not is_legal_name(given["replay_id"]):
        raise click.UsageError(f"--id is not a name: {NAME_RULE}")
    if given["archive"] is None and "," in given["topic"]:
        raise click.UsageError("a replay sends the messages of one topic")
    for name, value in source.items():
        if name.lower() in ("failondataloss", "ordering", "maxrowspertrigger"):
            raise click.UsageError(f"a replay chooses {name} itself, and does not take {value}: leave it out")
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
    "--checkpoint", required=True, metavar="DIR", help="Spark's checkpoint. Use it for no other mirror or query."
)
@click.option(
    "--offsets", "directory", metavar="DIR",
    help="Where the mirror keeps a map: which offset of the source is which offset of the target.",
)  # fmt: skip
@click.option(
    "--shared", is_flag=True, help="Other programs may write to the target too. Then there is no map of offsets."
)
@click.option(
    "--every", default="5 seconds", show_default=True, metavar="TIME", help="Time between two sends of new messages."
)
@click.option("--once", is_flag=True, help="Send the messages that are there now, and end.")
@click.option("--group", metavar="NAME", help="Report progress as this consumer group.")
@metrics_option
def mirror(**given: Any) -> None:
    """Copy a topic into a topic of another cluster: partition by partition, each row once, unchanged and in order.

    The target must have at least as many partitions as the source. No other program may write to it, unless --shared
    is given. After each micro-batch a file in the directory of --offsets says which offsets of both topics are the
    same message, so that you can move consumers to the other cluster.
    """
    source = source_of(given)
    if "," in given["topic"]:
        raise click.UsageError("a mirror copies one topic")
    if (given["directory"] is None) != given["shared"]:
        raise click.UsageError("give --offsets DIR, or --shared")
    if any(name.lower() == "ordering" and value != "partition" for name, value in source.items()):
        raise click.UsageError("a mirror keeps the order of partitions: leave ordering out, or give ordering=partition")
    sink = sink_of(given, source)
    from seriatim_spark.pipelines import mirror as pipeline

    with failures(), served(given["metrics_listen"]) as metrics:
        pipeline.run(
            source, sink, given["checkpoint"], given["directory"], every=None if given["once"] else given["every"],
            group=given["group"], metrics=metrics,
        )  # fmt: skip
    click.echo(f"{given['topic']} is in {given['to_topic']} up to the last micro-batch")
