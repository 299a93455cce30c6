"""Checks that the rows of a task are all rows of its range, each once and in order. Pure.

The client makes the same check on the messages of brokers, by indexes and checksums. This module checks the rows that
Spark gets: if there is a mistake between the two, the task must fail, so that no table has wrong rows.
"""

from __future__ import annotations

from seriatim_api.ids import format_offset, split_offset

from seriatim_spark.errors import ReadOrderError


class Contiguity:
    """Follows the rows of [start, end) in a partition.

    Args:
        where: The partition, as a text for errors.
        start: The first offset of the range.
        end: The first offset after the range.
    """

    def __init__(self, where: str, start: int, end: int) -> None:
        self._where = where
        self._next = start
        self._end = end
        self._passed = 0

    def take(self, offset: int, rows: int, passed: int) -> None:
        """Check the next rows.

        Args:
            offset: The offset of the first row.
            rows: The number of rows.
            passed: The number of messages that the reader has left out so far, because they repeat earlier ones or are
                gone.

        Raises:
            ReadOrderError: The rows do not follow the rows before.
        """
        (segment, index), (next_segment, next_index) = split_offset(offset), split_offset(self._next)
        newly = passed - self._passed
        # The first row of a later segment is near its beginning. Messages that were passed over may be in the segment
        # before.
        of_later = segment > next_segment and index <= newly
        follows = index == next_index + newly if segment == next_segment else of_later
        if not follows or offset + rows > self._end:
            raise ReadOrderError(
                f"{self._where}: {rows} rows from {format_offset(offset)} on came after {format_offset(self._next)} "
                f"({newly} passed over), in a range to {format_offset(self._end)}. Nothing of this task was used."
            )
        self._next, self._passed = offset + rows, passed

    def lose(self, start: int, end: int) -> None:
        """Accept that messages are gone.

        Args:
            start: The first offset that is gone.
            end: The first offset after them, or the end of the range.

        Raises:
            ReadOrderError: The gap does not follow the rows before.
        """
        (segment, index), (next_segment, next_index) = split_offset(start), split_offset(self._next)
        if start < self._next or (segment == next_segment and index > next_index and not self._passed):
            raise ReadOrderError(
                f"{self._where}: a gap from {format_offset(start)} on came after {format_offset(self._next)}. "
                "Nothing of this task was used."
            )
        self._next = min(max(end, self._next), self._end)

    def finish(self, reached: int, passed: int) -> None:
        """Check that the range is read to its end.

        Args:
            reached: The offset at which the reader is.
            passed: As in `take`.

        Raises:
            ReadOrderError: The range was not read to its end.
        """
        (segment, index), (next_segment, next_index) = split_offset(self._end), split_offset(self._next)
        whole = (
            index == next_index + passed - self._passed if segment == next_segment else index <= passed - self._passed
        )
        if reached != self._end or not whole:
            raise ReadOrderError(
                f"{self._where}: the range to {format_offset(self._end)} ended after {format_offset(self._next)}. "
                "Nothing of this task was used."
            )
