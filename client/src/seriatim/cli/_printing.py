"""Messages as lines of output, and values of the client in the form that JSON output has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Literal

from seriatim_api.ids import format_offset

if TYPE_CHECKING:
    from seriatim import Chain, Message

PAGE_SEGMENT_COUNT: Final = 256
"""Segments on each page of a chain's older segments."""

Format = Literal["raw", "json", "pretty"]


def render(message: Message, output: Format) -> bytes:
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
