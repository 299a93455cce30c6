"""Histories of messages that were given under tokens: each fault planted alone must be found, clean ones must pass."""

from __future__ import annotations

import re
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seriatim import history
from seriatim.history import KINDS, HistoryFormatError, check_events, render
from seriatim.history._format import text_of_key
from seriatim_api.key_names import key_to_text

from .stories import AT, GROUP, OF, TOPIC, Row, Story, rows

LEGAL = """
two consumers share a partition key by key: ok
    keyed 4; done 1 11 c2; done 0 10; done 2 12; done 3 13 c2
the messages of one grant may be worked on together: ok
    keyed 3; given 0 10; given 2 10; acked 0 10; acked 2 10; done 1 11
a failed message comes again with more attempts: ok
    keyed 1; fails 0 10; done 0 11 c2 attempt=2
a new server repeats with the flag and may have forgotten attempts: ok
    keyed 1; fails 0 T1; given 0 T2 attempt=2; done 0 2T1 c2 again
what waits in a queue may reach its consumer late: ok
    keyed 3; done 0 2T1 c2 again; given 0 T1 c1; done 2 2T2 c2; acked 0 T1 c1; done 1 2T3 c2
an acknowledgement that was not confirmed may be lost: ok
    keyed 1; done 0 10; done 0 2T c2 again
what is confirmed lets the next message of its key come: ok
    keyed 3; done 1 9; done 0 10; confirmed 0 10; done 2 11 c2
a message that is stored twice comes from its first place: ok
    sent 0 0 a; ok 0 2:0; done 0 10
an administrator releases a key and attempts start over: ok
    keyed 1; fails 0 10; fails 0 11 attempt=2; park a 1:0 1; says release 1:0 a; done 0 12 again
parked messages and those after them are not lost: ok
    keyed 4; done 1 9; done 3 9; fails 0 10; park a 1:0 2; says drop 1:9 a
    and waiting 1; says 1 message after parked ones
an administrator skips a message that never came: ok
    keyed 2; done 1 9; says skip 1:0 a
a dead letter is done with and its copy is a message of its own: ok
    keyed 3; done 1 9; fails 0 10; done 2 11; dead 0; dead 0; asked replay 1:0 a; done 0 12 at=2:5
an administrator dead letters a parked message and a replay without an answer may not have been: ok
    keyed 1; fails 0 10; park a 1:0 1; asked dead_letter 1:0 a; dead 0; says replay 1:0 a
shared messages have no order: ok
    keyed 3; done 2 12 key=none; done 1 11 key=none; done 0 10 key=none
an at most once group owes nothing: ok
    keyed 4; given 0 10 once; given 2 11 once; given 1 12 once
group epoch after a rebuild is a time in ms: ok
    keyed 1; done 0 10; done 0 T epoch=1795968068525 again
a skip leaves what is under way and what is set aside: ok
    keyed 3; given 0 10; moved skip 1:1 1:2; done 2 T epoch=2
an administrator passes over messages without a key one by one: ok
    keyed 2; fails 0 10 key=none; park none 1:0 1; fails 1 11 key=none; park none 1:1 1; says release 1:0;
    done 0 12 key=none again
a dead letter need not have come and its copy may wait behind a parked message: ok
    keyed 4; done 1 8; done 3 9; dead 2; says replay 1:2 a answered; fails 0 10; park a 1:0 2
a group that an administrator moved on owes nothing of before: ok
    keyed 3; given 0 10; moved skip 1:0 1:2; done 2 T epoch=2
a message may be dead lettered again after a rewind: ok
    keyed 1; fails 0 10; dead 0 0; moved rewind 1:0; fails 0 T epoch=2; dead 0 1
a message that is gone holds up nothing: ok
    keyed 3; done 1 9; given 0 10; gone 1:0 1:1; done 2 11 c2
a dead letter that says so may be stored twice: ok
    keyed 1; fails 0 10; dead 0; dead 0 1 again
what a consumer works on under an old token need not be acknowledged: ok
    keyed 1; done 0 2T c2 again; given 0 T c1
the lines of a killed process may be missing: ok
    killed; keyed 1; confirmed 0 9; done 0 11 attempt=3
two groups must agree within a key only: ok
    keyed 4; done 1 11; done 0 10; done 3 13; done 2 12; reads 0 1 2 3 group=exact; ends exact; ends g orders
a group of two modes is not judged: ok
    keyed 2; given 0 10; came 1
    and unjudged 1; says its mode was changed
a group that is rewound gets all again: ok
    keyed 1; done 0 10; confirmed 0 10; move rewind 1:0; done 0 T epoch=2
a group whose mode changes gets all again: ok
    keyed 1; done 0 10; confirmed 0 10; move mode; done 0 T epoch=2
a rewound group parks the key of a message that it is not given again: ok
    keyed 3; done 0 10; done 1 11; done 2 12; moved rewind 1:0; fails 0 T epoch=2; park a 1:0 2; done 1 T1 epoch=2
a rewound group leaves a message behind: ok
    keyed 3; done 0 10; done 1 11; done 2 12; moved rewind 1:0; done 0 T epoch=2; done 1 T1 epoch=2; moved skip 1:2 1:3
"""

