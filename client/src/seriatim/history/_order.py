"""Checks the deliveries from one partition: repeats, places, and order in its four meanings.

Every rule is one pass over the first deliveries of a group, in the order in which they came:

- *offset*, *producer*: the pass keeps the greatest offset so far, and for each producer the greatest send order. A
  message below one of them was overtaken by the message that has the greatest value.
- *realtime*: message a was overtaken if some message b was delivered before a and sent after a's acknowledgement. Such
  a b exists exactly if the message with the greatest send time among all delivered before a is one. So the pass
  compares the greatest send time so far with each message's acknowledgement time.
- *group*: the pass goes over the messages as one group saw them, and looks at their positions in the other group. If a
  position is below the greatest so far, the two groups saw two messages in opposite orders.

If a group was given messages one by one, under tokens, all this counts within a key (`_by_key` has the other rules).

All passes are linear in the number of deliveries. They count overtaken messages and not pairs, which may be quadratic.
So one message that came late is one finding. One that came early counts each message that it overtook.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from seriatim.history import _format as f
from seriatim.history import _report as kinds
from seriatim.history._by_key import Copies, KeyJudge
from seriatim.history._collect import NONE, OK, Deliveries, History, covering, merged
from seriatim.history._findings import Findings
from seriatim.history._format import format_offset
from seriatim.history._moves import Moves

_SAME_MESSAGE: Final = "the same message"
_SAME_OFFSET: Final = "the same offset (with two messages)"


@dataclass(slots=True)
class ConsumerGroupView:
    """The messages that a group has seen.

    Attributes:
        name: The group's name.
        first: For each message, the position of its first delivery among those of its stream; NONE: not delivered.
        plain: The same for the first delivery without a flag.
    """

    name: str
    first: array[int]
    plain: array[int]


@dataclass(slots=True)
class _Tops:
    """The greatest values among the first deliveries so far, and their positions: of a partition, or of a key."""

    offset: int = -1
    offset_at: int = NONE
    send: float = -math.inf
    send_at: int = NONE
    order: dict[int, tuple[int, int]] = field(default_factory=dict)  # producer → (order, position)


class StreamJudge:
    """Checks one stream after another, and keeps the place at which each message is stored."""

    def __init__(self, history: History, findings: Findings, copies: Copies) -> None:
        self._history = history
        self._messages = history.messages
        self._findings = findings
        self.copies = copies
        self.by_key: dict[tuple[str, int], KeyJudge] = {}  # by group and stream
        count = history.messages.row_count
        self.first_line = array("q", [NONE]) * count  # the first delivery of each message to any group
        due = history.messages.due
        # A delayed message is delivered from the place where it was fired, and no outcome says where that is.
        self._offset = array("q", (NONE if due[row] else offset for row, offset in enumerate(history.messages.offset)))
        self._offset_line = array("q", history.messages.outcome_line)
        self._misplaced: set[int] = set()
        self._reordered: set[tuple[str, int]] = set()
        self.first_count = 0
        self.repeat_count = 0  # flagged ones

    @property
    def reordered_count(self) -> int:
        """The number of (group, message) pairs that were overtaken in at least one of the four ways."""
        return len(self._reordered)

    def offset_of(self, row: int) -> int:
        """The offset of a message: as acknowledged, else as first delivered; NONE if no line has it. A delayed one: as
        first delivered, else as acknowledged."""
        return self._offset[row] if self._offset[row] != NONE else self._messages.offset[row]

    def judge(self, stream: int, views: dict[str, ConsumerGroupView]) -> None:
        """Check all deliveries from one partition."""
        holders: dict[int, tuple[int, int]] = {}  # offset → (message, line), from the group that comes first here
        walks: list[tuple[ConsumerGroupView, Deliveries, array[int]]] = []
        for name, view in views.items():
            by_source = self._history.deliveries.get((name, stream))
            if by_source is None:
                continue
            seen = merged(by_source)
            moves = Moves(self._history.acts.get((name, stream), ()), by_key=seen.by_key)
            firsts = self._walk(stream, view, seen, moves)
            if seen.by_key:
                judge = KeyJudge(self._history, self._findings, self.copies, name, stream, seen)
                judge.judge()
                self.by_key[name, stream] = judge
            self._places(stream, view, seen, holders)
            self._order(stream, view, seen, firsts, moves)
            if seen.by_key or not moves:
                walks.append((view, seen, firsts))
        for (one, one_seen, _), (other, other_seen, other_firsts) in combinations(walks, 2):
            self._compare(stream, one, one_seen, other, other_seen, other_firsts)

    def _walk(self, stream: int, view: ConsumerGroupView, seen: Deliveries, moves: Moves) -> array[int]:
        """Find the positions of the first deliveries, and the repeats that have no flag and that no administrator
        wanted."""
        firsts = array("i")
        times: Counter[int] = Counter()  # by offset: how often it came again, as an administrator wanted
        first, plain, due = view.first, view.plain, self._messages.due
        plain_at: dict[int, int] = {}
        for position, (row, offset, flagged) in enumerate(zip(seen.message, seen.offset, seen.flagged, strict=True)):
            if first[row] == NONE:
                first[row] = position
                firsts.append(position)
                if self.first_line[row] == NONE:
                    self.first_line[row] = seen.line[position]
            elif flagged:
                self.repeat_count += 1
            if due[row] and seen.at[position] < due[row] - f.EARLY_S_MAX:
                self._early(stream, view, seen, position)
            if flagged or seen.by_key:
                continue
            earlier = plain[row]
            earlier_there = plain_at.setdefault(offset, position)
            if earlier == NONE:
                plain[row] = position
            if moves.changes_mode:
                continue
            if moves and earlier_there != position and times[offset] < moves.times_again(offset, seen.at[position]):
                times[offset] += 1
                continue
            if earlier != NONE:
                self._repeated(stream, view, seen, earlier, position, _SAME_MESSAGE)
            elif earlier_there != position:
                self._repeated(stream, view, seen, earlier_there, position, _SAME_OFFSET)
        self.first_count += len(firsts)
        return firsts

    def _early(self, stream: int, view: ConsumerGroupView, seen: Deliveries, position: int) -> None:
        if self._findings.wants(kinds.EARLY):
            row = seen.message[position]
            early_s = self._messages.due[row] - seen.at[position]
            text = f"message {self._findings.ids[row]!r} came to group {view.name} {early_s:.3f} s before it was due"
            shown = [(self._messages.send_line[row], row), (seen.line[position], row)]
            self._findings.keep(kinds.EARLY, text, shown, row=row, group=view.name, stream=stream)

    def _repeated(
        self, stream: int, view: ConsumerGroupView, seen: Deliveries, earlier: int, later: int, what: str
    ) -> None:
        if not self._findings.wants(kinds.REPEATED):
            return
        row = seen.message[later]
        if what == _SAME_MESSAGE and (earlier >= len(seen.message) or seen.message[earlier] != row):
            earlier = later  # the first delivery was from another partition; `_places` finds that as misplaced
        earlier_row = seen.message[earlier]
        self._findings.keep(
            kinds.REPEATED,
            f"{what} came twice to group {view.name} as a first attempt: message {self._findings.ids[row]!r} at"
            f" {format_offset(seen.offset[later])}, after {format_offset(seen.offset[earlier])}",
            [(seen.line[earlier], earlier_row), (seen.line[later], row)],
            row=row, group=view.name, stream=stream,
        )  # fmt: skip

    def _places(
        self, stream: int, view: ConsumerGroupView, seen: Deliveries, holders: dict[int, tuple[int, int]]
    ) -> None:
        """Check that each message has one place, each place one message, and that both are as acknowledged."""
        sent_to, known, known_line = self._messages.stream, self._offset, self._offset_line
        for row, offset, line in zip(seen.message, seen.offset, seen.line, strict=True):
            holder, holder_line = holders.setdefault(offset, (row, line))
            if known[row] == NONE:
                known[row], known_line[row] = offset, line
            if holder != row:
                text = f"offset {format_offset(offset)} holds message {self._findings.ids[holder]!r} and"
                self._misplace(row, stream, view, text, [(holder_line, holder), (line, row)])
            elif known[row] != offset:
                if self._stands_twice(stream, view.name, offset, known[row], by_key=seen.by_key):
                    known[row], known_line[row] = offset, line  # from now on this is its only place
                    continue
                text = f"{format_offset(known[row])} and {format_offset(offset)} are both said to be the place of"
                self._misplace(row, stream, view, text, [(known_line[row], row), (line, row)])
            elif sent_to[row] not in (stream, NONE):
                text = "sent to one partition and delivered from another:"
                self._misplace(row, stream, view, text, [(self._messages.send_line[row], row), (line, row)])

    def _stands_twice(self, stream: int, group: str, delivered: int, acknowledged: int, *, by_key: bool) -> bool:
        """Whether the place in the acknowledgement is a repeat that the server skipped for this group.

        1. A batch is stored in a segment that becomes UNSETTLED. 2. The batch is stored again after it, and
        acknowledged at this second place. 3. Consumers get the first place, and an explicit skip of the second. If
        messages are given by key, they are notified of no skip.
        """
        if by_key:
            return delivered >> f.INDEX_BITS < acknowledged >> f.INDEX_BITS
        skips = self._history.skips.get(stream, [])
        return delivered < acknowledged and covering(skips, group, acknowledged) is not None

    def _misplace(
        self, row: int, stream: int, view: ConsumerGroupView, text: str, shown: list[tuple[int, int]]
    ) -> None:
        if row in self._misplaced:
            return
        self._misplaced.add(row)
        if self._findings.wants(kinds.MISPLACED):
            text = f"{text} message {self._findings.ids[row]!r}"
            self._findings.keep(kinds.MISPLACED, text, shown, row=row, group=view.name, stream=stream)

    def _order(self, stream: int, view: ConsumerGroupView, seen: Deliveries, firsts: array[int], moves: Moves) -> None:
        messages = self._messages
        if moves.changes_mode and not seen.by_key:
            return
        offsets, rows = seen.offset, seen.message
        lanes: dict[int, _Tops] = {}
        ahead = tops = _Tops()
        for position in firsts:
            if seen.by_key:
                key = seen.key[position]
                if key == NONE:
                    continue  # it has no order with any other message
                tops = lanes.setdefault(key, _Tops())
            row, offset = rows[position], offsets[position]
            if moves and not seen.by_key:
                is_behind = offset < ahead.offset and moves.puts_behind(offset, seen.at[position])
                tops = lanes.setdefault(moves.begun_by(seen.at[position]), _Tops()) if is_behind else ahead
            if offset >= tops.offset:
                tops.offset, tops.offset_at = offset, position
            else:
                self._overtaken(kinds.REORDERED_OFFSET, stream, view, seen, tops.offset_at, position)
            if messages.due[row]:
                continue  # it comes when it is due, whatever was sent meanwhile
            if messages.outcome[row] == OK and tops.send > messages.outcome_at[row]:
                self._overtaken(kinds.REORDERED_REALTIME, stream, view, seen, tops.send_at, position)
            producer = messages.producer[row]
            if producer == NONE:
                continue
            order, at = messages.order[row], messages.send_at[row]
            top, top_at = tops.order.get(producer, (NONE, NONE))
            if order >= top:
                tops.order[producer] = (order, position)
            else:
                self._overtaken(kinds.REORDERED_PRODUCER, stream, view, seen, top_at, position)
            if at > tops.send:
                tops.send, tops.send_at = at, position

    def _overtaken(
        self, kind: str, stream: int, view: ConsumerGroupView, seen: Deliveries, earlier: int, later: int
    ) -> None:
        row, other = seen.message[later], seen.message[earlier]
        self._reordered.add((view.name, row))
        if not self._findings.wants(kind):
            return
        messages, ids = self._messages, self._findings.ids
        deliveries = [(seen.line[earlier], other), (seen.line[later], row)]
        if kind == kinds.REORDERED_OFFSET:
            text = (
                f"group {view.name} was given {format_offset(seen.offset[earlier])} before"
                f" {format_offset(seen.offset[later])}: message {ids[row]!r} came too late"
            )
            shown = deliveries
        elif kind == kinds.REORDERED_PRODUCER:
            text = f"message {ids[row]!r} was sent before {ids[other]!r} and delivered after it, to group {view.name}"
            shown = [(messages.send_line[row], row), (messages.send_line[other], other), *deliveries]
        else:
            text = (
                f"message {ids[other]!r} was sent after {ids[row]!r} was acknowledged and delivered before it,"
                f" to group {view.name}"
            )
            shown = [(messages.outcome_line[row], row), (messages.send_line[other], other), *deliveries]
        self._findings.keep(kind, text, shown, row=row, group=view.name, stream=stream)

    def _compare(
        self,
        stream: int,
        one: ConsumerGroupView,
        one_seen: Deliveries,
        other: ConsumerGroupView,
        other_seen: Deliveries,
        other_firsts: array[int],
    ) -> None:
        """Go over the messages as `other` saw them, and compare with their positions in `one`.

        If one of them was given messages by key, only messages of the same key are compared.
        """
        tops: dict[int, tuple[int, int]] = {}  # key, or 0 for all → (position in `one`, position in `other`)
        by_key = one_seen.by_key or other_seen.by_key
        one_first, one_rows = one.first, one_seen.message
        for position in other_firsts:
            row = other_seen.message[position]
            there = one_first[row]
            if there == NONE or there >= len(one_rows) or one_rows[there] != row:
                continue  # that group did not see it, or got it from another partition (misplaced)
            key = self._messages.key[row] if by_key else 0
            top, top_at = tops.get(key, (NONE, NONE))
            if key == NONE:
                continue  # it has no order with any other message
            if there >= top:
                tops[key] = there, position
                continue
            self._reordered.add((other.name, row))
            if not self._findings.wants(kinds.REORDERED_GROUP):
                continue
            before = other_seen.message[top_at]
            ids = self._findings.ids
            self._findings.keep(
                kinds.REORDERED_GROUP,
                f"group {one.name} saw message {ids[row]!r} before {ids[before]!r}, group {other.name} after it",
                [
                    (one_seen.line[there], row),
                    (one_seen.line[top], before),
                    (other_seen.line[top_at], before),
                    (other_seen.line[position], row),
                ],
                row=row, group=other.name, stream=stream,
            )  # fmt: skip
