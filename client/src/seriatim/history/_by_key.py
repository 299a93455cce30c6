"""Checks the deliveries of messages that were given one by one, under tokens: modes `key_ordered` and `shared`.

Consumers of one partition are in several processes. What one of them was given may wait in its queue while a new
server gives the same message to another one. So the time at which an application got a message proves little about two
processes, and the order of tokens proves much: tokens of a key grow with each grant. The rules compare

- tokens, where two deliveries of a message or a key are compared;
- times, where a message was given only because another one was acknowledged: the acknowledgement was written down
  before it was sent, and the delivery after it came;
- the lines of one consumer, in its own order.

A message without a key is a key of its own, and so is each message in mode `shared`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from seriatim.history import _format as f
from seriatim.history import _report as kinds
from seriatim.history._collect import (
    NONE,
    DeadLetter,
    Deliveries,
    History,
    PersonAct,
    Settled,
    WaitingKey,
    covering,
)
from seriatim.history._findings import Findings
from seriatim.history._format import format_offset

_SKIPPING: Final = ("skip", "dead_letter")

Lane = tuple[int, int]
"""A key's number, or NONE and the offset of a message without a key."""


@dataclass(slots=True)
class Copies:
    """Replayed copies of dead letters, as rows of their own.

    Attributes:
        of: The row of a copy to the row of its message.
        missing: (group, stream, row of the message, line of the replay): a copy that was made and never delivered.
    """

    of: dict[int, int] = field(default_factory=dict)
    missing: list[tuple[str, int, int, int]] = field(default_factory=list)


def tell_copies_apart(history: History) -> Copies:
    """Give each replayed copy a row of its own.

    A copy has the id of its message, and another offset, behind it. The first place of a message is its own. Later ones
    are copies, as many as dead letters of it were replayed.
    """
    copies = Copies()
    for (group, stream), acts in history.acts.items():
        replays: dict[int, dict[int, PersonAct]] = defaultdict(dict)  # offset of the message -> its replay
        for act in acts:
            if act.act == "replay":
                known = replays[act.offset].get(0)
                replays[act.offset][0] = act if known is None or act.done else known
        by_source = history.deliveries.get((group, stream), {})
        letters = {letter.offset: letter.message for letter in history.dead.get((group, stream), ())}
        places: dict[int, set[int]] = defaultdict(set)  # message -> its offsets
        wanted = {letters[offset] for offset in replays if offset in letters}
        for seen in by_source.values():
            for row, offset in zip(seen.message, seen.offset, strict=True):
                if row in wanted:
                    places[row].add(offset)
        renamed: dict[tuple[int, int], int] = {}
        for row in sorted(wanted):
            mine = [replays[offset][0] for offset in replays if letters.get(offset) == row]
            origin = min(letter.offset for letter in history.dead[group, stream] if letter.message == row)
            found = sorted(offset for offset in places[row] if offset > origin)[: len(mine)]
            for offset in found:
                renamed[row, offset] = copy = history.messages.add_copy(row)
                copies.of[copy] = row
            done = [act for act in mine if act.done]
            copies.missing += [(group, stream, row, act.line) for act in done[len(found) :]]
        for seen in by_source.values():
            for position, (row, offset) in enumerate(zip(seen.message, seen.offset, strict=True)):
                if row in wanted:
                    seen.message[position] = renamed.get((row, offset), row)
    return copies


