"""Writers of topics, as a driver program opens them. Only the program that opened a writer last can publish with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seriatim_spark.writing.publishing import open_now
from seriatim_spark.writing.sink_options import parse_sink

OPEN_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class OpenedWriter:
    """A writer that this program has opened.

    Attributes:
        options: Options to give to `writeStream` or `write`: the given ones, with `writer` and `writerEpoch`.
        sequence: The sequence of the writer's last publication; None if it has published nothing.
    """

    options: dict[str, str]
    sequence: int | None


def open_writer(options: Mapping[str, str], writer: str) -> OpenedWriter:
    """Take a writer over. A program that opened it before can publish nothing more, even if it still runs.

    Call it in the driver before `start()`, because the query reads its checkpoint in `start()`. If you opened the
    writer later, another driver with the same checkpoint could publish a micro-batch in between. Make the Spark session
    first: it forks, and a process with a client's threads should not fork.

    Args:
        options: The options of the sink: bootstrap and topic, and others if you like.
        writer: The name of the writer: one for each query, the same after a restart.

    Raises:
        OptionError: An option or the name is wrong.
        SourceError: No broker answers, or there is no such topic. Perhaps the writer is open: call it again.
    """
    given = {name: value for name, value in options.items() if name.lower() not in ("writer", "writerepoch")}
    parsed = parse_sink({**given, "writer": writer}, streaming=True)
    assert parsed.writer is not None
    epoch, last = open_now(parsed.target, parsed.topic, parsed.writer, OPEN_TIMEOUT_S)
    return OpenedWriter({**given, "writer": parsed.writer, "writerEpoch": str(epoch)}, last)
