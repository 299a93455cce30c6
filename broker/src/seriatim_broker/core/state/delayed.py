"""What the server of a segment knows of the delayed messages in it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from seriatim_api.ids import INDEX_MAX

from ..values.delayed import (
    DONE,
    LEARNS,
    DelayRows,
    Span,
    VolleyRecord,
    VolleyRow,
    first_number,
    ledger_name,
    parts_of,
    volley_name,
    write_cancelled,
    write_moved,
    write_next_number,
    write_volley,
)
from ..values.ledger_rows import BLOCK_INDEXES
from ..values.log import DueRow, LedgerChange
from ..values.producers import WINDOW_BATCHES
from ..values.states import State
from .ledger import Ledger
from .numbered_sending import Item, Limits, NumberedSending
from .window import Window

LIMITS: Final = Limits(items_max=WINDOW_BATCHES // 2, pause_us=5_000, pause_us_max=200_000, held_up_us=200_000)

ALL: Final = (1 << 63, INDEX_MAX)
"""`Ahead.upto`: the disk has no row that is not in memory."""


ROWS_MAX: Final = 4_096
"""Maximum number of rows of a segment in memory."""


class Marks(State):
    """Indexes that are marked, and which blocks changed since the last control record."""

    __slots__ = ("blocks", "changed")

    def __init__(self, blocks: dict[int, int]) -> None:
        self.blocks = blocks
        self.changed: set[int] = set()

    def __contains__(self, index: int) -> bool:
        return bool(self.blocks.get(index // BLOCK_INDEXES, 0) >> index % BLOCK_INDEXES & 1)

    def is_written(self, index: int) -> bool:
        """Whether a control record has the present marks around an index."""
        return index // BLOCK_INDEXES not in self.changed

    def add(self, index: int) -> None:
        """Mark an index."""
        block = index // BLOCK_INDEXES
        self.blocks[block] = self.blocks.get(block, 0) | 1 << index % BLOCK_INDEXES
        self.changed.add(block)


@dataclass(slots=True, eq=False)
class Volley(Item):
    """Messages that are fired together. Its name is its first index.

    Attributes:
        due_ms: The latest due time in it.
        spans: Its messages, in the order in which they are fired.
        is_move: They are moved, and not fired.
        row: Its body, once it is read.
    """

    due_ms: int = 0
    spans: tuple[Span, ...] = ()
    is_move: bool = False
    row: VolleyRow | None = None

    @property
    def message_count(self) -> int:
        """How many messages it has."""
        return sum(span.message_count for span in self.spans)

    @property
    def batch_count(self) -> int:
        """How many batches it is. Messages that do not follow one another are named in a list, which comes first."""
        return 1 if len(self.spans) == 1 else 2


@dataclass(slots=True, eq=False)
class Ahead(State):
    """The rows that come next, in memory. The others are on the disk.

    Attributes:
        rows: A heap, by due time and index.
        upto: All rows up to this due time and index are in `rows`, or were taken from there.
        next_due_ms: No row above `upto` is due earlier.
        reading: The serial of the read of more rows; 0: none is under way.
    """

    rows: list[DueRow] = field(default_factory=list)
    upto: tuple[int, int] = (0, 0)
    next_due_ms: int = 0
    reading: int = 0

    def add(self, row: DueRow, horizon_ms: int) -> None:
        """A batch was appended. It is kept in memory if it is due before the horizon and belongs to these rows."""
        if (row.due_ms, row.index) <= self.upto:
            if row.due_ms <= horizon_ms:
                heapq.heappush(self.rows, row)
                if len(self.rows) > ROWS_MAX:
                    self.rows = sorted(self.rows)[: ROWS_MAX // 2]
                    self.upto, self.next_due_ms = self.rows[-1][:2], self.rows[-1].due_ms
                return
            self.upto = just_before(row)
        self.next_due_ms = min(self.next_due_ms, row.due_ms)

    def end_read(self, rows: Sequence[DueRow], *, is_all: bool, horizon_ms: int) -> None:
        """Rows above `upto` were read, in their order. Those that are due before the horizon are kept in memory."""
        self.reading = 0
        self.upto = ALL if is_all else (rows[-1].due_ms, rows[-1].index)
        self.next_due_ms = ALL[0] if is_all else rows[-1].due_ms
        known = {row.index for row in self.rows}
        for row in rows:
            if row.due_ms > horizon_ms:
                self.upto, self.next_due_ms = just_before(row), row.due_ms
                return
            if row.index not in known:
                heapq.heappush(self.rows, row)


def just_before(row: DueRow) -> tuple[int, int]:
    """A due time and an index: rows after these begin with this one."""
    return (row.due_ms, row.index - 1) if row.index else (row.due_ms - 1, INDEX_MAX)


class Cancelling(NamedTuple):
    """A request to cancel a message, whose answer waits.

    Attributes:
        request: The request.
        index: The index of the message.
        serial: Of the control record that says so; 0: it is looked up on the disk.
    """

    request: int
    index: int  # type: ignore[assignment]  # it hides `tuple.index`, which no code calls on it
    serial: int = 0


class Retaining(NamedTuple):
    """A question of retention, whose answer waits.

    Attributes:
        request: The request.
        floor: The first index that is pending.
        serial: Of the control record that has this floor; None: none has yet.
    """

    request: int
    floor: int
    serial: int | None


@dataclass(slots=True, eq=False)
class RetentionAsked(State):
    """Retention asks for the first index that is pending.

    Attributes:
        new: The questions for which rows are read.
        asked: The other ones, which wait for a control record.
        reading: The serial of the read of rows; 0: none is under way.
        below: Messages below this index were committed when it began.
    """

    new: list[int] = field(default_factory=list)
    asked: list[Retaining] = field(default_factory=list)
    reading: int = 0
    below: int = 0

    def take_new(self) -> list[int]:
        """The requests that wait for the rows, which were read."""
        new, self.new = self.new, []
        return new

    def written(self, serial: int) -> None:
        """A control record has all floors."""
        self.asked = [one if one.serial is not None else one._replace(serial=serial) for one in self.asked]


@dataclass(slots=True, eq=False)
class Moving(State):
    """What is moved before retention drops it.

    Attributes:
        below: Messages below this index are to be moved.
        at: Those below this one were moved, or are in `rows`, or are due soon.
        rows: Rows of batches that are moved next, by index.
        reading: The serial of the read of more rows; 0: none is under way.
    """

    below: int = 0
    at: int = 0
    rows: tuple[DueRow, ...] = ()
    reading: int = 0


@dataclass(slots=True, eq=False)
class Fence(State):
    """The control batch that a server stores before its volleys (`delayed.volley_fence`).

    Attributes:
        epoch: Its producer epoch.
        is_stored: It is stored.
        learns: What was fired is to be read in the log, because the ledger may not have all of it.
        is_written: A control record says whether it learns.
        dropped: The numbers of volleys that may be stored. The ledger keeps them until what was fired was read.
        serial: The serial of the request that is under way; 0: none.
        tries: How many reads of what was fired have failed.
    """

    epoch: int
    is_stored: bool = False
    learns: bool = False
    is_written: bool = True
    dropped: list[int] = field(default_factory=list)
    serial: int = 0
    tries: int = 0


@dataclass(slots=True, eq=False)
class Firing(State):
    """The delayed messages of a segment that this member serves.

    Attributes:
        no: The number of the segment.
        server_epoch: The server epoch in which this member began to fire.
        fence: What comes before its volleys.
        ledger: Who has the delay ledger on disk.
        passed: The indexes with which this segment is done. Those below its floor are all of delayed messages that are.
        cancelled: Those of them that were cancelled.
        moved: Those of them that were moved.
        volleys: The volleys that are read, numbered and sent.
        ahead: The rows that come next.
        in_volleys: The indexes that are in volleys.
        sent_batches: How many batches each volley is of the request that was sent last.
        numbered: Volleys whose numbers are in no control record yet.
        ended: The numbers of volleys that are stored, as long as a control record has them.
        begun: The serial of the first control record. Nothing is fired or cancelled before it counts.
        is_done: The segment is sealed, and nothing of it is left. None: a control record says so.
        cancels: Requests to cancel that wait for a control record.
        reads: Those for which the disk is read, by the serial of the read.
        retention: What retention asks.
        moving: What is moved for it.
        other_count: How many other indexes are passed, because the floor was raised over them.
        kept_until_us: It stays in memory until then: cancellations may be repeated.
    """

    no: int
    server_epoch: int
    passed: Window
    cancelled: Marks
    moved: Marks
    fence: Fence
    ledger: Ledger = field(default_factory=Ledger)
    volleys: NumberedSending[Volley] = field(default_factory=lambda: NumberedSending(LIMITS))
    ahead: Ahead = field(default_factory=Ahead)
    in_volleys: set[int] = field(default_factory=set)
    sent_batches: tuple[int, ...] = ()
    numbered: list[Volley] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    begun: int = 0
    is_done: bool | None = False
    kept_until_us: int = 0
    cancels: list[Cancelling] = field(default_factory=list)
    reads: dict[int, Cancelling] = field(default_factory=dict)
    retention: RetentionAsked = field(default_factory=RetentionAsked)
    moving: Moving = field(default_factory=Moving)
    other_count: int = 0

    @classmethod
    def of(cls, no: int, server_epoch: int, floor: int, rows: DelayRows) -> Firing:
        """What this member knows when it begins to serve the segment."""
        fence = Fence(parts_of(rows.next_number)[0] + 1)
        firing = cls(no, server_epoch, Window(floor, rows.passed), Marks(rows.cancelled), Marks(rows.moved), fence)
        for record in rows.volleys:
            volley = firing.add_volley(record.due_ms, record.spans, is_move=record.is_move)
            volley.number = record.number
        firing.volleys.taken_up()
        firing.volleys.next_number = first_number(fence.epoch)
        if rows.learns:
            firing.learn(0)
        return firing

    @property
    def name(self) -> str:
        """The name of its control record."""
        return ledger_name(self.no)

    def learn(self, last_epoch: int) -> None:
        """Another server was here, and used producer epochs up to this one: what it has fired is to be read.

        The volleys are made again of what is left then. Those that have a number cannot be stored any more when the
        fence is, and the log says which of them are.
        """
        dropped = self.fence.dropped
        self.fence = Fence(max(self.fence.epoch, last_epoch) + 1, learns=True, is_written=False, dropped=dropped)
        for volley in list(self.volleys.waiting.values()):
            self.drop_volley(volley)
            if volley.number and volley not in self.numbered:
                dropped.append(volley.number)
        self.numbered, self.ahead, self.moving = [], Ahead(), Moving()
        self.volleys.next_number = first_number(self.fence.epoch)

    def learned(self) -> None:
        """What was fired was read, and is passed."""
        self.fence.learns = self.fence.is_written = False
        self.ended += self.fence.dropped
        self.fence.dropped = []

    def add_volley(self, due_ms: int, spans: tuple[Span, ...], *, is_move: bool = False) -> Volley:
        """These messages are fired or moved together."""
        volley = Volley(spans[0].first.to_bytes(8, "big"), due_ms=due_ms, spans=spans, is_move=is_move)
        self.volleys.waiting[volley.name] = volley
        for span in spans:
            self.in_volleys.update(span.indexes)
        return volley

    def drop_volley(self, volley: Volley) -> None:
        """The volley is done with, or is made again."""
        del self.volleys.waiting[volley.name]
        for span in volley.spans:
            self.in_volleys.difference_update(span.indexes)

    def keep_first(self, volley: Volley, message_count: int) -> None:
        """Only the first messages of the volley fit into one body. The others are another volley, right after it."""
        kept: list[Span] = []
        rest: list[Span] = []
        for first, count in volley.spans:
            taken = min(count, message_count)
            message_count -= taken
            kept += [Span(first, taken)] if taken else []
            rest += [Span(first + taken, count - taken)] if taken < count else []
        volley.spans = tuple(kept)
        waiting, self.volleys.waiting = self.volleys.waiting, {}
        for known in waiting.values():
            self.volleys.waiting[known.name] = known
            if known is volley:
                self.add_volley(volley.due_ms, tuple(rest), is_move=volley.is_move)

    def end_read(self, serial: int) -> Volley | None:
        """A read is over. Returns its volley, wherever it waits by now; None: it is not waited for any more."""
        volley = next((volley for volley in self.volleys.waiting.values() if volley.reading == serial), None)
        if volley is not None:
            volley.reading = 0
        return volley

    def trim(self, start: int) -> None:
        """Retention dropped all below an index."""
        self.passed.pass_below(start)
        for volley in [volley for volley in self.volleys.waiting.values() if min(volley.spans).first < start]:
            self.drop_volley(volley)
            if volley.number:
                self.ended.append(volley.number)

    def raise_floor(self, index: int) -> None:
        """No delayed message below an index is left. Nothing else is passed that counts."""
        floor = self.passed.floor
        before = self.passed.passed_from(floor)
        self.passed.pass_below(index)
        self.other_count += self.passed.passed_from(floor) - before

    def give_number(self, volley: Volley) -> None:
        """The volley, whose body was read, has the next number. One producer sends all volleys of the segment.

        Rule `volleys-are-a-sequence` (D1): each server has a producer epoch of its own, and the sequence counts
        messages. So the producer table takes the volleys of a server as those of any producer. Without it:
          1. A, the server of the segment, has sent volley 1. It is cut off. B takes the right, and sends 2 to 7.
          2. B goes down. A believes that it is still the server, and sends other messages as volley 2.
          3. The master has volley 7, so it answers that volley 2 is stored. These messages are never fired.
        """
        volley.number = self.volleys.next_number
        self.volleys.next_number = volley.number + volley.batch_count - 1 + volley.message_count
        self.numbered.append(volley)

    def give_up_moving(self) -> None:
        """Moves were dropped: their rows are read again, and nothing is moved until retention asks again."""
        self.ahead, self.moving = Ahead(), Moving()

    def end_volley(self, volley: Volley) -> None:
        """The volley is stored: its messages are passed.

        Rule `moved-is-stored` (D1, D5): what is moved is passed then, and not when it has a number. Without it:
          1. The move of d has a number, and is sent. Retention hears that nothing below d is delayed, and drops d.
          2. The master of the open segment dies before it has stored the move. d is on no disk.
        """
        self.drop_volley(volley)
        self.ended.append(volley.number)
        for span in volley.spans:
            self.passed.pass_over(span.indexes)
            for index in span.indexes if volley.is_move else ():
                self.moved.add(index)

    def stored_count(self, batch_count: int) -> int:
        """How many volleys of the last request are stored if its first batches are."""
        return sum(until <= batch_count for until in accumulate(self.sent_batches))

    def volley_with(self, index: int) -> Volley | None:
        """The volley that has this message; None: none has."""
        if index not in self.in_volleys:
            return None
        return next(
            (volley for volley in self.volleys.waiting.values() if any(index in span.indexes for span in volley.spans)),
            None,
        )

    def cancel(self, index: int) -> None:
        """The message is not fired any more."""
        self.cancelled.add(index)
        self.passed.pass_over((index,))

    def left_of(self, row: DueRow) -> tuple[Span, ...]:
        """The messages of a batch that are still to be fired, and in no volley."""
        left = self.passed.not_passed(row.index, row.index + row.message_count)
        if not self.in_volleys.isdisjoint(left):
            left = [index for index in left if index not in self.in_volleys]
        spans = [Span(left.start, len(left))] if isinstance(left, range) and left else []
        for index in left if not spans else ():
            if spans and spans[-1].indexes.stop == index:
                spans[-1] = Span(spans[-1].first, spans[-1].message_count + 1)
            else:
                spans.append(Span(index, 1))
        return tuple(spans)

    @property
    def has_none_left(self) -> bool:
        """Whether all rows were read, and nothing of them is left."""
        return self.ahead.upto == ALL and not self.ahead.rows and not self.volleys.waiting

    @property
    def is_changed(self) -> bool:
        """Whether something is in no control record yet."""
        changed = self.passed.changed or self.passed.gone or self.cancelled.changed or self.moved.changed
        is_raised = self.passed.floor != self.ledger.acked
        is_news = is_raised or changed or not self.fence.is_written
        return bool(is_news or self.numbered or self.ended or self.is_done)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in memory that is not on the disk, and no request waits."""
        waits = self.cancels or self.reads or self.ledger.replications or self.volleys.waiting
        is_asked = bool(self.retention.new or self.retention.asked)
        return self.is_done is None and not (is_asked or waits or self.is_changed)

    def take_changes(self, serial: int) -> LedgerChange:
        """What changed since the last call. The control record with this serial has it."""
        for volley in self.numbered:
            volley.written = serial
        self.cancels = [one if one.serial else one._replace(serial=serial) for one in self.cancels]
        self.retention.written(serial)
        puts, deletes = self.passed.take_changes()
        puts += [write_cancelled(block, self.cancelled.blocks[block]) for block in sorted(self.cancelled.changed)]
        puts += [write_moved(block, self.moved.blocks[block]) for block in sorted(self.moved.changed)]
        puts += [
            write_volley(VolleyRecord(volley.number, volley.due_ms, volley.spans, volley.is_move))
            for volley in self.numbered
        ]
        if not self.fence.is_written:
            puts += [(LEARNS, b"")] if self.fence.learns else []
            deletes += [] if self.fence.learns else [LEARNS]
        if self.numbered or not (self.begun and self.fence.is_written):
            puts.append(write_next_number(self.volleys.next_number))
        deletes += [volley_name(number) for number in self.ended]
        if self.is_done:
            puts.append((DONE, b""))
            self.is_done = None
        self.cancelled.changed, self.moved.changed = set(), set()
        self.numbered, self.ended, self.fence.is_written = [], [], True
        return LedgerChange(tuple(puts), tuple(deletes))
