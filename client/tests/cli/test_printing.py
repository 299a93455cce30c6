"""What a message's bytes do to a terminal, and how JSON tells bytes from text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from seriatim import Message
from seriatim.cli._rendering.output import Format, render

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
