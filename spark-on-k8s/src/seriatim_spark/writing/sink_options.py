"""The options of the sink: their names, forms and defaults, and which of them go together. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from seriatim_api.ids import NAME_RULE, is_legal_name
from seriatim_api.publications import SEQUENCE_MAX

from seriatim_spark.errors import OptionError
from seriatim_spark.options import FORMS, NAMES, TARGET_NAMES, Target, duration, read_options, target_of

OnMismatch = Literal["fail", "accept"]
Compression = Literal["lz4", "zstd"]


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options of a sink.

    Attributes:
        target: The cluster.
        topic: The topic to write to.
        writer: The name of the writer that publishes the rows; None: the query's id, or a random name for one job.
        writer_epoch: The epoch that `open_writer` gave; 0: the writer was not opened.
        sequence: The sequence of the publication of a batch write; None for a stream, which takes the micro-batch's
            number.
        on_mismatch: Whether to fail or continue if a micro-batch was published already and now has other rows.
        write_timeout_s: Seconds for which a task tries to store its rows, and the driver to publish them.
        compression: The compression of stored batches; None: they are not compressed.
    """

    target: Target
    topic: str
    writer: str | None = None
    writer_epoch: int = 0
    sequence: int | None = None
    on_mismatch: OnMismatch = "fail"
    write_timeout_s: float = 120.0
    compression: Compression | None = None


def _topic(text: str) -> str:
    if not is_legal_name(text.strip()):
        raise ValueError("the name of one topic")
    return text.strip()


def _writer(text: str) -> str:
    if not is_legal_name(text.strip()):
        raise ValueError(NAME_RULE)
    return text.strip()


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text.strip()) or int(text) > SEQUENCE_MAX:
        raise ValueError(f"a whole number from 0 to {SEQUENCE_MAX}")
    return int(text)


def _epoch(text: str) -> int:
    if not re.fullmatch(r"\d{1,19}", text.strip()):
        raise ValueError("a whole number, from open_writer")
    return int(text)


def _mismatch(text: str) -> OnMismatch:
    match text.strip().lower():
        case "fail":
            return "fail"
        case "accept":
            return "accept"
    raise ValueError("fail or accept")


def _compression(text: str) -> Compression | None:
    match text.strip().lower():
        case "none":
            return None
        case "lz4":
            return "lz4"
        case "zstd":
            return "zstd"
    raise ValueError("none, lz4 or zstd")


SINK_FORMS: Final = {
    "bootstrap": FORMS["bootstrap"],
    "topic": _topic,
    "writer": _writer,
    "writerEpoch": _epoch,
    "sequence": _number,
    "onReplayMismatch": _mismatch,
    "writeTimeout": duration,
    "compression": _compression,
    **{name: FORMS[name] for name in TARGET_NAMES if name != "bootstrap"},
}
"""Each option and what reads its text, in the order of the documentation."""

_FIELDS: Final = {
    "topic": "topic", "writer": "writer", "writerEpoch": "writer_epoch", "sequence": "sequence",
    "onReplayMismatch": "on_mismatch", "writeTimeout": "write_timeout_s", "compression": "compression",
}  # fmt: skip
_OF_READING: Final = {
    name: f"the option {name} is for reading a topic: leave it out when you write one"
    for name in NAMES
    if name not in SINK_FORMS
}


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check the options that Spark hands over.

    Args:
        given: The text of each option, by name. Upper and lower case do not matter.
        streaming: True for a stream, False for a batch write.

    Raises:
        OptionError: An option is unknown, missing, not of its form, or contradicts another one.
    """
    found = read_options(given, SINK_FORMS, _OF_READING)
    target = target_of(found)
    if "topic" not in found:
        raise OptionError("the option topic is missing: give the name of a topic")
    if found.get("writerEpoch") and "writer" not in found:
        raise OptionError("writerEpoch is given without writer: take both from open_writer")
    if streaming and "sequence" in found:
        raise OptionError("a stream publishes each micro-batch under its number: leave sequence out")
    if not streaming and ("sequence" in found) != ("writer" in found):
        raise OptionError(
            "only one of writer and sequence is given. With both, rows are published once under each sequence of a "
            "writer, however often the job runs. Without both, each run of the job publishes its rows"
        )
    values: dict[str, Any] = {field: found[name] for name, field in _FIELDS.items() if name in found}
    return SinkOptions(target=target, **values)
