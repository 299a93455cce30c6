"""The record of all attempts: each process with consumers writes a line when a handler begins, and one when it ends.

A line is a JSON array. Lines are written at once, so a killed process loses none. If a process was killed, the attempts
that were under way have no second line: they were *cut off*. The judge and the picture read the record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from seriatim import Message

Outcome = Literal["done", "repeat", "overtaken", "asked again", "raised", "gave up", "cancelled", "cut off"]

FAILED: Final[frozenset[Outcome]] = frozenset({"asked again", "raised", "gave up", "cancelled"})
"""Outcomes that a handler brings about itself, so that its message comes again or is put away."""

TRY_MARK: Final = "."
"""It stands between the name of a consumer's place and the number of the process that has the place: `c05.2`."""


class DeliveryAttempt(NamedTuple):
    """One call of a handler.

    Attributes:
        key: The aircraft.
        number: The event's number.
        attempt: The number of the attempt, as the broker counts.
        flagged: Whether the message was flagged `maybe_repeated`.
        token: The token of the grant.
        consumer: The consumer's name.
        begun_at: When the handler began, in seconds of the monotonic clock.
        ended_at: When it ended; None: it was cut off.
        outcome: How it ended.
    """

    key: str
    number: int
    attempt: int
    flagged: bool
    token: int
    consumer: str
    begun_at: float
    ended_at: float | None = None
    outcome: Outcome = "cut off"

    @property
    def place(self) -> str:
        """The consumer's place, which continues when its process is replaced."""
        return self.consumer.partition(TRY_MARK)[0]


class DeliveryAttemptWriter:
    """Writes the record of one process.

    Raises:
        OSError: The file cannot be opened. Later calls raise it if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def begins(self, message: Message, number: int, consumer: str, at: float) -> None:
        """A handler begins."""
        assert message.key is not None
        key, flagged = message.key.decode(), message.maybe_repeated
        self._line("b", key, number, message.attempt, flagged, message.grant, consumer, round(at, 5))

    def ends(self, message: Message, number: int, consumer: str, outcome: Outcome, at: float) -> None:
        """The handler that this consumer began for the message, under this grant, has ended."""
        self._line("e", consumer, number, message.grant, round(at, 5), outcome)

    def _line(self, *fields: object) -> None:
        os.write(self._file, json.dumps(fields, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_attempts(paths: Iterable[Path]) -> list[DeliveryAttempt]:
    """Read the records of all processes, in the order in which the attempts began. A torn last line is left out.

    Raises:
        OSError: A file cannot be read.
        ValueError: A line was not written by `DeliveryAttemptWriter`.
    """
    found: list[DeliveryAttempt] = []
    for path in paths:
        under_way: dict[tuple[str, int, int], int] = {}
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            kind, *fields = json.loads(line)
            if kind == "b":
                begun = DeliveryAttempt(*fields)
                under_way[begun.consumer, begun.number, begun.token] = len(found)
                found.append(begun)
            elif kind == "e":
                consumer, number, token, ended_at, outcome = fields
                place = under_way.pop((consumer, number, token))
                found[place] = found[place]._replace(ended_at=ended_at, outcome=outcome)
            else:
                raise ValueError(f"{path}: {line!r} is no line of a record of attempts")
    return sorted(found, key=lambda attempt: attempt.begun_at)
