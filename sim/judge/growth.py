"""GROWTH: an open segment gets the members that it lacks only if all members of its group hear each other, and members
become masters by turn.
"""

from __future__ import annotations

from collections.abc import Iterable

from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.effects import Note
from seriatim_broker.core.values.kinds import SwitchReason

from .seen import Seen

APART_US = 1_000_000
"""The controller may not have noticed a cut that is younger than this."""

TURNS = 12
"""In so many segments that grew, another member than the added one was the master at least once."""


class Growth:
    """Looks at planned switches that add members."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._apart_since_us: dict[frozenset[str], int] = {}
        self._grown = self._added_leads = 0

    def look(self, apart: Iterable[frozenset[str]]) -> None:
        """These pairs of running members of a group do not hear each other now."""
        now_us = self._seen.schedule.now_us
        self._apart_since_us = {pair: self._apart_since_us.get(pair, now_us) for pair in apart}

    def noted(self, note: Note) -> None:
        """A broker notes something: perhaps that it made a planned switch."""
        fields = dict(note.fields)
        if note.name == "switched" and fields["reason"] == SwitchReason.PLANNED and note.partition is not None:
            self._opened(note.partition, int(str(fields["segment"])))

    def _opened(self, partition: PartitionId, no: int) -> None:
        opened = [chain.open_segment for chain in self._seen.history[partition]]
        old = next(segment for segment in reversed(opened) if segment.no < no)
        new = next(segment for segment in reversed(opened) if segment.no == no)
        added = set(new.members) - set(old.members)
        if old.broker_group != new.broker_group or not added:
            return
        self._seen.states.add("grew")
        names = {member.broker for member in new.members}
        for pair, since_us in self._apart_since_us.items():
            if pair <= names and self._seen.schedule.now_us - since_us > APART_US:
                what = f"segment {no} of partition {partition} gets {sorted(member.broker for member in added)}"
                self._seen.fail("GROWTH", f"{what}, and {sorted(pair)} do not hear each other")
        self._grown += 1
        self._added_leads += new.master in added
        if self._added_leads == self._grown >= TURNS:
            self._seen.fail("GROWTH", f"in {TURNS} segments that grew, the master was each time the added member")
