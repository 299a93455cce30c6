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

import math
from bisect import bisect_right
from collections import Counter, defaultdict
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
from seriatim.history._moves import Moves

_SKIPPING: Final = ("skip", "dead_letter")

Lane = tuple[int, int]
"""A key's number, or NONE and the offset of a message without a key."""

KeyName = tuple[str | None, int]
"""A key and NONE, or None and the offset of a message without a key."""


@dataclass(slots=True)
class Copies:
    """Replayed copies of dead letters, as rows of their own.

    Attributes:
        of: The row of a copy to the row of its message.
        missing: (group, stream, row of the message, its replay): a copy that was made and never delivered.
    """

    of: dict[int, int] = field(default_factory=dict)
    missing: list[tuple[str, int, int, PersonAct]] = field(default_factory=list)


def tell_copies_apart(history: History) -> Copies:
    """Give each replayed copy a row of its own.

    A copy has the id of its message, and another offset, after it. The first place of a message is its own. Later ones
    are copies, as many as dead letters of it were replayed.
    """
    copies = Copies()
    for (group, stream), acts in history.acts.items():
        replays: dict[int, PersonAct] = {}  # offset of the message -> its replay, the one whose answer came
        for act in acts:
            if act.act == "replay" and (act.done or act.offset not in replays):
                replays[act.offset] = act
        by_source = history.deliveries.get((group, stream), {})
        replayed: dict[int, dict[int, PersonAct]] = defaultdict(dict)  # message -> offset -> its replay
        origins: dict[int, int] = {}  # message -> its own place
        for letter in history.dead.get((group, stream), ()):
            origins[letter.message] = min(letter.offset, origins.get(letter.message, letter.offset))
            if letter.offset in replays:
                replayed[letter.message][letter.offset] = replays[letter.offset]
        places: dict[int, set[int]] = defaultdict(set)  # message -> its offsets
        for seen in by_source.values():
            for row, offset in zip(seen.message, seen.offset, strict=True):
                if row in replayed:
                    places[row].add(offset)
        renamed: dict[tuple[int, int], int] = {}
        for row, mine in sorted(replayed.items()):
            found = sorted(offset for offset in places[row] if offset > origins[row])[: len(mine)]
            for offset in found:
                renamed[row, offset] = copy = history.messages.add_copy(row)
                copies.of[copy] = row
            done = [act for act in mine.values() if act.done]
            copies.missing += [(group, stream, row, act) for act in done[len(found) :]]
        for seen in by_source.values():
            for position, (row, offset) in enumerate(zip(seen.message, seen.offset, strict=True)):
                if row in replayed:
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
        self.excuses = Excuses(history, group, stream)
        self._released = {_name(act.key, act.offset) for act in history.acts.get(place, ()) if act.act == "release"}
        self._keys = [str(key) for key in history.keys.all()]
        self._at_most_once = history.modes[group][1]
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
        for position, row in enumerate(seen.message):
            of_row[row].append(position)
            if seen.key[position] not in (NONE, self._history.messages.key[row]):
                self._wrong_key(row, position)
        for row, positions in of_row.items():
            positions.sort(key=lambda position: seen.token[position])
            for number, position in enumerate(positions):
                attempt = seen.attempt[position]
                if attempt > number + 1 and not self._is_cut and self._findings.wants(kinds.MISCOUNTED):
                    text = f"{self._what(row)} came as attempt {attempt}, and came {number} times before"
                    self._keep(kinds.MISCOUNTED, text, [(seen.line[position], row)], row)
                if not number:
                    continue
                before = positions[number - 1]
                is_same_server = _term(seen.token[before]) == _term(seen.token[position])
                was_released = _name(self._key_text(position), seen.offset[position]) in self._released
                if attempt < seen.attempt[before] and is_same_server and not was_released:
                    self._two(kinds.MISCOUNTED, row, before, position, "has fewer attempts than before, by one server:")
                if self._was_asked_for(before, position):
                    continue
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
            if seen.consumer[owner] != consumer or seen.key[owner] != seen.key[position]:
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
                    is_done = acked.get((earlier, under), math.inf) <= seen.at[position]
                    if not (is_done or self._is_passed(earlier) or self._was_left(at, position)):
                        text = f"came while {format_offset(earlier)} of its key was not done with:"
                        self._two(kinds.OVERLAPPED, row, at, position, text)
            if token >= mine.get(offset, (NONE, NONE))[0]:
                mine[offset] = token, position

    def _is_passed(self, offset: int) -> bool:
        """Whether a message is done with, or gone, although no consumer acknowledged it."""
        gaps = self._history.gaps.get(self._stream, [])
        return offset in self.excuses.passed or covering(gaps, self._group, offset) is not None

    def _was_asked_for(self, before: int, position: int) -> bool:
        """Whether a message came again because an administrator moved the group there."""
        seen, moves = self._seen, self.excuses.moves
        if seen.epoch[before] == seen.epoch[position]:
            return False
        if moves.changes_mode:
            return True
        return moves.times_again(seen.offset[position], seen.at[position]) > 0

    def _was_left(self, earlier: int, position: int) -> bool:
        """Whether an administrator moved the group on from the earlier message: then the later one does not wait for
        it."""
        seen, moves = self._seen, self.excuses.moves
        if seen.epoch[earlier] == seen.epoch[position]:
            return False
        return moves.changes_mode or moves.passes(seen.offset[earlier], seen.at[earlier], of_earlier_epoch=True)

    def _confirmations(self) -> None:
        """What brokers confirmed does not come again in the same epoch of the group, nor does anything before it."""
        seen = self._seen
        by_lane: dict[tuple[Lane, int], list[int]] = defaultdict(list)  # (lane, epoch of the group)
        lane_of: dict[tuple[int, int], Lane] = {}  # (offset, token)
        for position, token in enumerate(seen.token):
            lane = self._lane(position)
            by_lane[lane, seen.epoch[position]].append(position)
            lane_of[seen.offset[position], token] = lane
        lowest: dict[tuple[Lane, int], list[int]] = {}  # at each place in the order of tokens: the lowest offset behind
        for lane_in_epoch, positions in by_lane.items():
            positions.sort(key=lambda position: seen.token[position])
            found: list[int] = []
            for position in reversed(positions):
                best = found[-1] if found else position
                found.append(position if seen.offset[position] <= seen.offset[best] else best)
            lowest[lane_in_epoch] = found[::-1]
        for offset, token, epoch, line in self._settled.confirmed:
            of = lane_of.get((offset, token), (NONE, NONE)), epoch
            begin = bisect_right(by_lane[of], token, key=lambda position: seen.token[position])
            if begin == len(by_lane[of]) or seen.offset[lowest[of][begin]] > offset:
                continue
            again = lowest[of][begin]
            row, is_same = seen.message[again], seen.offset[again] == offset
            kind = kinds.ACKNOWLEDGED_AGAIN if is_same else kinds.TWO_HANDS
            if self._findings.wants(kind):
                text = (
                    f"{self._what(row)} came again, and brokers had confirmed its acknowledgement"
                    if is_same
                    else f"{self._what(row)} was in another hand, and the acknowledgement of {format_offset(offset)},"
                    " which is after it, was confirmed under an older token of the key"
                )
                self._keep(kind, text, [(line, NONE), (seen.line[again], row)], row)

    def _dead_letters(self) -> None:
        """Each dead letter is stored once, and its headers name the place of its message.

        A message that comes again because an administrator moved the group may fail again. So it may have one more dead
        letter for each time that the group was moved to its place, or to one before it.
        """
        places: dict[int, DeadLetter] = {}
        stored: dict[int, set[str]] = defaultdict(set)
        known: dict[int, int] = {}
        for row, offset in zip(self._seen.message, self._seen.offset, strict=True):
            known.setdefault(offset, self._copies.of.get(row, row))
        for letter in self._dead:
            before = places.setdefault(letter.offset, letter)
            shown = [(before.line, NONE), (letter.line, letter.message)]
            stored[letter.offset].add(letter.stored_at)
            is_twice = before.stored_at != letter.stored_at and not (letter.may_be_repeated or before.may_be_repeated)
            if (
                is_twice
                and len(stored[letter.offset]) > 1 + self.excuses.moves.times_again(letter.offset, math.inf)
                and self._findings.wants(kinds.DEAD_TWICE)
            ):
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
        newest_at = max(range(len(seen.epoch)), key=seen.epoch.__getitem__)
        newest: dict[int, int] = {}
        for position, offset in enumerate(seen.offset):
            if offset not in newest or seen.token[position] > seen.token[newest[offset]]:
                newest[offset] = position
        for offset, position in sorted(newest.items()):
            if (offset, seen.token[position]) in self._settled.acked or self._is_passed(offset):
                continue
            is_earlier = seen.epoch[position] != seen.epoch[newest_at]
            if self.excuses.moves.passes(offset, seen.at[position], of_earlier_epoch=is_earlier):
                continue
            if self.excuses.is_parked(self._key_text(position), offset):
                continue
            row = seen.message[position]
            if self._findings.wants(kinds.UNFINISHED):
                text = (
                    f"{self._what(row)} at {format_offset(offset)} was not acknowledged when it came last, and is"
                    f" neither parked, dead-lettered nor skipped; group {self._group} reported that it had drained"
                )
                self._keep(kinds.UNFINISHED, text, [(seen.line[position], row), (end_line, NONE)], row)
        for waiting, count in self.excuses.overfull():
            if self._findings.wants(kinds.LOST):
                text = (
                    f"key {waiting.key!r} waits with {waiting.messages:,} messages, and {count:,} messages of it from"
                    f" {format_offset(waiting.first)} on did not come to group {self._group}, or are not done with"
                )
                self._keep(kinds.LOST, text, [(waiting.line, NONE), (end_line, NONE)])

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


