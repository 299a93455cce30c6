"""Spreading: a consumer that works yields a partition only when it is done, and nothing comes twice because of that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import make_offset
from seriatim_api.spreading import reader_of
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev

from .support import GROUP, M01, MS, SECOND, STREAM, TOPIC, P, Serving, control_record

OTHER = 8
OVER = 4
FIRST, SECOND_ONE = "c1", "c2"
TO_SECOND = next(n for n in range(OVER) if reader_of(n, OVER, [FIRST, SECOND_ONE]) == SECOND_ONE)
TO_FIRST = next(n for n in range(OVER) if reader_of(n, OVER, [FIRST, SECOND_ONE]) == FIRST)


class Spread(Serving):
    """A server of partition `number`, whose consumers read all partitions of the topic."""

    number = TO_SECOND
    over = OVER
    at_most_once = False
    is_spread = True

    def join(self, subscription: int = 1, name: str = "", stream: int = STREAM, was_active: bool = False) -> None:
        self.comes(name or f"c{subscription}", stream, subscription, was_active=was_active)

    def comes(
        self, name: str, stream: int, subscription: int = 1, *, was_active: bool = False, was_standby: bool = False
    ) -> None:
        join = ev.ConsumerJoin(stream, subscription, P, GROUP, name, ev.StartPosition.EARLIEST, was_active)
        self.do(replace(join, spread_over=self.over, number=self.number, was_standby=was_standby))
        if stream != STREAM:
            self.do(ev.ConsumerCredit(stream, 1 << 20))

    def reads(self) -> None:
        """The disk answers, with one batch at a time if the credit is small."""
        for read in self.all(fx.ReadLog):
            if read.serial not in self.answered and read.max_bytes < self.batches[0].size_bytes:
                self.answered.add(read.serial)
                self.do(ev.LogRead(read.serial, self.batches[read.from_index : read.from_index + 1]))
        super().reads()

    def cursor(self, no: int = 1, epoch: int = 1, start: int = 0, revision: int = 5) -> None:
        record = ev.CursorRecord(no, epoch, start, TOPIC, at_most_once=self.at_most_once, is_spread=self.is_spread)
        self.do(ev.CursorRead(P, GROUP, record, revision))

    @property
    def active(self) -> str:
        active = self.part.consumer_groups[GROUP].dispatcher.active
        return active.name if active is not None else ""

    @property
    def asked(self) -> fx.YieldAsked:
        return self.delivered(fx.YieldAsked)[-1]

    def yields(self, index: int, number: int | None = None) -> None:
        number = self.asked.number if number is None else number
        self.do(ev.ConsumerYielded(STREAM, 1, self.token_of(), number, make_offset(1, index)))

    def passes(self, us: int) -> None:
        """Time passes, and the other member is heard meanwhile."""
        while us > 0:
            self.wait(min(us, 100 * MS), (M01,))
            us -= 100 * MS
            self.persist_everywhere()


def reading(kind: type[Spread] = Spread) -> Spread:
    """c1 reads the partition, and was given all five messages. c2 has come, and a second has passed."""
    bench = kind()
    bench.serve()
    assert bench.indexes() == [0, 1, 2, 3, 4]
    bench.comes(SECOND_ONE, OTHER)
    bench.passes(SECOND + 100 * MS)
    return bench


def test_partition_moves_when_all_that_was_given_out_is_acknowledged() -> None:
    bench = reading()
    assert bench.active == FIRST
    assert not bench.asked.is_over
    bench.ack(2)
    bench.yields(4)
    bench.passes(100 * MS)
    assert bench.active == FIRST, "its application has 1:3"
    bench.ack(3)
    bench.passes(100 * MS)
    assert bench.active == SECOND_ONE
    bench.deliver()
    last = bench.delivered(fx.Batches)[-1]
    assert (last.from_index, last.delivery_attempt, last.maybe_repeated_below) == (4, 1, 0), (
        "1:4 came to no application"
    )


def test_acknowledgement_on_one_disk_moves_no_partition() -> None:
    bench = reading()
    bench.ack(4)
    bench.yields(5)
    bench.wait(50 * MS, ())
    bench.persist()
    assert bench.active == FIRST
    bench.confirm_replications()
    assert bench.active == SECOND_ONE


def test_nothing_is_delivered_to_a_consumer_that_was_asked_to_yield() -> None:
    bench = Spread()
    bench.begin(credit=1)  # one batch, then it has no credit
    bench.deliver()
    given = len(bench.indexes())
    bench.comes(SECOND_ONE, OTHER)
    bench.passes(SECOND + 100 * MS)
    assert bench.delivered(fx.YieldAsked)
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.deliver()
    assert len(bench.indexes()) == given


def test_slow_consumer_goes_on_and_is_asked_later_and_later() -> None:
    bench = reading()
    bench.yields(4)
    asked = bench.asked.number
    bench.passes(10 * SECOND)
    assert bench.active == FIRST
    assert bench.asked == fx.YieldAsked(asked, is_over=True)
    bench.passes(10 * SECOND + 200 * MS)
    assert bench.asked.number > asked
    bench.passes(10 * SECOND)
    assert bench.asked.is_over
    count = len(bench.delivered(fx.YieldAsked))
    bench.passes(15 * SECOND)
    assert len(bench.delivered(fx.YieldAsked)) == count, "the third attempt begins 20 s after the second one"
    bench.passes(6 * SECOND)
    assert len(bench.delivered(fx.YieldAsked)) == count + 1


def test_answer_to_an_earlier_question_does_not_count() -> None:
    bench = reading()
    early = bench.asked.number
    bench.passes(20 * SECOND + 400 * MS)
    assert bench.asked.number > early
    bench.ack(2)
    bench.yields(3, early)
    bench.passes(200 * MS)
    assert bench.active == FIRST, "since its first answer, the application was given 1:3 and 1:4"


def test_consumer_goes_on_when_the_other_one_leaves() -> None:
    bench = reading()
    bench.yields(4)
    bench.do(ev.ConsumerGone(OTHER))
    assert bench.asked.is_over
    assert bench.active == FIRST


def test_flapping_consumer_moves_nothing() -> None:
    bench = Spread()
    bench.serve()
    for subscription in range(2, 12):
        bench.comes(SECOND_ONE, OTHER, subscription)
        bench.passes(500 * MS)
        bench.do(ev.ConsumerGone(OTHER))
        bench.passes(300 * MS)
    assert not bench.delivered(fx.YieldAsked)
    assert bench.active == FIRST


class NotSpread(Spread):
    is_spread = False


class Few(Spread):
    over = 0


class Own(Spread):
    number = TO_FIRST


@pytest.mark.parametrize("kind", [NotSpread, Few, Own])
def test_partition_stays(kind: type[Spread]) -> None:
    bench = reading_without_question(kind)
    assert not bench.delivered(fx.YieldAsked)
    assert bench.active == FIRST


def reading_without_question(kind: type[Spread]) -> Spread:
    bench = kind()
    bench.serve()
    bench.comes(SECOND_ONE, OTHER)
    bench.passes(5 * SECOND)
    return bench


def test_added_partitions_are_counted_when_all_consumers_know_them() -> None:
    """Until then the one that does not know them is not connected to all, so it yields to no other one."""
    more = next(n for n in (8, 12, 16) if reader_of(TO_FIRST, n, [FIRST, SECOND_ONE]) == SECOND_ONE)
    bench = reading_without_question(Own)
    bench.do(ev.ConsumerSpreadOver(OTHER, 1, more))
    bench.passes(3 * SECOND)
    assert not bench.delivered(fx.YieldAsked)
    bench.do(ev.ConsumerSpreadOver(STREAM, 1, more))
    bench.passes(SECOND + 100 * MS)
    assert bench.delivered(fx.YieldAsked)


def test_spread_counts_from_its_setting_on() -> None:
    bench = reading_without_question(NotSpread)
    bench.is_spread = True
    bench.cursor(revision=9)
    bench.passes(SECOND + 100 * MS)
    assert not bench.asked.is_over
    bench.is_spread = False
    bench.cursor(revision=10)
    bench.passes(SECOND + 100 * MS)
    assert bench.asked.is_over
    assert bench.active == FIRST


class Once(Spread):
    at_most_once = True


def test_at_most_once_all_that_was_sent_reaches_the_application() -> None:
    bench = Once()
    bench.begin(credit=1)
    bench.deliver()
    given = bench.part.consumer_groups[GROUP].dispatcher.delivered
    assert 0 < given < 5
    bench.comes(SECOND_ONE, OTHER)
    bench.passes(SECOND + 100 * MS)
    bench.yields(given - 1)
    bench.passes(200 * MS)
    assert bench.active == FIRST, "the last message is acknowledged, so no other consumer would be given it"
    bench.yields(given)
    bench.passes(200 * MS)
    assert bench.active == SECOND_ONE


def test_at_most_once_batches_that_were_read_are_delivered_before_the_question() -> None:
    bench = Once()
    bench.begin_unconfirmed()
    bench.persist()
    bench.reads()  # they are acknowledged, and wait until every eligible member has that
    bench.comes(SECOND_ONE, OTHER)
    for _ in range(12):
        bench.wait(100 * MS, (M01,))
    assert not bench.indexes()
    assert not bench.delivered(fx.YieldAsked)
    bench.deliver()
    assert bench.indexes() == [0, 1, 2, 3, 4]
    assert bench.delivered(fx.YieldAsked)


def standbys_of_a_new_server() -> Spread:
    known = control_record(1, GROUP, 1, 2, 2, 1)
    bench = Spread(cursors=(known,))
    bench.link(M01)
    bench.comes(SECOND_ONE, OTHER, was_standby=True)
    bench.look_up()
    bench.written()
    bench.persist()
    bench.wait(bench.config.serve_lease_us + bench.config.serve_margin_us + 100 * MS, (M01,))
    bench.cursor()
    bench.persist_everywhere()
    return bench


def test_new_server_waits_for_the_consumer_that_was_active() -> None:
    bench = standbys_of_a_new_server()
    assert bench.delivered(fx.Joined), "it knows that it stands by, and does not look for another server"
    assert not bench.active
    bench.passes(500 * MS)
    assert not bench.active
    bench.comes(FIRST, STREAM, was_active=True)
    assert bench.active == FIRST


def test_new_server_waits_one_second_for_it() -> None:
    bench = standbys_of_a_new_server()
    bench.passes(SECOND + 200 * MS)
    assert bench.active == SECOND_ONE


def test_attempt_is_forgotten_at_a_rewind() -> None:
    bench = reading()
    bench.yields(5)
    bench.cursor(epoch=2, revision=9)
    bench.persist_everywhere()
    bench.deliver()
    assert bench.active == FIRST, "it is active again, and is asked again"
    assert bench.indexes() == [0, 1, 2, 3, 4] * 2
    bench.passes(SECOND + 100 * MS)
    assert not bench.asked.is_over
    assert bench.part.consumer_groups[GROUP].dispatcher.yielding is not None


def test_crossing_that_failed_takes_no_partition_away() -> None:
    """Rule `still-active`: the server starts over in the same segment, and c2 is the one of the spread."""
    bench = reading()
    bench.ack(4)
    bench.passes(100 * MS)
    write = bench.all(fx.WriteCursor)[-1]
    bench.do(ev.CursorWritten(P, GROUP, write.serial, ev.WriteOutcome.CONFLICT, 0))
    assert not bench.active
    bench.look_up()
    assert bench.active == FIRST


def test_leaving_consumer_is_followed_by_the_one_of_the_spread() -> None:
    bench = Spread()
    bench.begin()
    bench.comes("c3", 9)
    bench.comes(SECOND_ONE, OTHER)
    bench.do(ev.ConsumerGone(STREAM))
    assert bench.active == reader_of(bench.number, OVER, ["c2", "c3"])


def test_standby_that_comes_back_after_a_change_becomes_active() -> None:
    """The time at which the server looks at the spread, set before the group was forgotten here, is not the time that
    the wait takes."""
    bench = Spread()
    bench.begin()
    bench.comes(SECOND_ONE, OTHER)
    bench.passes(700 * MS)
    bench.do(ev.ConsumerGone(OTHER))
    bench.do(ev.ConsumerGone(STREAM))
    bench.comes(SECOND_ONE, OTHER, 2, was_standby=True)
    bench.cursor()
    bench.persist_everywhere()
    assert not bench.active
    bench.passes(3 * SECOND)
    assert bench.active == SECOND_ONE


def test_answer_below_what_is_acknowledged_counts() -> None:
    """Consumers acknowledge indexes without a message for their application before it asks for what is after them."""
    bench = reading()
    bench.ack(2)
    bench.passes(100 * MS)
    bench.yields(1)
    bench.passes(100 * MS)
    assert bench.active == SECOND_ONE
    bench.deliver()
    assert bench.delivered(fx.Batches)[-1].from_index == 3
