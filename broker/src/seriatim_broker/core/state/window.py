"""The window of a consumer group whose messages are not acknowledged in order: which indexes are passed.

An index is passed when nothing more is to be done with its message here: it is acknowledged, skipped, or set aside in
the list of its key. The *floor* is the first index that is not passed.

In memory an index is a byte, because a bit in a number of 1,024 bits costs a copy of the number. On the disk it is a
bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..values.ledger_rows import BLOCK_INDEXES, block_name, write_block
from ..values.states import State

_DIGITS: Final = bytes(b"1"[0] if number else b"0"[0] for number in range(256))
_FLAGS: Final = bytes(number == b"1"[0] for number in range(256))
_SHIFT: Final = BLOCK_INDEXES.bit_length() - 1
_MASK: Final = BLOCK_INDEXES - 1
assert 1 << _SHIFT == BLOCK_INDEXES


class Window(State):
    """The passed indexes above a floor, in blocks, and which blocks changed since the last control record."""

    __slots__ = ("blocks", "changed", "floor", "gone")

    def __init__(self, floor: int, blocks: Mapping[int, int]) -> None:
        self.floor = floor
        self.blocks = {no: _flags_of(bits) for no, bits in blocks.items()}
        self.changed: set[int] = set()
        self.gone: set[int] = set()  # blocks below the floor, whose rows must be deleted
        self._forget_below(floor >> _SHIFT)
        self.pass_over(())

    def not_passed(self, begin: int, end: int) -> Sequence[int]:
        """The indexes of a range that are not passed."""
        begin, blocks = max(begin, self.floor), self.blocks
        if not any(no in blocks for no in range(begin >> _SHIFT, (end - 1 >> _SHIFT) + 1)):
            return range(begin, end)
        return [
            index
            for index in range(begin, end)
            if (block := blocks.get(index >> _SHIFT)) is None or not block[index & _MASK]
        ]

    def passed_from(self, index: int) -> int:
        """How many indexes from this one on are passed. It is the floor, or below it."""
        first = self.floor >> _SHIFT
        above = sum(
            block.count(1, self.floor & _MASK if no == first else 0) for no, block in self.blocks.items() if no >= first
        )
        return max(self.floor - index, 0) + above

    def pass_over(self, indexes: Iterable[int]) -> None:
        """These indexes are passed. The floor moves up to the first one that is not."""
        floor = self.floor
        known, block = -1, bytearray()
        for index in indexes:
            if index < floor:
                continue
            no = index >> _SHIFT
            if no != known:
                known = no
                found = self.blocks.get(no)
                block = self.blocks[no] = bytearray(BLOCK_INDEXES) if found is None else found
                self.changed.add(no)
            block[index & _MASK] = 1
        begun = no = floor >> _SHIFT
        while (lowest := self.blocks.get(no)) is not None:
            first = lowest.find(0, self.floor & _MASK)
            if first >= 0:
                self.floor = (no << _SHIFT) + first
                break
            no += 1
            self.floor = no << _SHIFT
        if no > begun:
            self._forget_below(no)

    def pass_below(self, index: int) -> None:
        """All below an index is passed, for example because retention dropped it."""
        if index > self.floor:
            self.floor = index
            self._forget_below(index >> _SHIFT)
            self.pass_over(())

    def _forget_below(self, block: int) -> None:
        for no in [no for no in self.blocks if no < block]:
            del self.blocks[no]
            self.gone.add(no)
            self.changed.discard(no)

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Rows to write and names of rows to delete, for all changes since the last call."""
        puts = [write_block(no, int(self.blocks[no][::-1].translate(_DIGITS), 2)) for no in sorted(self.changed)]
        deletes = [block_name(no) for no in sorted(self.gone)]
        self.changed, self.gone = set(), set()
        return puts, deletes


def _flags_of(bits: int) -> bytearray:
    return bytearray(f"{bits:b}"[::-1].encode().translate(_FLAGS).ljust(BLOCK_INDEXES, b"\0"))
