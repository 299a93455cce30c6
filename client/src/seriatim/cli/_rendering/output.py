"""Messages as lines of output, and values of the client in the form that JSON output has."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from seriatim_api.ids import format_offset
from seriatim_api.key_names import escaped, key_to_text
from seriatim_api.terminal.safe_text import safe_json

from seriatim.cli._options.keys import shown_key

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from seriatim import Chain, Message

PAGE_SEGMENT_COUNT: Final = 256
"""Segments on each page of a chain's older segments."""

_SEGMENT: Final = [
    "no",
    "group",
    "members",
    "state",
    "length=sealed_len",
    "server",
    "tail_from",
    "tail_copies",
    "incomplete_table",
    "start",
]

Format = Literal["raw", "json", "pretty"]

NULL: Final = "(null)"
"""What is printed for a null value, but in JSON, which has its own. `seriatim produce --null` can read it."""


def render(message: Message, output: Format, *, to_terminal: bool) -> bytes:
    """The line that is printed for a message, with a newline at its end.

    No control character of a message reaches a terminal: it could change what is on the screen, or type a command.
    """
    value = NULL.encode() if message.value_is_null else message.value
    if output == "raw":
        return (escaped(value).encode() if to_terminal else value) + b"\n"
    if output == "json":
        fields = {
            "partition": message.partition,
            "offset": format_offset(message.offset),
            "key": None if message.key is None else key_to_text(message.key),
            "value": None if message.value_is_null else data_field(message.value),
            "timestamp_ms": message.timestamp_ms,
            **header_fields(message.header_list),
            "tag": message.tag,
            "attempt": message.attempt,
            "maybe_repeated": message.maybe_repeated,
        }
        return safe_json(fields).encode() + b"\n"
    mark = " (maybe repeated)" if message.maybe_repeated else ""
    where = f"{message.partition}  {format_offset(message.offset):<12} {shown_key(message.key)}"
    return f"{where}  {escaped(value)}{mark}\n".encode()


def header_fields(
    headers: Sequence[tuple[str, bytes | None]], text: Callable[[bytes], object] | None = None
) -> dict[str, Any]:
    """Headers for JSON: `headers` has the last value of each name. If a name is repeated, `header_list` has them all.

    Args:
        headers: The headers in their order.
        text: The form of a value that is not null; None: `data_field`.
    """
    pairs = [(name, None if value is None else (text or data_field)(value)) for name, value in headers]
    named = dict(pairs)
    return {"headers": named} if len(named) == len(pairs) else {"headers": named, "header_list": pairs}


def data_field(data: bytes) -> str | dict[str, str]:
    """Bytes for JSON: text if they are UTF-8, else `{"base64": ...}`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def offset_field(offset: int | None) -> str | None:
    """An offset for JSON: `segment:index`, the form that commands show to users and accept."""
    return None if offset is None else format_offset(offset)


def pick(value: object, *names: str) -> dict[str, Any]:
    """These attributes of a value, in this order, for JSON. `source=from_broker`: the attribute has another name."""
    pairs = (name.split("=") for name in names)
    return {pair[0]: getattr(value, pair[-1]) for pair in pairs}


def shown_offset(offset: int | None, unknown: str = "-") -> str:
    """An offset for humans; `unknown` if there is none."""
    return unknown if offset is None else format_offset(offset)


def draw(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], **options: Any) -> Table:
    """A table.

    Args:
        columns: The title of each column. `>` before it: its values are on the right. `~` after it: if the terminal is
            too narrow, its values continue in the next line and are not cut.
        rows: The values of each line.
        options: Of `rich.table.Table`.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, **options)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        overflow: Literal["fold", "ellipsis"] = "fold" if column.endswith("~") else "ellipsis"
        table.add_column(column.strip(">~"), justify=justify, overflow=overflow)
    for row in rows:
        table.add_row(*row)
    return table


def older_segment_count(chain: Chain) -> int:
    """The number of segments before the first of `chain.segments`, on pages that were not read."""
    return chain.page_count * PAGE_SEGMENT_COUNT


def chain_fields(chain: Chain) -> dict[str, Any]:
    """A chain for JSON."""
    return {
        **pick(chain, "topic", "partition", "epoch", "send_chain"),
        "segments": [pick(segment, *_SEGMENT) for segment in chain.segments],
        "older_segment_count": older_segment_count(chain),
    }


def disk_line(broker: str, state: str) -> str:
    """A line about a broker's disk: what is wrong, what that means, and what to do."""
    told = {
        "full": (
            "has reached its reserve: it takes no new messages. Add disks or broker groups, or delete topics that are "
            "not needed"
        ),
        "hangs": "completes no write: the other members continue without it. Look at the disk",
    }
    return f"the disk of {broker} {told.get(state, state)}"
