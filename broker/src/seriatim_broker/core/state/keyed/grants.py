"""Grants: which consumer works on which messages, until when, and what is read for it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from seriatim_api.dead_letters import DeadLetterOrigin
from seriatim_api.ids import MemberId, make_offset

from ...values.log import Batch
from ...values.states import State
from ..dispatcher import Consumer
from .key import STALE_ENTRIES_MAX, Key
from .line import KeysInLine

GRANT_MESSAGES_MAX: Final = 256
GRANT_BYTES_MAX: Final = 64 << 10


@dataclass(slots=True, eq=False)
class Grant(State):
    """A grant: messages of one key that one consumer works on, in order, under one token.

    The grant of a single is no object of its own: see `Frame`.

    Attributes:
        token: The token.
        key: The key.
        consumer: The consumer.
        offsets: Of its messages.
        is_aside: They are from the key's list.
        done: How many of them are acknowledged.
        is_started: The consumer has begun to work on the next message.
        is_given: It was delivered.
        is_passed: Its messages are acknowledged already: the grant only keeps the key from other consumers.
        deadline_us: When it ends.
    """

    token: int
    key: Key
    consumer: Consumer
    offsets: tuple[int, ...]
    is_aside: bool = field(kw_only=True)
    deadline_us: int = field(kw_only=True)
    done: int = 0
    is_started: bool = False
    is_given: bool = False
    is_passed: bool = False

    @property
    def left(self) -> int:
        """How many of its messages are not acknowledged."""
        return len(self.offsets) - self.done


@dataclass(slots=True, eq=False)
class Frame(State):
    """What was granted to one consumer at once: read, delivered and given a deadline together.

    Its tokens follow one another. Each is the grant of a single, or a `Grant`.

    Attributes:
        consumer: The consumer.
        first_token: The first token.
        deadline_us: When the grants of singles end.
        names: The name of the single of each token; empty: the token has a `Grant`.
        indexes: The index of the single of each token.
        grants: The grants of it, in the order of their tokens, and those that were singles before it was given.
        is_given: It was delivered.
        counts: The number of messages of each token; None: one each.
        attempts: The attempt of the first message of each token; None: the first one each.
        offsets: Of its messages. Empty when it was given.
    """

    consumer: Consumer
    first_token: int
    deadline_us: int
    names: list[bytes] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    is_given: bool = False
    counts: list[int] | None = None
    attempts: list[int] | None = None
    offsets: tuple[int, ...] = ()

    def add(self, grant: Grant) -> None:
        """The next grant of the frame, which is not that of a single."""
        at = len(self.names)
        self.names.append(b"")
        self.indexes.append(0)
        self.grants.append(grant)
        if len(grant.offsets) > 1 or self.counts is not None:
            self.counts = self.counts or []
            self.counts += [1] * (at - len(self.counts))
            self.counts.append(len(grant.offsets))
        if grant.key.attempts or self.attempts is not None:
            self.attempts = self.attempts or []
            self.attempts += [1] * (at - len(self.attempts))
            self.attempts.append(grant.key.attempts + 1)


@dataclass(slots=True, eq=False)
class Unsent(State):
    """What was read and is not given yet. In an at-most-once group it is acknowledged.

    Attributes:
        serial: Of the control record with the acknowledgements.
        frame: What is given, and to whom.
        body: Its messages.
        is_durable: Every eligible member has the control record; or nothing is acknowledged, and it waits only until
            this member may deliver.
    """

    serial: int
    frame: Frame
    body: bytes
    is_durable: bool = False


@dataclass(slots=True, eq=False)
class Fetch(State):
    """Messages that were granted and are not on this disk, and are fetched from members that have their segments.

    Attributes:
        offsets: Of all messages of the read, in their order.
        missing: Offsets that are not found yet, in that order.
        bytes_max: How many bytes of the first messages are given.
        batches: The batches that were found.
        asked: The member that was asked last, and the offset.
        asked_us: When.
        tries: How many members did not give any of the messages.
        origin: If a dead letter is made of the message: what it says; None: the message is delivered.
    """

    offsets: tuple[int, ...]
    missing: list[int]
    bytes_max: int = 0
    batches: list[Batch] = field(default_factory=list)
    asked: tuple[MemberId, int] | None = None
    asked_us: int = 0
    tries: int = 0
    origin: DeadLetterOrigin | None = None


@dataclass(slots=True, eq=False)
class Grants(State):
    """The grants that are under way.

    A token is in `singles` or in `by_token`, and never in both. The names of granted singles are in `line.singles`,
    with their tokens.

    Attributes:
        segment_no: The cursor segment.
        line: The keys.
        singles: The frames of the grants of singles, by token.
        by_token: All other grants.
        deadlines: A heap of (deadline, first token, number of tokens). An entry counts for those of its tokens whose
            grants still have that deadline.
        reads: The read of messages that is under way for each consumer: serial -> what was granted to it.
        fetches: Messages that are fetched from other members, by the serial of their read.
        unsent: What was read, and waits until it may be given, oldest first. In an at-most-once group it is
            acknowledged, and waits until that is durable.
        average_bytes: How many bytes a message of the last frame had. Before the first one: of the batches that were
            read; 0: none was.
        turn: Counts rounds, so that each consumer is the first one in turn.
        is_sated: When keys were granted last, more were ready than all consumers had room for.
    """

    segment_no: int
    line: KeysInLine
    singles: dict[int, Frame] = field(default_factory=dict)
    by_token: dict[int, Grant] = field(default_factory=dict)
    deadlines: list[tuple[int, int, int]] = field(default_factory=list)
    reads: dict[int, Frame] = field(default_factory=dict)
    fetches: dict[int, Fetch] = field(default_factory=dict)
    unsent: list[Unsent] = field(default_factory=list)
    average_bytes: int = 0
    turn: int = 0
    is_sated: bool = False

    @property
    def count(self) -> int:
        """How many grants are under way."""
        return len(self.by_token) + len(self.singles)

    @property
    def in_flight(self) -> int:
        """How many messages are granted and not acknowledged."""
        return sum(grant.left for grant in self.by_token.values()) + len(self.singles)

    @property
    def is_reading(self) -> bool:
        """Whether messages are read that are granted, or wait until they may be given."""
        return bool(self.reads or self.unsent or self.fetches)

    @property
    def holders(self) -> list[Consumer]:
        """The consumers with grants."""
        holders = [grant.consumer for grant in self.by_token.values()]
        return list(dict.fromkeys(holders + [frame.consumer for frame in self.singles.values()]))

    def weigh(self, name: bytes) -> Key | None:
        """The key of that name, as an object of its own from now on; None if it has no messages and no record."""
        line = self.line
        key = line.keys.get(name)
        if key is not None:
            return key
        place = line.singles.get(name)
        if place is None:
            return None
        if place >= 0:
            return line.weigh_ready(name)
        del line.singles[name]
        key = line.keys[name] = Key(name)
        token = key.token = -place
        frame = self.singles.pop(token)
        index = frame.indexes[token - frame.first_token]
        key.live.append(index)
        offsets = (make_offset(self.segment_no, index),)
        grant = Grant(token, key, frame.consumer, offsets, is_aside=False, deadline_us=frame.deadline_us)
        grant.is_given = frame.is_given
        self.by_token[token] = grant
        self.set_deadline(grant, frame.deadline_us)
        if not frame.is_given:
            frame.grants.append(grant)
        return key

    def of(self, consumers: Sequence[Consumer]) -> list[Grant]:
        """The grants of these consumers, as objects of their own from now on."""
        for token, frame in list(self.singles.items()):
            if frame.consumer in consumers:
                self.weigh(frame.names[token - frame.first_token])
        return [grant for grant in self.by_token.values() if grant.consumer in consumers]

    def find(self, token: int) -> Grant | None:
        """The grant with that token, as an object of its own from now on."""
        frame = self.singles.get(token)
        if frame is not None:
            self.weigh(frame.names[token - frame.first_token])
        return self.by_token.get(token)

    def set_deadline(self, grant: Grant, deadline_us: int) -> None:
        """The grant ends at that time."""
        grant.deadline_us = deadline_us
        self.end_at(deadline_us, grant.token)

    def end_at(self, deadline_us: int, first_token: int, count: int = 1) -> None:
        """Grants whose tokens follow one another end at that time."""
        heapq.heappush(self.deadlines, (deadline_us, first_token, count))
        most = 2 * (len(self.by_token) + len(self.singles)) + STALE_ENTRIES_MAX
        if len(self.deadlines) > most:  # more than half are of grants that are over
            frames = {frame.first_token: frame for frame in self.singles.values()}
            self.deadlines = [(frame.deadline_us, first, len(frame.names)) for first, frame in frames.items()]
            self.deadlines += [(grant.deadline_us, token, 1) for token, grant in self.by_token.items()]
            heapq.heapify(self.deadlines)

    def due(self, now_us: int) -> list[Grant]:
        """The grants whose deadline has passed, as objects of their own from now on."""
        due: dict[int, Grant] = {}  # a grant may have the same deadline twice
        while self.deadlines and self.deadlines[0][0] <= now_us:
            deadline_us, first_token, count = heapq.heappop(self.deadlines)
            for token in range(first_token, first_token + count):
                grant = self.find(token)
                if grant is not None and grant.deadline_us == deadline_us:
                    due[token] = grant
        return list(due.values())
