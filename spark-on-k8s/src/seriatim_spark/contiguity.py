"""Whether the rows that a task reads are all of its range, each once and in order. Pure.

The client checks the same of what brokers send it, by indexes and checksums. This is the check of what is handed to
Spark: a mistake between the two must fail the task and not become a table.
"""

from __future__ import annotations

from seriatim_api.ids import format_offset, split_offset

from seriatim_spark.errors import ReadOrderError


class Contiguity:
    """Follows the rows of [start, end) of a partition.

    Args:
        where: For errors.
        start: The first offset.
        end: The first one behind the range.
    """

    def __init__(self, where: str, start: int, end: int) -> None:
        self._where = where
        self._next = start
        self._end = end
        self._passed = 0

    def take(self, offset: int, rows: int, passed: int) -> None:
        """So many rows from this offset on.

        Args:
            offset: Of the first one.
            rows: How many.
            passed: Messages that the reader has passed over so far, because they repeat earlier ones or are gone.

        Raises:
            ReadOrderError: They do not follow the rows before.
        """
        (segment, index), (next_segment, next_index) = split_offset(offset), split_offset(self._next)
        newly = passed - self._passed
        # A later segment begins at its beginning; what was passed may lie in the one before.
        of_later = segment > next_segment and index <= newly
        follows = index == next_index + newly if segment == next_segment else of_later
        if not follows or offset + rows > self._end:
            raise ReadOrderError(
                f"{self._where}: {rows} rows from {format_offset(offset)} on came behind {format_offset(self._next)} "
                f"({newly} passed over), in a range to {format_offset(self._end)}. Nothing of this task was used."
            )
        self._next, self._passed = offset + rows, passed

    def lose(self, start: int, end: int) -> None:
        """What lies between is gone, and the query accepts it.

        Args:
            start: The first offset that is gone.
            end: The next one that is not, or the end of the range.

        Raises:
            ReadOrderError: It does not follow the rows before.
        """
        (segment, index), (next_segment, next_index) = split_offset(start), split_offset(self._next)
        if start < self._next or (segment == next_segment and index > next_index and not self._passed):
            raise ReadOrderError(
                f"{self._where}: a gap from {format_offset(start)} on came behind {format_offset(self._next)}. "
                "Nothing of this task was used."
            )
        self._next = min(max(end, self._next), self._end)

    def finish(self, reached: int, passed: int) -> None:
        """Nothing more comes.

        Args:
            reached: Where the reader says that it is.
            passed: As of `take`.

        Raises:
            ReadOrderError: The range was not read to its end.
        """
        (segment, index), (next_segment, next_index) = split_offset(self._end), split_offset(self._next)
        whole = (
            index == next_index + passed - self._passed if segment == next_segment else index <= passed - self._passed
        )
        if reached != self._end or not whole:
            raise ReadOrderError(
                f"{self._where}: the range to {format_offset(self._end)} ended behind {format_offset(self._next)}. "
                "Nothing of this task was used."
            )
