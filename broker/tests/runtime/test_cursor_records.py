"""Cursor records as values of the coordinator."""

from __future__ import annotations

from dataclasses import fields, replace

from seriatim_broker.core.values.events import ConsumerGroupOperation, CursorRecord
from seriatim_broker.core.values.keyed import RETRY_DEFAULT, ConsumerMode
from seriatim_broker.core.values.log import HandOverId
from seriatim_broker.runtime.coordinator.records import cursor_from_value, cursor_to_value

PLAIN = CursorRecord(1, 1, 0, "t")


def test_value_of_a_cursor_keeps_every_field() -> None:
    record = CursorRecord(
        segment_no=3, group_epoch=4, start_index=5, topic="orders", deleted=True, deleted_at_ms=6, paused=True,
        begun_by=ConsumerGroupOperation.REWIND, requests=(bytes(16),), dropped_from=7, dropped_position=8,
        external=True, reported_at_ms=9, mode=ConsumerMode.SHARED, retry=replace(RETRY_DEFAULT, attempts_max=3),
        term_base=10, oldest=11, handoff=HandOverId(12, 13), at_most_once=True, repeated_to=14, is_spread=False,
        repeated_index=15,
    )  # fmt: skip
    same = [field.name for field in fields(record) if getattr(record, field.name) == getattr(PLAIN, field.name)]
    assert not same, "each field has another value than in a plain record"
    assert cursor_from_value(cursor_to_value(record)) == record
    assert cursor_from_value(cursor_to_value(PLAIN, cursor_to_value(record))) == PLAIN, "nothing of the old value stays"
