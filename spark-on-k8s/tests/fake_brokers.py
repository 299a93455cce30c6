"""A cluster in memory that answers planners: topics with segments, retention, growth, and a count of questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from seriatim_api.errors import PreconditionError, UnknownTopicError
from seriatim_api.ids import make_offset, split_offset
from seriatim_spark.errors import translated
from seriatim_spark.reading.brokers import At, Piece, Place, Plan, Range, TopicAt

ROW_BYTES = 100


@dataclass
class FakePartition:
    """Segments, numbered from 1: how many messages each has had; the last one is open."""

    segments: list[int] = field(default_factory=lambda: [0])
    dropped: int = 0  # positions below it are gone
    row_bytes: int = ROW_BYTES
    lost: frozenset[int] = frozenset()  # numbers of segments that were declared lost
    unsettled: int = 0  # the number of the segment of which no member answers; brokers show what is before it

    @property
    def rows(self) -> int:
        return sum(self.segments)

    def offset_of(self, position: int) -> int:
        """Of a message; the end is in the open segment."""
        for number, length in enumerate(self.segments[:-1], 1):
            if position < length:
                return make_offset(number, position)
            position -= length
        return make_offset(len(self.segments), position)

    def place(self, position: int, found: bool = True) -> Place:
        return Place(self.offset_of(position), position, position * self.row_bytes, found)

    def end(self) -> Place:
        if self.unsettled:
            position = sum(self.segments[: self.unsettled - 1])
            return Place(make_offset(self.unsettled, 0), position, position * self.row_bytes, blocked=True)
        return self.place(self.rows)

    def position_of(self, offset: int) -> int:
        number, index = split_offset(offset)
        return sum(self.segments[: max(number - 1, 0)]) + (index if number else 0)


@dataclass
class FakeTopic:
    incarnation: str
    partitions: dict[int, FakePartition]
    times: dict[datetime, dict[int, int]] = field(default_factory=dict)  # positions of a time


class FakeBrokers:
    """`Brokers`."""

    def __init__(self, **topics: FakeTopic) -> None:
        self.topics = topics
        self.asked: list[str] = []

    def at(self, at: At, incarnations: Mapping[str, str]) -> dict[str, TopicAt]:
        self.asked.append(str(at))
        return {name: self._at(name, at, incarnations.get(name, "")) for name in sorted(self.topics)}

    def _at(self, name: str, at: At, incarnation: str) -> TopicAt:
        topic = self.topics[name]
        with translated(name, "fake:1"):
            if not topic.partitions:
                raise UnknownTopicError(name)
            if incarnation not in ("", topic.incarnation):
                raise PreconditionError("another topic has the name")
        places = {}
        for number, partition in topic.partitions.items():
            if at == "end":
                places[number] = partition.end()
            elif at == "earliest":
                places[number] = partition.place(partition.dropped)
            else:
                assert isinstance(at, datetime)
                position = topic.times.get(at, {}).get(number)
                places[number] = partition.place(partition.rows if position is None else position, position is not None)
        return TopicAt(topic.incarnation, places)

    def plans(self, ranges: Sequence[Range], cut_bytes: int) -> list[Plan]:
        self.asked += ["plan"] * len(ranges)
        return [self._plan(one, cut_bytes) for one in ranges]

    def _plan(self, one: Range, cut_bytes: int) -> Plan:
        partition = self.topics[one.topic].partitions[one.partition]
        pieces: list[Piece] = []
        begin, end = partition.position_of(one.start), partition.position_of(one.end)
        lost = begin < min(partition.dropped, end)
        before = 0
        for number, length in enumerate(partition.segments, 1):
            first, last = max(begin, before, partition.dropped) - before, min(end, before + length) - before
            step = max(1, cut_bytes // partition.row_bytes) if cut_bytes else max(length, 1)
            if number in partition.lost:
                lost, first = lost or first < last, last
            while first < last:
                until = min(first + step, last)
                pieces.append(
                    Piece(
                        make_offset(number, first), make_offset(number, until), until - first,
                        (until - first) * partition.row_bytes,
                    )
                )  # fmt: skip
                first = until
            before += length
        return Plan(tuple(pieces), ("messages were dropped",) if lost else ())


class FakeClock:
    """Continues when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
