"""Writers of topics as a driver program opens them: only who opened a writer last publishes under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seriatim_spark.publishing import open_now
from seriatim_spark.sink_options import parse_sink

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
    """Take a writer over: whichever program opened it before, and still runs or wakes up, publishes nothing more.

    Call it in the driver before `start()`: a query reads its checkpoint there. If it were opened after that, another
    driver with the same checkpoint could plan a micro-batch and publish it in between. Make the Spark session before:
    that forks, and a process with a client's threads should not.

    Args:
        options: Of the sink: bootstrap and topic, and others if you like.
        writer: Its name: one for each query, the same after a restart.

    Raises:
        OptionError: An option, or the name.
        SourceError: No broker answers, or there is no such topic. It may be open all the same: call it again.
    """
    given = {name: value for name, value in options.items() if name.lower() not in ("writer", "writerepoch")}
    parsed = parse_sink({**given, "writer": writer}, streaming=True)
    assert parsed.writer is not None
    epoch, last = open_now(parsed.target, parsed.topic, parsed.writer, OPEN_TIMEOUT_S)
    return OpenedWriter({**given, "writer": parsed.writer, "writerEpoch": str(epoch)}, last)
