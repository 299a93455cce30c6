"""What versions before wrote is read: producer windows without append times, preparations with a window a field."""

from __future__ import annotations

import struct

import pytest
from seriatim_api.errors import CorruptionError
from seriatim_api.v1 import storage_pb2
from seriatim_broker.adapters.rocks import codec
from seriatim_broker.core.values.producers import Entry, IdleBlock, append_time_of, entries_of

from .build import ATTEMPT, MEMBERS, preparation

ENTRIES = (Entry(1, 0, 2, 10), Entry(1, 2, 1, 12))
OLD_WINDOW = b"".join(struct.pack("<IQIQ", *entry) for entry in ENTRIES)


def test_a_window_of_0_2_0_has_no_append_time() -> None:
    window = codec.read_window(OLD_WINDOW)
    assert entries_of(window) == ENTRIES
    assert append_time_of(window) == 0
    assert codec.read_window(codec.write_window(window)) == window


@pytest.mark.parametrize("size", [0, 7, 8, 23, 25, 33 * 24, 33 * 24 + 8])
def test_what_is_no_window_of_any_version_is_damage(size: int) -> None:
    with pytest.raises(CorruptionError):
        codec.read_window(bytes(size))


def test_a_preparation_of_0_2_0_keeps_its_table() -> None:
    stored = storage_pb2.StoredPreparation(
        members=[{"broker": member.broker, "incarnation": member.incarnation} for member in MEMBERS],
        flush=True,
        table=[
            storage_pb2.StoredWindow(producer=b"q" * 16, entries=OLD_WINDOW),
            storage_pb2.StoredWindow(producer=b"r" * 16, entries=OLD_WINDOW[:24]),
        ],
        run=4,
    )
    found = codec.read_preparation(2, ATTEMPT, stored.SerializeToString())
    assert [(producer, entries_of(window)) for producer, window in found.table] == [
        (b"q" * 16, ENTRIES),
        (b"r" * 16, ENTRIES[:1]),
    ]


def test_an_idle_block_that_is_not_the_one_of_its_id_is_damage() -> None:
    block = IdleBlock.of([(b"q" * 16, codec.read_window(OLD_WINDOW))])
    assert codec.read_block(block.id, block.data) == block.data
    for value in (block.data[:-1], block.data[:-1] + b"x", b""):
        with pytest.raises(CorruptionError):
            codec.read_block(block.id, value)


def test_a_preparation_whose_table_is_cut_is_damage() -> None:
    stored = storage_pb2.StoredPreparation.FromString(codec.write_preparation(preparation(2)))
    stored.packed_table = stored.packed_table[:-1]
    with pytest.raises(CorruptionError):
        codec.read_preparation(2, ATTEMPT, stored.SerializeToString())