class Excuses:
    """Why a group need not have got a message of a stream, or acknowledged it: what administrators did, and keys that
    wait.

    Of a key that waits, the newest `parked` line counts. It counts no more if an administrator has let the key continue
    since, or if its first message was acknowledged since. It excuses as many messages as it says that the list has.

    Attributes:
        passed: The offsets of messages that were skipped, or became dead letters.
        moves: How administrators moved the group.
    """

    def __init__(self, history: History, group: str, stream: int) -> None:
        place = group, stream
        acts = history.acts.get(place, ())
        self.passed = {act.offset for act in acts if act.act in _SKIPPING}
        self.passed.update(letter.offset for letter in history.dead.get(place, ()))
        self.moves = Moves(acts, by_key=history.modes.get(group, (False, False))[0])
        goes_on: dict[KeyName, float] = defaultdict(lambda: -math.inf)  # since when
        for act in acts:
            if act.act in ("release", *_SKIPPING):
                name = _name(act.key, act.offset)
                goes_on[name] = max(act.at, goes_on[name])
        acked: dict[int, float] = defaultdict(lambda: -math.inf)  # offset -> the last time
        for (offset, _token), at in history.settled.get(place, Settled()).acked.items():
            acked[offset] = max(at, acked[offset])
        newest: dict[KeyName, WaitingKey] = {}
        for found in sorted(history.waiting.get(place, ()), key=lambda found: found.at):
            newest[_name(found.key, found.first)] = found
        self._parked = {
            name: found
            for name, found in newest.items()
            if found.state == "parked" and max(goes_on[name], acked[found.first]) <= found.at
        }
        self._counts: Counter[KeyName] = Counter()

    def is_parked(self, key: str | None, offset: int) -> bool:
        """Whether a message waits in the list of its key. Ask once for each message: it is counted."""
        name = _name(key, offset)
        found = self._parked.get(name)
        is_listed = found is not None and found.first <= offset
        self._counts[name] += is_listed
        return is_listed

    def overfull(self) -> list[tuple[WaitingKey, int]]:
        """The keys with more messages that wait than their lists have, and how many."""
        return [(key, self._counts[name]) for name, key in self._parked.items() if self._counts[name] > key.messages]


def _name(key: str | None, offset: int) -> KeyName:
    return (key, NONE) if key is not None else (None, offset)


def _term(token: int) -> int:
    return token >> f.TERM_BITS_BELOW