class KeyJudge:
    """Checks the deliveries of one stream to one group.

    Args:
        history: The history.
        findings: Takes what is found.
        copies: The rows of replayed copies.
        group: The group's name.
        stream: The number of the stream.
        seen: All deliveries, merged by time.
    """

    def __init__(
        self, history: History, findings: Findings, copies: Copies, group: str, stream: int, seen: Deliveries
    ) -> None:
        self._history = history
        self._findings = findings
        self._group = group
        self._stream = stream
        self._seen = seen
        place = group, stream
        self._settled = history.settled.get(place, Settled())
        self._dead = history.dead.get(place, [])
        self.waiting = Waiting(history, group, stream)
        self._acts = history.acts.get(place, [])
        self._keys = [str(key) for key in history.keys.all()]
        self._at_most_once = history.modes[group][1]
        self._passed = {act.offset for act in self._acts if act.act in _SKIPPING}
        self._passed.update(letter.offset for letter in self._dead)
        self._is_moved = any(act.act == "move" for act in self._acts)
        self._copies = copies
        self._is_cut = not all(run.closed for run in history.runs)

    # ---- one pass after another ----------------------------------------------------------------------

    def judge(self) -> None:
        """Check all rules but the order of first deliveries, and what is missing at the end."""
        self._repeats()
        self._consumers()
        self._overlaps()
        self._confirmations()
        for offset, ended, line in self._settled.late_acks:
            if self._findings.wants(kinds.STALE_TOKEN):
                text = f"{format_offset(offset)} was acknowledged by a consumer that knew that its grant had ended"
                self._keep(kinds.STALE_TOKEN, text, [(ended, NONE), (line, NONE)])
        self._dead_letters()

    def _lane(self, position: int) -> Lane:
        key = self._seen.key[position]
        return (key, NONE) if key != NONE else (NONE, self._seen.offset[position])

    def _repeats(self) -> None:
        """The deliveries of one message, in the order of their tokens: flags, attempts, and at most once."""
        seen = self._seen
        of_row: dict[int, list[int]] = defaultdict(list)
        tokens: dict[Lane, set[int]] = defaultdict(set)
        for position, row in enumerate(seen.message):
            of_row[row].append(position)
            tokens[self._lane(position)].add(seen.token[position])
            if seen.key[position] not in (NONE, self._history.messages.key[row]):
                self._wrong_key(row, position)
        in_order = {lane: sorted(found) for lane, found in tokens.items()}
        released = {act.key for act in self._acts if act.act == "release"}
        for row, positions in of_row.items():
            positions.sort(key=lambda position: seen.token[position])
            for number, position in enumerate(positions):
                lane = self._lane(position)
                attempt = seen.attempt[position]
                earlier = bisect_right(in_order[lane], seen.token[position] - 1)
                if attempt > earlier + 1 and not self._is_cut and self._findings.wants(kinds.MISCOUNTED):
                    text = f"{self._what(row)} came as attempt {attempt}, and its key was given {earlier} times before"
                    self._keep(kinds.MISCOUNTED, text, [(seen.line[position], row)], row)
                if not number:
                    continue
                before = positions[number - 1]
                is_same_server = _term(seen.token[before]) == _term(seen.token[position])
                was_released = self._key_text(position) in released
                if attempt < seen.attempt[before] and is_same_server and not was_released:
                    self._two(kinds.MISCOUNTED, row, before, position, "has fewer attempts than before, by one server:")
                if self._is_moved and seen.epoch[before] != seen.epoch[position]:
                    continue  # a person asked for it
                if self._at_most_once:
                    self._two(kinds.TWICE, row, before, position, "came twice, and the group is at most once:")
                elif not seen.flagged[position]:
                    self._two(kinds.REPEATED, row, before, position, "came again as a first delivery:")

    def _wrong_key(self, row: int, position: int) -> None:
        if self._findings.wants(kinds.MISPLACED):
            sent = self._keys[self._history.messages.key[row]]
            text = f"{self._what(row)} was sent under key {sent!r}, and came under {self._key_text(position)!r}"
            lines = [(self._history.messages.send_line[row], row), (self._seen.line[position], row)]
            self._keep(kinds.MISPLACED, text, lines, row)

    def _consumers(self) -> None:
        """Within one consumer the tokens of a key never fall. No token is given twice."""
        seen = self._seen
        newest: dict[tuple[int, Lane], int] = {}  # (consumer, lane) -> position
        owners: dict[int, int] = {}  # token -> position
        for position, token in enumerate(seen.token):
            lane, consumer, row = self._lane(position), seen.consumer[position], seen.message[position]
            before = newest.setdefault((consumer, lane), position)
            is_same = before != position and token == seen.token[before]
            if token < seen.token[before] or (is_same and seen.offset[position] <= seen.offset[before]):
                self._two(kinds.STALE_TOKEN, row, before, position, "came to a consumer under a token from the past:")
            else:
                newest[consumer, lane] = position
            owner = owners.setdefault(token, position)
            if seen.consumer[owner] != consumer or (seen.key[owner], seen.key[position]) != (seen.key[owner],) * 2:
                self._two(kinds.TWO_HANDS, row, owner, position, "came under the token of another grant:")

    def _overlaps(self) -> None:
        """A message comes for the first time only when all earlier ones of its key that came are done with."""
        if self._at_most_once:
            return
        seen, acked = self._seen, self._settled.acked
        open_in: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)  # key -> offset -> (token, position)
        firsts: set[int] = set()
        for position, key in enumerate(seen.key):
            if key == NONE:
                continue
            offset, token, row = seen.offset[position], seen.token[position], seen.message[position]
            mine = open_in[key]
            if row not in firsts:
                firsts.add(row)
                for earlier, (under, at) in list(mine.items()):
                    if earlier > offset or under >= token:
                        continue  # of the same grant, or of an older one that the consumer still works on
                    del mine[earlier]
                    done_at = acked.get((earlier, under))
                    if (done_at is None or done_at > seen.at[position]) and not self._is_passed(earlier):
                        text = f"came while {format_offset(earlier)} of its key was not done with:"
                        self._two(kinds.OVERLAPPED, row, at, position, text)
            if token >= mine.get(offset, (NONE, NONE))[0]:
                mine[offset] = token, position

    def _is_passed(self, offset: int) -> bool:
        """Whether a message may be done with although no consumer acknowledged it."""
        if offset in self._passed:
            return True
        return covering(self._history.gaps.get(self._stream, []), self._group, offset) is not None or self._is_moved

    def _confirmations(self) -> None:
        """What brokers confirmed does not come again in the same epoch of the group, nor does anything before it."""
        seen = self._seen
        by_lane: dict[Lane, list[int]] = defaultdict(list)
        lane_of: dict[tuple[int, int], Lane] = {}  # (offset, token)
        for position, token in enumerate(seen.token):
            lane = self._lane(position)
            by_lane[lane].append(position)
            lane_of[seen.offset[position], token] = lane
        lowest: dict[Lane, list[int]] = {}  # for each place in the order of tokens: the lowest offset from there on
        for lane, positions in by_lane.items():
            positions.sort(key=lambda position: seen.token[position])
            found: list[int] = []
            for position in reversed(positions):
                best = found[-1] if found else position
                found.append(position if seen.offset[position] <= seen.offset[best] else best)
            lowest[lane] = found[::-1]
        for offset, token, epoch, line in self._settled.confirmed:
            of = lane_of.get((offset, token))
            if of is None:
                continue
            positions = by_lane[of]
            begin = bisect_right(positions, token, key=lambda position: seen.token[position])
            if begin == len(positions):
                continue
            again = lowest[of][begin]
            if seen.offset[again] > offset or seen.epoch[again] != epoch:
                continue
            row, is_same = seen.message[again], seen.offset[again] == offset
            kind = kinds.ACKNOWLEDGED_AGAIN if is_same else kinds.TWO_HANDS
            if self._findings.wants(kind):
                text = (
                    f"{self._what(row)} came again, and brokers had confirmed its acknowledgement"
                    if is_same
                    else f"{self._what(row)} was in another hand, and the acknowledgement of {format_offset(offset)},"
                    " which is behind it, was confirmed under an older token of the key"
                )
                self._keep(kind, text, [(line, NONE), (seen.line[again], row)], row)

    def _dead_letters(self) -> None:
        """Each dead letter is stored once, and its headers name the place of its message."""
        places: dict[int, DeadLetter] = {}
        known: dict[int, int] = {}
        for row, offset in zip(self._seen.message, self._seen.offset, strict=True):
            known.setdefault(offset, self._copies.of.get(row, row))
        for letter in self._dead:
            before = places.setdefault(letter.offset, letter)
            shown = [(before.line, NONE), (letter.line, letter.message)]
            is_twice = before.stored_at != letter.stored_at and not (letter.may_be_repeated or before.may_be_repeated)
            if is_twice and self._findings.wants(kinds.DEAD_TWICE):
                both = f"{before.stored_at} and {letter.stored_at}"
                text = f"the dead letter of {self._what(letter.message)} is stored twice, at {both}"
                self._keep(kinds.DEAD_TWICE, text, shown, letter.message)
            is_there = known.get(letter.offset, letter.message) == letter.message
            if not is_there and self._findings.wants(kinds.DEAD_MISPLACED):
                text = (
                    f"the dead letter at {letter.stored_at} says that it comes from {format_offset(letter.offset)}, and"
                    f" it is of {self._what(letter.message)}, which was not there"
                )
                self._keep(kinds.DEAD_MISPLACED, text, shown[1:], letter.message)

    # ---- the end -------------------------------------------------------------------------------------

    def judge_end(self, end_line: int) -> None:
        """The group has drained: each message that came is acknowledged, a dead letter, skipped, or waits."""
        if self._at_most_once:
            return
        seen = self._seen
        newest: dict[int, int] = {}
        for position, offset in enumerate(seen.offset):
            if offset not in newest or seen.token[position] > seen.token[newest[offset]]:
                newest[offset] = position
        for offset, position in sorted(newest.items()):
            if (offset, seen.token[position]) in self._settled.acked or self._is_passed(offset):
                continue
            if self.waiting.has(self._key_text(position), offset):
                continue
            row = seen.message[position]
            if self._findings.wants(kinds.UNFINISHED):
                text = (
                    f"{self._what(row)} at {format_offset(offset)} was not acknowledged when it came last, and is"
                    f" neither parked, dead-lettered nor skipped; group {self._group} reported that it had drained"
                )
                self._keep(kinds.UNFINISHED, text, [(seen.line[position], row), (end_line, NONE)], row)

    # ---- findings ------------------------------------------------------------------------------------

    def _key_text(self, position: int) -> str | None:
        key = self._seen.key[position]
        return None if key == NONE else self._keys[key]

    def _what(self, row: int) -> str:
        return f"message {self._findings.ids[row]!r}"

    def _two(self, kind: str, row: int, before: int, position: int, what: str) -> None:
        """A finding about two deliveries."""
        if not self._findings.wants(kind):
            return
        seen = self._seen
        both = [f"{format_offset(seen.offset[at])} under token {seen.token[at]:#x}" for at in (before, position)]
        text = f"{self._what(row)} {what} {both[1]}, after {both[0]}, to group {self._group}"
        self._keep(kind, text, [(seen.line[before], seen.message[before]), (seen.line[position], row)], row)

    def _keep(self, kind: str, text: str, shown: list[tuple[int, int]], row: int = NONE) -> None:
        self._findings.keep(kind, text, shown, row=row, group=self._group, stream=self._stream)


