"""The window of a consumer group whose messages are not acknowledged in order: which indexes are passed.

An index is passed when nothing more is to be done with its message here: it is acknowledged, skipped, or set aside in
the list of its key. The *floor* is the first index that is not passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..values.ledger_rows import BLOCK_INDEXES, block_name, write_block
from ..values.states import State

_ALL: Final = (1 << BLOCK_INDEXES) - 1


class Window(State):
    """The passed indexes above a floor, as bits in blocks, and which blocks changed since the last control record."""

    __slots__ = ("blocks", "changed", "floor", "gone")

    def __init__(self, floor: int, blocks: Mapping[int, int]) -> None:
        self.floor = floor
        self.blocks = dict(blocks)
        self.changed: set[int] = set()
        self.gone: set[int] = set()  # blocks below the floor, whose rows must be deleted
        self._forget_below(floor // BLOCK_INDEXES)
        self._rise()

    def is_passed(self, index: int) -> bool:
        """Whether an index is passed."""
        block, bit = divmod(index, BLOCK_INDEXES)
        return index < self.floor or bool(self.blocks.get(block, 0) >> bit & 1)

    def pass_over(self, index: int) -> None:
        """An index is passed. Call `rise` when all of a step are."""
        if index >= self.floor:
            block, bit = divmod(index, BLOCK_INDEXES)
            self.blocks[block] = self.blocks.get(block, 0) | 1 << bit
            self.changed.add(block)

    def pass_below(self, index: int) -> None:
        """All below an index is passed, for example because retention dropped it."""
        if index > self.floor:
            begun, self.floor = self.floor, index
            if index // BLOCK_INDEXES > begun // BLOCK_INDEXES:
                self._forget_below(index // BLOCK_INDEXES)
            self._rise()

    def rise(self) -> None:
        """Move the floor up to the first index that is not passed."""
        self._rise()

    def _rise(self) -> None:
        begun = self.floor // BLOCK_INDEXES
        while True:
            block, bit = divmod(self.floor, BLOCK_INDEXES)
            bits = self.blocks.get(block, 0) | (1 << bit) - 1
            if bits != _ALL:
                break
            self.floor = (block + 1) * BLOCK_INDEXES
        self.floor = block * BLOCK_INDEXES + (~bits & bits + 1).bit_length() - 1
        if block > begun:
            self._forget_below(block)

    def _forget_below(self, block: int) -> None:
        for no in [no for no in self.blocks if no < block]:
            del self.blocks[no]
            self.gone.add(no)
            self.changed.discard(no)

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Rows to write and names of rows to delete, for all changes since the last call."""
        puts = [(block_name(no), write_block(self.blocks[no])) for no in sorted(self.changed)]
        deletes = [block_name(no) for no in sorted(self.gone)]
        self.changed, self.gone = set(), set()
        return puts, deletes
