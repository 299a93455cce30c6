"""Producer windows, idle blocks and tables that are cut or no such thing are damage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.adapters.rocks import codec
from seriatim_broker.core.values.chain import Opening, Seal, create, seal_and_open
from seriatim_broker.core.values.producers import Entry, IdleBlock, pack_window

from .build import ATTEMPT, preparation

M = MemberId("g-0", "5e" * 16)
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
    whole = preparation(2)
    assert codec.read_preparation(2, ATTEMPT, codec.write(whole)) == whole
    cut = replace(whole, table=replace(whole.table, rows=whole.table.rows[:-1]))
    with pytest.raises(CorruptionError, match="table"):
        codec.read_preparation(2, ATTEMPT, codec.write(cut))


def test_a_value_under_the_key_of_another_one_is_damage() -> None:
    with pytest.raises(CorruptionError, match="its key"):
        codec.read_preparation(3, ATTEMPT, codec.write(preparation(2)))
    with pytest.raises(CorruptionError, match="its key"):
        codec.read_preparation(2, b"b" * 16, codec.write(preparation(2)))


@pytest.mark.parametrize("segments", [{}, {1: 1}, {1: 2, 2: 1}, {2: 2}])
def test_a_chain_whose_segments_are_missing_or_mixed_is_damage(segments: dict[int, int]) -> None:
    opening = Opening(ATTEMPT, "g", (M,), 1, incomplete_table=False)
    chain = create(PartitionId(7), "t", 0, True, ("g",), opening, 5)
    chain = seal_and_open(chain, Seal(3, 4, M, (M,), None, (), 5), replace(opening, switch_attempt=b"b" * 16), 6)
    head, values = codec.write_bare_chain(chain), {each.no: codec.write(each) for each in chain.segments}
    assert codec.read_chain(head, values) == chain
    with pytest.raises(CorruptionError):
        codec.read_chain(head, {no: values[of] for no, of in segments.items()})