class Waiting:
    """The keys of a group on a stream that wait for a person, as the newest `parked` line of each says.

    A line counts no more if a person has let the key go on since, or if its first message was acknowledged since.
    """

    def __init__(self, history: History, group: str, stream: int) -> None:
        place = group, stream
        newest: dict[tuple[str | None, int], WaitingKey] = {}
        for found in history.waiting.get(place, ()):
            name = found.key, (found.first if found.key is None else NONE)
            if name not in newest or found.at >= newest[name].at:
                newest[name] = found
        gone = [act for act in history.acts.get(place, ()) if act.act in ("release", *_SKIPPING)]
        acked = history.settled.get(place, Settled()).acked.items()
        self._firsts: dict[tuple[str | None, int], int] = {}
        for name, found in newest.items():
            goes_on = any(act.key == found.key and act.at > found.at for act in gone)
            is_done = any(offset == found.first and at > found.at for (offset, _token), at in acked)
            if found.state == "parked" and not goes_on and not is_done:
                self._firsts[name] = found.first

    def has(self, key: str | None, offset: int) -> bool:
        """Whether a message waits in the list of its key."""
        first = self._firsts.get((key, offset if key is None else NONE))
        return first is not None and first <= offset


def _term(token: int) -> int:
    return token >> f.TERM_BITS_BELOW
