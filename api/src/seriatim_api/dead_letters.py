"""Dead letters: names, ids and headers that brokers and clients share.

A dead letter is a copy of a message in the dead-letter topic of a consumer group. It has the key, value, timestamp, tag
and headers of the message, and the headers below. A *replayed copy* is a copy of a dead letter at the end of the
message's partition. It is only for the consumer group that the dead letter names: the header of its batch has the
group's hash (`for_group`). A *resolution* is a message in the dead-letter topic that says which dead letters are done
with. It is for no consumer group at all.

Nothing in this module does I/O.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .delayed import FIRE_MARK
from .ids import format_offset, parse_offset

FORWARDER_MARK: Final = b"/forward"
"""The last 8 bytes of the producer ids of forwarders. Batches of clients with such an id are refused."""

REPLAY_MARK: Final = b"/replays"
"""The same of replayed copies and of resolutions."""

_TOPIC: Final = "seriatim-topic"
_PARTITION: Final = "seriatim-partition"
_OFFSET: Final = "seriatim-offset"
_GROUP: Final = "seriatim-group"
_ATTEMPTS: Final = "seriatim-attempts"
_REASON: Final = "seriatim-reason"
_TIME: Final = "seriatim-dead-letter-time"
_MAYBE: Final = "seriatim-maybe-repeated"
_HISTORY: Final = "seriatim-history"
_RESOLUTION: Final = "seriatim-resolution"

ADDED_HEADERS: Final = (_TOPIC, _PARTITION, _OFFSET, _GROUP, _ATTEMPTS, _REASON, _TIME, _MAYBE, _HISTORY)
"""What a dead letter has in addition to the headers of its message."""

HISTORY_MAX: Final = 10
"""How many of its earlier dead letters a message remembers."""

HeaderList = Sequence[tuple[str, bytes | None]]
"""The headers of a message in their order. A name may come several times, and a value may be null."""

_ENTRY: Final = frozenset(("offset", "group", "attempts", "reason", "time_ms"))
_OFFSETS = struct.Struct("<Q")


def group_hash(group: str) -> int:
    """The hash of a consumer group's name in the header of a batch that is only for that group. Never 0."""
    digest = hashlib.blake2b(group.encode(), digest_size=8, person=b"seriatim group").digest()
    return int.from_bytes(digest, "little") or 1


FOR_NO_GROUP: Final = group_hash("/resolutions")
"""Of resolutions. No consumer group can have that name."""


def dead_letter_producer(partition: int, group: str, group_epoch: int, term: int) -> bytes:
    """The producer id of the forwarder of a consumer group.

    It is that of the dead letters of one partition that got their numbers in one group epoch and one term.
    """
    return _producer(b"dead", f"{partition}/{group_epoch}/{term}/{group}", FORWARDER_MARK)


def replay_producer(partition: int, offset: int) -> bytes:
    """The producer id of the replayed copy of one dead letter, by the partition and offset of the dead letter."""
    return _producer(b"replay", f"{partition}/{offset}", REPLAY_MARK)


def is_brokers_own(producer: bytes) -> bool:
    """Whether only brokers send as this producer: dead letters, replays, resolutions, fired or moved messages."""
    return producer.endswith((FORWARDER_MARK, REPLAY_MARK, FIRE_MARK))


def _producer(purpose: bytes, text: str, mark: bytes) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8, person=purpose).digest() + mark


@dataclass(frozen=True, slots=True)
class DeadLetterOrigin:
    """Where a dead letter comes from, and why it is there.

    Attributes:
        topic: The topic of the message.
        partition: The number of its partition in the topic.
        offset: Its offset there.
        group: The consumer group that failed on it.
        attempts: How many attempts failed.
        reason: The last error.
        time_ms: When the last attempt failed, by the broker's clock.
        maybe_repeated: The same dead letter may be in the topic twice.
    """

    topic: str
    partition: int
    offset: int
    group: str
    attempts: int
    reason: str
    time_ms: int
    maybe_repeated: bool = False

    def headers(self) -> list[tuple[str, bytes]]:
        """The headers that say this."""
        found = [
            (_TOPIC, self.topic),
            (_PARTITION, str(self.partition)),
            (_OFFSET, format_offset(self.offset)),
            (_GROUP, self.group),
            (_ATTEMPTS, str(self.attempts)),
            (_REASON, self.reason),
            (_TIME, str(self.time_ms)),
        ]
        if self.maybe_repeated:
            found.append((_MAYBE, "1"))
        return [(name, value.encode()) for name, value in found]


