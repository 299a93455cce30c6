"""Notes on stderr: events of a consumer or of a range that are not messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from seriatim_api.ids import format_offset, split_offset
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._options.settings import Settings

if TYPE_CHECKING:
    from seriatim import Assignment, Gap, GroupChange

CEASED_S: Final = 0.5
"""If a partition has no grant for this many seconds, a note says so: `revoked` if this consumer had one, else
`standby`."""


@dataclass(frozen=True, slots=True)
class Note:
    """An event of a consumer that is not a message.

    Attributes:
        kind: What happened: `active` (the consumer begins, or takes over), `standby`, `crossed` (into a segment), `gap`
            or `revoked`. Or what was done to the consumer group: `rewind`, `skip`, `pause`, `resume`, or `moved`, if
            it starts over for another reason.
        partition: The partition's number in the topic.
        offset: The offset at which it happens; None if there is none.
        end_offset: For a gap, the first offset after it. The JSON form does not have it.
        text: More words for humans; may be empty.
    """

    kind: Literal["active", "standby", "crossed", "gap", "revoked", "rewind", "skip", "pause", "resume", "moved"]
    partition: int
    offset: int | None = None
    end_offset: int | None = None
    text: str = ""


class Notes:
    """Makes notes for humans from the consumer's callbacks.

    While a consumer group crosses to the next segment, a partition has no grant. So a note says that the grant was
    taken away only if there is none for `CEASED_S` (0.5 s).
    """

    def __init__(self, on_note: Callable[[Note], None]) -> None:
        self._on_note = on_note
        self._segments: dict[int, int] = {}
        self._ceased: dict[int, asyncio.TimerHandle] = {}

    def gap(self, gap: Gap) -> None:
        """Note that messages will not be delivered."""
        count = "" if gap.messages is None else f", {gap.messages:,} messages at most"
        self._on_note(Note("gap", gap.partition, gap.offset, gap.end_offset, gap.reason + count))

    def assignment(self, assignment: Assignment) -> None:
        """Note that the delivery of a partition begins, continues in the next segment, or ceases."""
        partition, (segment, _) = assignment.partition, split_offset(assignment.offset)
        ceased = self._ceased.pop(partition, None)
        if ceased is not None:
            ceased.cancel()
        if not assignment.active:
            later = asyncio.get_running_loop().call_later(CEASED_S, self._has_ceased, partition)
            self._ceased[partition] = later
            return
        before = self._segments.get(partition)
        self._segments[partition] = segment
        crossed = before is not None and segment > before
        self._on_note(Note("crossed" if crossed else "active", partition, assignment.offset))

    def group_change(self, change: GroupChange) -> None:
        """Note that the consumer group was moved, paused or resumed."""
        self._segments.pop(change.partition, None)  # so the next assignment is not taken for a crossing
        self._on_note(Note(change.what, change.partition, change.offset))

    def _has_ceased(self, partition: int) -> None:
        was_active = self._segments.pop(partition, None) is not None
        self._on_note(Note("revoked" if was_active else "standby", partition))

    def close(self) -> None:
        """Make no more notes."""
        for ceased in self._ceased.values():
            ceased.cancel()


def print_note(settings: Settings, note: Note) -> None:
    """Print a note on stderr: a line for humans, or a JSON object with `--output json`."""
    if settings.as_json:
        offset = None if note.offset is None else format_offset(note.offset)
        fields = {"note": note.kind, "partition": note.partition, "offset": offset, "text": note.text}
        echo(json.dumps(fields), err=True)
    else:
        echo(f"# {describe_note(note)}", err=True)


def describe_note(note: Note) -> str:
    """A note as a line for humans."""
    where = "" if note.offset is None else f" at {format_offset(note.offset)}"
    more = f": {note.text}" if note.text else ""
    until = "" if note.end_offset is None else f" to {format_offset(note.end_offset)}"
    words = {
        "active": f"active{where}{more}",
        "standby": f"standing by{more}",
        "crossed": f"crossed into the segment{where}{more}",
        "gap": f"gap{where.replace(' at', ' from')}{until}{more}",
        "revoked": f"not active any more{more}",
        "rewind": f"the group was rewound, and continues{where}",
        "skip": f"the group skipped messages, and continues{where}",
        "pause": "the group is paused",
        "resume": "the group is resumed",
        "moved": f"the group starts over{where}",
    }
    return f"partition {note.partition}: {words[note.kind]}"
