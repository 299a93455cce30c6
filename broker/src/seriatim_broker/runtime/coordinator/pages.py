"""Reads chains whose older segments are in pages (`chain_layout` describes the layout).

The record is read first, and says which pages there are. Each transaction that reads pages also reads the record. If
the record still has its revision, all of it belongs together. Otherwise everything is read again, from the newer
record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from seriatim_api.errors import CoordinatorUnavailableError, CorruptionError
from seriatim_api.ids import PartitionId

from ...interfaces.coordinator import Coordinator, Get, KeyValue
from .keys import Keys
from .records import page_numbers, parse_record

PAGES_PER_READ = 16
"""Pages that are read in one transaction: about 1.3 MB."""

READ_ATTEMPTS_MAX = 20
"""A chain changes when a broker dies. It does not change twenty times while it is read."""


@dataclass(frozen=True, slots=True)
class WholeChain:
    """A chain's record and the values of its pages, oldest first, as of the record's revision.

    Attributes:
        item: The record.
        pages: The values that were read.
        numbers: Which pages these are; None: all of them.
    """

    item: KeyValue
    pages: tuple[bytes, ...] = ()
    numbers: tuple[int, ...] | None = None


def has_pages(item: KeyValue) -> bool:
    """Whether a part of the chain is in pages. False if the record cannot be parsed: its parser says so."""
    try:
        return bool(parse_record(item.value).page_count)
    except CorruptionError:
        return False


async def read_whole(
    coordinator: Coordinator,
    keys: Keys,
    item: KeyValue,
    *,
    deadline_s: float | None = None,
    unread: Callable[[bytes], Sequence[int] | None] = lambda _value: None,
) -> WholeChain | None:
    """The chain with this record, or a later version of it; None if it was deleted meanwhile.

    Args:
        coordinator: It has the chain.
        keys: Of the cluster.
        item: The record as it is, or was.
        deadline_s: Of each transaction.
        unread: Says of a record which of its pages the caller does not hold; None: it needs all of them.

    Raises:
        CorruptionError: A page is missing.
        CoordinatorUnavailableError: No answer, or the record changed at each of 20 tries.
    """
    for _ in range(READ_ATTEMPTS_MAX):
        whole, later = await _read_pages(coordinator, keys, item, deadline_s, unread(item.value))
        if whole is not None or later is None:
            return whole
        item = later
    raise CoordinatorUnavailableError(f"{item.key} changes faster than it can be read")


async def read_all_whole(
    coordinator: Coordinator,
    keys: Keys,
    items: Iterable[KeyValue],
    *,
    deadline_s: float | None = None,
    unread: Callable[[bytes], Sequence[int] | None] = lambda _value: None,
) -> list[WholeChain]:
    """Several chains, in their order. Those that were deleted meanwhile are left out. Raises as `read_whole` does."""
    found: list[WholeChain] = []
    for item in items:
        whole = WholeChain(item)
        if has_pages(item):
            read = await read_whole(coordinator, keys, item, deadline_s=deadline_s, unread=unread)
            if read is None:
                continue
            whole = read
        found.append(whole)
        if len(found) % 50 == 0:
            await asyncio.sleep(0)  # a long list must not hold up the event loop
    return found


async def _read_pages(
    coordinator: Coordinator, keys: Keys, item: KeyValue, deadline_s: float | None, unread: Sequence[int] | None
) -> tuple[WholeChain | None, KeyValue | None]:
    """The whole chain of `item`, or None and the record as it is now."""
    record = parse_record(item.value)
    partition = PartitionId(record.partition_id)
    numbers = page_numbers(record) if unread is None else unread
    pages: list[bytes] = []
    for start in range(0, len(numbers), PAGES_PER_READ):
        gets = [Get(keys.page(partition, number)) for number in numbers[start : start + PAGES_PER_READ]]
        result = await coordinator.txn((), [Get(item.key), *gets], deadline_s=deadline_s)
        now = result.responses[0].item
        if now is None or now.mod_revision != item.mod_revision:
            return None, now
        for get, response in zip(gets, result.responses[1:], strict=True):
            if response.item is None:
                raise CorruptionError(f"{get.key} is missing")
            pages.append(response.item.value)
    return WholeChain(item, tuple(pages), tuple(unread) if unread is not None else None), item
