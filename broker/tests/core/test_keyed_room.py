"""How much of a keyed consumer group waits in memory and in lists; a key that waits does not stop the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import make_offset
from seriatim_broker.core.consumers.cursors import gap_reports
from seriatim_broker.core.consumers.keyed import grants
from seriatim_broker.core.state.dispatcher import Consumer
from seriatim_broker.core.state.keyed import grants as grants_state
from seriatim_broker.core.state.keyed import line as line_state
from seriatim_broker.core.state.keyed import lists as lists_state
from seriatim_broker.core.state.keyed import room
from seriatim_broker.core.state.keyed import rows as keyed_rows
from seriatim_broker.core.state.keyed.dispatcher import KeyedDispatcher
from seriatim_broker.core.state.keyed.grants import Frame, Grant
from seriatim_broker.core.state.keyed.key import RECORD_BYTES, Key
from seriatim_broker.core.state.window import Window
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.keyed import KeyOperation, KeyPhase, RetryPolicy, SeenKey
from seriatim_broker.core.values.ledger_rows import KeyRecord, aside_name, key_name, write_aside, write_key
from seriatim_broker.core.values.log import LedgerRow

from .keyed_support import QUICK, KeyedServing, dispatcher_with, indexes_of
from .support import GROUP, M01, MS, SECOND, STREAM, P, control_record

LONG = replace(QUICK, attempts_max=0, delays_ms=(300_000, 300_000))
YEAR_MS = 365 * 86_400_000
SHORT_GRANT = replace(LONG, grant_ms=1_000)


class Small(KeyedServing):
    """One message is read at a time, and little may wait."""

    keys_read_max = 1

    def __init__(self, keys: str, policy: RetryPolicy = LONG, **limits: int) -> None:
        super().__init__(keys, policy=policy)
        self.core.state.config = replace(self.core.state.config, **limits)

    def settle(self) -> None:
        for _ in range(12):
            self.deliver(200 * MS)

    def notes(self, name: str) -> list[fx.Note]:
        return [note for note in self.all(fx.Note) if note.name == name]


def test_a_slow_handler_does_not_stop_other_keys() -> None:
    bench = Small("abcdefghij" * 2, window_indexes_max=5)
    bench.serve()
    slow, *others = bench.runs()
    assert indexes_of(slow) == [0]
    for run in others:
        bench.acks(run)
    for _ in range(20):  # all others are worked on at once
        bench.settle()
        for run in bench.runs():
            bench.acks(run)
    assert bench.keyed.read_index == 20
    assert list(bench.keyed.line.keys) == [b"ka"]
    bench.acks(slow)  # its grant continued
    bench.settle()
    (rest,) = bench.runs()
    assert indexes_of(rest) == [10]
    bench.acks(rest)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 20
    bench.settle()
    assert [name for name in bench.rows() if name[:1] != b"b"] == [], "a key that is done with leaves no record"


def test_a_grant_whose_messages_are_set_aside_keeps_its_order() -> None:
    bench = Small("aaa" + "bcdefg", window_indexes_max=5)
    bench.keys_read_max = 3
    bench.serve()
    first, *others = bench.runs()
    assert indexes_of(first) == [0, 1, 2]
    bench.acks(first, upto=1)
    for run in others:
        bench.acks(run)
    for _ in range(8):
        bench.settle()
        for run in bench.runs():
            bench.acks(run)
    assert list(bench.keyed.line.keys[b"ka"].aside) == list(first.offsets[1:])
    bench.acks(first._replace(offsets=first.offsets[2:]))
    assert bench.void() == [first.token], "the next message is still the second one"
    bench.nack(first, 1, delay_ms=0)
    bench.settle()
    (again,) = bench.runs()
    assert (indexes_of(again), again.attempt) == ([1], 2)
    bench.acks(again)
    bench.settle()
    assert bench.granted() == [[2]]


def test_reading_stops_when_the_lists_are_full_and_grants_go_on() -> None:
    bench = Small("abababababcd", window_indexes_max=4, aside_messages_max=3)
    bench.serve()
    (run, *_) = bench.runs()
    bench.nack(run)  # for 5 minutes
    for _ in range(10):
        bench.settle()
        for each in bench.runs():
            bench.acks(each)
    assert bench.keyed.lists.message_count == 3
    assert bench.keyed.read_index < 12
    (note,) = bench.notes("lists_full")
    assert dict(note.fields)["group"] == GROUP


def test_lists_that_are_not_full_any_more_are_used_again() -> None:
    bench = Small("abababababcd", window_indexes_max=4, aside_messages_max=3)
    bench.serve()
    (run, *_) = bench.runs()
    bench.nack(run, delay_ms=20_000)
    for _ in range(60):
        bench.settle()
        for each in bench.runs():
            bench.acks(each)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 12


def test_deadlines_count_while_another_key_has_a_long_delay() -> None:
    bench = Small("ab", SHORT_GRANT)
    bench.serve()
    a, b = bench.runs()
    bench.nack(a)  # for 5 minutes
    for _ in range(6):
        bench.wait(SECOND // 2, (M01,))
    assert bench.void() == [b.token]


def test_a_key_with_many_messages_gives_way_to_others() -> None:
    bench = Small("aaaaaaaaab", live_messages_max=4)
    bench.serve()
    (first, *_) = bench.runs()
    bench.settle()
    assert [indexes_of(run) for run in bench.runs()] == [[9]], "b is read although a has more than fits"
    assert first.token
    assert bench.keyed.live_count <= 4


def test_reading_stops_when_too_many_keys_wait() -> None:
    bench = Small("abcdefghij", waiting_keys_max=3)
    bench.serve()
    for _ in range(10):
        for run in bench.runs():
            bench.nack(run)  # for 5 minutes
        bench.settle()
    assert 3 <= len(bench.keyed.line.delayed) < 10
    assert bench.keyed.read_index < 10
    assert len(bench.notes("lists_full")) == 1


def test_keys_that_wait_no_more_let_reading_go_on() -> None:
    bench = Small("abcdefghij", waiting_keys_max=3)
    bench.serve()
    for _ in range(60):
        for run in bench.runs():
            if run.attempt == 1:
                bench.nack(run, delay_ms=1_000)
            else:
                bench.acks(run)
        bench.settle()
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 10


def test_a_delayed_key_with_many_messages_counts_once() -> None:
    bench = Small("a" * 30 + "bcdef", waiting_keys_max=10)
    bench.serve()
    (run, *_) = bench.runs()
    bench.nack(run)  # for 5 minutes
    for _ in range(4):
        bench.settle()
        for each in bench.runs():
            bench.acks(each)
    assert bench.keyed.read_index == 35
    assert (bench.keyed.line.delayed_count, len(bench.keyed.line.delayed)) == (1, 1)
    assert not bench.notes("lists_full")


def test_keys_that_a_person_released_do_not_count() -> None:
    bench = Small("abcdefghijkl" + "mnopqrstuv", waiting_keys_max=10)
    bench.serve()
    for _ in range(12):
        for run in bench.runs():
            bench.nack(run)
        bench.deliver(200 * MS)
    keys = bench.keyed.line.keys
    assert bench.keyed.line.delayed_count >= 10
    seen = tuple(SeenKey(name, 0, bench.keyed.first_offset(key), 1) for name, key in sorted(keys.items()))
    bench.do(ev.OperateKeys(9, P, GROUP, KeyOperation.RELEASE, seen, bench.now_us + 5 * SECOND))
    for _ in range(6):
        bench.settle()
        for run in bench.runs():
            bench.acks(run)
    assert bench.keyed.read_index == 22


def test_reading_goes_on_beside_a_thousand_keys_that_wait() -> None:
    """Each of 1,000 keys waits for five minutes, and 1,000 messages a second come for them."""
    limits = BrokerConfig(
        live_messages_max=2_000,
        window_indexes_max=1_000_000,
        aside_messages_max=50_000,
        waiting_keys_max=2_000,
        waiting_bytes_max=64 << 20,
    )
    keyed = KeyedDispatcher(1, Window(0, {}))
    names = [b"k%d" % number for number in range(1_000)]
    for index, name in enumerate(names):
        keyed.take_in(name, index, make_offset(1, index))
        key = keyed.grants.weigh(name)
        assert key is not None
        key.is_queued = False
        keyed.note_failure(key, "no", 300 * SECOND, 300_000)
        keyed.line.requeue(key)
    index = 1_000
    while not keyed.lists.is_full_of(limits):
        keyed.take_in(names[index % 1_000], index, make_offset(1, index))
        index += 1
        if room.is_short(keyed, limits):
            keyed.read_index = index
            room.make_room(keyed, limits, 2_000, is_consumer_idle=False)
    assert keyed.lists.message_count == limits.aside_messages_max
    assert index > 50_000


def test_entries_of_delays_that_are_over_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_state, "STALE_ENTRIES_MAX", 10)
    dispatcher = KeyedDispatcher(1, Window(0, {}))
    dispatcher.take_in(b"ka", 0, make_offset(1, 0))
    for time_us in range(1, 100):
        key = dispatcher.grants.weigh(b"ka")
        assert key is not None
        key.is_queued = False
        dispatcher.note_failure(key, "no", 86_400 * SECOND + time_us, 0)
        dispatcher.line.requeue(key)
        if time_us < 99:
            dispatcher.release(key)
    assert len(dispatcher.line.delayed) <= 12
    dispatcher.line.ready.clear()
    dispatcher.line.wake_delayed(86_401 * SECOND)
    assert list(dispatcher.line.ready) == [b"ka"]


def test_long_names_fill_the_lists_by_their_bytes() -> None:
    limits = BrokerConfig(
        live_messages_max=100,
        window_indexes_max=1_000_000,
        aside_messages_max=1_000_000,
        waiting_keys_max=100_000,
        waiting_bytes_max=100 * 2 * (1_000 + RECORD_BYTES),
    )
    keyed = KeyedDispatcher(1, Window(0, {}))
    for index in range(100):
        assert keyed.lists.has_room(limits)
        name = (b"k%d" % index).ljust(1_000)
        keyed.take_in(name, index, make_offset(1, index))
        key = keyed.grants.weigh(name)
        assert key is not None
        keyed.park(key, "no")
    assert not keyed.lists.has_room(limits)
    assert keyed.lists.is_full_of(limits)
    keyed.pass_first(keyed.line.keys[b"k0".ljust(1_000)])
    assert keyed.lists.has_room(limits)


class Pair(Small):
    """Two consumers. The first one works long on what it has."""

    def __init__(self, keys: str, **limits: int) -> None:
        super().__init__(keys, QUICK, **limits)
        self.keys_read_max = 2

    def join_second(self) -> None:
        self.join(2, stream=2)
        self.do(ev.ConsumerCredit(2, 1 << 20))


def test_an_idle_consumer_gets_messages_when_all_live_ones_are_granted() -> None:
    bench = Pair("abcdefghijklmnopqrstuvwx", live_messages_max=8)
    bench.serve()
    bench.settle()
    held = bench.runs()
    assert len(held) == 8
    bench.settle()
    assert bench.keyed.live_count == 8, "nothing is set aside while no consumer is idle"
    bench.join_second()
    bench.settle()
    given = bench.runs()
    assert given
    assert {consumer.in_flight for consumer in bench.part.consumer_groups[GROUP].consumers} == {8, len(given)}
    for run in held:  # what was set aside is still granted, and counts as before
        bench.acks(run)
    for run in given:
        offsets = run.offsets
        bench.do(ev.ConsumerAcks(2, 2, 1, (run.token,) * len(offsets), offsets))
    for _ in range(4):
        bench.settle()
        for run in bench.runs():
            for stream in (STREAM, 2):
                bench.do(ev.ConsumerAcks(stream, stream, 2, (run.token,) * len(run.offsets), run.offsets))
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 24
    assert not bench.keyed.line.keys


def test_half_of_the_lists_are_left_for_keys_that_fail() -> None:
    bench = Pair("abcdefghijklmnopqrstuvwx", live_messages_max=8, waiting_keys_max=4)
    bench.serve()
    bench.settle()
    bench.join_second()
    for _ in range(3):
        bench.settle()
    assert bench.keyed.lists.key_count == 2
    assert not bench.notes("lists_full")


def test_room_is_made_for_many_keys_in_several_steps() -> None:
    limits = BrokerConfig(
        live_messages_max=1_000_000,
        window_indexes_max=1_000,
        aside_messages_max=1_000_000,
        waiting_keys_max=100_000,
        waiting_bytes_max=64 << 20,
    )
    keyed = KeyedDispatcher(1, Window(0, {}))
    consumer = Consumer.absent("c")
    for index in range(950):
        name = b"k%d" % index
        keyed.take_in(name, index, make_offset(1, index))
        key = keyed.grants.weigh(name)
        assert key is not None
        keyed.line.take_ready()
        run = Grant(index + 1, key, consumer, (make_offset(1, index),), is_aside=False, deadline_us=1)
        keyed.begin_grant(run)
    keyed.read_index = 2_000
    counts = []
    while room.make_room(keyed, limits, 400, is_consumer_idle=False):
        counts.append(keyed.lists.key_count)
    assert counts == [400, 800]
    assert keyed.lists.key_count == 950


def test_an_old_parked_key_keeps_no_entries_of_messages_that_are_done_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists_state, "STALE_ENTRIES_MAX", 10)
    dispatcher = KeyedDispatcher(1, Window(0, {}))
    for name in (b"kparked", b"kbusy"):
        dispatcher.line.keys[name] = Key(name)
        dispatcher.park(dispatcher.line.keys[name], "no")
    dispatcher.take_in(b"kparked", 0, make_offset(1, 0))
    for index in range(1, 100):
        dispatcher.take_in(b"kbusy", index, make_offset(1, index))
        dispatcher.pass_first(dispatcher.line.keys[b"kbusy"])
    assert len(dispatcher.lists.firsts) <= 2 * dispatcher.lists.key_count + 11
    assert dispatcher.lists.oldest == make_offset(1, 0)
    dispatcher.pass_first(dispatcher.line.keys[b"kparked"])
    assert dispatcher.lists.oldest == 0


def test_frames_that_are_over_keep_no_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants_state, "STALE_ENTRIES_MAX", 10)
    dispatcher = KeyedDispatcher(1, Window(0, {}))
    for token in range(1, 100):
        frame = Frame(Consumer.absent("c"), token, 86_400 * SECOND)
        frame.names, frame.indexes = [b"k"], [token]
        dispatcher.grants.singles[token], dispatcher.line.singles[b"k"] = frame, -token
        dispatcher.grants.end_at(frame.deadline_us, token)
        if token < 99:
            del dispatcher.grants.singles[token]
    assert len(dispatcher.grants.deadlines) <= 12
    assert [run.token for run in dispatcher.grants.due(86_400 * SECOND)] == [99]


def test_messages_of_parked_keys_that_are_gone_are_passed_some_at_a_time() -> None:
    bench = Small("ab", keys_at_once=10)
    bench.serve()
    keyed = bench.keyed
    for number in range(1, 31):
        key = keyed.line.keys[b"k%d" % number] = Key(b"k%d" % number)
        keyed.park(key, "no")
        keyed.take_in(key.name, number, make_offset(0, number))  # no segment of the chain has it
    bench.clear()
    bench.do(ev.ConsumerCredit(STREAM, 1))
    grants.go_on(bench.served)
    assert keyed.lists.message_count == 20
    bench.now_us += 1
    bench.do(ev.Tick())
    assert keyed.lists.message_count == 10, "other events come between two parts"
    bench.settle()
    assert keyed.lists.message_count == 0
    assert [told.messages for told in bench.delivered(fx.Dropped)] == [10, 10, 10], "one gap for each part"
    assert not [name for name in keyed.line.keys if name not in (b"ka", b"kb")]


@pytest.mark.parametrize("is_parked", [True, False])
def test_a_long_list_that_is_gone_is_passed_in_several_steps(monkeypatch: pytest.MonkeyPatch, is_parked: bool) -> None:
    monkeypatch.setattr(gap_reports, "GONE_AT_ONCE_MAX", 400)
    bench = Small("ab")
    bench.serve()
    bench.join(2, stream=2)
    keyed = bench.keyed
    key = keyed.line.keys[b"klong"] = Key(b"klong")
    keyed.park(key, "no")
    for index in range(1, 1_001):
        keyed.take_in(key.name, index, make_offset(0, index))  # no segment of the chain has it
    if not is_parked:
        keyed.release(key)
    bench.clear()
    counts = []
    while keyed.lists.message_count:
        assert len(counts) < 5
        bench.now_us += 1
        bench.do(ev.Tick())
        grants.go_on(bench.served)
        counts.append(keyed.lists.message_count)
    assert len(counts) >= 2, "other events come between two parts"
    bench.settle()
    assert b"klong" not in keyed.line.keys
    told = [effect for effect in bench.all(fx.Deliver) if isinstance(effect.event, fx.Dropped)]
    for stream in (STREAM, 2):
        mine = [effect.event for effect in told if effect.stream == stream]
        assert sum(event.messages for event in mine) == 1_000
        assert len(mine) <= 4, "each part is one event"
        assert (mine[0].from_offset, mine[-1].to_index) == (make_offset(0, 1), 1_001)
    bench.settle()
    assert [name for name in bench.rows() if b"klong" in name] == []


def test_live_messages_that_are_gone_are_forgotten_some_keys_at_a_time() -> None:
    keyed = KeyedDispatcher(1, Window(0, {}))
    for index in range(20):  # each key has two messages
        keyed.take_in(b"k%d" % (index % 10), index, make_offset(1, index))
    keyed.take_in(b"ksingle", 20, make_offset(1, 20))
    keyed.take_in(b"kstays", 21, make_offset(1, 21))
    assert [keyed.drop_below(21, 4) for _ in range(3)] == [False, False, True]
    assert (keyed.window.floor, keyed.live_count) == (21, 1)
    assert (list(keyed.line.keys), list(keyed.line.singles)) == ([], [b"kstays"])
    assert keyed.line.has_ready
    assert keyed.line.ready[0] == b"kstays"


@pytest.mark.parametrize("is_last", [True, False])
def test_a_failure_on_a_message_that_is_gone_counts_for_no_other(is_last: bool) -> None:
    bench = Small("a" if is_last else "aa", QUICK)
    bench.keys_read_max = 2
    bench.serve()
    (run,) = bench.runs()
    bench.keyed.drop_below(1, 100)
    bench.nack(run, delay_ms=0)
    bench.settle()
    if is_last:
        assert not bench.keyed.line.keys
        assert [name for name in bench.rows() if name[:1] == b"k"] == []
    else:
        (again,) = bench.runs()
        assert (indexes_of(again), again.attempt) == ([1], 1)


@pytest.mark.parametrize(("delay_ms", "wrong_ms"), [(None, YEAR_MS), (7_200_000, YEAR_MS), (7_200_000, 0)])
def test_a_key_waits_no_longer_than_its_delay_when_a_clock_was_ahead(delay_ms: int | None, wrong_ms: int) -> None:
    bench = KeyedServing("ab", policy=replace(QUICK, attempts_max=0, delays_ms=(1_000, 1_000)))
    bench.serve()
    run, *_ = bench.runs()
    bench.wall_jump_ms = wrong_ms
    bench.nack(run, delay_ms=delay_ms)
    bench.deliver()
    now = ev.Moment(bench.now_us, bench.wall_ms - wrong_ms)  # of the next server
    keyed = dispatcher_with(1, 0, bench.rows(), now)
    keyed.take_in(b"ka", 0, make_offset(1, 0))
    ((ready_us, _, _),) = keyed.line.delayed
    asked_us = 1_000 * (delay_ms or 1_000)
    assert asked_us - SECOND <= ready_us - now.mono_us <= asked_us
    key = keyed.line.keys[b"ka"]
    assert (key.attempts, key.sequence, key.ready_at_ms - now.wall_ms) == (1, 0, (ready_us - now.mono_us) // 1_000)
    again = dispatcher_with(1, 0, dict(rows_of(keyed)), now)  # also after one more change of servers
    assert again.line.keys[b"ka"].delay_ms == (delay_ms or 1_000)


def rows_of(keyed: KeyedDispatcher) -> tuple[tuple[bytes, bytes], ...]:
    """The rows of all keys that waited."""
    keyed.line.changed = dict.fromkeys(keyed.line.keys)
    return keyed_rows.take_changes(keyed).puts


def test_a_new_server_reads_the_keys_some_in_each_step() -> None:
    """All of 60,000 in one step took two seconds, in which no heartbeat was answered."""
    parked = KeyRecord(KeyPhase.PARKED, 0, 3, 0, 0, 0, 1, "no")
    rows = []
    for number in range(10):
        rows.append(LedgerRow(1, GROUP, key_name(b"p%d" % number), write_key(parked)))
        rows.append(LedgerRow(1, GROUP, aside_name(b"p%d" % number, 0), write_aside([make_offset(1, number)])))
    known = control_record(1, GROUP, 1, 10, 0, 1, make_offset(1, 0))
    bench = KeyedServing("a" * 12, cursors=(known,), rows=tuple(rows))
    bench.core.state.config = replace(bench.core.state.config, keys_at_once=8)
    bench.begin()
    keyed = bench.keyed
    for at in (8, 16):
        assert keyed.handoff.unread is not None
        assert keyed.handoff.unread.at == at
        bench.now_us += 1
        bench.do(ev.Tick())
    assert keyed.handoff.unread is None
    assert len(keyed.line.keys) == 10
