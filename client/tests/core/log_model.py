"""A small model of a partition's brokers, to judge the producer's core by what ends up in the log.

It keeps the rules of a master (runs, sequences, repeats, incomplete tables) and of a switch (seal somewhere between
commit and tail, truncate, hand on the table; or open over a segment of which no member answers, and settle it later). A
batch is its id. One producer, one partition; frames and replies of a stream stay in order and can be lost with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from seriatim._core.producer import Replied, ReplyError, Route, Send

OVERLOADED, TOO_LARGE, FENCED, GAP, RUN_REFUSED, MOVED, TRUNCATED = 400, 110, 200, 201, 203, 301, 302


@dataclass
class Stored:
    epoch: int
    sequence: int
    count: int
    batch_id: int

    @property
    def last(self) -> tuple[int, int]:
        return self.epoch, self.sequence + self.count - 1


@dataclass
class Segment:
    no: int
    address: str
    incomplete: bool
    table: tuple[int, int] | None  # newest (epoch, last sequence) before this segment
    repeats: dict[tuple[int, int], int]  # (epoch, sequence) of what is in earlier segments -> offset
    log: list[Stored] = field(default_factory=list)
    commit: int = 0
    waiting: list[tuple[int, Stream, Send]] = field(default_factory=list)  # until commit passes the position
    sealed: bool = False
    unsettled: bool = False

    @property
    def last(self) -> tuple[int, int] | None:
        return self.log[-1].last if self.log else self.table


@dataclass
class Stream:
    number: int
    address: str
    frames: deque[Send] = field(default_factory=deque)
    replies: deque[Replied] = field(default_factory=deque)
    refused_run: int = 0
    open: bool = True


class Brokers:
    """The partition's segments, and the streams to their masters."""

    def __init__(self) -> None:
        self.epoch = 1
        self.segments = [Segment(1, "a:1", incomplete=False, table=None, repeats={})]
        self.streams: list[Stream] = []
        self.poison: set[int] = set()
        self.routes = [self.route]

    @property
    def open_segment(self) -> Segment:
        return self.segments[-1]

    @property
    def route(self) -> Route:
        return Route(self.epoch, self.open_segment.no, self.open_segment.address, self.open_segment.address)

    def connect(self, address: str) -> Stream:
        stream = Stream(len(self.streams) + 1, address)
        self.streams.append(stream)
        return stream

    def send(self, send: Send) -> None:
        stream = self.streams[send.stream - 1]
        if stream.open:
            stream.frames.append(send)

    # ---- the master ----------------------------------------------------------------------------------

    def deliver(self, stream: Stream, *, overloaded: bool = False, with_route: bool = True) -> None:
        """The next frame of the stream reaches its broker."""
        send = stream.frames.popleft()
        open_segment = self.open_segment
        if send.starts_run:
            stream.refused_run = 0
        if stream.refused_run == send.producer_run:
            self._refuse(stream, send, RUN_REFUSED)
        elif open_segment.address != stream.address:
            self._refuse(stream, send, MOVED, self.route if with_route else None)
        elif overloaded:
            self._refuse(stream, send, OVERLOADED)
        elif send.batch_id in self.poison:
            self._refuse(stream, send, TOO_LARGE)
        else:
            self._append(stream, send)

    def _append(self, stream: Stream, send: Send) -> None:
        open_segment, number = self.open_segment, (send.producer_epoch, send.base_sequence)
        for position, stored in enumerate(open_segment.log):
            if (stored.epoch, stored.sequence) == number:
                assert stored.batch_id == send.batch_id, "a stored number was given to another batch"
                self._reply_when_committed(position, stream, send)
                return
        if number in open_segment.repeats:
            self._ok(stream, send, open_segment.repeats[number])
            return
        last = open_segment.last
        if last is None:
            takes = (open_segment.incomplete and send.starts_run) or send.base_sequence == 0
        elif send.producer_epoch < last[0]:
            self._refuse(stream, send, FENCED)
            return
        elif send.producer_epoch > last[0]:
            takes = send.base_sequence == 0
        else:
            takes = send.base_sequence == last[1] + 1
        if not takes:
            self._refuse(stream, send, GAP)
            return
        open_segment.log.append(Stored(send.producer_epoch, send.base_sequence, send.message_count, send.batch_id))
        self._reply_when_committed(len(open_segment.log) - 1, stream, send)

    def _reply_when_committed(self, position: int, stream: Stream, send: Send) -> None:
        if position < self.open_segment.commit:
            self._ok(stream, send, offset(self.open_segment.no, position))
        else:
            self.open_segment.waiting.append((position, stream, send))

    def commit(self, to: int) -> None:
        open_segment = self.open_segment
        assert open_segment.commit <= to <= len(open_segment.log)
        open_segment.commit = to
        self._answer_below(open_segment, to)

    def _answer_below(self, segment: Segment, to: int) -> None:
        for position, stream, send in segment.waiting:
            if position < to:
                self._ok(stream, send, offset(segment.no, position))
        segment.waiting = [row for row in segment.waiting if row[0] >= to]

    def _ok(self, stream: Stream, send: Send, at: int) -> None:
        if stream.open:
            stream.replies.append(Replied(send.producer_epoch, send.base_sequence, send.producer_run, at))

    def _refuse(self, stream: Stream, send: Send, number: int, route: Route | None = None) -> None:
        stream.refused_run = send.producer_run
        if stream.open:
            reply = Replied(
                send.producer_epoch, send.base_sequence, send.producer_run, error=ReplyError(number), route=route
            )
            stream.replies.append(reply)

    # ---- switches ------------------------------------------------------------------------------------

    def switch(self, address: str, sealed_len: int, *, with_route: bool) -> None:
        """Seal at `sealed_len` and open the next segment at `address`."""
        old = self.open_segment
        assert old.commit <= sealed_len <= len(old.log)
        del old.log[sealed_len:]
        old.sealed = True
        old.commit = sealed_len
        self._open(address, incomplete=self._still_incomplete())
        self._answer_below(old, sealed_len)
        for _, stream, send in old.waiting:
            self._refuse(stream, send, TRUNCATED, self.route if with_route else None)
        old.waiting = []

    def open_over(self, address: str) -> None:
        """Open the next segment without an answer: all processes of the old one are dead."""
        old = self.open_segment
        old.unsettled = True
        old.waiting = []
        for stream in self.streams:
            if stream.address == old.address:
                stream.open = False
                stream.frames.clear()
        self._open(address, incomplete=True)

    def settle(self, segment: Segment, sealed_len: int) -> None:
        assert segment.unsettled
        assert segment.commit <= sealed_len <= len(segment.log)
        del segment.log[sealed_len:]
        segment.unsettled = False
        segment.sealed = True

    def _still_incomplete(self) -> bool:
        """The mark is inherited until all before is settled; then the tables are merged."""
        return any(segment.unsettled for segment in self.segments)

    def _open(self, address: str, *, incomplete: bool) -> None:
        before = self.segments
        if incomplete and before[-1].unsettled:
            table, repeats = None, {}
        elif incomplete:
            table, repeats = before[-1].last, dict(before[-1].repeats)
            repeats.update(stored_at(before[-1]))
        else:
            newest = [s.last for s in before if s.last is not None]
            table = max(newest, default=None)
            repeats = {}
            for segment in reversed(before):  # the earliest place wins
                repeats.update(stored_at(segment))
        self.epoch += 1
        self.segments.append(Segment(before[-1].no + 1, address, incomplete, table, repeats))
        self.routes.append(self.route)

    # ---- what readers get ----------------------------------------------------------------------------

    def read(self) -> list[int]:
        """Batch ids in the order of consumption, all settled."""
        assert not any(segment.unsettled for segment in self.segments)
        order: list[int] = []
        newest: tuple[int, int] = (-1, -1)
        for segment in self.segments:
            reach = newest
            for stored in segment.log:
                if stored.last > newest:
                    order.append(stored.batch_id)
                reach = max(reach, stored.last)
            newest = reach
        return order

    def stored_ids(self) -> set[int]:
        return {stored.batch_id for segment in self.segments for stored in segment.log}


def offset(segment: int, position: int) -> int:
    return segment << 40 | position


def stored_at(segment: Segment) -> dict[tuple[int, int], int]:
    return {(s.epoch, s.sequence): offset(segment.no, at) for at, s in enumerate(segment.log)}