def origin_of(headers: Mapping[str, bytes]) -> DeadLetterOrigin | None:
    """What the headers of a dead letter say; None if the message is no dead letter."""
    try:
        return DeadLetterOrigin(
            headers[_TOPIC].decode(),
            _number(headers[_PARTITION], 32),
            parse_offset(headers[_OFFSET].decode()),
            headers[_GROUP].decode(),
            _number(headers[_ATTEMPTS], 32),
            headers[_REASON].decode(errors="replace"),
            _number(headers[_TIME], 63),
            _MAYBE in headers,
        )
    except (KeyError, ValueError):
        return None


def _number(text: bytes, bits: int) -> int:
    """The number in a header. A client may have written the header."""
    number = int(text)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{number} has not {bits} bits")
    return number


def dead_letter_headers(headers: HeaderList, origin: DeadLetterOrigin) -> list[tuple[str, bytes | None]]:
    """The headers of a dead letter: those of the message, what is added, and its history if it was replayed before."""
    kept = [(name, value) for name, value in headers if name not in ADDED_HEADERS]
    history = [(name, value) for name, value in headers if name == _HISTORY]
    return [*kept, *origin.headers(), *history[-1:]]


def replayed_headers(headers: HeaderList) -> list[tuple[str, bytes | None]]:
    """The headers of a replayed copy: those of the message, and a history with this dead letter as its newest entry."""
    kept = [(name, value) for name, value in headers if name not in ADDED_HEADERS]
    named = {name: value or b"" for name, value in headers}
    origin = origin_of(named)
    if origin is None:
        return kept
    entry = {
        "offset": format_offset(origin.offset),
        "group": origin.group,
        "attempts": origin.attempts,
        "reason": origin.reason,
        "time_ms": origin.time_ms,
    }
    return [*kept, *history_header([*history_of(named), entry][-HISTORY_MAX:])]


def history_header(history: Sequence[Mapping[str, object]]) -> list[tuple[str, bytes]]:
    """The header with that history; none if it is empty."""
    # A client may have written a text that no UTF-8 has.
    return [(_HISTORY, json.dumps(list(history), ensure_ascii=False).encode(errors="replace"))] if history else []


def history_of(headers: Mapping[str, bytes]) -> list[dict[str, object]]:
    """The earlier dead letters of a message, oldest first: offset, group, attempts, reason, time_ms of each.

    A client may have written the header, so an entry may lack some of them, and other things are left out.
    """
    try:
        found = json.loads(headers.get(_HISTORY, b"[]"))
    except (ValueError, RecursionError):  # brackets may be nested deeper than Python reads
        return []
    if not isinstance(found, list):
        return []
    return [
        {name: value for name, value in entry.items() if name in _ENTRY and isinstance(value, (str, int))}
        for entry in found[-HISTORY_MAX:]
        if isinstance(entry, dict)
    ]


# ---- resolutions ----------------------------------------------------------------------------------------


def resolution_headers(outcome: str) -> list[tuple[str, bytes]]:
    """The headers of a resolution; `outcome` is "replayed" or "dropped"."""
    return [(_RESOLUTION, outcome.encode())]


def resolution_value(offsets: Sequence[int]) -> bytes:
    """The value of a resolution: the offsets of the dead letters that are done with."""
    return b"".join(map(_OFFSETS.pack, offsets))


def resolved_by(headers: Mapping[str, bytes], value: bytes) -> tuple[int, ...] | None:
    """The offsets that a message says are done with; None if it is no resolution."""
    if _RESOLUTION not in headers or len(value) % _OFFSETS.size:
        return None
    return tuple(offset for (offset,) in _OFFSETS.iter_unpack(value))
