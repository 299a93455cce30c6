"""The tail copies of this disk: where each is stored, and which indexes of which segment it covers.

A tail copy is stored alone or inside a preparation. Its batches are in memory until they are written. Later, a read
takes them from the disk, which is rare.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.values.log import TailCopy


@dataclass(slots=True, eq=False)
class CopyRef:
    """A tail copy that is stored under `key` of `meta`. `tail` is set until ticket `ticket` is written."""

    key: bytes
    segment: int
    from_index: int
    length: int
    ticket: int
    tail: TailCopy | None


class CopyTable:
    """All tail copies of this disk."""

    def __init__(self) -> None:
        self._partitions: dict[int, dict[bytes, CopyRef]] = {}
        self._unwritten: list[CopyRef] = []

    def put(self, partition: int, key: bytes, tail: TailCopy | None, ticket: int) -> None:
        """Note that `tail` is now stored under `key`; None: no tail copy. `ticket` 0: it is on the disk already."""
        self.drop(partition, key)
        if tail is None or not tail.batches:
            return
        ref = CopyRef(key, tail.segment_no, tail.from_index, tail.length, ticket, tail if ticket else None)
        if ticket:
            self._unwritten.append(ref)
        self._partitions.setdefault(partition, {})[key] = ref

    def drop(self, partition: int, key: bytes) -> None:
        """Forget the tail copy under `key`, if there is one."""
        self.drop_range(partition, (key, key + b"\x00"))

    def drop_range(self, partition: int, keys: tuple[bytes, bytes]) -> None:
        """Forget the tail copies under a range of keys: from the first key to below the second."""
        refs = self._partitions.get(partition)
        if refs is None:
            return
        for key in [key for key in refs if keys[0] <= key < keys[1]]:
            del refs[key]
        if not refs:
            del self._partitions[partition]

    def written(self, ticket: int) -> None:
        """Note that the engine has all writes up to `ticket`. Their tail copies leave the memory."""
        if not self._unwritten:
            return
        for ref in self._unwritten:
            if ref.ticket <= ticket:
                ref.tail = None
        self._unwritten = [ref for ref in self._unwritten if ref.tail is not None]

    def covering(self, partition: int, segment: int, index: int) -> CopyRef | None:
        """Of the tail copies that have `index`, the one that reaches furthest; None if none has it."""
        refs = self._partitions.get(partition, {}).values()
        fitting = [ref for ref in refs if ref.segment == segment and ref.from_index <= index < ref.length]
        return max(fitting, key=lambda ref: ref.length, default=None)
