"""What a message's bytes do to a terminal, and how JSON tells bytes from text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from seriatim import DeadLetter, Message, QuarantinedMessage
from seriatim._values.headers import headers_of
from seriatim.cli._rendering.output import Format, render
from seriatim_api.ids import make_offset

from .memory import MemoryCluster
from .test_commands import Run, cluster, run

__all__ = ["cluster", "run"]

EVIL = "a\x1b[2J\x07\x9b31m\r\n\u202eb".encode()


def message_of(value: bytes, **others: Any) -> Message:
    fields: dict[str, Any] = {
        "topic": "t", "partition": 0, "offset": 1 << 40, "key": None, "value": value, "timestamp_ms": 5, "headers": {},
        "tag": None, "attempt": 1, "maybe_repeated": False, "grant": 0,
    }  # fmt: skip
    return Message(**{**fields, **others})


@pytest.mark.parametrize("output", ["raw", "json", "pretty"])
def test_no_control_character_reaches_a_terminal(output: Format) -> None:
    message = message_of(EVIL, key=EVIL, headers={"h": EVIL})
    line = render(message, output, to_terminal=True)
    assert line[-1:] == b"\n"
    assert line[:-1].decode().isprintable()


def test_raw_bytes_go_to_files_as_they_are() -> None:
    assert render(message_of(EVIL), "raw", to_terminal=False) == EVIL + b"\n"


@pytest.mark.parametrize(
    ("key", "shown"), [(None, "-"), (b"-", "%2d"), (b"", "%empty"), (b"\\x00", "\\x00"), (b"\0", "%00")]
)
def test_keys_that_look_alike_are_printed_apart(key: bytes | None, shown: str) -> None:
    message = message_of(b"v", key=key)
    assert render(message, "pretty", to_terminal=False).split() == [b"0", b"1:0", shown.encode(), b"v"]
    assert json.loads(render(message, "json", to_terminal=False))["key"] == (None if key is None else shown)


PAIRS: list[tuple[str, bytes | None]] = [("n", None), ("", b"\xff"), ("n", b"2"), ("a", None)]


@pytest.mark.parametrize("to_terminal", [True, False])
def test_a_null_value_is_printed_apart_from_an_empty_one(*, to_terminal: bool) -> None:
    null, empty = message_of(b"", value_is_null=True), message_of(b"")
    lines = [
        [render(message, output, to_terminal=to_terminal) for message in (null, empty)] for output in ("raw", "pretty")
    ]
    assert lines == [[b"(null)\n", b"\n"], [b"0  1:0          -  (null)\n", b"0  1:0          -  \n"]]
    values = [json.loads(render(message, "json", to_terminal=to_terminal))["value"] for message in (null, empty)]
    assert values == [None, ""]


def test_json_has_repeated_headers_in_their_order() -> None:
    found = json.loads(render(message_of(b"", headers=headers_of(PAIRS)), "json", to_terminal=False))
    assert found["headers"] == {"n": "2", "": {"base64": "/w=="}, "a": None}
    assert found["header_list"] == [["n", None], ["", {"base64": "/w=="}], ["n", "2"], ["a", None]]
    found = json.loads(render(message_of(b"", headers=headers_of(PAIRS[:2])), "json", to_terminal=False))
    assert (list(found["headers"].items()), "header_list" in found) == ([("n", None), ("", {"base64": "/w=="})], False)


def test_json_has_all_of_a_message_and_tells_bytes_from_text() -> None:
    message = message_of(EVIL, key=b"\xff", headers={"h": b"\x80", "é": "ü".encode()}, tag="x", attempt=3)
    line = render(message, "json", to_terminal=False).decode()
    assert json.loads(line) == {
        "partition": 0,
        "offset": "1:0",
        "key": "%ff",
        "value": EVIL.decode(),
        "timestamp_ms": 5,
        "headers": {"h": {"base64": "gA=="}, "é": "ü"},
        "tag": "x",
        "attempt": 3,
        "maybe_repeated": False,
    }
    assert "ü" in line


def test_a_dead_letter_is_shown_with_nulls_and_all_headers(run: Run, cluster: MemoryCluster) -> None:
    offset = make_offset(2, 1)
    letter = DeadLetter(
        "dead", 0, offset, b"k", b"", 5, headers_of(PAIRS), None, "t", 0, offset, "g", 5, "no", 9, False, (), True
    )
    cluster.letters = [letter]
    _, out, _ = run("dead-letter", "show", "t.dead", "-p", "0", "--offset", "2:1")
    assert [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("header")] == [
        "n: (null)", ": \\xff", "n: 2", "a: (null)",
    ]  # fmt: skip
    assert out.endswith("value     (null)\n")
    _, out, _ = run("--output", "json", "dead-letter", "show", "t.dead", "-p", "0", "--offset", "2:1")
    found = json.loads(out)
    assert (found["value"], len(found["header_list"])) == (None, 4)


def test_recovered_messages_are_exported_with_nulls(run: Run, cluster: MemoryCluster, tmp_path: Path) -> None:
    headers = headers_of(PAIRS)
    cluster.quarantined = [
        QuarantinedMessage("g0-0", 7, 2, 40, 41, None, b"", headers, 5, value_is_null=True),
        QuarantinedMessage("g0-0", 7, 2, 40, 42, None, b"", {"n": b"1"}, 5),
    ]
    assert run("chain", "recover", "g0-0", "--export", str(tmp_path / "kept"))[0] == 0
    null, empty = map(json.loads, (tmp_path / "kept").read_text().splitlines())
    assert (null["value"], empty["value"]) == (None, "")
    assert null["header_list"] == [["n", None], ["", "/w=="], ["n", "Mg=="], ["a", None]]
    assert empty["headers"] == {"n": "MQ=="}
