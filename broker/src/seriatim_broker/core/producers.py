"""The producer table: what each producer's last batches in a partition were, and where they stand.

It recognises repeats, finds gaps and travels with each switch. Entries know their offsets, so the table can be wound
back to any length that a switch may choose (`as_of`): the newest `WINDOW_BATCHES` uncommitted entries and as many
committed ones are kept for each producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from seriatim_api.batch import BatchHeader
from seriatim_api.ids import make_offset, split_offset

from .state import NOTHING, State, put

WINDOW_BATCHES = 16
"""Batches of one producer on one partition that may be unacknowledged at once; the client's window is no larger."""

KEPT_BATCHES = 2 * WINDOW_BATCHES


class Entry(NamedTuple):
    """One batch of a producer, and the offset of its first message."""

    epoch: int
    base_sequence: int
    message_count: int
    offset: int

    @property
    def last_sequence(self) -> int:
        """The sequence of the batch's last message."""
        return self.base_sequence + self.message_count - 1


Window = tuple[Entry, ...]
"""The newest batches of one producer, oldest first; never empty."""

Table = tuple[tuple[bytes, Window], ...]
"""A table at rest: sorted by producer id."""


class ProducerTable(State):
    """The live table of an open segment."""

    __slots__ = ("windows",)

    def __init__(self, table: Table = ()) -> None:
        self.windows: Mapping[bytes, Window] = dict(table) if table else NOTHING

    def last(self, producer: bytes) -> Entry | None:
        """The newest batch of a producer, or None for an unknown one."""
        window = self.windows.get(producer)
        return window[-1] if window else None

    def find(self, header: BatchHeader) -> Entry | None:
        """The entry of a batch that is here already, or None if it fell out of the window or never was."""
        for entry in reversed(self.windows.get(header.producer, ())):
            if entry.epoch == header.producer_epoch and entry.base_sequence == header.base_sequence:
                return entry if entry.message_count == header.message_count else None
        return None

    def record(self, header: BatchHeader) -> Window:
        """Take up a batch with its place; returns the producer's new window."""
        entry = Entry(
            header.producer_epoch,
            header.base_sequence,
            header.message_count,
            make_offset(header.segment, header.base_index),
        )
        window = (*self.windows.get(header.producer, ())[-(KEPT_BATCHES - 1) :], entry)
        self.windows = put(self.windows, header.producer, window)
        return window

    def take_up(self, table: Table) -> None:
        """Take up the windows of producers that are not known here; those that are known are the newer ones."""
        for producer, window in table:
            if producer not in self.windows:
                self.windows = put(self.windows, producer, window)

    def at_rest(self) -> Table:
        """The whole table."""
        return tuple(sorted(self.windows.items()))

    def as_of(self, segment_no: int, length: int) -> Table:
        """The table without what stands in `segment_no` at or above `length`."""
        rows: list[tuple[bytes, Window]] = []
        for producer, window in sorted(self.windows.items()):
            kept = tuple(entry for entry in window if not _is_above(entry, segment_no, length))
            if kept:
                rows.append((producer, kept))
        return tuple(rows)


def _is_above(entry: Entry, segment_no: int, length: int) -> bool:
    segment, index = split_offset(entry.offset)
    return segment > segment_no or (segment == segment_no and index >= length)


def merge(tables: Iterable[Table]) -> Table:
    """For each producer the window with the highest epoch, then sequence: behind an unsettled segment."""
    best: dict[bytes, Window] = {}
    for table in tables:
        for producer, window in table:
            known = best.get(producer)
            if known is None or _rank(window) > _rank(known):
                best[producer] = window
    return tuple(sorted(best.items()))


def covers(table: Table, header: BatchHeader) -> bool:
    """Whether a batch lies at or below the table: behind an unsettled segment, readers skip it."""
    for producer, window in table:
        if producer == header.producer:
            newest = window[-1]
            return (header.producer_epoch, header.last_sequence) <= (newest.epoch, newest.last_sequence)
    return False


def _rank(window: Window) -> tuple[int, int]:
    return window[-1].epoch, window[-1].last_sequence
