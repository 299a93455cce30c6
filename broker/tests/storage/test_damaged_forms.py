"""Producer windows, idle blocks and tables that are cut or no such thing are damage."""

from __future__ import annotations

import pytest
from seriatim_api.errors import CorruptionError
from seriatim_api.v1 import storage_pb2
from seriatim_broker.adapters.rocks import codec
from seriatim_broker.core.values.producers import Entry, IdleBlock, pack_window

from .build import ATTEMPT, preparation

ENTRIES = (Entry(1, 0, 2, 10), Entry(1, 2, 1, 12))
WINDOW = pack_window(ENTRIES[:1], 7)


@pytest.mark.parametrize("size", [0, 7, 8, 23, 24, 25, 33 * 24, 33 * 24 + 8])
def test_what_is_no_window_is_damage(size: int) -> None:
    with pytest.raises(CorruptionError):
        codec.read_window(bytes(size))


def test_an_idle_block_that_is_not_the_one_of_its_id_is_damage() -> None:
    block = IdleBlock.of([(b"q" * 16, codec.read_window(WINDOW))])
    assert codec.read_block(block.id, block.data) == block.data
    for value in (block.data[:-1], block.data[:-1] + b"x", b""):
        with pytest.raises(CorruptionError):
            codec.read_block(block.id, value)


def test_a_preparation_whose_table_is_cut_is_damage() -> None:
    stored = storage_pb2.StoredPreparation.FromString(codec.write_preparation(preparation(2)))
    stored.packed_table = stored.packed_table[:-1]
    with pytest.raises(CorruptionError):
        codec.read_preparation(2, ATTEMPT, stored.SerializeToString())
