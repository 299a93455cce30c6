"""Delayed messages: what the place in the log makes of a header, and the producers under which brokers store again."""

from __future__ import annotations

import zlib

import pytest
from seriatim_api.batch import FLAG_DELAYED, FLAG_KEYED, BatchHeader, chain_is_intact, make_header, parse_header, place
from seriatim_api.dead_letters import is_brokers_own
from seriatim_api.delayed import fire_producer


def checksum(seed: int, data: bytes) -> int:
    return zlib.crc32(data, seed)


def placed(due_time_ms: int | None) -> BatchHeader:
    sent = make_header(
        partition=1, message_count=2, producer=b"p" * 16, producer_epoch=0, base_sequence=0, first_timestamp_ms=0,
        last_timestamp_ms=0, body_length=0, body_crc=0, flags=FLAG_DELAYED | FLAG_KEYED, due_time_ms=-500,
    )  # fmt: skip
    return place(
        parse_header(sent), segment=3, base_index=7, append_time_ms=1_000, previous_checksum=5, checksum=checksum,
        due_time_ms=due_time_ms,
    )  # fmt: skip


@pytest.mark.parametrize(("given", "due", "flags"), [(1_500, 1_500, FLAG_DELAYED | FLAG_KEYED), (0, 0, FLAG_KEYED)])
def test_the_place_decides_when_a_batch_is_due_and_whether_it_is_delayed(given: int, due: int, flags: int) -> None:
    header = placed(given)
    assert (header.due_time_ms, header.flags, header.origin) == (due, flags, (0, 0))
    assert header == parse_header(header.raw)
    assert chain_is_intact(header, checksum)


def test_a_place_without_due_time_leaves_that_of_the_header() -> None:
    assert (placed(None).due_time_ms, placed(None).flags) == (-500, FLAG_DELAYED | FLAG_KEYED)


def test_producers_of_fired_messages_differ_and_belong_to_brokers() -> None:
    ids = [fire_producer(*at) for at in ((1, 1), (1, 2), (2, 1), (11, 1), (1, 11))]
    assert len({*ids}) == len(ids)
    assert all(len(id_) == 16 and is_brokers_own(id_) for id_ in ids)
