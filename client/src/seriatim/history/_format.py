"""The lines of a history: names of kinds, batches of ids, offsets, and the error for a bad line.

The functions for offsets and keys repeat a few lines of `seriatim_api.ids` and `key_names`, because this package
imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

VERSION: Final = 1

HISTORY: Final = "history"
SEND: Final = "send"
OUTCOME: Final = "outcome"
DELIVER: Final = "deliver"
ACK: Final = "ack"
CONFIRM: Final = "confirm"
NACK: Final = "nack"
VOID: Final = "void"
PARKED: Final = "parked"
DEAD: Final = "dead"
PERSON: Final = "person"
GAP: Final = "gap"
SKIP: Final = "skip"
FAULT: Final = "fault"
END: Final = "end"
TOPIC: Final = "topic"
CANCEL: Final = "cancel"
CLOSE: Final = "close"

LINE_SIZE_BYTES_MAX: Final = 32 << 20
"""The longest line. A batch of a million ids fits; a longer line is not a history's."""

MessageId = int | str

TERM_BITS_BELOW: Final = 40
"""The bits of a token above these are the term: it grows with each server, and a server has one."""

PERSON_ACTS: Final = ("release", "skip", "dead_letter", "replay", "drop", "move", "delete")
"""What administrators do to a consumer group. `move`: a rewind, or a skip to another place. `delete`: it starts
over."""

REWIND: Final = "rewind"
SKIP_TO: Final = "skip"
MODE: Final = "mode"
PLACED_WAYS: Final = (REWIND, SKIP_TO)
WAYS: Final = (*PLACED_WAYS, MODE)
"""How an administrator moves a consumer group: to a place, which the line names, or by giving it another mode."""

TOPIC_ACTS: Final = ("delete", "publish")
"""What administrators do to a topic: delete it, so that its offsets start over; or publish rows, which no producer
sends."""

CANCELLED: Final = "cancelled"
TOO_LATE: Final = "too_late"
CANCEL_ANSWERS: Final = (CANCELLED, TOO_LATE, "not_found")
"""What brokers answer to the cancellation of a delayed message."""

EARLY_S_MAX: Final = 0.1
"""A delayed message may be delivered this long before it is due."""

INDEX_BITS: Final = 40
_OFFSET_END: Final = 1 << 63
_MESSAGE_COUNT_MAX: Final = 10_000_000  # in one line, so that a wrong `n` cannot use up the memory

_WORDS: Final = {
    "k": "kind",
    "p": "producer",
    "e": "epoch",
    "t": "topic",
    "q": "partition",
    "s": "sequence",
    "m": "message",
    "n": "count",
    "y": "key",
    "x": "outcome",
    "o": "offset",
    "z": "end_offset",
    "g": "group",
    "c": "consumer",
    "a": "attempt",
    "r": "maybe_repeated",
    "u": "token",
    "v": "group_epoch",
    "b": "at_most_once",
    "w": "stored_at",
    "d": "way",
}


class HistoryFormatError(ValueError):
    """A line that no recorder writes, so the history cannot be checked.

    Attributes:
        source: The name of the file.
        line: The line's number, counted from 1; 0 if the error is about the whole file.
        reason: What is wrong.
    """

    def __init__(self, source: str, line: int, reason: str) -> None:
        super().__init__(f"{source}:{line}: {reason}" if line else f"{source}: {reason}")
        self.source = source
        self.line = line
        self.reason = reason


def parse_offset(text: object) -> int:
    """Read an offset `segment:index`. Returns it as an integer with the same order.

    Raises:
        ValueError: The text is not an offset.
    """
    if not isinstance(text, str):
        raise ValueError(f"an offset is a string segment:index, not {text!r}")
    segment, separator, index = text.partition(":")
    if not separator or not segment.isdecimal() or not index.isdecimal():
        raise ValueError(f"an offset is written segment:index, not {text!r}")
    offset = int(segment) << INDEX_BITS | int(index)
    if int(index) >> INDEX_BITS or offset >= _OFFSET_END:
        raise ValueError(f"offset {text} is out of range")
    return offset


def format_offset(offset: int) -> str:
    """The offset as text, in the form of a line."""
    assert 0 <= offset < _OFFSET_END, offset
    return f"{offset >> INDEX_BITS}:{offset & ((1 << INDEX_BITS) - 1)}"


