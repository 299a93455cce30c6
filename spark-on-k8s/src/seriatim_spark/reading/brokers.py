"""Requests of the planners to brokers: where partitions begin and end, and which messages are between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar

from seriatim_api import errors
from seriatim_api.ids import INDEX_BITS

from seriatim_spark.connection import connected
from seriatim_spark.errors import translated
from seriatim_spark.options import ReadOptions, Target
from seriatim_spark.reading.message_counts import Lengths, Span

if TYPE_CHECKING:
    from seriatim import PartitionOffset, RangePlan

PLANS_AT_ONCE: Final = 32
"""The most requests about ranges at the same time."""

SLACK_S: Final = 10.0
"""Seconds beyond the client's own deadline. Then a call is given up that should have ended before."""

QUESTION_S: Final = 30.0
"""Seconds for a request about a topic that is not read."""

AGAIN_S: Final = 0.2
"""Seconds until brokers are asked again for a place that none of them knew."""

At = Literal["earliest", "end"] | datetime
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a partition, with the fields of `seriatim.PartitionOffset`.

    Attributes:
        blocked: Only for an end: a segment is not settled. It and later segments may have acknowledged messages.
    """

    offset: int
    position: int
    bytes_before: int | None
    found: bool = True
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class TopicAt:
    """One place in each partition of a topic that is read."""

    incarnation: str
    places: Mapping[int, Place]


@dataclass(frozen=True, slots=True)
class Range:
    """Messages [start, end) of a partition."""

    topic: str
    incarnation: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a range that a task can read alone. `size_bytes`: None if no broker knew the size."""

    start: int
    end: int
    rows: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The content of a range: its pieces, and the messages that are gone (as human-readable texts)."""

    pieces: tuple[Piece, ...]
    losses: tuple[str, ...] = ()


class Brokers(Protocol):
    """The requests of planners. They raise the errors of `errors.translated`."""

    def at(self, at: At, incarnations: Mapping[str, str]) -> dict[str, TopicAt]:
        """Ask for a place in each partition of each topic of the options. Return them by topic.

        Args:
            at: The place, for example `end`.
            incarnations: The expected incarnations of topics, as far as they are known.
        """

    def plans(self, ranges: Sequence[Range], cut_bytes: int) -> list[Plan]:
        """Ask for the content of each range. If `cut_bytes` is 0, the pieces are whole segments."""


def lengths_of(range_: Range, pieces: Sequence[Piece]) -> Lengths:
    """Return the lengths of the segments before the end of a range. The pieces must be whole segments."""
    spans = [
        Span(piece.start >> INDEX_BITS, piece.start & ((1 << INDEX_BITS) - 1), (piece.end & ((1 << INDEX_BITS) - 1)))
        for piece in pieces
    ]
    return Lengths(range_.start, range_.end, spans)


def place_of(row: PartitionOffset) -> Place:
    """Convert the client's description of a place."""
    return Place(row.offset, row.position, row.bytes_before, row.found, row.blocked)


async def _told(ask: Callable[[float], Awaitable[T]], timeout_s: float) -> T:
    """The answer to a request about places. If a place is not known, brokers are asked again.

    The client gives a broker one second to answer. Without the repetition, a broker that is busy for longer would end
    the query.

    Args:
        ask: Makes the request, with a deadline in seconds.
        timeout_s: Seconds after which this function gives up.

    Raises:
        PositionUnknownError: A place was not known within `timeout_s` seconds.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            return await ask(max(until - time.monotonic(), AGAIN_S))
        except errors.PositionUnknownError:
            if time.monotonic() + AGAIN_S >= until:
                raise
        await asyncio.sleep(AGAIN_S)


def ends_of(target: Target, topic: str) -> TopicAt:
    """Ask where the partitions of a topic end.

    Raises:
        SourceError: No broker answers, or there is no such topic.
    """

    async def ask() -> tuple[PartitionOffset, ...]:
        with translated(topic, target.bootstrap):
            return await _told(lambda left_s: connection.client.offsets(topic, "end", timeout_s=left_s), QUESTION_S)

    connection = connected(target)
    rows = connection.run(ask(), 2 * QUESTION_S)
    return TopicAt(rows[0].incarnation, {row.partition: place_of(row) for row in rows})


class RealBrokers:
    """`Brokers` over the client of this process."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def at(self, at: At, incarnations: Mapping[str, str]) -> dict[str, TopicAt]:
        """See `Brokers.at`."""

        async def ask(topic: str) -> tuple[PartitionOffset, ...]:
            with translated(topic, self._options.target.bootstrap):
                return await _told(
                    lambda left_s: client.offsets(
                        topic,
                        at,
                        partitions=sorted(wanted) if wanted is not None else None,
                        incarnation=incarnations.get(topic, ""),
                        timeout_s=left_s,
                    ),
                    self._options.read_timeout_s,
                )

        client = connected(self._options.target).client
        wanted = self._options.partitions
        topics = self._options.topics
        found = self._run([ask(topic) for topic in topics])
        return {
            topic: TopicAt(
                rows[0].incarnation,
                {row.partition: place_of(row) for row in rows},
            )
            for topic, rows in zip(topics, found, strict=True)
        }

    def plans(self, ranges: Sequence[Range], cut_bytes: int) -> list[Plan]:
        """See `Brokers.plans`."""

        async def ask(asked: Range) -> RangePlan:
            async with room:
                with translated(asked.topic, self._options.target.bootstrap):
                    return await client.plan_range(
                        asked.topic, asked.partition, asked.start, asked.end, cut_bytes=cut_bytes,
                        incarnation=asked.incarnation, timeout_s=self._options.read_timeout_s,
                    )  # fmt: skip

        client = connected(self._options.target).client
        room = asyncio.Semaphore(PLANS_AT_ONCE)
        return [
            Plan(
                tuple(Piece(piece.start, piece.end, piece.rows, piece.size_bytes) for piece in plan.pieces),
                tuple(map(str, plan.losses)),
            )
            for plan in self._run([ask(asked) for asked in ranges])
        ]

    def _run(self, questions: Sequence[Awaitable[T]]) -> list[T]:
        async def all_of_them() -> list[T]:
            return list(await asyncio.gather(*questions))

        if not questions:
            return []
        rounds = 1 + len(questions) // PLANS_AT_ONCE
        return connected(self._options.target).run(all_of_them(), rounds * self._options.read_timeout_s + SLACK_S)
