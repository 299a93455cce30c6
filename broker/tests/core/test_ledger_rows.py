"""Rows of ledgers as bytes, and windows of passed indexes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seriatim_broker.core.state.keyed.rows import dispatcher_of, read_some, take_changes
from seriatim_broker.core.state.window import Window
from seriatim_broker.core.values.events import Moment
from seriatim_broker.core.values.keyed import KeyPhase
from seriatim_broker.core.values.ledger_rows import (
    CarriedGrant,
    KeyRecord,
    LedgerRowError,
    aside_name,
    count_keys,
    handed_rows,
    key_name,
    read_rows,
    without_grants,
    write_aside,
    write_grant,
    write_key,
)

from .keyed_support import dispatcher_with

NOW = Moment(1_000_000, 1_700_000_000_000)


@given(st.lists(st.integers(0, 5_000), unique=True), st.integers(0, 2_000))
def test_a_window_rises_to_the_first_index_that_is_not_passed(passed: list[int], floor: int) -> None:
    window = Window(floor, {})
    for index in passed:
        window.pass_over((index,))
    known = set(passed)
    expected = next(index for index in range(floor, 10_000) if index not in known)
    assert window.floor == expected
    assert list(window.not_passed(0, 6_000)) == [index for index in range(expected, 6_000) if index not in known]


def test_a_window_is_the_same_after_it_was_written_and_read() -> None:
    rng, rows = random.Random(3), {}
    window = Window(10, {})
    for _ in range(40):
        for _ in range(100):
            window.pass_over((rng.randrange(6_000),))
        window.pass_below(window.floor + rng.randrange(60))
        puts, deletes = window.take_changes()
        rows.update(puts)
        for name in deletes:
            rows.pop(name, None)
        again = Window(window.floor, read_rows(tuple(rows.items())).blocks)
        assert list(again.not_passed(0, 6_100)) == list(window.not_passed(0, 6_100))


@given(st.lists(st.integers(1, 2**50), min_size=1, max_size=50), st.integers(0, 2**60))
def test_lists_are_read_as_they_were_written(steps: list[int], first: int) -> None:
    offsets = [first]
    for step in steps:
        offsets.append(offsets[-1] + step)
    assert read_rows([(aside_name(b"kx", 3), write_aside(offsets))]).asides == {b"kx": {3: offsets}}


def test_records_and_grants_are_read_as_they_were_written() -> None:
    record = KeyRecord(KeyPhase.PARKED, 2, 5, 1_700_000_000_000, 7, 1_024, 3, "why: ü")
    grant = CarriedGrant(1 << 60, b"k\0x", "consumer-ü", 3, 29_000, True)
    rows = dict([(key_name(b"k\0x"), write_key(record)), write_grant(grant)])
    assert read_rows(rows.items()).keys == {b"k\0x": record}
    assert read_rows(rows.items()).grants == (grant,)


@pytest.mark.parametrize("row", [(b"", b""), (b"q", b""), (b"b1", b""), (b"kx", b"short"), (b"a", b""), (b"g1", b"")])
def test_a_row_that_cannot_be_read_is_an_error(row: tuple[bytes, bytes]) -> None:
    with pytest.raises(LedgerRowError):
        dispatcher_with(1, 0, dict([row]), NOW)


@pytest.mark.parametrize("row", [(b"", b""), (b"b1", b""), (b"kx", b"short")])
def test_rows_that_are_only_counted_or_sorted_may_be_damaged(row: tuple[bytes, bytes]) -> None:
    assert list(without_grants([row])) == [row]
    assert handed_rows([row]) == ([] if row[0][:1] in (b"b", b"f") else [row])
    if row[0]:
        with pytest.raises(LedgerRowError):
            count_keys([row], 0)


def test_long_lists_are_in_chunks_and_keep_their_order() -> None:
    keyed = dispatcher_with(1, 0, {}, NOW)
    for index in range(3_000):
        keyed.take_in(b"kx", index, (1 << 40) | index)
    key = keyed.line.keys[b"kx"]
    keyed.park(key, "poison")
    assert keyed.window.floor == 3_000
    change = take_changes(keyed)
    rows = dict(change.puts)
    again = dispatcher_with(1, 3_000, rows, NOW)
    assert list(again.line.keys[b"kx"].aside) == list(key.aside)
    assert again.lists.oldest == 1 << 40
    assert again.line.next_ready() is None, "it waits for an administrator"
    again.release(again.line.keys[b"kx"])
    assert again.line.next_ready() is again.line.keys[b"kx"]
    for _ in range(1_500):
        again.pass_first(again.line.keys[b"kx"])
    change = take_changes(again)
    rows.update(change.puts)
    for name in change.deletes:
        rows.pop(name, None)
    last = dispatcher_with(1, 3_000, rows, NOW)
    assert list(last.line.keys[b"kx"].aside) == list(key.aside)[1_500:]
    del rows[aside_name(b"kx", 2)]
    with pytest.raises(LedgerRowError):
        dispatcher_with(1, 3_000, rows, NOW)


def test_keys_are_read_some_at_a_time() -> None:
    rows: dict[bytes, bytes] = {}
    for number in range(5):
        name = b"k%d" % number
        rows[key_name(name)] = write_key(KeyRecord(KeyPhase.PARKED, 0, 1, 0, 0, 0, 1, ""))
        rows[aside_name(name, 0)] = write_aside([1 << 40 | number])
    keyed = dispatcher_of(1, 100, rows.items())
    steps = 0
    while not read_some(keyed, 3, NOW):
        steps += 1
        assert keyed.handoff.frozen == [], "nothing is granted before all are read"
    assert steps == 3
    assert [list(key.aside) for key in keyed.line.keys.values()] == [[1 << 40 | number] for number in range(5)]
    assert (keyed.lists.message_count, keyed.lists.key_count, keyed.lists.oldest) == (5, 5, 1 << 40)