FAULTS = """
again below the place of a rewind: repeated
    keyed 2; done 0 10; done 1 11; move rewind 1:1; done 0 T epoch=2
left behind the place of a rewind: unfinished
    keyed 1; given 0 10; moved rewind 1:0
overlapped after the place of a rewind: overlapped
    keyed 3; done 1 8; given 0 10; move rewind 1:0; done 2 T epoch=2; done 0 T1 epoch=2 again; done 1 T2 epoch=2 again
lost out of the list of a parked key: lost
    keyed 5; done 1 8; done 3 9; fails 0 10; park a 1:0 2
lost before a parked message: lost
    keyed 3; done 1 9; fails 2 10; park a 1:2 2
delayed and never again: unfinished
    keyed 1; fails 0 10; park a 1:0 1 delayed
confirmed and again before a rewind: acknowledged_again
    keyed 1; done 0 10; confirmed 0 10; done 0 11 again; moved rewind 1:0; done 0 T epoch=2 again
left after a rewind: unfinished
    keyed 1; moved rewind 1:0; given 0 T epoch=2
overlapped after a rewind: overlapped
    keyed 3; given 1 9; move rewind 1:0; acked 1 9; given 0 10; given 2 11 c2; acked 0 10; acked 2 11 c2
sent after a skip and lost: lost
    keyed 1; moved skip 1:0 1:1; sent 2 1 a; ok 2
before the earlier one is done: overlapped
    keyed 3; done 1 9; given 0 10; given 2 11 c2; acked 0 10; acked 2 11 c2
before the newer grant of the earlier one is done: overlapped
    keyed 3; done 1 9; done 0 10; given 0 T c2 again; done 2 T1 c3; acked 0 T c2
again without a flag: repeated
    keyed 1; given 0 10; done 0 11 c2
acknowledged and again without a flag: repeated
    keyed 1; done 0 10; done 0 2T c2
confirmed and again: acknowledged_again
    keyed 1; done 0 10; confirmed 0 10; done 0 2T c2 again
an earlier one in another hand: two_hands
    keyed 5; done 1 9; done 3 9; done 0 10; done 2 10; done 0 11 c2 again; done 4 12; confirmed 2 10
one token for two consumers: two_hands
    keyed 2; done 0 10; done 1 10 c2
one grant in two hands: two_hands
    keyed 3; done 1 9; done 0 10; done 2 10 c2
one token for two keys: two_hands
    keyed 2; done 0 10; done 1 10
twice under one token: stale_token
    keyed 1; given 0 10; done 0 10 again
again in another epoch and no administrator moved it: repeated
    keyed 1; done 0 10; done 0 T epoch=2
a token from the past: stale_token
    keyed 3; done 1 9; done 0 20; done 2 10
a run goes back: stale_token
    keyed 3; done 1 9; done 0 10; done 2 10; given 0 10 again
acknowledged after the end of the grant: stale_token
    keyed 1; given 0 10; ended 10; acked 0 10
attempts fall: miscounted
    keyed 1; fails 0 10; fails 0 11 attempt=2; done 0 12 again
an attempt that was never made: miscounted
    keyed 1; done 0 10 attempt=2
at most once and twice: twice
    keyed 1; given 0 10 once; given 0 11 c2 once again
failed and never again: unfinished
    keyed 1; fails 0 10
came again and was left: unfinished
    keyed 1; done 0 10; given 0 2T c2 again
released and never again: unfinished
    keyed 1; fails 0 10; park a 1:0 1; says release 1:0 a
lost after a key that was parked once: lost
    keyed 3; done 1 9; fails 0 10; park a 1:0 2; done 0 11 attempt=2
never came: lost
    keyed 2; done 0 10
two dead letters of one message: dead_twice
    keyed 1; fails 0 10; dead 0; dead 0 1
three dead letters of one message that was rewound: dead_twice
    keyed 1; fails 0 10; dead 0 0; moved rewind 1:0; fails 0 T epoch=2; dead 0 1; dead 0 2
a dead letter from another place: dead_misplaced
    keyed 3; done 1 9; fails 0 10; dead 0; done 2 11; dead 0 1 offset=1:2
replayed and never delivered: lost
    keyed 1; fails 0 10; dead 0; asked replay 1:0 a
replayed once and delivered at two places: misplaced
    keyed 1; fails 0 10; dead 0; says replay 1:0 a answered; done 0 11 at=2:0; done 0 12 at=2:1 again
stored twice and delivered twice: misplaced
    sent 0 0 a; ok 0 2:0; done 0 10; done 0 11 at=2:0 again
under another key: misplaced
    keyed 1; done 0 10 key=z
a later message of a key must not come first: reordered_producer reordered_offset
    keyed 3; done 1 9; done 2 10; done 0 11
    and reordered 1
a rewound group is not given a message again: lost
    keyed 3; done 0 10; done 1 11; done 2 12; moved rewind 1:0; done 0 T epoch=2; done 1 T1 epoch=2
"""


