"""Checks messages in the call that sends them, and refuses those that a body cannot hold before anything is taken.

Messages of many calls share a batch. Without these checks: 1. A call takes a message that cannot be encoded. 2. The
call returns. 3. The producer builds the batch, and that fails for all messages in it. So each part of a message is
checked here. A value that the application could still change (a bytearray, a dict of headers, a list) is copied.

Every refusal is an `IllegalMessageError` or a `MessageTooLargeError`. It names the part and says what to pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import index
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
from seriatim_api.delay_limits import DAY_MS, DELAY_MAX_MS_MAX
from seriatim_api.errors import BadRequestError, IllegalMessageError, MessageTooLargeError

from seriatim._bodies import arrow
from seriatim._producing.pending import MESSAGE_OVERHEAD_BYTES, Messages, attached_bytes
from seriatim._values.headers import BytesLike, HeaderList, Headers

TIMESTAMP_MS_MIN: Final = -(1 << 63)
TIMESTAMP_MS_MAX: Final = (1 << 63) - 1
"""Timestamps have 64 bits, with a sign."""

_BYTES: Final[set[type]] = {bytes}
_BYTES_OR_NONE: Final[set[type]] = {bytes, type(None)}
_INT: Final[set[type]] = {int}


class Limits(NamedTuple):
    """The size limits of a message.

    Attributes:
        message_bytes: The most bytes of key and value together.
        body_bytes: The most bytes of key, value, headers and tag together, so that the message fits into one batch.
    """

    message_bytes: int
    body_bytes: int


Checked = tuple[int, bytes | None, bytes | None, int | None, HeaderList | None, str | None]
"""The bytes that a message takes in a body, and its value, key, timestamp, headers and tag in the types of a body.

