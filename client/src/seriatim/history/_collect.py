"""Turns lines into columns: one row for each message, and one for each delivery, in arrays of numbers.

A million messages as Python objects would take a gigabyte, and most of the checker's time. The lines of a finding are
read again when it is shown. This module only checks whether a line has the right form.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from seriatim.history import _format as f
from seriatim.history._format import MessageId
from seriatim.history._sources import Event

NONE: Final = -1
NO_OUTCOME: Final = 0
OK: Final = 1
FAILED: Final = 2
UNKNOWN: Final = 3
_OUTCOMES: Final = {"ok": OK, "failed": FAILED, "unknown": UNKNOWN}

_EPOCH_END: Final = 1 << 31
_PLAIN_COLUMNS: Final = 5  # of `Deliveries`: those that each delivery has
_SEQUENCE_END: Final = 1 << 32

Stream = tuple[str, int]
"""A topic and the number of one of its partitions."""


class Names:
    """Gives numbers to names, from 0, in the order in which the names were first seen."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def number(self, name: object) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def all(self) -> list[object]:
        return list(self._numbers)


class Messages:
    """One row for each message id, from the first line that has it."""

    def __init__(self) -> None:
        self._numbers: dict[MessageId, int] = {}
        self.stream = array("i")  # NONE: no send was recorded
        self.producer = array("i")
        self.order = array("q")  # epoch and sequence, as one number that orders like both
        self.send_at = array("d")
        self.due = array("d")  # of a delayed message; 0: it is not delayed
        self.send_line = array("q")
        self.outcome = bytearray()
        self.outcome_at = array("d")
        self.outcome_line = array("q")
        self.offset = array("q")  # as acknowledged; NONE if the outcome gave none
        self.key = array("i")  # NONE: no line has one
        times, numbers = (
            (self.send_at, self.due, self.outcome_at),
            (self.order, self.send_line, self.outcome_line, self.offset),
        )
        names = self.stream, self.producer, self.key
        self._columns: list[tuple[array[Any], float]] = [(column, 0.0) for column in times]
        self._columns += [(column, NONE) for column in (*numbers, *names)]
        self._copies: list[int] = []  # the row of the message, for each row after those of messages

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def row_count(self) -> int:
        """The number of rows, with those of replayed copies, which are after all others."""
        return len(self._numbers) + len(self._copies)

    def ids(self) -> list[MessageId]:
        """The id of each row."""
        found = list(self._numbers)
        return found + [found[row] for row in self._copies]

    def add_copy(self, row: int) -> int:
        """Add a row for a replayed copy of a message: it is delivered as a message of its own. Call it after `rows`."""
        self._copies.append(row)
        self._add_one()
        self.key[-1] = self.key[row]
        return self.row_count - 1

    def rows(self, ids: Sequence[MessageId]) -> list[int]:
        """The rows of these ids. A new id gets a new row."""
        numbers = self._numbers
        rows = [numbers.setdefault(message, len(numbers)) for message in ids]
        new = len(numbers) - len(self.outcome)
        if new == 1:
            self._add_one()
        elif new:
            self.outcome.extend(bytes(new))
            for column, none in self._columns:
                column.extend(array(column.typecode, [none]) * new)
        return rows

    def _add_one(self) -> None:
        """Add a single row, without the small arrays. A history of single lines spends its time here."""
        self.outcome.append(NO_OUTCOME)
        for column, none in self._columns:
            column.append(none)