@pytest.mark.parametrize("row", [*rows(LEGAL), *rows(FAULTS)], ids=attrgetter("name"))
def test_a_story_is_judged(row: Row) -> None:
    row.check(f"ends {GROUP} {TOPIC}")


def test_the_end_that_was_written_last_counts() -> None:
    story = Story("keyed 1; done 0 10")
    story.end(GROUP, topic=TOPIC, at=story.second + 2.0)
    story.end(GROUP, topic=TOPIC, drained=False, at=story.second)
    report = check_events(story.events)
    assert report.ok, render(report)


def test_each_kind_of_finding_is_described() -> None:
    assert history.__doc__
    described = set(re.findall(r"(?m)^([a-z_]+)  ", history.__doc__))
    assert described >= set(KINDS)


# ---- lines -----------------------------------------------------------------------------------------------


def test_a_batch_of_one_grant_is_one_line() -> None:
    story = Story()
    story.sends(range(3), producer="p", sequence=0, keys=[b"a", b"a", b"a"], **AT)
    story.outcomes(range(3), "ok", offset="1:0")
    story.deliveries(
        range(3), consumer="c1", offset="1:0", keys=[b"a"] * 3, token=10, group_epoch=1, attempt=1, **OF
    )  # fmt: skip
    story.ack_single(consumer="c1", offsets=["1:0", "1:1", "1:2"], tokens=[10] * 3, **OF)
    story.ends(GROUP, TOPIC)
    report = check_events(story.events)
    assert report.ok, render(report)


@given(st.one_of(st.binary(), st.text("% -é\0\\").map(str.encode)))
def test_a_key_has_the_text_that_commands_show(key: bytes) -> None:
    assert text_of_key(key) == key_to_text(key)


def test_keys_that_are_no_text_stay_different() -> None:
    story = Story()
    story.sends([0, 1], producer="p", sequence=0, keys=[b"\xff", b"%ff"], **AT)
    assert story.events[-1]["y"] == ["%ff", "%25ff"]


@pytest.mark.parametrize("change", [{"u": "seven"}, {"u": -1}, {"y": 7}, {"y": ["a", "b"]}])
def test_a_delivery_that_no_recorder_writes_is_refused(change: dict[str, object]) -> None:
    story = Story("keyed 1; given 0 10")
    story.events[-1].update(change)
    with pytest.raises(HistoryFormatError):
        check_events(story.events)


@pytest.mark.parametrize(
    "line",
    [
        {"k": "ack", "c": "c1", "o": ["1:0"], "u": []},
        {"k": "void", "c": "c1", "u": 7},
        {"k": "person", "x": "prays"},
        {"k": "parked", "o": "1:0", "x": "parked", "y": 7, "n": 1},
        {"k": "dead", "o": "1:0", "m": 0},
    ],
)
def test_a_line_that_no_recorder_writes_is_refused(line: dict[str, object]) -> None:
    story = Story("keyed 1; given 0 10")
    story.events.append({"at": 1.0, "g": GROUP, "t": TOPIC, "q": 0, **line})
    with pytest.raises(HistoryFormatError):
        check_events(story.events)
