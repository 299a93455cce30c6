"""Histories of messages that were given under tokens: each fault planted alone must be found, clean ones must pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seriatim import history
from seriatim.history import KINDS, Finding, HistoryFormatError, MemoryHistory, Report, check_events, render
from seriatim.history._format import text_of_key
from seriatim_api.key_names import key_to_text

TOPIC, GROUP = "orders", "billing"
AT: dict[str, Any] = {"topic": TOPIC, "partition": 0}
OF: dict[str, Any] = {"group": GROUP, **AT}
TERM = 1 << 40


class Story(MemoryHistory):
    """A history told step by step. Message n is at `1:n`; even ones have key a, odd ones key b."""

    def __init__(self, count: int = 4) -> None:
        self.second = 0.0
        super().__init__("test", self._tick)
        for number in range(count):
            self.send(number, producer="p", sequence=number, key=key_of(number), **AT)
        for number in range(count):
            self.outcome(number, "ok", offset=f"1:{number}")

    def _tick(self) -> float:
        self.second += 1.0
        return self.second

    def came(self, number: int, token: int, consumer: str = "c1", at: str = "", **more: Any) -> None:
        more = {"key": key_of(number), "group_epoch": 1, **more}
        self.deliver(number, consumer=consumer, offset=at or f"1:{number}", token=token, **OF, **more)

    def acked(self, number: int, token: int, consumer: str = "c1", at: str = "") -> None:
        self.ack_single(consumer=consumer, offsets=[at or f"1:{number}"], tokens=[token], **OF)

    def was_confirmed(self, number: int, token: int, consumer: str = "c1", epoch: int = 1) -> None:
        self.confirm(consumer=consumer, offsets=[f"1:{number}"], tokens=[token], group_epoch=epoch, **OF)

    def failed(self, number: int, token: int, consumer: str = "c1") -> None:
        self.nack(consumer=consumer, offset=f"1:{number}", token=token, **OF)

    def done(self, number: int, token: int, consumer: str = "c1", **more: Any) -> None:
        self.came(number, token, consumer, **more)
        self.acked(number, token, consumer)

    def dead(self, number: int, stored_at: str = "dead/0 1:0", **more: Any) -> None:
        self.dead_letter(number, stored_at=stored_at, **{"offset": f"1:{number}", **OF, **more})

    def judged(self) -> Report:
        self.end(GROUP, topic=TOPIC)
        return check_events(self.events)


def key_of(number: int) -> bytes:
    return b"a" if number % 2 == 0 else b"b"


def only(report: Report, kind: str) -> Finding:
    """The one finding; nothing else may have been found."""
    assert [finding.kind for finding in report.findings] == [kind], render(report)
    assert not report.ok
    assert kind in render(report)
    return report.findings[0]


def passes(story: Story) -> None:
    report = story.judged()
    assert report.ok, render(report)


# ---- what is legal ---------------------------------------------------------------------------------------


def test_two_consumers_share_a_partition_key_by_key() -> None:
    story = Story()
    story.done(1, 11, "c2")
    story.done(0, 10)
    story.done(2, 12)
    story.done(3, 13, "c2")
    passes(story)


def test_the_messages_of_one_grant_may_be_worked_on_together() -> None:
    story = Story(3)
    story.came(0, 10)
    story.came(2, 10)
    story.acked(0, 10)
    story.acked(2, 10)
    story.done(1, 11)
    passes(story)


def test_a_failed_message_comes_again_with_more_attempts() -> None:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.done(0, 11, "c2", attempt=2)
    passes(story)


def test_a_new_server_repeats_with_the_flag_and_may_have_forgotten_attempts() -> None:
    story = Story(1)
    story.came(0, TERM + 1)
    story.failed(0, TERM + 1)
    story.came(0, TERM + 2, attempt=2)
    story.done(0, 2 * TERM + 1, "c2", maybe_repeated=True)
    passes(story)


def test_what_waits_in_a_queue_may_reach_its_consumer_late() -> None:
    """A cut consumer works on under its old token, while a new server has given the key to another one."""
    story = Story(3)
    story.done(0, 2 * TERM + 1, "c2", maybe_repeated=True)
    story.came(0, TERM + 1, "c1")
    story.done(2, 2 * TERM + 2, "c2")
    story.acked(0, TERM + 1, "c1")
    story.done(1, 2 * TERM + 3, "c2")
    passes(story)


def test_an_acknowledgement_that_was_not_confirmed_may_be_lost() -> None:
    story = Story(1)
    story.done(0, 10)
    story.done(0, 2 * TERM, "c2", maybe_repeated=True)
    passes(story)


def test_what_is_confirmed_lets_the_next_message_of_its_key_come() -> None:
    story = Story(3)
    story.done(1, 9)
    story.done(0, 10)
    story.was_confirmed(0, 10)
    story.done(2, 11, "c2")
    passes(story)


def test_a_message_that_is_stored_twice_comes_from_its_first_place() -> None:
    story = Story(1)
    story.events[-1]["o"] = "2:0"  # as acknowledged; the first place is 1:0
    story.done(0, 10)
    passes(story)


def test_a_person_releases_a_key_and_attempts_begin_anew() -> None:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.came(0, 11, attempt=2)
    story.failed(0, 11)
    story.parked(key=b"a", first="1:0", messages=1, **OF)
    story.person("release", offset="1:0", key=b"a", **OF)
    story.done(0, 12, maybe_repeated=True)
    passes(story)


def test_parked_messages_and_those_behind_them_are_not_lost() -> None:
    story = Story()
    story.done(1, 9)
    story.done(3, 9)
    story.came(0, 10)
    story.failed(0, 10)
    story.parked(key=b"a", first="1:0", messages=2, **OF)
    story.person("drop", offset="1:9", key=b"a", **OF)  # of an earlier dead letter: the key still waits
    report = story.judged()
    assert report.ok, render(report)
    assert report.counts["waiting"] == 1
    assert "1 message behind parked ones" in render(report)


def test_a_person_skips_a_message_that_never_came() -> None:
    story = Story(2)
    story.done(1, 9)
    story.person("skip", offset="1:0", key=b"a", **OF)
    passes(story)


def test_a_dead_letter_is_done_with_and_its_copy_is_a_message_of_its_own() -> None:
    story = Story(3)
    story.done(1, 9)
    story.came(0, 10)
    story.failed(0, 10)
    story.done(2, 11)
    story.dead(0)
    story.dead(0)  # listed twice
    story.person("replay", offset="1:0", key=b"a", **OF)
    story.person("replay", offset="1:0", key=b"a", done=True, **OF)
    story.came(0, 12, at="2:5")
    story.acked(0, 12, at="2:5")
    passes(story)


def test_a_person_dead_letters_a_parked_message_and_a_replay_without_an_answer_may_not_have_been() -> None:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.parked(key=b"a", first="1:0", messages=1, **OF)
    story.person("dead_letter", offset="1:0", key=b"a", **OF)
    story.person("dead_letter", offset="1:0", key=b"a", done=True, **OF)
    story.dead(0)
    story.person("replay", offset="1:0", key=b"a", **OF)
    passes(story)


def test_shared_messages_have_no_order() -> None:
    story = Story(3)
    for number, token in ((2, 12), (1, 11), (0, 10)):
        story.done(number, token, key=None)
    passes(story)


def test_an_at_most_once_group_owes_nothing() -> None:
    story = Story(4)  # the last one was on its way to a consumer that died
    story.came(0, 10, at_most_once=True)
    story.came(2, 11, at_most_once=True)
    story.came(1, 12, at_most_once=True)
    passes(story)


@pytest.mark.parametrize("way", [{"way": "rewind", "offset": "1:0"}, {"way": "mode"}])
def test_a_rewound_group_gets_all_again(way: dict[str, Any]) -> None:
    story = Story(1)
    story.done(0, 10)
    story.was_confirmed(0, 10)
    story.person("move", **way, **OF)
    story.done(0, TERM, group_epoch=2)
    passes(story)


@pytest.mark.parametrize(("ends", "lost"), [("nothing", 1), ("parked", 0), ("left behind", 0)])
def test_what_a_rewound_group_must_be_given_again(ends: str, lost: int) -> None:
    story = Story(3)
    for number in range(3):
        story.done(number, 10 + number)
    moved(story)
    if ends == "parked":
        story.came(0, TERM, group_epoch=2)
        story.failed(0, TERM)
        story.parked(key=b"a", first="1:0", messages=2, **OF)
    else:
        story.done(0, TERM, group_epoch=2)
    story.done(1, TERM + 1, group_epoch=2)
    if ends == "left behind":
        moved(story, way="skip", offset="1:2", end="1:3")
    assert story.judged().counts["lost"] == lost


def test_group_epoch_after_a_rebuild_is_a_time_in_ms() -> None:
    story = Story(1)
    story.done(0, 10)
    story.done(0, TERM, group_epoch=1_795_968_068_525, maybe_repeated=True)
    passes(story)


def test_a_skip_leaves_what_is_under_way_and_what_is_set_aside() -> None:
    story = Story(3)
    story.came(0, 10)
    story.person("move", way="skip", offset="1:1", end="1:2", **OF)
    story.person("move", way="skip", offset="1:1", end="1:2", done=True, **OF)
    story.done(2, TERM, group_epoch=2)
    passes(story)


def test_a_person_passes_over_messages_without_a_key_one_by_one() -> None:
    story = Story(2)
    for number, token in ((0, 10), (1, 11)):
        story.came(number, token, key=None)
        story.failed(number, token)
        story.parked(key=None, first=f"1:{number}", messages=1, **OF)
    story.person("release", offset="1:0", **OF)
    story.done(0, 12, key=None, maybe_repeated=True)
    passes(story)


def test_a_dead_letter_need_not_have_come_and_its_copy_may_wait_behind_a_parked_message() -> None:
    story = Story(4)
    story.done(1, 8)
    story.done(3, 9)
    story.dead(2)
    story.person("replay", offset="1:2", key=b"a", done=True, **OF)
    story.came(0, 10)
    story.failed(0, 10)
    story.parked(key=b"a", first="1:0", messages=2, **OF)
    passes(story)


def test_a_group_that_a_person_moved_on_owes_nothing_of_before() -> None:
    story = Story(3)
    story.came(0, 10)
    moved(story, way="skip", offset="1:0", end="1:2")
    story.done(2, TERM, group_epoch=2)
    passes(story)


def dead_again_after_a_rewind() -> Story:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.dead(0, "dead/0 1:0")
    moved(story)
    story.came(0, TERM, group_epoch=2)
    story.failed(0, TERM)
    story.dead(0, "dead/0 1:1")
    return story


def test_a_message_may_be_dead_lettered_again_after_a_rewind() -> None:
    passes(dead_again_after_a_rewind())


def test_a_message_that_is_gone_holds_up_nothing() -> None:
    story = Story(3)
    story.done(1, 9)
    story.came(0, 10)
    story.gap(first="1:0", end="1:1", why="lost", group=GROUP, **AT)
    story.done(2, 11, "c2")
    passes(story)


def test_a_dead_letter_that_says_so_may_be_stored_twice() -> None:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.dead(0)
    story.dead(0, "dead/0 1:1", maybe_repeated=True)
    passes(story)


def test_what_a_consumer_works_on_under_an_old_token_need_not_be_acknowledged() -> None:
    story = Story(1)
    story.done(0, 2 * TERM, "c2", maybe_repeated=True)
    story.came(0, TERM, "c1")
    passes(story)


def test_the_lines_of_a_killed_process_may_be_missing() -> None:
    story = Story(1)
    story.events.insert(0, {"k": "history", "version": 1, "process": "killed", "clock": "monotonic"})
    story.was_confirmed(0, 9)
    story.done(0, 11, attempt=3)
    passes(story)


def test_the_end_that_was_written_last_counts() -> None:
    story = Story(1)
    story.done(0, 10)
    story.end(GROUP, topic=TOPIC, at=story.second + 2.0)
    story.end(GROUP, topic=TOPIC, drained=False, at=story.second)
    report = check_events(story.events)
    assert report.ok, render(report)


# ---- what is not -----------------------------------------------------------------------------------------


def test_a_later_message_of_a_key_must_not_come_first() -> None:
    story = Story(3)
    story.done(1, 9)
    story.done(2, 10)
    story.done(0, 11)
    counts = story.judged().counts
    assert counts["reordered"] == counts["reordered_offset"] == counts["reordered_producer"] == 1


def before_the_earlier_one_is_done() -> tuple[Story, str]:
    story = Story(3)
    story.done(1, 9)
    story.came(0, 10)
    story.came(2, 11, "c2")
    story.acked(0, 10)
    story.acked(2, 11, "c2")
    return story, "overlapped"


def before_the_newer_grant_of_the_earlier_one_is_done() -> tuple[Story, str]:
    story = Story(3)
    story.done(1, 9)
    story.done(0, 10)
    story.came(0, TERM, "c2", maybe_repeated=True)
    story.done(2, TERM + 1, "c3")
    story.acked(0, TERM, "c2")
    return story, "overlapped"


def again_without_a_flag() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.done(0, 11, "c2")
    return story, "repeated"


def acknowledged_and_again_without_a_flag() -> tuple[Story, str]:
    story = Story(1)
    story.done(0, 10)
    story.done(0, 2 * TERM, "c2")
    return story, "repeated"


def confirmed_and_again() -> tuple[Story, str]:
    story = Story(1)
    story.done(0, 10)
    story.was_confirmed(0, 10)
    story.done(0, 2 * TERM, "c2", maybe_repeated=True)
    return story, "acknowledged_again"


def an_earlier_one_in_another_hand() -> tuple[Story, str]:
    story = Story(5)
    story.done(1, 9)
    story.done(3, 9)
    story.done(0, 10)
    story.done(2, 10)
    story.done(0, 11, "c2", maybe_repeated=True)
    story.done(4, 12)
    story.was_confirmed(2, 10)
    return story, "two_hands"


def one_token_for_two_consumers() -> tuple[Story, str]:
    story = Story(2)
    story.done(0, 10)
    story.done(1, 10, "c2")
    return story, "two_hands"


def one_grant_in_two_hands() -> tuple[Story, str]:
    story = Story(3)
    story.done(1, 9)
    story.done(0, 10)
    story.done(2, 10, "c2")
    return story, "two_hands"


def one_token_for_two_keys() -> tuple[Story, str]:
    story = Story(2)
    story.done(0, 10)
    story.done(1, 10)
    return story, "two_hands"


def twice_under_one_token() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.done(0, 10, maybe_repeated=True)
    return story, "stale_token"


def again_in_another_epoch_and_no_person_moved_it() -> tuple[Story, str]:
    story = Story(1)
    story.done(0, 10)
    story.done(0, TERM, group_epoch=2)
    return story, "repeated"


def a_token_from_the_past() -> tuple[Story, str]:
    story = Story(3)
    story.done(1, 9)
    story.done(0, 20)
    story.done(2, 10)
    return story, "stale_token"


def a_run_goes_back() -> tuple[Story, str]:
    story = Story(3)
    story.done(1, 9)
    story.done(0, 10)
    story.done(2, 10)
    story.came(0, 10, maybe_repeated=True)
    return story, "stale_token"


def acknowledged_after_the_end_of_the_grant() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.void(consumer="c1", tokens=[10], **OF)
    story.acked(0, 10)
    return story, "stale_token"


def attempts_fall() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.came(0, 11, attempt=2)
    story.failed(0, 11)
    story.done(0, 12, maybe_repeated=True)
    return story, "miscounted"


def an_attempt_that_was_never_made() -> tuple[Story, str]:
    story = Story(1)
    story.done(0, 10, attempt=2)
    return story, "miscounted"


def at_most_once_and_twice() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10, at_most_once=True)
    story.came(0, 11, "c2", at_most_once=True, maybe_repeated=True)
    return story, "twice"


def failed_and_never_again() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    return story, "unfinished"


def came_again_and_was_left() -> tuple[Story, str]:
    story = Story(1)
    story.done(0, 10)
    story.came(0, 2 * TERM, "c2", maybe_repeated=True)
    return story, "unfinished"


def released_and_never_again() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.parked(key=b"a", first="1:0", messages=1, **OF)
    story.person("release", offset="1:0", key=b"a", **OF)
    return story, "unfinished"


def lost_behind_a_key_that_was_parked_once() -> tuple[Story, str]:
    story = Story(3)
    story.done(1, 9)
    story.came(0, 10)
    story.failed(0, 10)
    story.parked(key=b"a", first="1:0", messages=2, **OF)
    story.done(0, 11, attempt=2)
    return story, "lost"


def never_came() -> tuple[Story, str]:
    story = Story(2)
    story.done(0, 10)
    return story, "lost"


def two_dead_letters_of_one_message() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.dead(0)
    story.dead(0, "dead/0 1:1")
    return story, "dead_twice"


def three_dead_letters_of_one_message_that_was_rewound() -> tuple[Story, str]:
    story = dead_again_after_a_rewind()
    story.dead(0, "dead/0 1:2")
    return story, "dead_twice"


def a_dead_letter_from_another_place() -> tuple[Story, str]:
    story = Story(3)
    story.done(1, 9)
    story.came(0, 10)
    story.failed(0, 10)
    story.dead(0)
    story.done(2, 11)
    story.dead(0, "dead/0 1:1", offset="1:2")
    return story, "dead_misplaced"


def replayed_and_never_delivered() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.dead(0)
    story.person("replay", offset="1:0", key=b"a", **OF)
    story.person("replay", offset="1:0", key=b"a", done=True, **OF)
    return story, "lost"


def replayed_once_and_delivered_at_two_places() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.dead(0)
    story.person("replay", offset="1:0", key=b"a", done=True, **OF)
    for token, at in ((11, "2:0"), (12, "2:1")):
        story.came(0, token, at=at, maybe_repeated=token == 12)
        story.acked(0, token, at=at)
    return story, "misplaced"


def stored_twice_and_delivered_twice() -> tuple[Story, str]:
    story = Story(1)
    story.events[-1]["o"] = "2:0"
    story.done(0, 10)
    story.came(0, 11, at="2:0", maybe_repeated=True)
    story.acked(0, 11, at="2:0")
    return story, "misplaced"


def under_another_key() -> tuple[Story, str]:
    story = Story(1)
    story.done(0, 10, key=b"z")
    return story, "misplaced"


def moved(story: Story, **way: str) -> None:
    """A person moves the group, to the first message if nothing else is said, and the answer comes."""
    place: dict[str, Any] = way or {"way": "rewind", "offset": "1:0"}
    story.person("move", **place, **OF)
    story.person("move", done=True, **place, **OF)


def lost_out_of_the_list_of_a_parked_key() -> tuple[Story, str]:
    story = Story(5)
    story.done(1, 8)
    story.done(3, 9)
    story.came(0, 10)
    story.failed(0, 10)
    story.parked(key=b"a", first="1:0", messages=2, **OF)  # 1:0, and one of 1:2 and 1:4
    return story, "lost"


def lost_before_a_parked_message() -> tuple[Story, str]:
    story = Story(3)
    story.done(1, 9)
    story.came(2, 10)
    story.failed(2, 10)
    story.parked(key=b"a", first="1:2", messages=2, **OF)
    return story, "lost"


def delayed_and_never_again() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.failed(0, 10)
    story.parked(key=b"a", first="1:0", messages=1, state="delayed", **OF)
    return story, "unfinished"


def confirmed_and_again_before_a_rewind() -> tuple[Story, str]:
    story = Story(1)
    story.done(0, 10)
    story.was_confirmed(0, 10)
    story.done(0, 11, maybe_repeated=True)
    moved(story)
    story.done(0, TERM, group_epoch=2, maybe_repeated=True)
    return story, "acknowledged_again"


def left_after_a_rewind() -> tuple[Story, str]:
    story = Story(1)
    moved(story)
    story.came(0, TERM, group_epoch=2)
    return story, "unfinished"


def overlapped_after_a_rewind() -> tuple[Story, str]:
    story, kind = before_the_earlier_one_is_done()
    move = {"k": "person", "at": story.second, "g": GROUP, "t": TOPIC, "q": 0, "x": "move", "d": "rewind", "o": "1:0"}
    story.events[-5:-5] = [move]
    return story, kind


def again_below_the_place_of_a_rewind() -> tuple[Story, str]:
    story = Story(2)
    story.done(0, 10)
    story.done(1, 11)
    story.person("move", way="rewind", offset="1:1", **OF)
    story.done(0, TERM, group_epoch=2)
    return story, "repeated"


def left_behind_the_place_of_a_rewind() -> tuple[Story, str]:
    story = Story(1)
    story.came(0, 10)
    story.person("move", way="rewind", offset="1:0", **OF)
    story.person("move", way="rewind", offset="1:0", done=True, **OF)
    return story, "unfinished"


def overlapped_behind_the_place_of_a_rewind() -> tuple[Story, str]:
    story = Story(3)
    story.done(1, 8)
    story.came(0, 10)
    story.person("move", way="rewind", offset="1:0", **OF)
    story.done(2, TERM, group_epoch=2)
    story.done(0, TERM + 1, group_epoch=2, maybe_repeated=True)
    story.done(1, TERM + 2, group_epoch=2, maybe_repeated=True)
    return story, "overlapped"


def sent_after_a_skip_and_lost() -> tuple[Story, str]:
    story = Story(1)
    moved(story, way="skip", offset="1:0", end="1:1")
    story.send(2, producer="p", sequence=1, key=b"a", **AT)
    story.outcome(2, "ok", offset="1:2")
    return story, "lost"


FAULTS = [
    again_below_the_place_of_a_rewind, left_behind_the_place_of_a_rewind, overlapped_behind_the_place_of_a_rewind,
    lost_out_of_the_list_of_a_parked_key, lost_before_a_parked_message, delayed_and_never_again,
    confirmed_and_again_before_a_rewind, left_after_a_rewind,
    overlapped_after_a_rewind, sent_after_a_skip_and_lost,
    before_the_earlier_one_is_done, before_the_newer_grant_of_the_earlier_one_is_done,
    again_without_a_flag, acknowledged_and_again_without_a_flag, confirmed_and_again, an_earlier_one_in_another_hand,
    one_token_for_two_consumers, one_grant_in_two_hands, one_token_for_two_keys, twice_under_one_token,
    again_in_another_epoch_and_no_person_moved_it,
    a_token_from_the_past, a_run_goes_back, acknowledged_after_the_end_of_the_grant,
    attempts_fall, an_attempt_that_was_never_made, at_most_once_and_twice, failed_and_never_again,
    came_again_and_was_left, released_and_never_again, lost_behind_a_key_that_was_parked_once, never_came,
    two_dead_letters_of_one_message, three_dead_letters_of_one_message_that_was_rewound,
    a_dead_letter_from_another_place, replayed_and_never_delivered,
    replayed_once_and_delivered_at_two_places, stored_twice_and_delivered_twice, under_another_key,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault: Callable[[], tuple[Story, str]]) -> None:
    story, kind = fault()
    finding = only(story.judged(), kind)
    assert finding.events


def test_two_groups_must_agree_within_a_key_only() -> None:
    story = Story()
    for number in (1, 0, 3, 2):
        story.done(number, 10 + number)
    for number in range(4):
        story.deliver(number, group="exact", consumer="x", offset=f"1:{number}", **AT)
    story.end("exact")
    passes(story)


def test_each_kind_of_finding_is_described() -> None:
    assert history.__doc__
    described = set(re.findall(r"(?m)^([a-z_]+)  ", history.__doc__))
    assert described >= set(KINDS)


# ---- lines -----------------------------------------------------------------------------------------------


def test_a_batch_of_one_grant_is_one_line() -> None:
    story = Story(0)
    story.sends(range(3), producer="p", sequence=0, keys=[b"a", b"a", b"a"], **AT)
    story.outcomes(range(3), "ok", offset="1:0")
    story.deliveries(
        range(3), consumer="c1", offset="1:0", keys=[b"a"] * 3, token=10, group_epoch=1, attempt=1, **OF
    )  # fmt: skip
    story.ack_single(consumer="c1", offsets=["1:0", "1:1", "1:2"], tokens=[10] * 3, **OF)
    passes(story)


@given(st.one_of(st.binary(), st.text("% -é\0\\").map(str.encode)))
def test_a_key_has_the_text_that_commands_show(key: bytes) -> None:
    assert text_of_key(key) == key_to_text(key)


def test_keys_that_are_no_text_stay_different() -> None:
    story = Story(0)
    story.sends([0, 1], producer="p", sequence=0, keys=[b"\xff", b"%ff"], **AT)
    assert story.events[-1]["y"] == ["%ff", "%25ff"]


@pytest.mark.parametrize(
    "change",
    [
        {"u": "seven"},
        {"u": -1},
        {"y": 7},
        {"y": ["a", "b"]},
    ],
)
def test_a_delivery_that_no_recorder_writes_is_refused(change: dict[str, object]) -> None:
    story = Story(1)
    story.came(0, 10)
    story.events[-1].update(change)
    with pytest.raises(HistoryFormatError):
        story.judged()


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
    story = Story(1)
    story.events.append({"at": 1.0, "g": GROUP, "t": TOPIC, "q": 0, **line})
    with pytest.raises(HistoryFormatError):
        story.judged()


def test_a_group_of_two_modes_is_not_judged() -> None:
    story = Story(2)
    story.came(0, 10)
    story.deliver(1, consumer="c1", offset="1:1", **OF)
    assert "its mode was changed" in story.judged().unjudged[0]