It is a plain tuple, because a named tuple takes twice as long to make, for each message.
"""


# ---- one message ----------------------------------------------------------------------------------------


def check_message(
    value: BytesLike | None,
    key: BytesLike | None,
    timestamp_ms: int | None,
    headers: Headers | None,
    tag: str | None,
    limits: Limits,
) -> Checked:
    """Check a message, and return its parts in the types of a body.

    Raises:
        IllegalMessageError: A part has a type or a value that a body cannot hold.
        MessageTooLargeError: The message is over a limit.
    """
    if type(value) is not bytes and value is not None:
        value = _bytes("value", value)
    if key is not None and type(key) is not bytes:
        key = _bytes("key", key)
    size = len(value) if value is not None else 0
    if key is not None:
        size += len(key)
    if timestamp_ms is not None:
        timestamp_ms = _timestamp(timestamp_ms)
    pairs: HeaderList | None = None
    if headers is not None or tag is not None:
        pairs, tag = _headers(headers), _tag(tag)
        _check_size(size, size + attached_bytes(pairs, tag), limits)
        size += attached_bytes(pairs, tag)
    elif size > limits.message_bytes:
        _check_size(size, size, limits)
    return size + MESSAGE_OVERHEAD_BYTES, value, key, timestamp_ms, pairs, tag


def check_delay(delay_ms: object, due_ms: object) -> int:
    """A delay as the header of a batch has it: a due time, or a duration below 0. 0: the message is an ordinary one.

    Raises:
        IllegalMessageError: Both are given, or one is no legal number.
    """
    if delay_ms is None:
        return 0 if due_ms is None else _due_time(due_ms)
    if due_ms is not None:
        raise IllegalMessageError("a message has a delay_ms or a due_ms, not both: leave one of them out")
    delay = _whole("delay_ms", delay_ms, "pass whole milliseconds, as in round(seconds * 1000)")
    if delay < 0:
        raise IllegalMessageError(f"delay_ms is {delay}: pass 0 or more; a message that is due already has no delay")
    if delay > DELAY_MAX_MS_MAX:
        raise IllegalMessageError(
            f"delay_ms is {delay}, and at most {DELAY_MAX_MS_MAX} ({DELAY_MAX_MS_MAX // DAY_MS} days) is possible: "
            "pass milliseconds, or send the message later"
        )
    return -delay


def _due_time(item: object) -> int:
    due_ms = _whole("due_ms", item, "pass whole milliseconds since 1970, as in int(time.time() * 1000) + 60_000")
    if not 0 <= due_ms <= TIMESTAMP_MS_MAX:
        raise IllegalMessageError(f"due_ms is milliseconds since 1970, 0 or more, in 64 bits; {due_ms} is out of range")
    return due_ms


def check_due_times(due_ms: Sequence[int | None] | None, count: int) -> list[int] | None:
    """The due times of the messages of one call; None if all of them are ordinary ones.

    Raises:
        BadRequestError: There are not as many as messages.
        IllegalMessageError: One is no legal number.
    """
    if due_ms is None:
        return None
    column = _column("due_ms", due_ms)
    if len(column) != count:
        raise BadRequestError(f"there are {count} values, but due_ms has {len(column)} items")
    dues = [check_delay(None, item) for item in column]
    return dues if any(dues) else None


def check_partition(partition: int) -> int:
    """A partition's number as an int.

    Raises:
        IllegalMessageError: It is not an integer.
    """
    if type(partition) is int:
        return partition
    return _whole("partition", partition, "pass the number of a partition, counted from 0")


def _bytes(name: str, item: object) -> bytes:
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    if isinstance(item, str):
        raise IllegalMessageError(f"a {name} is bytes, not str: encode text first, as in {name}.encode()")
    raise IllegalMessageError(f"a {name} is bytes, bytearray or memoryview, not {type(item).__name__}")


def _timestamp(item: object) -> int:
    if type(item) is not int:
        hint = "pass whole milliseconds since 1970, as in int(time.time() * 1000)"
        item = _whole("timestamp_ms", item, hint)
    if not TIMESTAMP_MS_MIN <= item <= TIMESTAMP_MS_MAX:
        raise IllegalMessageError(f"timestamp_ms is milliseconds since 1970 in 64 bits; {item} is out of range")
    return item


def _whole(name: str, item: object, hint: str) -> int:
    if not isinstance(item, bool):
        try:
            return index(cast("Any", item))  # accepts NumPy integers too
        except TypeError:
            pass
    raise IllegalMessageError(f"{name} is an int, not {type(item).__name__}: {hint}")


def _headers(headers: object) -> HeaderList | None:
    """Check headers and copy them, because the application may use its own dict or list for the next message."""
    if headers is None:
        return None
    if isinstance(headers, Mapping):
        headers = tuple(headers.items())
    elif not isinstance(headers, Sequence) or isinstance(headers, (str, bytes, bytearray, memoryview)):
        raise IllegalMessageError(
            f"headers are a mapping of names to bytes, or a list of (name, value) pairs, not {type(headers).__name__}"
        )
    return tuple([_header(pair) for pair in headers])


def _header(pair: object) -> tuple[str, bytes | None]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise IllegalMessageError("a header in a list is a pair of its name and its value, as in ('name', b'value')")
    name, value = pair
    if not isinstance(name, str):
        raise IllegalMessageError(f"a header's name is a str, not {type(name).__name__}")
    _check_text("a header's name", name)
    return name, value if value is None or type(value) is bytes else _bytes("header's value", value)


def _tag(tag: object) -> str | None:
    if tag is not None:
        if not isinstance(tag, str):
            raise IllegalMessageError(f"a tag is a str, not {type(tag).__name__}")
        _check_text("a tag", tag)
    return tag


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise IllegalMessageError(f"{name} must be text that UTF-8 can hold: {exc.reason} in {text!r}") from exc


def _check_size(payload_bytes: int, whole_bytes: int, limits: Limits) -> None:
    """Refuse a message that is over a limit.

    Args:
        payload_bytes: The bytes of key and value.
        whole_bytes: The same with headers and tag.
        limits: The limits.

    Raises:
        MessageTooLargeError: The message is over a limit.
    """
    if payload_bytes > limits.message_bytes:
        raise MessageTooLargeError(
            f"a message has {payload_bytes} bytes; at most {limits.message_bytes} are allowed",
            size_bytes=payload_bytes,
            size_bytes_max=limits.message_bytes,
        )
    if whole_bytes > limits.body_bytes:
        raise MessageTooLargeError(
            f"a message has {whole_bytes} bytes with its headers and its tag; at most {limits.body_bytes} are allowed",
            size_bytes=whole_bytes,
            size_bytes_max=limits.body_bytes,
        )


# ---- many messages --------------------------------------------------------------------------------------


def check_messages(
    values: Sequence[BytesLike | None],
    keys: Sequence[BytesLike | None] | None,
    timestamps_ms: Sequence[int] | None,
    headers: Sequence[Headers | None] | None,
    tags: Sequence[str | None] | None,
    limits: Limits,
) -> tuple[Messages, int]:
    """Check the messages of one call. Returns them in the types of a body, and the bytes that all of them take there.

    Timestamps may be missing.

    Raises:
        BadRequestError: The columns differ in length.
        IllegalMessageError: A part of a message has a type or a value that a body cannot hold.
        MessageTooLargeError: A message is over a limit.
    """
    given = _column("values", values)
    count = len(given)
    columns = [
        None if column is None else _column(name, column)
        for name, column in (
            ("keys", keys), ("timestamps_ms", timestamps_ms), ("headers", headers), ("tags", tags),
        )
    ]  # fmt: skip
    for column in columns:
        if column is not None and len(column) != count:
            raise BadRequestError(f"there are {count} values, but another column has {len(column)} items")
    key_column, time_column, header_column, tag_column = columns
    if not set(map(type, given)) <= _BYTES:
        given = tuple(None if item is None else _bytes("value", item) for item in given)
    if key_column is not None and not set(map(type, key_column)) <= _BYTES_OR_NONE:
        key_column = tuple(None if item is None else _bytes("key", item) for item in key_column)
    if time_column is not None and not _are_timestamps(time_column):
        time_column = tuple(_timestamp(item) for item in time_column)
    if header_column is not None:
        header_column = tuple(_headers(row) for row in header_column)
    if tag_column is not None:
        tag_column = tuple(_tag(tag) for tag in tag_column)
    messages = Messages(given, key_column, time_column or (), header_column, tag_column)
    size = messages.size_bytes()
    if count:
        _check_sizes(messages, limits)
    return messages, size


def _column(name: str, items: object) -> tuple[Any, ...]:
    """Check a column and copy it, because the application may change its list while the call waits for room."""
    if isinstance(items, (str, bytes, bytearray, memoryview)):
        raise IllegalMessageError(f"{name} are a sequence with an item for each message, not {type(items).__name__}")
    try:
        return tuple(cast("Any", items))
    except TypeError as exc:
        raise IllegalMessageError(f"{name} are a sequence, not {type(items).__name__}") from exc


def _are_timestamps(items: tuple[Any, ...]) -> bool:
    if not items:
        return True
    return set(map(type, items)) <= _INT and min(items) >= TIMESTAMP_MS_MIN and max(items) <= TIMESTAMP_MS_MAX


def _check_sizes(messages: Messages, limits: Limits) -> None:
    values, keys, _, headers, tags = messages
    largest = max(map(len, filter(None, values)), default=0)
    if keys is not None:
        largest += max((len(key) for key in keys if key is not None), default=0)
    if largest <= limits.message_bytes and headers is None and tags is None:
        return
    # A message may be over the limit. It is not certain, because the largest value need not have the largest key.
    for value, key, row, tag in zip(
        values, keys or repeat(None), headers or repeat(None), tags or repeat(None), strict=False
    ):
        payload = len(value or b"") + len(key or b"")
        _check_size(payload, payload + attached_bytes(row, tag), limits)


# ---- tables ---------------------------------------------------------------------------------------------


def check_table(table: object, key_column: str, now_ms: int) -> Any:
    """Check a table, and return it with the columns of `SCHEMA`. `check_rows` checks the sizes.

    Raises:
        IllegalMessageError: It is not a table; or a column is missing, unknown or of a wrong type; or the name of a
            header is null.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise IllegalMessageError(f"a table is a pyarrow.Table or a RecordBatch, not {type(table).__name__}")
    if key_column != "key":
        if key_column not in table.column_names:
            raise IllegalMessageError(
                f"the table has no column {key_column!r} for key_column; it has {table.column_names}"
            )
        table = table.rename_columns(["key" if name == key_column else name for name in table.column_names])
    return arrow.conform(table, now_ms)


def check_rows(rows: Any, size_bytes: int, limits: Limits) -> None:
    """Refuse rows of `SCHEMA` if one of them is over a limit.

    Args:
        rows: A record batch with at least one row.
        size_bytes: The bytes that all rows take, from `split_rows`.
        limits: The limits of each row.

    Raises:
        MessageTooLargeError: A row is over a limit.
    """
    if size_bytes <= min(limits) and rows.column(3).null_count == rows.num_rows:
        return  # all rows together are under the limits (only headers take more in a body than in Arrow's memory)
    payload, whole = arrow.row_sizes(rows)
    for number in (payload.argmax(), whole.argmax()):
        _check_size(int(payload[number]), int(whole[number]), limits)
