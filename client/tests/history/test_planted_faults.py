"""Each fault planted alone into a clean history must be found, named and shown; the clean one must pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from seriatim.history import Finding, MemoryHistory, Report, check_events, render

TOPIC = "flights"


class Story(MemoryHistory):
    """A history told step by step; each step takes a second, so that every `at` is another."""

    def __init__(self) -> None:
        self.second = 0.0
        super().__init__("test", self._tick)

    def _tick(self) -> float:
        self.second += 1.0
        return self.second

    def sent(self, message: int, *, sequence: int, partition: int = 0, producer: str = "p1", epoch: int = 0) -> None:
        self.send(message, producer=producer, topic=TOPIC, partition=partition, sequence=sequence, epoch=epoch)

    def came(
        self, message: int, offset: str, *, group: str = "g", partition: int = 0, maybe_repeated: bool = False
    ) -> None:
        self.deliver(
            message, group=group, consumer="c1", topic=TOPIC, partition=partition, offset=offset,
            maybe_repeated=maybe_repeated,
        )  # fmt: skip


def sent_and_acknowledged(count: int = 3) -> Story:
    """Messages 10, 11, 12, … sent one after the other, each after the acknowledgement of the one before."""
    story = Story()
    for n in range(count):
        story.sent(10 + n, sequence=n)
        story.outcome(10 + n, "ok", offset=f"1:{n}")
    return story


def sent_at_once(count: int = 3) -> Story:
    """The same, but all sent before the first acknowledgement."""
    story = Story()
    for n in range(count):
        story.sent(10 + n, sequence=n)
    for n in range(count):
        story.outcome(10 + n, "ok", offset=f"1:{n}")
    return story


def judged(story: Story) -> Report:
    return check_events(story.events)


def only(report: Report, kind: str) -> Finding:
    """The one finding; nothing else may have been found."""
    assert [finding.kind for finding in report.findings] == [kind], render(report)
    assert report.counts[kind] == 1
    assert not report.ok
    return report.findings[0]


def kinds_of(finding: Finding) -> list[object]:
    return [evidence.event["kind"] for evidence in finding.events]


def messages_of(finding: Finding) -> list[object]:
    return [evidence.event.get("message") for evidence in finding.events]


def test_clean_history_passes() -> None:
    story = sent_and_acknowledged()
    for group in ("g", "h"):
        for n in range(3):
            story.came(10 + n, f"1:{n}", group=group)
            story.ack(group=group, topic=TOPIC, partition=0, offset=f"1:{n}")
    story.end()
    report = judged(story)
    assert report.ok, render(report)
    assert report.findings == ()
    assert report.counts["sent"] == report.counts["ok"] == 3
    assert report.counts["delivered"] == 6
    assert report.groups == ("g", "h")
    assert "OK" in render(report)


def test_lost() -> None:
    story = sent_and_acknowledged()
    story.came(10, "1:0")
    story.came(12, "1:2")
    story.end("g")
    finding = only(judged(story), "lost")
    assert finding.message == 11
    assert finding.group == "g"
    assert (finding.topic, finding.partition) == (TOPIC, 0)
    assert kinds_of(finding) == ["send", "outcome", "end"]
    assert finding.events[1].event["offset"] == "1:1"
    assert [evidence.line for evidence in finding.events] == [3, 4, 9]


def test_lost_to_one_group_only() -> None:
    story = sent_and_acknowledged(1)
    story.came(10, "1:0", group="g")
    story.end("g")
    story.end("h", topic=TOPIC)
    finding = only(judged(story), "lost")
    assert finding.group == "h"


def test_unknown_that_another_group_received_is_lost_to_the_one_that_did_not() -> None:
    story = sent_at_once(2)
    story.sent(12, sequence=2)
    story.outcome(12, "unknown")
    for n in range(2):
        story.came(10 + n, f"1:{n}", group="g")
        story.came(10 + n, f"1:{n}", group="h")
    story.came(12, "1:2", group="g")
    story.end()
    finding = only(judged(story), "lost")
    assert (finding.message, finding.group) == (12, "h")
    assert kinds_of(finding) == ["send", "outcome", "deliver", "end"]


def test_a_group_that_must_appear_and_received_nothing() -> None:
    story = sent_and_acknowledged(1)
    story.end("h")
    assert check_events(story.events, groups=["h"]).counts["lost"] == 1
    assert check_events(story.events, groups=["other"]).counts["stuck"] == 1


def test_a_declared_gap_excuses_and_a_skip_does_not() -> None:
    for excuse in ("gap", "skip"):
        story = sent_and_acknowledged()
        story.came(10, "1:0")
        declare = story.gap if excuse == "gap" else story.skip
        declare(topic=TOPIC, partition=0, first="1:1", end="1:2", why="segment 1 is LOST", group="g")
        story.came(12, "1:2")
        story.end()
        report = judged(story)
        if excuse == "gap":
            assert report.ok, render(report)
            assert report.counts["in_gaps"] == 1
        else:
            assert kinds_of(only(report, "lost")) == ["send", "outcome", "skip", "end"]


def test_a_gap_ends_before_its_end() -> None:
    story = sent_and_acknowledged()
    story.came(10, "1:0")
    story.gap(topic=TOPIC, partition=0, first="1:1", end="1:2", why="LOST")
    story.end("g")
    assert only(judged(story), "lost").message == 12


def _over_what_was_dropped(*, is_said: bool) -> Story:
    """Of two segments a group gets the first message and the last one."""
    story = Story()
    for n, offset in enumerate(("1:0", "1:1", "1:2", "2:0", "2:1")):
        story.sent(10 + n, sequence=n)
        story.outcome(10 + n, "ok", offset=offset)
    story.came(10, "1:0")
    if is_said:
        story.gap(topic=TOPIC, partition=0, first="1:1", end="2:1", why="dropped by retention", group="g")
    story.came(14, "2:1")
    story.end("g")
    return story


def test_what_retention_dropped_is_excused_if_it_was_said() -> None:
    report = judged(_over_what_was_dropped(is_said=True))
    assert report.ok, render(report)
    assert report.counts["in_gaps"] == 3


def test_a_silent_jump_over_segments_is_lost_messages() -> None:
    report = judged(_over_what_was_dropped(is_said=False))
    assert (report.ok, report.counts["lost"]) == (False, 3)


def test_a_drop_that_is_said_excuses_nothing_that_a_group_gets_twice_behind_it() -> None:
    story = _over_what_was_dropped(is_said=True)
    story.came(14, "2:1")
    assert not judged(story).ok


def test_a_gap_of_another_group_excuses_nothing() -> None:
    story = sent_and_acknowledged(2)
    story.came(10, "1:0")
    story.gap(topic=TOPIC, partition=0, first="1:1", end="1:2", why="", group="h")
    story.end("g")
    only(judged(story), "lost")


def test_repeated() -> None:
    story = sent_and_acknowledged(2)
    story.came(10, "1:0")
    story.came(11, "1:1")
    story.came(11, "1:1")
    story.end()
    finding = only(judged(story), "repeated")
    assert kinds_of(finding) == ["deliver", "deliver"]
    assert [evidence.line for evidence in finding.events] == [6, 7]


def test_repeats_that_are_flagged_or_later_attempts_pass() -> None:
    story = sent_and_acknowledged(2)
    story.came(10, "1:0")
    story.came(10, "1:0", maybe_repeated=True)
    story.came(11, "1:1")
    story.deliver(11, group="g", consumer="c", topic=TOPIC, partition=0, offset="1:1", attempt=2)
    story.end()
    report = judged(story)
    assert report.ok, render(report)
    assert report.counts["redelivered"] == 2


def test_a_late_unflagged_twin_of_a_flagged_delivery_passes() -> None:
    """A frozen consumer wakes up with what it was given before its successor got it flagged."""
    story = sent_and_acknowledged(1)
    story.came(10, "1:0", maybe_repeated=True)
    story.came(10, "1:0")
    story.end()
    assert judged(story).ok


def test_stored_twice() -> None:
    """A resend that was not recognised: two offsets, two first attempts."""
    story = sent_and_acknowledged(1)
    story.came(10, "1:0")
    story.came(10, "2:0")
    story.end()
    report = judged(story)
    assert {finding.kind for finding in report.findings} == {"repeated", "misplaced"}


def test_one_offset_two_messages() -> None:
    story = Story()
    for n in range(2):
        story.sent(10 + n, sequence=n)
    for n in range(2):
        story.outcome(10 + n, "ok")
    story.came(10, "1:0")
    story.came(11, "1:0")
    story.end()
    report = judged(story)
    assert report.counts["misplaced"] == 1
    assert report.counts["repeated"] == 1
    assert report.findings[-1].events[0].event["message"] == 10


def test_reordered_for_its_producer() -> None:
    """Stored in the wrong order: offsets rise, and nothing was sent after an acknowledgement."""
    story = Story()
    for n in range(2):
        story.sent(10 + n, sequence=n)
    story.outcome(11, "ok", offset="1:0")
    story.outcome(10, "ok", offset="1:1")
    story.came(11, "1:0")
    story.came(10, "1:1")
    story.end()
    finding = only(judged(story), "reordered_producer")
    assert messages_of(finding) == [10, 11, 11, 10]
    assert kinds_of(finding) == ["send", "send", "deliver", "deliver"]
    assert judged(story).counts["reordered"] == 1


def test_epochs_order_before_sequences() -> None:
    story = Story()
    story.sent(10, sequence=5, epoch=0)
    story.sent(11, sequence=0, epoch=1)
    story.outcome(10, "unknown")
    story.outcome(11, "ok", offset="1:0")
    story.came(11, "1:0")
    story.came(10, "1:1")
    story.end()
    assert only(judged(story), "reordered_producer").message == 10


def test_reordered_against_offsets() -> None:
    story = Story()
    for n in range(2):
        story.sent(10 + n, sequence=0, producer=f"p{n}")
    for n in range(2):
        story.outcome(10 + n, "ok", offset=f"1:{n}")
    story.came(11, "1:1")
    story.came(10, "1:0")
    story.end()
    finding = only(judged(story), "reordered_offset")
    assert finding.message == 10
    assert [evidence.event["offset"] for evidence in finding.events] == ["1:1", "1:0"]


def test_reordered_against_another_group() -> None:
    story = Story()
    for n in range(2):
        story.sent(10 + n, sequence=0, producer=f"p{n}")
    for n in range(2):
        story.outcome(10 + n, "ok", offset=f"1:{n}")
    for n in (0, 1):
        story.came(10 + n, f"1:{n}", group="g")
    for n in (1, 0):
        story.came(10 + n, f"1:{n}", group="h")
    story.end()
    report = judged(story)
    assert report.counts["reordered_group"] == report.counts["reordered_offset"] == report.counts["reordered"] == 1
    finding = next(finding for finding in report.findings if finding.kind == "reordered_group")
    assert messages_of(finding) == [10, 11, 11, 10]
    assert [evidence.event["group"] for evidence in finding.events] == ["g", "g", "h", "h"]


def test_reordered_in_real_time() -> None:
    """Another producer's message, sent after the acknowledgement, was stored before."""
    story = Story()
    story.sent(10, sequence=0, producer="p1")
    story.outcome(10, "ok", offset="1:1")
    story.sent(11, sequence=0, producer="p2")
    story.outcome(11, "ok", offset="1:0")
    story.came(11, "1:0")
    story.came(10, "1:1")
    story.end()
    finding = only(judged(story), "reordered_realtime")
    assert messages_of(finding) == [10, 11, 11, 10]
    assert kinds_of(finding) == ["outcome", "send", "deliver", "deliver"]


