"""The ledger alone: where it begins, what it acknowledges, and which drops it notes."""

from __future__ import annotations

from seriatim_api.ids import INDEX_MAX, make_offset
from seriatim_broker.core.state.ledger import Ledger
from seriatim_broker.core.values.events import CursorRecord

from .support import control_record

RECORD = CursorRecord(2, 1, 10, "orders")


def begun(acked: int | None = None, reserved: int = 100, record: CursorRecord = RECORD) -> Ledger:
    ledger = Ledger()
    ledger.begin(None if acked is None else control_record(2, "readers", 1, acked, reserved), record)
    return ledger


def test_without_a_control_record_it_begins_at_the_cursor() -> None:
    ledger = begun()
    assert (ledger.acked, ledger.safe_acked, ledger.reserved, ledger.repeated_below) == (10, 10, 10, 0)


def test_what_only_this_disk_has_is_not_safe_and_may_be_a_repeat() -> None:
    ledger = begun(acked=40)
    assert (ledger.acked, ledger.safe_acked) == (40, 10)
    assert (ledger.reserved, ledger.safe_reserved, ledger.repeated_below) == (100, 10, 100)


def test_a_distrusted_control_record_flags_everything() -> None:
    ledger = begun(acked=40)
    ledger.distrust(tail=500)
    assert (ledger.repeated_below, ledger.reserved, ledger.acked) == (INDEX_MAX, 500, 40)


def test_an_acknowledgement_is_new_only_once() -> None:
    ledger = begun()
    assert ledger.acknowledge(20)
    assert not ledger.acknowledge(20)
    assert not ledger.acknowledge(15)
    assert ledger.acked == 20


def test_a_drop_is_told_until_a_later_message_is_acknowledged() -> None:
    record = CursorRecord(2, 1, 10, "orders", dropped_from=make_offset(1, 0), dropped_position=7)
    assert begun(acked=11, record=record).dropped_from == 0
    ledger = begun(record=record)
    assert (ledger.dropped_from, ledger.dropped_position) == (make_offset(1, 0), 7)
    ledger.acknowledge(11)
    assert ledger.dropped_from == 0


def test_a_drop_stays_noted_until_a_message_counts_that_was_given_later() -> None:
    ledger = begun()
    ledger.note_dropped(make_offset(2, 10), 10, token=7)
    assert ledger.acknowledge(30)  # the floor rises over what was dropped
    assert not ledger.told_dropped(7)
    assert ledger.dropped_from == make_offset(2, 10)
    assert ledger.told_dropped(8)
    assert ledger.dropped_from == 0


def test_the_earliest_drop_counts_and_the_newest_token() -> None:
    ledger = begun()
    ledger.note_dropped(make_offset(2, 10), 10, token=7)
    ledger.note_dropped(make_offset(1, 5), 3, token=9)
    assert (ledger.dropped_from, ledger.dropped_position) == (make_offset(1, 5), 3)
    assert not ledger.told_dropped(8)
