"""Prints messages, and notes about them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from seriatim_api.ids import format_offset

from seriatim.cli._ports import Delivered, Note
from seriatim.cli._settings import Settings

if TYPE_CHECKING:
    from seriatim import Chain

PAGE_SEGMENT_COUNT: Final = 256
"""Segments on each page of a chain's older segments."""

Format = Literal["raw", "json", "pretty"]


def render(message: Delivered, output: Format) -> bytes:
    """The line that is printed for a message, with a newline at its end."""
    if output == "raw":
        return message.value + b"\n"
    if output == "json":
        fields = {
            "partition": message.partition,
            "offset": format_offset(message.offset),
            "key": _text(message.key),
            "value": _text(message.value),
            "timestamp_ms": message.timestamp_ms,
            "maybe_repeated": message.maybe_repeated,
        }
        return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
    mark = " (maybe repeated)" if message.maybe_repeated else ""
    where = f"{message.partition}  {format_offset(message.offset):<12} {_text(message.key) or '-'}"
    return f"{where}  {_text(message.value)}{mark}\n".encode()


def _text(data: bytes | None) -> str | None:
    """Bytes as text, for people and for JSON. Bytes that are not UTF-8 are escaped."""
    return None if data is None else data.decode("utf-8", errors="backslashreplace")


def pick(value: object, *names: str) -> dict[str, Any]:
    """These attributes of a value, in this order, for JSON."""
    return {name: getattr(value, name) for name in names}


def older_segment_count(chain: Chain) -> int:
    """The number of segments before the first of `chain.segments`, on pages that were not read."""
    return chain.page_count * PAGE_SEGMENT_COUNT


def chain_fields(chain: Chain) -> dict[str, Any]:
    """A chain for JSON."""
    return {
        **pick(chain, "topic", "partition", "epoch", "send_chain"),
        "segments": [
            {
                **pick(segment, "no", "group", "members", "state"),
                "length": segment.sealed_len,
                **pick(segment, "server", "tail_from", "tail_copies", "incomplete_table", "start"),
            }
            for segment in chain.segments
        ],
        "older_segment_count": older_segment_count(chain),
    }


def print_note(settings: Settings, note: Note) -> None:
    """Print a note on stderr: a line for people, or a JSON object with `--output json`."""
    if settings.as_json:
        offset = None if note.offset is None else format_offset(note.offset)
        fields = {"note": note.kind, "partition": note.partition, "offset": offset, "text": note.text}
        click.echo(json.dumps(fields), err=True)
    else:
        click.echo(f"# {describe_note(note)}", err=True)


def describe_note(note: Note) -> str:
    """A note as a line for people."""
    where = "" if note.offset is None else f" at {format_offset(note.offset)}"
    more = f": {note.text}" if note.text else ""
    until = "" if note.end_offset is None else f" to {format_offset(note.end_offset)}"
    words = {
        "active": f"active{where}{more}",
        "standby": f"standing by{more}",
        "crossed": f"crossed into the segment{where}{more}",
        "gap": f"gap{where.replace(' at', ' from')}{until}{more}",
        "revoked": f"not active any more{more}",
        "rewind": f"the group was rewound, and goes on{where}",
        "skip": f"the group skipped messages, and goes on{where}",
        "pause": "the group is paused",
        "resume": "the group is resumed",
        "moved": f"the group begins anew{where}",
    }
    return f"partition {note.partition}: {words[note.kind]}"