def test_concurrent_messages_may_come_in_any_order() -> None:
    story = Story()
    story.sent(10, sequence=0, producer="p1")
    story.sent(11, sequence=0, producer="p2")
    story.outcome(10, "ok", offset="1:1")
    story.outcome(11, "ok", offset="1:0")
    story.came(11, "1:0")
    story.came(10, "1:1")
    story.end()
    assert judged(story).ok


def test_failed_but_delivered() -> None:
    story = sent_and_acknowledged(1)
    story.sent(11, sequence=1)
    story.outcome(11, "failed")
    story.came(10, "1:0")
    story.came(11, "1:1")
    story.end()
    finding = only(judged(story), "failed_delivered")
    assert finding.message == 11
    assert kinds_of(finding) == ["send", "outcome", "deliver"]


def test_no_outcome() -> None:
    story = sent_and_acknowledged(1)
    story.sent(11, sequence=1)
    story.came(10, "1:0")
    story.end()
    finding = only(judged(story), "stuck")
    assert finding.message == 11
    assert judged(story).unknown_share == 0.5


def test_group_that_did_not_drain_says_what_it_waits_for() -> None:
    story = sent_and_acknowledged()
    story.came(10, "1:0")
    story.ack(group="g", topic=TOPIC, partition=0, offset="1:0")
    story.end("g", drained=False, waiting="segment 1 is UNSETTLED")
    finding = only(judged(story), "stuck")
    assert finding.message == 11
    assert "waits for 2 messages" in finding.text
    assert "up to 1:0" in finding.text
    assert "UNSETTLED" in finding.text
    assert kinds_of(finding) == ["send", "outcome", "deliver", "ack", "end"]


