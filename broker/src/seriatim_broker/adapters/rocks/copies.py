"""Tail copies that are here: where they are on disk, and what range of which segment they cover.

They come alone or inside a preparation. Their batches are read again from the disk when somebody asks for them,
which is rare; until they are written they are kept in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.values.log import TailCopy


@dataclass(slots=True, eq=False)
class CopyRef:
    """A tail copy stored under `key` of `meta`. `tail` is set until ticket `ticket` is written."""

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
        """What is stored under `key` is now this, or nothing; `ticket` 0: it is on disk already."""
        self.drop(partition, key)
        if tail is None or not tail.batches:
            return
        ref = CopyRef(key, tail.segment_no, tail.from_index, tail.length, ticket, tail if ticket else None)
        if ticket:
            self._unwritten.append(ref)
        self._partitions.setdefault(partition, {})[key] = ref

    def drop(self, partition: int, key: bytes) -> None:
        """Forget what is stored under `key`, if anything is."""
        self.drop_range(partition, (key, key + b"\x00"))

    def drop_range(self, partition: int, keys: tuple[bytes, bytes]) -> None:
        """Forget what is stored under keys of a range: the first, and the first after it."""
        refs = self._partitions.get(partition)
        if refs is None:
            return
        for key in [key for key in refs if keys[0] <= key < keys[1]]:
            del refs[key]
        if not refs:
            del self._partitions[partition]

    def written(self, ticket: int) -> None:
        """All up to `ticket` can be read from the engine."""
        if not self._unwritten:
            return
        for ref in self._unwritten:
            if ref.ticket <= ticket:
                ref.tail = None
        self._unwritten = [ref for ref in self._unwritten if ref.tail is not None]

    def covering(self, partition: int, segment: int, index: int) -> CopyRef | None:
        """The copy that reaches furthest of those that hold `index`, or None."""
        refs = self._partitions.get(partition, {}).values()
        fitting = [ref for ref in refs if ref.segment == segment and ref.from_index <= index < ref.length]
        return max(fitting, key=lambda ref: ref.length, default=None)
