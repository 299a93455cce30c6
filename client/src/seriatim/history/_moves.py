"""Moves of a consumer group on one partition by administrators, and what each of them explains.

A rewind or a skip to offset T begins a new epoch of the group at T. So the messages from T on come again, those between
the place of the group and T need not come, and nothing else is explained. With another mode the group continues at its
place, which no line names: so a change of the mode explains everything before its answer came.

A move also demands something: after a rewind, all from T on must come again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from seriatim.history import _format as f
from seriatim.history._collect import NONE, PersonAct

ANY_OFFSET: Final = 1 << 63
"""After all offsets: the place of a copy that was replayed, if it is not known."""


class Move(NamedTuple):
    """A rewind or a skip.

    Attributes:
        way: Which of the two.
        first: From where a skip leads; 0: not known.
        to: To where it leads.
        begun: When it was asked for.
        until: When its answer came; infinite if it did not.
    """

    way: str
    first: int
    to: int
    begun: float
    until: float


class Moves:
    """All moves of one group on one partition.

    Attributes:
        changes_mode: Whether an administrator may have changed the mode of the group,
        changed_until: and until when. Infinite: an answer never came.
    """

    def __init__(self, acts: Iterable[PersonAct], *, by_key: bool) -> None:
        moves = [act for act in acts if act.act == "move"]
        self._known = _pairs([act for act in moves if act.way in f.PLACED_WAYS])
        self._by_key = by_key
        changes = [act for act in moves if act.way == f.MODE]
        done = [act.at for act in changes if act.done]
        self._change_count = len(changes) - len(done)
        self.changes_mode = bool(changes)
        self.changed_until = math.inf if len(changes) > 2 * len(done) else max(done, default=-math.inf)

    def __bool__(self) -> bool:
        return bool(self._known) or self.changes_mode

    def begun_by(self, at: float) -> int:
        """How many rewinds and skips had begun by then."""
        return sum(move.begun <= at for move in self._known)

    def times_again(self, offset: int, at: float) -> int:
        """How often administrators may have asked, until that time, to be given the message at an offset once more."""
        return self._change_count + sum(move.to <= offset and move.begun <= at for move in self._known)

    def puts_behind(self, offset: int, at: float) -> bool:
        """Whether a message may come after later ones, because of a move before that time.

        After a rewind that is right from its place on. After a skip it is right below its place: another consumer may
        still have what it was given before.
        """
        return any(move.begun <= at and (move.to <= offset) == (move.way == f.REWIND) for move in self._known)

    @property
    def has_rewinds(self) -> bool:
        """Whether an administrator moved the group back."""
        return any(move.way == f.REWIND for move in self._known)

    def owed_after(self, offset: int) -> Move | None:
        """The last rewind after which the message at an offset must come again.

        None: there is none whose answer came, or a move that may have been later left the message behind.
        """
        rewinds = [move for move in self._known if move.way == f.REWIND and move.to <= offset and move.until < math.inf]
        last = max(rewinds, key=lambda move: move.begun, default=None)
        if last is None or last.begun <= self.changed_until:
            return None
        others = (move for move in self._known if move.until > last.begun and move.to > offset)
        is_left = any(self._by_key or (move.way == f.SKIP_TO and move.first <= offset) for move in others)
        return None if is_left else last

    def passes(self, offset: int, at: float, *, of_earlier_epoch: bool = False) -> bool:
        """Whether the group need not be given, or be done with, a message any more.

        Args:
            offset: Of the message; NONE or `ANY_OFFSET`: not known.
            at: When it was sent, or came last.
            of_earlier_epoch: Whether it came last in an earlier epoch of the group.
        """
        if at <= self.changed_until or (self.changes_mode and of_earlier_epoch):
            return True
        for number, move in enumerate(self._known):
            if not self._by_key and (move.way == f.REWIND or 0 <= offset < move.first):
                continue  # the group was done with these; by key it may also drop what it had set aside before
            if offset in (NONE, ANY_OFFSET):
                if move.way == f.SKIP_TO and at <= move.until:
                    return True
            elif move.to > offset and (at <= move.until or of_earlier_epoch):
                later = self._known[number + 1 :]
                if not any(one.to <= offset and one.until < math.inf for one in later):
                    return True
        return False


def _pairs(acts: list[PersonAct]) -> list[Move]:
    """Requests and their answers, in the order of the requests."""
    answers = [act for act in acts if act.done]
    found: list[Move] = []
    for act in sorted((act for act in acts if not act.done), key=lambda act: act.at):
        mine = (one for one in answers if one.at >= act.at and _range(one) == _range(act))
        answer = min(mine, key=lambda one: one.at, default=None)
        if answer is not None:
            answers.remove(answer)
        found.append(Move(*_range(act), act.at, math.inf if answer is None else answer.at))
    return [Move(*_range(answer), -math.inf, answer.at) for answer in answers] + found


def _range(act: PersonAct) -> tuple[str, int, int]:
    return (act.way, act.offset, act.end) if act.way == f.SKIP_TO else (act.way, 0, act.offset)
