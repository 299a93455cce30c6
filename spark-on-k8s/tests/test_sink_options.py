"""What users may give as options of a sink, and which of them go together."""

from __future__ import annotations

import pytest
from seriatim_spark.errors import OptionError
from seriatim_spark.options import Target
from seriatim_spark.writing.sink_options import SINK_FORMS, parse_sink

LEAST = {"bootstrap": "one:7400", "topic": "orders"}


def test_the_least_that_is_needed_and_the_defaults() -> None:
    options = parse_sink(LEAST, streaming=True)
    assert (options.target, options.topic) == (Target("one:7400"), "orders")
    assert (options.writer, options.writer_epoch, options.sequence) == (None, 0, None)
    assert (options.on_mismatch, options.write_timeout_s, options.compression) == ("fail", 120.0, None)


def test_each_option_is_read() -> None:
    given = {
        "bootstrap": "h:1", "topic": "orders", "writer": "nightly", "writerepoch": "70000000000", "sequence": "12",
        "onReplayMismatch": "Accept", "writeTimeout": "5s", "compression": "zstd", "tlsCa": "/ca", "tlsCert": "/c",
        "tlsKey": "/k", "tlsServerName": "b", "checkpointlocation": "/tmp/c",
    }  # fmt: skip
    options = parse_sink(given, streaming=False)
    assert (options.writer, options.writer_epoch, options.sequence) == ("nightly", 70_000_000_000, 12)
    assert (options.on_mismatch, options.write_timeout_s, options.compression) == ("accept", 5.0, "zstd")
    assert options.target == Target("h:1", "/ca", "/c", "/k", "b")
    assert {name.lower() for name in SINK_FORMS} == {name.lower() for name in given} - {"checkpointlocation"}
    assert parse_sink(LEAST | {"compression": "none"}, streaming=True).compression is None


@pytest.mark.parametrize(
    ("more", "streaming", "told"),
    [
        ({"writter": "x"}, True, "did you mean writer"),
        ({"startingOffsets": "latest"}, True, "startingOffsets is for reading"),
        ({"topic": "a,b"}, True, "one topic"),
        ({"writer": "no/name"}, True, "letters, digits"),
        ({"sequence": "3", "writer": "w"}, True, "leave sequence out"),
        ({"sequence": "3"}, False, "only one of writer and sequence"),
        ({"writer": "w"}, False, "only one of writer and sequence"),
        ({"writerEpoch": "3"}, True, "open_writer"),
        ({"writerEpoch": "-3", "writer": "w"}, True, "from open_writer"),
        ({"sequence": "-1", "writer": "w"}, False, "whole number"),
        ({"sequence": "4294967296", "writer": "w"}, False, "whole number"),
        ({"onReplayMismatch": "ignore"}, True, "fail or accept"),
        ({"compression": "gzip"}, True, "none, lz4 or zstd"),
        ({"path": "/x"}, True, "there is no path"),
        ({"tlsCert": "/c", "tlsKey": "/k"}, True, "tlsCa is missing"),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, str], streaming: bool, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        parse_sink(LEAST | more, streaming=streaming)


@pytest.mark.parametrize("missing", ["bootstrap", "topic"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(OptionError, match=f"the option {missing} is missing"):
        parse_sink({name: text for name, text in LEAST.items() if name != missing}, streaming=True)


def test_a_key_is_not_shown() -> None:
    with pytest.raises(OptionError) as refused:
        parse_sink(LEAST | {"tlsKey": "-----BEGIN PRIVATE KEY-----\nsecret"}, streaming=True)
    assert "secret" not in str(refused.value)
