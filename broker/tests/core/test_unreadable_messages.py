"""Messages whose bodies no reader can take apart: their keys wait for an administrator, and all others continue."""

from __future__ import annotations

from seriatim_api.ids import make_offset
from seriatim_broker.core.state.keyed.key import Key
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.keyed import KeyPhase

from .keyed_support import KeyedServing


class PartlyUnreadable(KeyedServing):
    """The bodies of some messages of segment 1 cannot be read."""

    bad: tuple[int, ...] = ()

    def reads(self) -> None:
        """The disk answers which of the wanted messages cannot be read, if there are such."""
        for rows in self.all(fx.ReadRows):
            bad = tuple(offset for offset in rows.offsets if offset in {make_offset(1, index) for index in self.bad})
            if bad and rows.serial not in self.answered:
                self.answered.add(rows.serial)
                self.do(ev.RowsRead(rows.serial, None, unreadable=bad))
        super().reads()


def served(keys: str, *bad: int) -> PartlyUnreadable:
    bench = PartlyUnreadable(keys)
    bench.bad = bad
    bench.begin()
    keyed = bench.keyed
    keyed.handoff.rests_until_us = 1 << 60
    for _ in range(4):
        bench.deliver()
    return bench


def test_all_other_keys_go_on() -> None:
    bench = served("abc", 1)
    assert sorted(index for run in bench.granted() for index in run) == [0, 2]


def test_the_key_is_parked_and_a_note_names_the_message() -> None:
    bench = served("abc", 1)
    (key,) = [key for key in bench_keys(bench) if key.phase is KeyPhase.PARKED]
    assert (key.name, list(key.aside)) == (b"kb", [make_offset(1, 1)])
    assert "cannot be read" in key.error
    (note,) = [note for note in bench.all(fx.Note) if note.name == "unreadable_message"]
    assert dict(note.fields)["offset"] == "1:1"


def test_earlier_messages_of_the_key_are_given_first_and_later_ones_wait() -> None:
    bench = served("aaa", 1)
    (run,) = bench.runs()
    assert [offset & 0xFF for offset in run.offsets] == [0]
    bench.acks(run)
    bench.deliver()
    assert bench.granted() == []
    (key,) = bench_keys(bench)
    assert (key.phase, list(key.aside)) == (KeyPhase.PARKED, [make_offset(1, 1), make_offset(1, 2)])


def test_a_person_skips_the_message_and_the_key_goes_on() -> None:
    bench = served("aa", 0)
    keyed = bench.keyed
    (key,) = bench_keys(bench)
    assert keyed.pass_first(key) == make_offset(1, 0)
    keyed.release(key)
    bench.deliver()
    assert bench.granted() == [[1]]


def bench_keys(bench: PartlyUnreadable) -> list[Key]:
    """The keys that the server knows."""
    keyed = bench.keyed
    return list(keyed.line.keys.values())