def encode_ids(ids: Sequence[MessageId]) -> dict[str, object]:
    """The keys `m` and `n` for these ids, in the shortest of the three forms."""
    count = len(ids)
    first = ids[0]
    if count == 1:
        return {"m": first}
    if isinstance(ids, range):
        if ids.step == 1:
            return {"m": first, "n": count}
        return {"m": list(ids)}
    last = ids[-1]
    if isinstance(first, int) and isinstance(last, int) and last - first == count - 1:
        consecutive = range(first, last + 1)
        if all(map(_same, ids, consecutive)):
            return {"m": first, "n": count}
    return {"m": list(ids)}


def _same(a: object, b: object) -> bool:
    return a == b


def decode_ids(event: Mapping[str, object]) -> Sequence[MessageId]:
    """The message ids of a line.

    Raises:
        ValueError: The line has no ids, or `m` and `n` are not ids.
    """
    ids = event.get("m")
    if isinstance(ids, list):
        if not ids or not set(map(type, ids)) <= {int, str}:
            raise ValueError("m is a list of message ids (integers or strings), and not empty")
        return ids
    if type(ids) is not int and type(ids) is not str:
        raise ValueError(f"m is a message id (an integer or a string), not {ids!r}")
    if "n" not in event:
        return (ids,)
    count = event["n"]
    if type(count) is not int or type(ids) is not int or not 0 < count <= _MESSAGE_COUNT_MAX:
        raise ValueError("n counts the consecutive integers from m on")
    return range(ids, ids + count)


def text_of_key(key: bytes) -> str:
    """A key in the notation of `seriatim_api.key_names`: different keys have different texts."""
    if key in (b"", b"-"):
        return "%2d" if key else "%empty"
    text = key.decode(errors="surrogateescape")
    if text.isprintable() and " " not in text and "%" not in text:
        return text
    return "".join(letter if letter.isprintable() and letter not in " %" else _percent(letter) for letter in text)


def _percent(letter: str) -> str:
    return "".join(f"%{byte:02x}" for byte in letter.encode(errors="surrogateescape"))


def encode_keys(keys: Sequence[bytes | None]) -> dict[str, object]:
    """The key `y` for the keys of messages: absent if none has one, a text if all have the same."""
    texts = [None if key is None else text_of_key(key) for key in keys]
    first = texts[0]
    if texts.count(first) == len(texts):
        return {} if first is None else {"y": first}
    return {"y": texts}


def decode_keys(event: Mapping[str, object], count: int) -> Sequence[str | None]:
    """The keys of the messages of a line.

    Raises:
        ValueError: `y` is neither a text nor a list of this many texts.
    """
    keys = event.get("y")
    if keys is None or isinstance(keys, str):
        return [keys] * count
    if not isinstance(keys, list) or len(keys) != count or not set(map(type, keys)) <= {str, type(None)}:
        raise ValueError(f"y is a key, or a key or null for each of the {count} messages")
    return keys


def decode_offsets(event: Mapping[str, object]) -> list[tuple[int, int]]:
    """The offsets and tokens of a line about single messages: (offset, token).

    Raises:
        KeyError, ValueError: The line has none, or not as many of both.
    """
    offsets, tokens = event["o"], event["u"]
    if not isinstance(offsets, list):
        offsets, tokens = [offsets], [tokens]
    if not isinstance(tokens, list) or len(tokens) != len(offsets):
        raise ValueError("o and u are an offset and its token, or lists of the same length")
    return [(parse_offset(offset), check_token(token)) for offset, token in zip(offsets, tokens, strict=True)]


def check_token(token: object) -> int:
    """A token.

    Raises:
        ValueError: It is not a token.
    """
    if type(token) is not int or not 0 <= token < _OFFSET_END:
        raise ValueError(f"a token is a number of 63 bits, not {token!r}")
    return token


def in_words(event: Mapping[str, object], position: int | None, message: MessageId | None) -> dict[str, object]:
    """A line with names instead of short keys. If it is a batch, it becomes a line about one message.

    Args:
        event: The line.
        position: The message's position in the batch; None: the line stays about the whole batch.
        message: The message's id.
    """
    words = {_WORDS.get(key, key): value for key, value in event.items() if key not in ("m", "n")}
    if message is not None:
        words["message"] = message
    if position is not None:
        if isinstance(words.get("sequence"), int):
            words["sequence"] = event["s"] + position  # type: ignore[operator]
        if isinstance(event.get("y"), list):
            words["key"] = event["y"][position]  # type: ignore[index]
        if "offset" in words:
            words["offset"] = format_offset(parse_offset(event["o"]) + position)
    return words
