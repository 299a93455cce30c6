"""Parts that the commands of the pipelines share: the options of source and sink, and the display of errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from seriatim_spark.errors import OptionError, SourceError
from seriatim_spark.options import NAMES, duration, parse
from seriatim_spark.pipelines.metrics import address_of
from seriatim_spark.writing.sink_options import SINK_FORMS, parse_sink

F = TypeVar("F", bound=Callable[..., Any])


_TOPIC_OPTIONS: Final = (
    ("--bootstrap", "HOST:PORT", "Brokers of the cluster, with commas between them; one that answers is enough."),
    ("--topic", "NAMES", "The topic to read, or several with commas between them."),
)
_TLS_OPTIONS: Final = (
    ("--tls-ca", "FILE", "The CA's certificates; turns TLS on."),
    ("--tls-cert", "FILE", "The client's certificate; give --tls-key with it."),
    ("--tls-key", "FILE", "The key of the client's certificate."),
    ("--tls-server-name", "NAME", "The name that the brokers' certificates must have."),
)


def source_options(*, topic_required: bool) -> Callable[[F], F]:
    """Add the options that say which topic a command reads, and from which cluster."""

    def add(command: F) -> F:
        more = "Any other option of the source, such as startingOffsets=latest; may be repeated."
        command = click.option("-o", "--option", "more", multiple=True, metavar="NAME=VALUE", help=more)(command)
        for name, form, text in reversed(_TLS_OPTIONS):
            command = click.option(name, metavar=form, help=text)(command)
        for name, form, text in reversed(_TOPIC_OPTIONS):
            command = click.option(name, required=topic_required, metavar=form, help=text)(command)
        return command

    return add


def source_of(given: Mapping[str, Any]) -> dict[str, str]:
    """The source's options from those of the command line, checked.

    Raises:
        click.UsageError: An option is unknown, not of its form, or the pipeline chooses it itself.
    """
    found: dict[str, str] = {}
    for pair in given["more"]:
        name, separator, value = pair.partition("=")
        if not separator:
            raise click.UsageError(f"--option is NAME=VALUE, and there is no = in it; the names are {', '.join(NAMES)}")
        if name.lower() == "columns":
            raise click.UsageError("the pipeline chooses the columns itself")
        found[name] = value
    if given["topic"] is not None:
        found["topic"] = given["topic"]
    found |= cluster_of(given)
    try:
        if found:
            parse(found)
    except OptionError as exc:
        raise click.UsageError(str(exc)) from exc
    return found


_CLUSTER: Final = {
    "bootstrap": "bootstrap", "tls_ca": "tlsCa", "tls_cert": "tlsCert", "tls_key": "tlsKey",
    "tls_server_name": "tlsServerName",
}  # fmt: skip


def cluster_of(given: Mapping[str, Any]) -> dict[str, str]:
    """The values of --bootstrap and --tls-... as options of source and sink, not checked."""
    return {name: given[key] for key, name in _CLUSTER.items() if given[key] is not None}


SINK_NAMES: Final = tuple(
    name for name in SINK_FORMS if name not in ("bootstrap", "topic", "writer", "writerEpoch", "sequence")
)


def sink_of(given: Mapping[str, Any], source: Mapping[str, str]) -> dict[str, str]:
    """The sink's options from those of the command line, checked.

    Without --to-bootstrap the sink writes to the source's cluster. If an archive is read in place of a topic, the
    certificates of the command line are for the cluster of the sink.

    Raises:
        click.UsageError: An option is unknown or not of its form, or no cluster is given.
    """
    found = {"topic": given["to_topic"]}
    if given["to_bootstrap"] is None or "topic" not in source:
        found |= {name: text for name, text in source.items() if name in _CLUSTER.values()}
    if given["to_bootstrap"] is not None:
        found["bootstrap"] = given["to_bootstrap"]
    for pair in given["to_more"]:
        name, separator, value = pair.partition("=")
        if not separator or name.lower() not in {known.lower() for known in SINK_NAMES}:
            # Never show the text after the sign: it may be a key, and logs show this message.
            shown = f"there is no option {name[:80]!r}" if separator else "there is no = in it"
            raise click.UsageError(f"--to-option is NAME=VALUE, and {shown}; the names are {', '.join(SINK_NAMES)}")
        found[name] = value
    if "bootstrap" not in found:
        raise click.UsageError("--to-bootstrap is missing: give host:port of a broker of the cluster to write to")
    try:
        parse_sink(found, streaming=True)
    except OptionError as exc:
        raise click.UsageError(str(exc)) from exc
    return found


def metrics_option(command: F) -> F:
    """Add the option that says at which address a pipeline serves its metrics."""
    text = (
        "Serve metrics for Prometheus at GET /metrics of this address: rows read, rows written, lag. Each pipeline on "
        "a machine needs its own port.  [default: no metrics]"
    )
    return click.option("--metrics-listen", metavar="HOST:PORT", callback=_checked_address, help=text)(command)


def _checked_address(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    try:
        if given is not None:
            address_of(given)
    except ValueError as exc:
        raise click.BadParameter(f"{given!r} is not {exc}") from exc
    return given


def seconds(text: str) -> float:
    """The seconds of a time on the command line, such as 500ms, 30s or 15m.

    Raises:
        click.UsageError: The text is not a time, or the time is 0.
    """
    try:
        return duration(text)
    except ValueError as exc:
        raise click.UsageError(f"{text!r} is not {exc}") from exc


class failures:  # noqa: N801 - used as a function
    """Show the last line of an error. Spark's log has the whole error."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, click.ClickException):
            raise click.ClickException(last_line(error)) from error


def last_line(error: Exception) -> str:
    """The source's own text in an error that Spark raised, without the traceback around it."""
    text = str(error)
    if isinstance(error, SourceError):
        return text
    lines = [line.strip() for line in text.splitlines() if "seriatim_spark" in line and "Error: " in line]
    return lines[-1].partition(": ")[2] if lines else text.strip().partition("\n\nJVM stacktrace")[0]
