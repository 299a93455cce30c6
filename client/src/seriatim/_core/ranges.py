"""How far a reader of a range is, and whether the next batch follows. Pure.

The batches may come from several brokers in turn. The reader checks that none is missing: the indexes follow one
another, the checksum chain continues, and a segment ends only where its record says.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from seriatim_api.batch import BatchHeader, Checksum, chain_is_intact
from seriatim_api.errors import OrderViolationError
from seriatim_api.ids import format_offset, make_offset, split_offset

_BEGINNING: Final = 0
"""The value of a checksum chain before the first batch of a segment."""


class Loss(NamedTuple):
    """The offsets [start, end), whose messages are gone. An administrator `declared` them lost, or retention dropped
    them."""

    start: int
    end: int
    declared: bool


class RangeCursor:
    """How far the range [start, end) of a partition is read. Offsets are integers, as in `seriatim_api.ids`.

    Args:
        partition_id: The partition's id in the cluster.
        start: The first offset.
        end: The first offset after the range.
        checksum: The function for CRC-32C.
    """

    def __init__(self, partition_id: int, start: int, end: int, checksum: Checksum) -> None:
        assert start <= end, (start, end)
        self._partition_id = partition_id
        self._crc = checksum
        self.offset = start
        self.end = end
        self._value: int | None = None  # the checksum chain's value at `offset`; None: not known yet
        self._note_beginning()

    @property
    def is_done(self) -> bool:
        """Whether all of the range was read."""
        return self.offset >= self.end

    def _note_beginning(self) -> None:
        if split_offset(self.offset)[1] == 0:
            self._value = _BEGINNING

    def take(self, header: BatchHeader) -> tuple[int, int]:
        """Take the next batch. Returns which of its messages belong to the range: [first, last).

        Raises:
            OrderViolationError: The batch does not follow the one before it, or its header is damaged. It is not taken.
        """
        segment, index = self._arrive(header.segment)
        if header.partition != self._partition_id or not chain_is_intact(header, self._crc):
            raise self._violation("a batch whose header does not match its checksum")
        is_inside = header.base_index <= index < header.end_index
        is_next = header.base_index == index if self._value is not None else is_inside
        if not is_next:
            raise self._violation(f"the batch at {segment}:{header.base_index}")
        if self._value is not None and header.previous_checksum != self._value:
            raise self._violation("a batch that continues another chain of checksums")
        end_segment, end_index = split_offset(self.end)
        last = min(header.end_index, end_index) if segment == end_segment else header.end_index
        self.offset, self._value = make_offset(segment, header.end_index), header.checksum
        return index - header.base_index, last - header.base_index

    def skip(self, segment: int, from_index: int, to_index: int, value: int) -> int:
        """Skip a repeat. `value` is the value of the checksum chain after it.

        Returns how many messages of the range it has.

        Raises:
            OrderViolationError: The skip does not follow the messages that were read.
        """
        segment, index = self._arrive(segment)
        is_inside = from_index <= index < to_index
        if not (from_index == index if self._value is not None else is_inside) or to_index <= index:
            raise self._violation(f"a skip from {segment}:{from_index} to {segment}:{to_index}")
        self.offset, self._value = make_offset(segment, to_index), value
        end_segment, end_index = split_offset(self.end)
        return (min(to_index, end_index) if segment == end_segment else to_index) - index

    def end_segment(self, segment: int, sealed_len: int, value: int) -> None:
        """End a segment at the length that its record says.

        Raises:
            OrderViolationError: Not all of the segment was read, or its messages are not those that were sealed.
        """
        segment, index = self._arrive(segment)
        if index != sealed_len:
            raise self._violation(f"the end of segment {segment}, which has {sealed_len} messages")
        if self._value is not None and self._value != value:
            raise self._violation(f"the end of segment {segment}, whose messages are not those that were sealed")
        self._go_to(make_offset(segment + 1, 0))

    def lose(self, segment: int, from_index: int) -> Loss:
        """Pass over the rest of a segment, which was declared lost from `from_index` on.

        Raises:
            OrderViolationError: The gap does not follow the messages that were read.
        """
        segment, index = self._arrive(segment)
        if from_index != index:
            raise self._violation(f"a gap from {segment}:{from_index} on")
        return self._lose_to(make_offset(segment + 1, 0), declared=True)

    def drop(self, start: int, end: int, value: int) -> Loss:
        """Pass over messages that retention dropped. `value` is the value of the checksum chain before `end`.

        Raises:
            OrderViolationError: The dropped range does not follow the messages that were read.
        """
        if not start <= self.offset < end:
            raise self._violation(f"that {format_offset(start)} to {format_offset(end)} were dropped")
        loss = self._lose_to(end, declared=False)
        self._value = value
        return loss

    def _lose_to(self, end: int, *, declared: bool) -> Loss:
        loss = Loss(self.offset, min(end, self.end), declared)
        self._go_to(end)
        return loss

    def _go_to(self, offset: int) -> None:
        self.offset, self._value = offset, None
        self._note_beginning()

    def _arrive(self, segment: int) -> tuple[int, int]:
        """The reader's place in that segment. If segment numbers are left out, those segments have no messages."""
        at, index = split_offset(self.offset)
        if segment > at and index == 0:
            self.offset = make_offset(segment, 0)
            return segment, 0
        if segment != at:
            raise self._violation(f"something of segment {segment}")
        return at, index

    def _violation(self, what: str) -> OrderViolationError:
        return OrderViolationError(f"after {format_offset(self.offset)} came {what}")
