"""Each fault planted alone into a clean history must be found, named and shown; the clean one must pass."""

from __future__ import annotations

from operator import attrgetter

import pytest
from seriatim.history import check_events, render

from .stories import AT, GROUP, Row, Story, rows

STORIES = """
a clean history of two groups: ok
    each 3; reads 0 1 2; reads 0 1 2 group=h
    and sent 3; ok 3; delivered 6; says OK
lost: lost
    each 3; reads 0 2; ends g
    and message 1; group g; topic orders; partition 0; kinds send outcome end; offsets None 1:1 None; lines 3 4 9
lost to one group only: lost
    each 1; reads 0; ends g; ends h orders
    and group h
unknown, and lost to the one of two groups that did not get it: lost
    together 2; sent 2; outcome 2 unknown; reads 0 1; reads 0 1 group=h; reads 2
    and message 2; group h; kinds send outcome deliver end
a declared gap excuses: ok
    each 3; reads 0; gone 1:1 1:2; reads 2
    and in_gaps 1
a skip excuses nothing: lost
    each 3; reads 0; skips 1:1 1:2; reads 2
    and kinds send outcome skip end
a gap ends before its end: lost
    each 3; reads 0; gone 1:1 1:2 none; ends g
    and message 2
a gap of another group excuses nothing: lost
    each 2; reads 0; gone 1:1 1:2 h; ends g
what retention dropped is excused if it was said: ok
    each 2; sent 2; ok 2; sent 3; ok 3 2:0; sent 4; ok 4 2:1; reads 0; gone 1:1 2:1; came 4 2:1; ends g
    and in_gaps 3
a silent jump over segments: lost 3
    each 2; sent 2; ok 2; sent 3; ok 3 2:0; sent 4; ok 4 2:1; reads 0; came 4 2:1; ends g
a drop that is said excuses nothing that a group gets twice after it: repeated
    each 2; sent 2; ok 2; sent 3; ok 3 2:0; sent 4; ok 4 2:1; reads 0; gone 1:1 2:1; came 4 2:1; came 4 2:1; ends g
repeated: repeated
    each 2; reads 0 1 1
    and kinds deliver deliver; lines 6 7
repeats that are flagged or later attempts: ok
    each 2; reads 0; came 0 again; reads 1; came 1 attempt=2
    and redelivered 2
a frozen consumer wakes up with what was given to its successor, flagged: ok
    each 1; came 0 again; came 0
a resend that was not recognised, stored at two places: repeated misplaced
    each 1; came 0; came 0 2:0
one offset with two messages: repeated misplaced
    sent 0; sent 1; outcome 0 ok; outcome 1 ok; came 0; came 1 1:0
stored in the wrong order, and nothing sent after an acknowledgement: reordered_producer
    sent 0; sent 1; ok 1 1:0; ok 0 1:1; came 1 1:0; came 0 1:1
    and messages 0 1 1 0; kinds send send deliver deliver; reordered 1
epochs order before sequences: reordered_producer
    sent 0 5; sent 1 0 epoch=1; outcome 0 unknown; ok 1 1:0; came 1 1:0; came 0 1:1
    and message 0
reordered against offsets: reordered_offset
    sent 0 producer=p; sent 1 0 producer=q; ok 0; ok 1; reads 1 0
    and message 0; offsets 1:1 1:0
reordered against another group: reordered_group reordered_offset
    sent 0 producer=p; sent 1 0 producer=q; ok 0; ok 1; reads 0 1; reads 1 0 group=h
    and reordered 1; messages 0 1 1 0; groups g g h h
another producer's message, sent after the acknowledgement, stored before: reordered_realtime
    sent 0 producer=p; ok 0 1:1; sent 1 0 producer=q; ok 1 1:0; came 1 1:0; came 0 1:1
    and messages 0 1 1 0; kinds outcome send deliver deliver
concurrent messages in any order: ok
    sent 0 producer=p; sent 1 0 producer=q; ok 0 1:1; ok 1 1:0; came 1 1:0; came 0 1:1
one message that came late is found once for each way: reordered_offset reordered_producer
    together 6; reads 0 2 3 4 5 1
    and reordered 1
failed but delivered: failed_delivered
    each 1; sent 1; outcome 1 failed; reads 0 1
    and message 1; kinds send outcome deliver
no outcome: stuck
    each 1; sent 1; reads 0
    and message 1; unknown_share 0.5
a group that did not drain says what it waits for: stuck
    each 3; reads 0; acks 0; stays g UNSETTLED
    and message 1; kinds send outcome deliver ack end; says waits for 2 messages; says up to 1:0
        says segment 1 is UNSETTLED
a group that has everything and says that it does not: stuck
    each 1; reads 0; stays g
    and group g
delivered elsewhere than acknowledged: misplaced
    each 1; came 0 1:7
    and offsets 1:0 1:7
stored twice, and the second place skipped: ok
    sent 0; ok 0 2:0; came 0 1:7; skips 2:0 2:1
stored twice, and another place skipped: misplaced
    sent 0; ok 0 2:0; came 0 1:7; skips 2:1 2:2; ends g
    and message 0
stored twice, and another group told to skip: misplaced
    sent 0; ok 0 2:0; came 0 1:7; skips 2:0 2:2 h; ends g
    and message 0
delivered from another partition: misplaced
    each 1; came 0 partition=1
    and kinds send deliver
two outcomes: contradicted
    each 1; outcome 0 failed; reads 0
    and kinds outcome outcome
delivered and never sent: unsent
    each 1; reads 0; came 99 1:1
    and message 99
unknown, which may come or not: ok
    sent 0; outcome 0 unknown; sent 1; outcome 1 unknown; came 1 1:0
    and unknown_share 1.0
a delayed message comes when it is due, from another place and after others that were sent later: ok
    sent 0 due=6; ok 0; sent 1; ok 1; came 1; came 0 2:7; came 1 group=h; came 0 2:7 group=h
a delayed message that was due when it was stored: ok
    sent 0 due=1; ok 0; came 0
a delayed message that never came: lost
    sent 0 due=9; ok 0; sent 1; ok 1; reads 1
    and message 0; kinds send outcome end
a delayed message that may have been fired in a lost segment: ok
    sent 0 due=9; ok 0; sent 1; ok 1; reads 1; gone 2:0 2:9
    and in_gaps 1
a gap before the place of a delayed message excuses nothing: lost
    sent 0 due=9; ok 0 2:0; sent 1; ok 1; reads 1; gone 1:5 1:9
delivered a second before it was due: early
    sent 0 due=4; ok 0; came 0 2:7
    and message 0; kinds send deliver
fired twice: repeated misplaced
    sent 0 due=1; ok 0; came 0 2:7; came 0 2:9
fired at a place of each group: misplaced
    sent 0 due=1; ok 0; came 0 2:7; came 0 2:9 group=h
cancelled and not delivered: ok
    sent 0 due=9; ok 0; cancels 0; cancels 0 cancelled; sent 1; ok 1; reads 1
    and cancelled 1; says 1 delayed message cancelled
a cancellation without an answer, of which nothing is known: ok
    sent 0 due=5; ok 0; cancels 0; sent 1; ok 1; reads 1
cancelled too late, and not delivered: lost
    sent 0 due=5; ok 0; cancels 0; cancels 0 too_late; sent 1; ok 1; reads 1
cancelled and delivered: not_cancelled
    sent 0 due=4; ok 0; cancels 0; cancels 0 cancelled; came 0 2:7
    and message 0; kinds outcome cancel deliver
two answers to a cancellation: contradicted
    sent 0 due=9; ok 0; cancels 0 cancelled; cancels 0 too_late; sent 1; ok 1; reads 1
    and message 0; kinds outcome cancel cancel
the last fault before a finding is cited: lost
    fault kill b1-0; sent 0; ok 0; fault cut b2-0; ends g orders; fault heal b2-0 phase=heal
    and fault.name cut; says last fault before
"""


