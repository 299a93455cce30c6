"""All chains of the cluster, page by page. Everything else in the event loop has its turn in between.

Partition ids are counted, and keys begin with their leading digits. A page is all partitions that share these digits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import structlog
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import records_pb2

from ...core.values.chain import Chain
from ...interfaces.coordinator import Coordinator
from .keys import CHAINS_PER_PAGE, Keys
from .pages import read_all_whole, read_whole
from .records import parse_chain

CHAINS_PER_READ = 250
"""Chains in one listing. Most records have some hundred bytes; that of a long chain has 30 KB."""

_log = structlog.get_logger(__name__)


async def all_chains(coordinator: Coordinator, keys: Keys, *, strict: bool = False) -> AsyncIterator[Chain]:
    """Every chain. Each is read linearizably, and not all at one revision.

    Args:
        coordinator: It has the chains.
        keys: Of the cluster.
        strict: For callers that must see all chains: an unreadable record is an error. Otherwise it is left out.

    Raises:
        CorruptionError: A record cannot be read, if `strict`.
    """
    counter = await coordinator.get(keys.partition_counter)
    if counter is None:
        return
    end = records_pb2.CounterRecord.FromString(counter.value).next
    for first in range(0, end, CHAINS_PER_PAGE):
        prefix = keys.chains_page(PartitionId(first))
        listing = await coordinator.list(prefix, limit_per_page=CHAINS_PER_READ, deadline_s=10.0)
        for number, item in enumerate(listing.items):
            try:
                for whole in await read_all_whole(coordinator, keys, (item,), deadline_s=2.0):
                    yield parse_chain(whole.item.value, whole.pages)
            except CorruptionError as exc:
                if strict:
                    raise
                _log.error("chain_unreadable", key=item.key, error=str(exc))
            if number % 50 == 49:
                await asyncio.sleep(0)  # a long list must not hold up the event loop


async def one_chain(coordinator: Coordinator, keys: Keys, partition: PartitionId) -> Chain | None:
    """The chain of a partition, read linearizably; None if there is none.

    Raises:
        CorruptionError: The record cannot be read.
        CoordinatorUnavailableError: No answer, or the record changed at each of 20 tries.
    """
    item = await coordinator.get(keys.chain(partition))
    whole = await read_whole(coordinator, keys, item, deadline_s=2.0) if item is not None else None
    return parse_chain(whole.item.value, whole.pages) if whole is not None else None