@pytest.mark.parametrize("says", [True, False])
def test_group_that_has_everything_but_does_not_say_so(says: bool) -> None:
    story = sent_and_acknowledged(1)
    story.came(10, "1:0")
    if says:
        story.end("g", drained=False)
    assert only(judged(story), "stuck").group == "g"


def test_delivered_elsewhere_than_acknowledged() -> None:
    story = sent_and_acknowledged(1)
    story.came(10, "1:7")
    story.end()
    finding = only(judged(story), "misplaced")
    assert [evidence.event["offset"] for evidence in finding.events] == ["1:0", "1:7"]


def acknowledged_at_its_second_place() -> Story:
    story = Story()
    story.sent(10, sequence=0)
    story.outcome(10, "ok", offset="2:0")
    story.came(10, "1:7")
    return story


def test_stored_twice_and_the_second_place_skipped() -> None:
    story = acknowledged_at_its_second_place()
    story.skip(topic=TOPIC, partition=0, first="2:0", end="2:1", why="a repeat", group="g")
    story.end()
    report = judged(story)
    assert report.ok, render(report)


def test_stored_twice_and_another_place_or_another_group_told_to_skip() -> None:
    for first, group in (("2:1", "g"), ("2:0", "h")):
        story = acknowledged_at_its_second_place()
        story.skip(topic=TOPIC, partition=0, first=first, end="2:2", why="a repeat", group=group)
        story.end("g")
        assert only(judged(story), "misplaced").message == 10