@pytest.mark.parametrize("row", rows(STORIES), ids=attrgetter("name"))
def test_a_story_is_judged(row: Row) -> None:
    row.check()


def test_a_group_that_must_appear_and_received_nothing() -> None:
    story = Story("each 1; ends h")
    assert check_events(story.events, groups=["h"]).counts["lost"] == 1
    assert check_events(story.events, groups=["other"]).counts["stuck"] == 1


def test_group_that_has_everything_and_does_not_say_so() -> None:
    (finding,) = check_events(Story("each 1; reads 0").events).findings
    assert (finding.kind, finding.group) == ("stuck", GROUP)


def test_findings_are_limited_and_counts_are_not() -> None:
    report = check_events(Story("together 50; ends g orders").events, limit=3)
    assert report.counts["lost"] == 50
    assert len(report.findings) == 3
    assert "and 47 more" in render(report)
    assert report.to_dict()["ok"] is False


def test_a_history_without_consumers_says_so() -> None:
    report = check_events(Story("each 3").events)
    assert report.ok
    assert "nothing is known of deliveries" in render(report)
    assert "nothing is shown" in render(check_events([]))


@pytest.mark.parametrize("spoiled", ["came 0", "outcome 1 failed"])
def test_batches_and_single_lines_are_judged_alike(spoiled: str) -> None:
    single = Story("sent 0; ok 0; came 0; sent 1; ok 1; came 1; sent 2; ok 2; came 2; ends")
    batch = Story()
    batch.sends(range(3), producer="p", sequence=0, **AT)
    batch.outcomes([0, 1, 2], "ok", offset="1:0")
    batch.deliveries([0, 1, 2], group=GROUP, consumer="c1", offset="1:0", **AT)
    batch.ends()
    for story in (single, batch):
        assert check_events(story.events).ok
        story.tell(spoiled)
    assert check_events(single.events).counts == check_events(batch.events).counts
    finding = check_events(batch.events).findings[0]
    assert finding.events[0].event["message"] == finding.message
