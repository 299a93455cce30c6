"""Batching: decides when a partition's next batch is cut.

If no batch of the partition is on its way, a batch is sent at once. Otherwise it waits and grows until it is full, has
lingered, or the application flushes. So the busier a partition is, the larger its batches are.

All partitions of a broker share one link. On a busy link the number of batches is the cost. So there even the first
small batch of a partition waits to become larger, for at most `AppendLink.gather_s` (1 s at most).
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from seriatim._core.producer import PartitionProducer
from seriatim._producing.backlog import Backlog
from seriatim._producing.pending import Pending
from seriatim._producing.turns import Served, Turns
from seriatim._transport.append import AppendLink, AppendUser
from seriatim._values.settings import ProducerSettings

SMALL_SHARE: Final = 4
"""A batch is small if it is below a quarter of the full size."""


class Gathering(Served, AppendUser, Protocol):
    """A partition, as `Batching` sees it."""

    core: PartitionProducer
    pending: Pending

    @property
    def full_batch_bytes(self) -> int:
        """Payload of a full batch."""


class Batching:
    """Decides for all partitions of one producer. It makes a waiting partition ready when the wait may be over."""

    def __init__(self, settings: ProducerSettings, turns: Turns, backlog: Backlog) -> None:
        self._linger_s = settings.linger_ms / 1000
        self._turns = turns
        self._backlog = backlog

    def may_cut(self, partition: Gathering, link: AppendLink | None) -> bool:
        """Whether to cut a batch of the partition's pending messages now, to send it on `link`.

        The partition has at least one pending message.
        """
        core, pending = partition.core, partition.pending
        if core.is_idle:
            # If there is no link, cut too: the core opens a link when it has a batch.
            return link is None or (not self._gathers(partition, link) and _has_room(partition, link))
        if not core.has_room or link is None or not _has_room(partition, link):
            return False
        if pending.front_is_whole or pending.front_bytes >= partition.full_batch_bytes or self._backlog.is_flushing:
            return True
        until = pending.begun_at + self._linger_s
        if time.monotonic() >= until:
            return True
        self._turns.linger(partition, until)
        return False

    def _gathers(self, partition: Gathering, link: AppendLink) -> bool:
        """Whether a small batch should wait until the link is calm."""
        pending = partition.pending
        is_small = pending.front_bytes * SMALL_SHARE < partition.full_batch_bytes and not pending.front_is_whole
        if link.is_calm or not is_small or self._backlog.is_flushing:
            return False
        until = pending.begun_at + link.gather_s
        if time.monotonic() >= until:
            return False
        link.waiting_for_calm[partition] = None
        self._turns.linger(partition, until)
        return True


def _has_room(partition: Gathering, link: AppendLink) -> bool:
    if link.has_room:
        return True
    link.waiting_for_room[partition] = None
    return False