def test_delivered_from_another_partition() -> None:
    story = sent_and_acknowledged(1)
    story.came(10, "1:0", partition=1)
    story.end()
    assert kinds_of(only(judged(story), "misplaced")) == ["send", "deliver"]


def test_contradicted() -> None:
    story = sent_and_acknowledged(1)
    story.outcome(10, "failed")
    story.came(10, "1:0")
    story.end()
    assert kinds_of(only(judged(story), "contradicted")) == ["outcome", "outcome"]


def test_unsent() -> None:
    story = sent_and_acknowledged(1)
    story.came(10, "1:0")
    story.came(99, "1:1")
    story.end()
    assert only(judged(story), "unsent").message == 99


def test_unknown_may_come_or_not() -> None:
    story = Story()
    for n in range(2):
        story.sent(10 + n, sequence=n)
        story.outcome(10 + n, "unknown")
    story.came(11, "1:0")
    story.end()
    report = judged(story)
    assert report.ok
    assert report.unknown_share == 1.0


def test_findings_cite_the_last_fault() -> None:
    story = Story()
    story.fault("kill", "b1-0")
    story.sent(10, sequence=0)
    story.outcome(10, "ok", offset="1:0")
    story.fault("cut", "b2-0")
    story.end("g", topic=TOPIC)
    story.fault("heal", "b2-0", phase="heal")
    finding = only(judged(story), "lost")
    assert finding.fault is not None
    assert finding.fault.event["name"] == "cut"
    assert "last fault before" in render(judged(story))


def test_findings_are_limited_and_counts_are_not() -> None:
    story = sent_at_once(50)
    story.end("g", topic=TOPIC)
    report = check_events(story.events, limit=3)
    assert report.counts["lost"] == 50
    assert len(report.findings) == 3
    assert "and 47 more" in render(report)
    assert report.to_dict()["ok"] is False


def test_one_message_that_came_late_is_one_finding() -> None:
    story = sent_at_once(6)
    for n in (0, 2, 3, 4, 5, 1):
        story.came(10 + n, f"1:{n}")
    story.end()
    report = judged(story)
    assert report.counts["reordered_offset"] == report.counts["reordered_producer"] == report.counts["reordered"] == 1


def test_a_history_without_consumers_says_so() -> None:
    report = judged(sent_and_acknowledged())
    assert report.ok
    assert "nothing is known of deliveries" in render(report)
    assert "nothing is shown" in render(judged(Story()))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda story: story.came(10, "1:0"),
        lambda story: story.outcome(11, "failed"),
    ],
)
def test_batches_and_single_lines_are_judged_alike(spoil: Callable[[Story], None]) -> None:
    single, batch = Story(), Story()
    for n in range(3):
        single.sent(10 + n, sequence=n)
        single.outcome(10 + n, "ok", offset=f"1:{n}")
        single.came(10 + n, f"1:{n}")
    batch.sends(range(10, 13), producer="p1", topic=TOPIC, partition=0, sequence=0)
    batch.outcomes([10, 11, 12], "ok", offset="1:0")
    batch.deliveries([10, 11, 12], group="g", consumer="c1", topic=TOPIC, partition=0, offset="1:0")
    for story in (single, batch):
        story.end()
        assert judged(story).ok
        spoil(story)
    assert judged(single).counts == judged(batch).counts
    events = judged(batch).findings[0].events
    assert events[0].event["message"] == judged(batch).findings[0].message