@dataclass(slots=True)
class Deliveries:
    """The deliveries of one stream to one group that one source recorded, in its order.

    The columns from `key` on are filled only if messages were given one by one, under tokens (`by_key`).
    """

    message: array[int] = field(default_factory=lambda: array("i"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    flagged: bytearray = field(default_factory=bytearray)
    at: array[float] = field(default_factory=lambda: array("d"))
    line: array[int] = field(default_factory=lambda: array("q"))
    key: array[int] = field(default_factory=lambda: array("i"))  # NONE: a key of its own
    token: array[int] = field(default_factory=lambda: array("q"))
    attempt: array[int] = field(default_factory=lambda: array("i"))
    epoch: array[int] = field(default_factory=lambda: array("q"))  # of the group; after a rebuild it is a time in ms
    consumer: array[int] = field(default_factory=lambda: array("i"))

    @property
    def by_key(self) -> bool:
        """Whether messages were given one by one, under tokens."""
        return len(self.token) > 0


Place = tuple[str, int]
"""A consumer group, and the number of a stream."""


@dataclass(slots=True)
class Settled:
    """What consumers of a group said of messages of one stream that were given under tokens.

    Attributes:
        acked: (offset, token) to the first time at which it was acknowledged.
        acked_line: (offset, token) to the line of that.
        confirmed: (offset, token, group epoch, line) of each confirmation.
        ended: (consumer, token) to the line that says that the grant has ended.
        late_acks: (offset, line that says that the grant had ended, line of the acknowledgement).
    """

    acked: dict[tuple[int, int], float] = field(default_factory=dict)
    acked_line: dict[tuple[int, int], int] = field(default_factory=dict)
    confirmed: list[tuple[int, int, int, int]] = field(default_factory=list)
    ended: dict[tuple[int, int], int] = field(default_factory=dict)
    late_acks: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WaitingKey:
    """A `parked` line: the key waits from the offset `first` on, in this state. None: a message without a key."""

    key: str | None
    first: int
    messages: int
    state: str
    at: float
    line: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A `dead` line: the dead letter at `stored_at` says that it is of this message, which was at `offset`."""

    message: int
    offset: int
    stored_at: str
    may_be_repeated: bool
    line: int


@dataclass(frozen=True, slots=True)
class PersonAct:
    """A `person` line: what an administrator did to the message at `offset`, or to a key; `done`: the answer came.

    Of a `move`, `way` is its kind. A rewind leads to `offset`, a skip from `offset` to `end`.
    """

    act: str
    offset: int  # NONE: to all of the partition
    key: str | None
    done: bool
    at: float
    line: int
    way: str = ""
    end: int = NONE


@dataclass(frozen=True, slots=True)
class Range:
    """A declared gap or a skip: the offsets [first, end)."""

    group: str | None
    first: int
    end: int
    line: int


def covering(ranges: list[Range], group: str, offset: int) -> Range | None:
    """The first of `ranges` that is for `group` and contains `offset`. None if there is none, or `offset` is NONE."""
    if offset == NONE:
        return None
    for found in ranges:
        if found.group in (None, group) and found.first <= offset < found.end:
            return found
    return None


@dataclass(frozen=True, slots=True)
class End:
    """An `end` line: whether a group (None: all groups) has everything."""

    group: str | None
    topic: str | None
    drained: bool
    waiting: str
    at: float
    line: int


@dataclass(slots=True)
class Run:
    """One life of a recording process."""

    first_line: int
    closed: bool = False


class History:
    """All lines of a history. `take` gets each of them once."""

    def __init__(self) -> None:
        self.messages = Messages()
        self.streams = Names()  # of Stream
        self.producers = Names()
        self.deliveries: dict[tuple[str, int], dict[int, Deliveries]] = {}  # (group, stream) → by source
        self.acked: dict[tuple[str, int], tuple[int, int]] = {}  # the highest: (offset, line)
        self.keys = Names()  # texts
        self.consumers = Names()
        self.modes: dict[str, tuple[bool, bool]] = {}  # by group: whether it is by key, and at most once
        self.settled: dict[Place, Settled] = {}
        self.waiting: dict[Place, list[WaitingKey]] = {}
        self.dead: dict[Place, list[DeadLetter]] = {}
        self.acts: dict[Place, list[PersonAct]] = {}
        self.unjudged: dict[str, tuple[str, int]] = {}  # by group: why it is not judged, and the line that says so
        self.topic_acts: dict[tuple[str, str], int] = {}  # (topic, act) → line
        self.cancels: dict[int, dict[int, list[tuple[str, int]]]] = {}  # stream → offset → (answer or "", line)
        self.gaps: dict[int, list[Range]] = {}  # by stream
        self.skips: dict[int, list[Range]] = {}
        self.faults: list[tuple[float, int]] = []  # (at, line)
        self.ends: list[End] = []
        self.runs: list[Run] = []
        self.contradictions: list[tuple[int, int]] = []  # (message, line of the second outcome)
        self.ack_count = 0
        self.nack_count = 0
        self.at_first = math.inf
        self.at_last = -math.inf
        self._takers = {
            f.SEND: self._send,
            f.OUTCOME: self._outcome,
            f.DELIVER: self._deliver,
            f.ACK: self._ack,
            f.CONFIRM: self._confirm,
            f.NACK: self._nack,
            f.VOID: self._void,
            f.PARKED: self._parked,
            f.DEAD: self._dead,
            f.PERSON: self._person,
            f.GAP: self._range,
            f.SKIP: self._range,
            f.FAULT: self._fault,
            f.END: self._end,
            f.TOPIC: self._topic,
            f.CANCEL: self._cancel,
        }

    def take(self, event: Event, source: int, line: int) -> None:
        """Add one line.

        Raises:
            KeyError, TypeError, ValueError, OverflowError: The line is malformed.
        """
        kind = event["k"]
        if kind == f.HISTORY:
            if event["version"] != f.VERSION:
                raise ValueError(f"history version {event['version']!r} is not known here (known: {f.VERSION})")
            self.runs.append(Run(line))
            return
        at = _time(event, "at")
        self.at_first = min(self.at_first, at)
        self.at_last = max(self.at_last, at)
        if kind == f.CLOSE:
            if self.runs:
                self.runs[-1].closed = True
            return
        taker = self._takers.get(kind)  # type: ignore[call-overload]
        if taker is None:
            raise ValueError(f"unknown kind {kind!r}")
        taker(event, at, source, line)

    def _stream(self, event: Event) -> int:
        return self.streams.number((_name(event, "t"), _count(event, "q")))

    def _send(self, event: Event, at: float, source: int, line: int) -> None:
        ids = f.decode_ids(event)
        known = len(self.messages)
        rows = self.messages.rows(ids)
        messages, count = self.messages, len(ids)
        stream, producer = self._stream(event), self.producers.number(_name(event, "p"))
        epoch, sequence = _count(event, "e", default=0), _count(event, "s")
        if epoch >= _EPOCH_END or sequence + count > _SEQUENCE_END:
            raise ValueError(f"epoch {epoch} or sequence {sequence} is out of range")
        first = epoch * _SEQUENCE_END + sequence
        if "due" in event:
            due = _time(event, "due")
            for row in rows:
                messages.due[row] = due
        if "y" in event:
            for row, key in zip(rows, f.decode_keys(event, count), strict=True):
                messages.key[row] = NONE if key is None else self.keys.number(key)
        if rows[0] == known and rows[-1] == known + count - 1 and len(messages) == known + count:
            span = slice(known, known + count)  # all new, the ordinary case: no loop
            messages.stream[span] = array("i", [stream]) * count
            messages.producer[span] = array("i", [producer]) * count
            messages.order[span] = array("q", range(first, first + count))
            messages.send_at[span] = array("d", [at]) * count
            messages.send_line[span] = array("q", [line]) * count
            return
        for position, row in enumerate(rows):
            if messages.stream[row] != NONE:
                raise ValueError(f"message {ids[position]!r} was sent before: ids must be unique")
            messages.stream[row] = stream
            messages.producer[row] = producer
            messages.order[row] = first + position
            messages.send_at[row] = at
            messages.send_line[row] = line

    def _outcome(self, event: Event, at: float, source: int, line: int) -> None:
        outcome = _OUTCOMES.get(event["x"])  # type: ignore[call-overload]
        if outcome is None:
            raise ValueError(f"an outcome is ok, failed or unknown, not {event['x']!r}")
        rows = self.messages.rows(f.decode_ids(event))
        offset = f.parse_offset(event["o"]) if "o" in event else NONE
        messages, count, start = self.messages, len(rows), rows[0]
        span = slice(start, start + count)
        as_sent = rows[-1] == start + count - 1 and rows == list(range(start, start + count))
        if as_sent and not any(messages.outcome[span]):  # the ordinary case: no loop
            messages.outcome[span] = bytes([outcome]) * count
            messages.outcome_at[span] = array("d", [at]) * count
            messages.outcome_line[span] = array("q", [line]) * count
            if offset != NONE:
                messages.offset[span] = array("q", range(offset, offset + count))
            return
        for position, row in enumerate(rows):
            if messages.outcome[row] == NO_OUTCOME:
                messages.outcome[row] = outcome
                messages.outcome_at[row] = at
                messages.outcome_line[row] = line
                messages.offset[row] = NONE if offset == NONE else offset + position
            elif messages.outcome[row] != outcome:
                self.contradictions.append((row, line))

    def _deliver(self, event: Event, at: float, source: int, line: int) -> None:
        rows = self.messages.rows(f.decode_ids(event))
        count = len(rows)
        offset = f.parse_offset(event["o"])
        attempt = event.get("a", 1)
        if type(attempt) is not int or attempt < 1:
            raise ValueError(f"attempts are counted from 1, not {attempt!r}")
        flagged = attempt > 1 or bool(event.get("r"))
        consumer, group = _name(event, "c"), _name(event, "g")
        mode = ("u" in event, bool(event.get("b")))
        if self.modes.setdefault(group, mode) != mode:
            self.unjudged.setdefault(group, ("its mode was changed", line))
            return
        by_source = self.deliveries.setdefault((group, self._stream(event)), {})
        seen = by_source.setdefault(source, Deliveries())
        if mode[0]:
            keys = f.decode_keys(event, count)
            numbers = [NONE if key is None else self.keys.number(key) for key in keys]
            for row, number in zip(rows, numbers, strict=True):
                if self.messages.key[row] == NONE:
                    self.messages.key[row] = number
            seen.key.extend(numbers)
            seen.token.extend([f.check_token(event["u"])] * count)
            seen.attempt.extend([attempt, *[1] * (count - 1)])
            seen.epoch.extend([_count(event, "v", default=0)] * count)
            seen.consumer.extend([self.consumers.number(consumer)] * count)
        later = bool(event.get("r")) if mode[0] else flagged  # of a grant, the attempt is of the first message
        seen.flagged.extend(bytes([flagged, *[later] * (count - 1)]))
        seen.message.extend(rows)
        seen.offset.extend(range(offset, offset + count))
        seen.at.extend(array("d", [at]) * count)
        seen.line.extend(array("q", [line]) * count)

    def _ack(self, event: Event, at: float, source: int, line: int) -> None:
        key = (_name(event, "g"), self._stream(event))
        if "u" in event:
            consumer = self.consumers.number(_name(event, "c"))
            settled = self._settled(event)
            for place in f.decode_offsets(event):
                self.ack_count += 1
                ended = settled.ended.get((consumer, place[1]))
                if ended is not None:
                    settled.late_acks.append((place[0], ended, line))
                if at < settled.acked.get(place, math.inf):
                    settled.acked[place], settled.acked_line[place] = at, line
            return
        offset = f.parse_offset(event["o"])
        self.ack_count += 1
        if offset > self.acked.get(key, (NONE, NONE))[0]:
            self.acked[key] = (offset, line)

    def _settled(self, event: Event) -> Settled:
        return self.settled.setdefault((_name(event, "g"), self._stream(event)), Settled())

    def _confirm(self, event: Event, at: float, source: int, line: int) -> None:
        _name(event, "c")
        epoch = _count(event, "v", default=0)
        confirmed = self._settled(event).confirmed
        confirmed += [(offset, token, epoch, line) for offset, token in f.decode_offsets(event)]

    def _nack(self, event: Event, at: float, source: int, line: int) -> None:
        consumer = self.consumers.number(_name(event, "c"))
        for _offset, token in f.decode_offsets(event):
            self._settled(event).ended.setdefault((consumer, token), line)
        self.nack_count += 1

    def _void(self, event: Event, at: float, source: int, line: int) -> None:
        consumer, tokens = self.consumers.number(_name(event, "c")), event["u"]
        if not isinstance(tokens, list):
            raise ValueError("u is a list of tokens")
        for token in tokens:
            self._settled(event).ended.setdefault((consumer, f.check_token(token)), line)

    def _parked(self, event: Event, at: float, source: int, line: int) -> None:
        first, messages = f.parse_offset(event["o"]), _count(event, "n")
        found = WaitingKey(_text(event, "y"), first, messages, _name(event, "x"), at, line)
        self.waiting.setdefault((_name(event, "g"), self._stream(event)), []).append(found)

    def _dead(self, event: Event, at: float, source: int, line: int) -> None:
        (row,) = self.messages.rows(f.decode_ids(event))
        letter = DeadLetter(row, f.parse_offset(event["o"]), _name(event, "w"), bool(event.get("r")), line)
        self.dead.setdefault((_name(event, "g"), self._stream(event)), []).append(letter)

    def _person(self, event: Event, at: float, source: int, line: int) -> None:
        act = event["x"]
        if act not in f.PERSON_ACTS:
            raise ValueError(f"administrators do {', '.join(f.PERSON_ACTS)}, not {act!r}")
        offset = f.parse_offset(event["o"]) if "o" in event else NONE
        key = _text(event, "y")
        way = event.get("d", "")
        end = f.parse_offset(event["z"]) if "z" in event else NONE
        is_placed = offset != NONE and (way != f.SKIP_TO or end >= offset)
        is_told = way in f.WAYS and (way not in f.PLACED_WAYS or is_placed)
        if (not is_told) if act == "move" else way:
            raise ValueError("d is the way of each move: a rewind to o, a skip from o to z, or a change of the mode")
        done = PersonAct(str(act), offset, key, bool(event.get("done")), at, line, str(way), end)
        if act == "delete":
            self.unjudged.setdefault(_name(event, "g"), ("it was deleted", line))
        self.acts.setdefault((_name(event, "g"), self._stream(event)), []).append(done)

    def _topic(self, event: Event, at: float, source: int, line: int) -> None:
        act = event["x"]
        if act not in f.TOPIC_ACTS:
            raise ValueError(f"administrators do {' or '.join(f.TOPIC_ACTS)} with a topic, not {act!r}")
        self.topic_acts.setdefault((_name(event, "t"), str(act)), line)

    def _cancel(self, event: Event, at: float, source: int, line: int) -> None:
        answer = event.get("x", "")
        if answer and answer not in f.CANCEL_ANSWERS:
            raise ValueError(f"a cancellation is answered with {', '.join(f.CANCEL_ANSWERS)}, not {answer!r}")
        by_offset = self.cancels.setdefault(self._stream(event), {})
        by_offset.setdefault(f.parse_offset(event["o"]), []).append((str(answer), line))

    def _range(self, event: Event, at: float, source: int, line: int) -> None:
        group = _name(event, "g") if "g" in event else None
        found = Range(group, f.parse_offset(event["o"]), f.parse_offset(event["z"]), line)
        if found.end < found.first:
            raise ValueError("ends before it begins")
        ranges = self.gaps if event["k"] == f.GAP else self.skips
        ranges.setdefault(self._stream(event), []).append(found)

    def _fault(self, event: Event, at: float, source: int, line: int) -> None:
        _name(event, "name")
        _name(event, "victim")
        self.faults.append((at, line))

    def _end(self, event: Event, at: float, source: int, line: int) -> None:
        if type(event["drained"]) is not bool:
            raise ValueError("drained is true or false")
        group = _name(event, "g") if "g" in event else None
        topic = _name(event, "t") if "t" in event else None
        self.ends.append(End(group, topic, event["drained"], str(event.get("waiting", "")), at, line))


def _name(event: Event, key: str) -> str:
    name = event[key]
    if type(name) is not str or not name:
        raise ValueError(f"{key} is a name, not {name!r}")
    return name


def _time(event: Event, key: str) -> float:
    at = event[key]
    if type(at) not in (int, float) or not math.isfinite(at):  # type: ignore[arg-type]
        raise ValueError(f"{key} is a time in seconds, not {at!r}")
    assert isinstance(at, (int, float))
    return float(at)


def _text(event: Event, key: str) -> str | None:
    text = event.get(key)
    if text is not None and type(text) is not str:
        raise ValueError(f"{key} is a text, not {text!r}")
    return text


def _count(event: Event, key: str, default: int | None = None) -> int:
    number = event.get(key, default) if default is not None else event[key]
    if type(number) is not int or number < 0:
        raise ValueError(f"{key} is a number from 0 on, not {number!r}")
    return number


def merged(by_source: dict[int, Deliveries]) -> Deliveries:
    """Merge the deliveries of several sources by time. Each source keeps its own order.

    There is more than one source if a standby in another process took over, or if consumers share a partition. A
    source's order counts more than its times: a time never moves a delivery before an earlier line of the same file.
    """
    if len(by_source) == 1:
        return next(iter(by_source.values()))
    rows: list[tuple[float, int, int]] = []
    for source, seen in by_source.items():
        latest = -math.inf
        for position, at in enumerate(seen.at):
            latest = max(latest, at)
            rows.append((latest, source, position))
    rows.sort()
    result = Deliveries()
    by_key = next(iter(by_source.values())).by_key
    names = [column.name for column in fields(Deliveries)]
    for name in names if by_key else names[:_PLAIN_COLUMNS]:
        columns = {source: getattr(seen, name) for source, seen in by_source.items()}
        getattr(result, name).extend([columns[source][position] for _at, source, position in rows])
    return result
