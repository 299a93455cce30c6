"""What is granted at once: as many messages as the read says that the bytes allow."""

from __future__ import annotations

import pytest
from seriatim_api.ids import make_offset
from seriatim_broker.core.consumers.keyed import earlier_messages
from seriatim_broker.core.state.keyed.dispatcher import KeyedDispatcher
from seriatim_broker.core.state.keyed.grants import Fetch, Frame, Grant
from seriatim_broker.core.state.keyed.key import Key
from seriatim_broker.core.state.window import Window
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg

from .keyed_support import KeyedServing, indexes_of
from .support import GROUP, M10, MS, STREAM, P, batches_of


class Cut(KeyedServing):
    """A frame has room for two messages."""

    fits = 2

    def frames(self) -> list[list[list[int]]]:
        """The indexes of each grant, frame by frame, since the last look."""
        return [[indexes_of(run) for run in event.runs] for event in self.delivered(fx.Granted)]

    @property
    def in_flight(self) -> int:
        group = self.part.consumer_groups[GROUP]
        assert group.keyed is not None
        assert group.keyed.grants.in_flight == group.consumers[0].in_flight
        return group.consumers[0].in_flight


def test_what_does_not_fit_is_granted_next_and_in_its_order() -> None:
    bench = Cut("abcde")
    bench.serve()
    assert bench.frames() == [[[0], [1]], [[2], [3]], [[4]]]
    assert bench.in_flight == 5
    for run in bench.runs():
        bench.acks(run)
    bench.deliver()
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 5
    assert bench.in_flight == 0


def test_a_run_ends_where_the_frame_is_full() -> None:
    bench = Cut("aaaabb")
    bench.fits = 3
    bench.serve()
    frames = bench.frames()
    assert frames[0] == [[0, 1, 2]]
    assert frames[1:] == [[[4, 5]]], "the rest of key a comes when its first messages are done"
    first, second = bench.runs()
    assert bench.in_flight == 5
    bench.acks(first)
    bench.acks(second)
    bench.deliver()
    (last,) = bench.runs()
    assert indexes_of(last) == [3]
    bench.acks(last)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 6


def test_a_run_that_does_not_fit_at_all_comes_in_the_next_frame() -> None:
    bench = Cut("abcc")
    bench.serve()
    assert bench.frames() == [[[0], [1]], [[2, 3]]]


def test_a_frame_of_one_message_is_not_cut() -> None:
    bench = Cut("abc")
    bench.fits = 1
    bench.serve()
    assert bench.frames() == [[[0]], [[1]], [[2]]]


def test_messages_that_come_after_a_large_one_are_granted_together_again() -> None:
    """The number of messages that are granted at once follows the bytes of the last frame."""
    bench = Cut("abcdefgh")
    bench.begin(credit=0)
    keyed = bench.keyed
    bench.deliver()
    keyed.grants.average_bytes = 1 << 20
    bench.fits = 8
    bench.do(ev.ConsumerCredit(STREAM, 4 << 20))
    bench.deliver()
    assert [len(frame) for frame in bench.frames()] == [2, 6]


def test_a_frame_whose_consumer_left_is_not_given() -> None:
    bench = Cut("abcd")
    bench.begin()
    super(Cut, bench).reads()
    bench.persist_everywhere()
    bench.join(2, stream=2)
    bench.do(ev.ConsumerCredit(2, 1 << 20))
    bench.do(ev.ConsumerGone(STREAM))
    bench.deliver(100 * MS)
    given = [run for event in bench.delivered(fx.Granted) for run in event.runs]
    assert [indexes_of(run) for run in given] == [[0], [1], [2], [3]]
    assert bench.in_flight == 4


def test_a_fetch_goes_on_with_the_first_messages_when_much_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight messages of segment 1 were set aside. Another member gives one batch in each answer."""
    batches = batches_of(1, (1,) * 8)
    monkeypatch.setattr(earlier_messages, "FETCHED_BYTES_MAX", 3 * batches[0].size_bytes)
    bench = KeyedServing("")
    bench.begin()
    group = bench.part.consumer_groups[GROUP]
    keyed = bench.served.keyed = KeyedDispatcher(2, Window(0, {}))
    frame = Frame(group.consumers[0], 1, 1 << 40)
    frame.offsets = tuple(make_offset(1, index) for index in (5, 0, 1, 2, 3, 4, 6, 7))
    for at, offset in enumerate(frame.offsets):
        key = keyed.line.keys[b"k%d" % at] = Key(b"k%d" % at)
        keyed.park(key, "no")
        keyed.take_in(key.name, 0, offset)
        run = Grant(at + 1, key, frame.consumer, (offset,), is_aside=True, deadline_us=1 << 40)
        keyed.begin_grant(run)
        keyed.release(key)
        frame.names.append(b"")
        frame.indexes.append(0)
        frame.grants.append(run)
    keyed.grants.reads[9] = frame
    keyed.grants.fetches[9] = Fetch(frame.offsets, list(frame.offsets), 1 << 20)
    bench.clear()
    for index in (5, 0, 1):
        assert not bench.all(fx.ReadRows)
        keyed.grants.fetches[9].asked = (M10, make_offset(1, index))
        answer = msg.CopyAnswer(P, 1, index, True, (batches[index],), None)
        assert earlier_messages.on_answer(bench.served, M10, answer) == []
    (read,) = [effect for effect in bench.core.state.out.effects if isinstance(effect, fx.ReadRows)]
    assert (read.offsets, len(read.batches)) == (tuple(make_offset(1, index) for index in (5, 0, 1)), 3)
    assert frame.offsets == read.offsets
    assert list(keyed.line.ready) == [b"k3", b"k4", b"k5", b"k6", b"k7"]
    assert (frame.consumer.in_flight, [run.token for run in frame.grants]) == (8 - 5, [1, 2, 3])
