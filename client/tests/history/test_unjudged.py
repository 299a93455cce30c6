"""What administrators did makes some promises void: the checker says what it cannot judge, and judges all else."""

from __future__ import annotations

from operator import attrgetter

import pytest
from seriatim.history import HistoryFormatError, check_events

from .stories import GROUP, TOPIC, Row, Story, rows

STORIES = """
a message that a moved group never got: lost
    each 4; move mode done=1; sent 4; ok 4; reads 0 1 2
a changed mode, and another group is judged: reordered_offset reordered_producer reordered_realtime
    each 4; reads 0 1; given 1 7 epoch=2; reads 0 2 1 3 group=other
    and reordered 1; unjudged 1; group other; says group g, because its mode was changed
a deleted group: ok
    each 4; reads 0 1 2 3; says delete none; reads 0 1
    and unjudged 1; says group g, because it was deleted
a topic made again: ok
    each 4; reads 0 1 2 3; topic delete orders; sent 9 0 producer=p2; ok 9 1:0; came 9 1:0
    and unjudged 1
published rows, which no producer sent: ok
    each 4; topic publish orders; reads 0 1 2 3; came 9 1:4
    and unjudged 1
rows that no program said it published: unsent
    each 4; reads 0 1 2 3; came 9 1:4
a rewind gives all from its place on once more: ok
    each 6; reads 0 1 2 3; moved rewind 1:1; reads 1 2 3 4; moved rewind 1:2; reads 2 3 4 5
a rewind explains nothing below its place: repeated
    each 4; reads 0 1 2 3; moved rewind 1:1; reads 0 1 2 3
a rewind explains nothing twice: repeated
    each 4; reads 0 1 2 3; moved rewind 1:1; reads 1 2 3 3
a rewind explains no run twice: repeated 2
    each 4; reads 0 1 2 3; moved rewind 1:1; reads 1 2 1 2 3
a rewind leaves nothing out: lost
    each 4; reads 0 1 2 3; moved rewind 1:1; reads 2 3
a rewind explains no repeat before it: repeated
    each 4; reads 0 1 2 2 3; moved rewind 1:0; reads 0 1 2 3
a rewind to the time before the group puts messages later, in their order: ok
    each 6; reads 4 5; moved rewind 1:0; reads 0 1 2 3 4 5
a rewind to the time before the group, another order: reordered_producer reordered_offset reordered_realtime
    each 6; reads 4 5; moved rewind 1:0; reads 0 2 1 3 4 5
order before a rewind is judged: reordered_producer reordered_offset reordered_realtime
    each 4; reads 0 2 1 3; moved rewind 1:0; reads 0 1 2 3
a skip passes what is between its places: ok
    each 6; reads 0 1; moved skip 1:2 1:5; reads 5
a skip without an answer may have passed it: ok
    each 6; reads 0 1; move skip 1:2 1:5; reads 5
a skip explains no loss before it: lost
    each 6; reads 0 1; moved skip 1:3 1:5; reads 5
a skip explains no loss after it: lost
    each 6; reads 0 1; moved skip 1:2 1:4; reads 5
a rewind explains no loss: lost
    each 4; reads 0 2 3; moved rewind 1:2; reads 2 3
what a group was rewound to must come again: lost
    each 5; reads 0 1 2 3; moved rewind 1:1; reads 1 3 4
    and says message 2 at 1:2 did not come again to group g, rewound to 1:1
need not come again, because the rewind has no answer: ok
    each 4; reads 0 1 2 3; move rewind 1:1
need not come again, because an administrator skipped it later: ok
    each 4; reads 0 1 2 3; moved rewind 1:1; moved skip 1:1 1:4
need not come again, because it is gone: ok
    each 4; reads 0 1 2 3; moved rewind 1:1; gone 1:1 1:4
need not come again, because it came before the next rewind: ok
    each 4; reads 0 1 2 3; moved rewind 1:1; reads 1 2 3; moved rewind 1:3; reads 3
need not come again, because the rewind was after the end: ok
    each 4; reads 0 1 2 3; ends; moved rewind 1:1
need not come again, because the mode changed later: ok
    each 4; reads 0 1 2 3; moved rewind 1:1; move mode done=1
a message that a second rewind leads to must come again: lost
    each 4; reads 0 1 2 3; moved rewind 1:1; reads 1 2 3; moved rewind 1:2; reads 2
a group that was rewound and did not drain: stuck
    each 4; reads 0 1 2 3; moved rewind 1:2; reads 2; stays
what was skipped and then rewound must come: lost
    each 6; reads 0; moved skip 1:1 1:5; moved rewind 1:3; reads 3 5
a message of another consumer may come late below a skip: ok
    each 6; reads 0; moved skip 1:1 1:4; reads 4 2 5
a message above a skip may not come late: reordered_producer reordered_offset reordered_realtime
    each 6; reads 0; moved skip 1:1 1:4; reads 5 4
"""


@pytest.mark.parametrize("row", rows(STORIES), ids=attrgetter("name"))
def test_a_story_is_judged(row: Row) -> None:
    row.check()


@pytest.mark.parametrize(
    "fields",
    [
        {"x": "move"},
        {"x": "move", "o": "1:1"},
        {"x": "move", "d": "sideways", "o": "1:1"},
        {"x": "move", "d": "rewind"},
        {"x": "move", "d": "skip", "o": "1:2"},
        {"x": "move", "d": "skip", "o": "1:2", "z": "1:1"},
        {"x": "release", "d": "mode"},
    ],
)
def test_move_without_its_bounds_is_refused(fields: dict[str, str]) -> None:
    events = Story("each 4").events
    events.append({"k": "person", "at": events[-1]["at"], "g": GROUP, "t": TOPIC, "q": 0, **fields})
    with pytest.raises(HistoryFormatError, match="d is the way of each move"):
        check_events(events)
