"""Identifiers that cross process boundaries, and the arithmetic of offsets.

An offset has 63 bits: the segment number (23 bits) above the index in the segment (40 bits). It orders like
an integer and is never negative as a signed 64-bit number. Code never subtracts offsets; it subtracts positions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NewType, Self

from seriatim_api.errors import BadRequestError, IllegalNameError

PartitionId = NewType("PartitionId", int)
"""A 32-bit value of a counter of the cluster. It is never reused. 0 is no partition."""

SEGMENT_BITS = 23
INDEX_BITS = 40
SEGMENT_NO_MAX = (1 << SEGMENT_BITS) - 1
INDEX_MAX = (1 << INDEX_BITS) - 1
OFFSET_MAX = (1 << (SEGMENT_BITS + INDEX_BITS)) - 1

NAME_LENGTH_MAX = 249
"""As in Kafka, so that a topic may keep its name. Paths of archives have `topic=` before it. That makes 255 bytes, the
limit of file systems."""

NAME_RULE = (
    "a name has letters, digits, '.', '_' and '-', begins with a letter, a digit or '_', and has at most 249 "
    "characters; _stage and names that begin with _seriatim are taken"
)
_NAME = re.compile("(?!_stage$|_seriatim)[A-Za-z0-9_][A-Za-z0-9._-]*")


def is_legal_name(name: object) -> bool:
    """Whether `name` may name a topic, a consumer group, a writer, a cluster or a broker group: see `NAME_RULE`.

    Such a name is legal in an etcd key, in a metric label and in a path, without quotes. `_stage`, and names that
    begin with `_seriatim`, are for topics that brokers make.
    """
    return isinstance(name, str) and len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name) is not None


def check_name(name: object, what: str) -> None:
    """Refuse an illegal name; `what`: what it would name, as in `topic`.

    Raises:
        IllegalNameError: It is illegal.
    """
    if not is_legal_name(name):
        shown = name[:40] if isinstance(name, str) else name
        raise IllegalNameError(f"{shown!r} cannot name a {what}: {NAME_RULE}")


def is_legal_broadcast_name(name: str) -> bool:
    """Whether `name` may name the position of one consumer of a broadcast group: `group/consumer`.

    Both parts are legal names. No other consumer group has a `/` in its name.
    """
    group, separator, consumer = name.partition("/")
    return bool(separator) and is_legal_name(group) and is_legal_name(consumer)


_INCARNATION = re.compile("[0-9a-f]{32}")


class TopicIncarnation(str):
    """The identity of a topic. A topic that is deleted and made again has another one.

    It is a UUID, written as 32 hexadecimal digits in lower case. Manifests have the 16 bytes.

    Raises:
        BadRequestError: The text does not have 32 hexadecimal digits in lower case.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not _INCARNATION.fullmatch(text):
            raise BadRequestError(f"a topic's incarnation is 32 hexadecimal digits in lower case, not {text[:50]!r}")
        return super().__new__(cls, text)

    @classmethod
    def of_bytes(cls, value: bytes) -> Self:
        """The incarnation with these 16 bytes: those of a random UUID if the topic is made now."""
        return cls(value.hex())

    @property
    def bytes(self) -> bytes:
        """The 16 bytes."""
        return bytes.fromhex(self)


def partition_name(topic: str, number: int) -> str:
    """What a partition is called in logs, events, errors and metrics. Its id is only for brokers among themselves."""
    return f"{topic}/{number}"


def make_offset(segment_no: int, index: int) -> int:
    """The offset of message `index` of segment `segment_no`."""
    assert 0 <= segment_no <= SEGMENT_NO_MAX, segment_no
    assert 0 <= index <= INDEX_MAX, index
    return segment_no << INDEX_BITS | index


def split_offset(offset: int) -> tuple[int, int]:
    """The segment number and the index that `make_offset` put together."""
    assert 0 <= offset < 1 << (SEGMENT_BITS + INDEX_BITS), offset
    return offset >> INDEX_BITS, offset & INDEX_MAX


def format_offset(offset: int) -> str:
    """An offset as human-readable text, `segment:index`."""
    segment_no, index = split_offset(offset)
    return f"{segment_no}:{index}"


def parse_offset(text: str) -> int:
    """Read an offset in the form of `format_offset`.

    Raises:
        ValueError: The text has not the form `segment:index`, or it is out of range.
    """
    segment, separator, index = text.partition(":")
    if not separator or not segment.isdecimal() or not index.isdecimal():
        raise ValueError(f"an offset is written segment:index, not {text!r}")
    if int(segment) > SEGMENT_NO_MAX or int(index) > INDEX_MAX:
        raise ValueError(f"offset {text} is out of range")
    return make_offset(int(segment), int(index))


@dataclass(frozen=True, slots=True, order=True)
class MemberId:
    """A member of a broker group: the broker's name with the identity of its disk.

    The name is `<group>-<slot>`; `incarnation` is the UUID (32 hex digits) that the data directory was given when
    it was made. A broker that comes back with another disk is another member.
    """

    broker: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.broker}#{self.incarnation[:8]}"


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """One member run of one incarnation. A death certificate names it."""

    member: MemberId
    run: int

    def __str__(self) -> str:
        return f"{self.member}/{self.run}"
