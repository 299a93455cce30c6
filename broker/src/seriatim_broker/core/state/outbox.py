"""What a step of the core leaves: effects for now, one write, and effects that must wait until the write is durable.

The writes of a step go out as one `Persist`. Effects that depend on them wait here for the matching `Persisted`. So do
marks, which tell a partition how far its log is on the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from seriatim_api.ids import MemberId, PartitionId

from ..values.effects import Effect, Note, Persist, Send
from ..values.kinds import StoredFor
from ..values.log import Write
from ..values.messages import CursorsReplicated, Message, ReplicateAck
from ..values.states import State


class LogDurable(NamedTuple):
    """A mark: the log of a segment, in this generation of its content, is durable up to `tail`."""

    partition: PartitionId
    segment_no: int
    tail: int
    content_no: int


class Stored(NamedTuple):
    """A mark: a write that a part of a partition waits for is durable."""

    partition: PartitionId
    kind: StoredFor
    segment_no: int
    serial: int


Mark = LogDurable | Stored | CursorsReplicated
"""What a partition learns when a write is durable: of control records, what other members say of theirs."""


@dataclass(slots=True, eq=False)
class Outbox(State):
    """The effects and writes of the present step, and the effects and marks of earlier steps that wait for the disk."""

    effects: list[Effect] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    marks: list[Effect | Mark] = field(default_factory=list)
    held: deque[tuple[int, Effect | Mark]] = field(default_factory=deque)
    token: int = 0  # of the newest write
    durable_token: int = 0  # of the newest durable write
    write_waits_since_us: int | None = None  # since when no write became durable although one waits

    def emit(self, effect: Effect) -> None:
        """Have this effect carried out now."""
        self.effects.append(effect)

    def note(self, name: str, partition: PartitionId, **fields: object) -> None:
        """Write a log line, an event of that name with these fields."""
        self.effects.append(Note(name, partition, tuple(fields.items())))

    @property
    def step_token(self) -> int:
        """The token of the newest write, this step's included: all of it is durable once `durable_token` is there."""
        return self.token + bool(self.writes)

    def write(self, write: Write) -> None:
        """Add this to the write of the step."""
        self.writes.append(write)

    def when_durable(self, what: Effect | Mark) -> None:
        """Keep this until all writes up to the end of this step are durable."""
        self.marks.append(what)

    def when_durable_send(self, member: MemberId, message: Message) -> None:
        """Send to a member once all writes up to the end of this step are durable."""
        self.marks.append(Send(member.broker, message))

    def when_stored(self, partition: PartitionId, kind: StoredFor, segment_no: int, serial: int = 0) -> None:
        """Notify the part `kind` of the core when all writes up to the end of this step are durable."""
        self.marks.append(Stored(partition, kind, segment_no, serial))

    def finish(self, now_us: int) -> tuple[list[Effect], list[Mark]]:
        """End a step. Returns its effects, the write first, and the marks that are true already."""
        if self.writes:
            self.token += 1
            if self.write_waits_since_us is None:
                self.write_waits_since_us = now_us
            self.effects.insert(0, Persist(self.token, tuple(self.writes)))
            self.writes = []
        ready: list[Mark] = []
        for mark in self.marks:
            if self.durable_token >= self.token:
                if isinstance(mark, Mark):
                    ready.append(mark)
                else:
                    self.effects.append(mark)
            else:
                self.held.append((self.token, mark))
        self.marks = []
        effects, self.effects = self.effects, []
        return effects, ready

    def persisted(self, token: int, now_us: int, may_reach: Callable[[str], bool]) -> list[Mark]:
        """Release everything that waited for this token. Returns the marks, only the newest one of each log.

        Args:
            token: The token of the write that is durable now. All earlier writes are durable too.
            now_us: Monotonic time.
            may_reach: Whether acknowledgements may go to a broker; not if its member run was dismissed.
        """
        assert token <= self.token
        self.durable_token = max(self.durable_token, token)
        self.write_waits_since_us = now_us if self.durable_token < self.token else None
        logs: dict[tuple[PartitionId, int], LogDurable] = {}
        stored: list[Mark] = []
        acks: dict[tuple[str, PartitionId, int], Send] = {}
        while self.held and self.held[0][0] <= token:
            what = self.held.popleft()[1]
            if isinstance(what, LogDurable):
                logs[what.partition, what.segment_no] = what
            elif isinstance(what, Mark):
                stored.append(what)
            elif isinstance(what, Send) and isinstance(what.message, ReplicateAck):
                if may_reach(what.broker):  # the newest acknowledgement of a log covers the earlier ones
                    acks[what.broker, what.message.partition, what.message.segment_no] = what
            else:
                self.effects.append(what)
        self.effects.extend(acks.values())
        return [*logs.values(), *stored]
