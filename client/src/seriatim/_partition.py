"""One partition of a producer: its core, its queue, and what the core's effects mean here.

A batch is cut when the core has room for it and either nothing is on its way, it is full, it has lingered, or somebody
flushes. While it waits, it grows: the busier the partition (or the link that it shares), the larger its batches.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from seriatim_api.batch import HEADER_SIZE_BYTES, make_header
from seriatim_api.frames import AppendEntry
from seriatim_api.v1 import broker_pb2, common_pb2

from seriatim._batch import Body
from seriatim._core.producer import (
    Abandon,
    Connected,
    Disconnected,
    Enqueue,
    Event,
    OpenStream,
    PartitionProducer,
    ProducerConfig,
    Replied,
    ReplyError,
    Resolve,
    Resolved,
    Route,
    RouteKnown,
    Send,
    Settled,
)
from seriatim._pending import Cut, Pending
from seriatim._sending import Settlement, SliceOfBatch
from seriatim._transport import AppendLink

if TYPE_CHECKING:
    from seriatim._producer import Producer

_NOT_SENT: Final = (-1, -1)

SMALL_SHARE: Final = 4
"""A batch under this part of the full size is small."""


class _Batch:
    """A batch until it is settled. Its bytes change only with its number, and that only while it is surely nowhere."""

    __slots__ = ("body", "header", "ids", "number", "payload_bytes", "slices")

    def __init__(self, cut: Cut, ids: Sequence[Any] | None) -> None:
        self.body: Body = cut.body
        self.slices: list[SliceOfBatch] = cut.slices
        self.payload_bytes = cut.payload_bytes
        self.ids = ids
        self.number = _NOT_SENT  # epoch, base sequence
        self.header = b""


class PartitionSender:
    """Sends the messages of one producer to one partition."""

    def __init__(self, owner: Producer, number: int, partition_id: int, config: ProducerConfig, route: Route) -> None:
        self._owner = owner
        self.number = number
        self.partition_id = partition_id
        self.core = PartitionProducer(config, route if route.master_address else None)
        self.pending = Pending()
        self._links: dict[int, AppendLink] = {}  # by stream; more than one while the partition moves
        self._batches: dict[int, _Batch] = {}
        self._batch_count = 0
        self._kept: list[int] = []
        self._position = 0  # of the next message in the partition, as this producer counts
        self.is_ready = False  # queued for the owner's next turn
        self.lingers_until: float | None = None
        self.timer_at_us: int | None = None

    # ---- from the application ------------------------------------------------------------------------

    def pump(self) -> None:
        """Cut and send what may go now."""
        while self.pending and self._may_cut():
            self._cut()

    def _may_cut(self) -> bool:
        core, owner = self.core, self._owner
        link = None if core.stream is None else self._links[core.stream]
        if core.is_idle:
            return link is None or (not self._gathers(link) and self._link_has_room(link))
        if not core.has_room or link is None or not self._link_has_room(link):
            return False
        if self.pending.front_is_whole or self.pending.front_bytes >= owner.batch_size_bytes or owner.is_flushing:
            return True
        if time.monotonic() - self.pending.begun_at >= owner.linger_s:
            return True
        owner.linger(self, self.pending.begun_at + owner.linger_s)
        return False

    def _gathers(self, link: AppendLink) -> bool:
        """Whether a small batch had better wait: on a busy link, the number of batches is what costs."""
        pending, owner = self.pending, self._owner
        is_small = pending.front_bytes * SMALL_SHARE < owner.batch_size_bytes and not pending.front_is_whole
        if link.is_calm or not is_small or owner.is_flushing:
            return False
        until = pending.begun_at + link.gather_s
        if time.monotonic() >= until:
            return False
        link.waiting_for_calm[self] = None
        owner.linger(self, until)
        return True

    def _link_has_room(self, link: AppendLink) -> bool:
        if link.has_room:
            return True
        link.waiting_for_room[self] = None
        return False

    def _cut(self) -> None:
        owner = self._owner
        cut = self.pending.cut(owner.batch_size_bytes, owner.compression)
        self._batch_count += 1
        batch_id, count = self._batch_count, cut.body.message_count
        self._batches[batch_id] = _Batch(cut, owner.record_sends(self.number, self._position, cut))
        self._position += count
        owner.was_cut(self)
        self.step(Enqueue(batch_id, count, len(cut.body.data) + HEADER_SIZE_BYTES))

    def abandon(self) -> None:
        """Settle everything now: what never left is failed, what may be stored is unknown."""
        while self.pending:
            self._cut()
        self.step(Abandon())

    # ---- from the transport --------------------------------------------------------------------------

    def link_up(self, link: AppendLink) -> None:
        """The link that was asked for is up."""
        assert link.credits is not None
        if link.stream not in self._links:
            self._links[link.stream] = link
        allowed = link.credits
        self.step(Connected(link.address, link.stream, allowed.window_batches, allowed.partition_bytes))

    def link_down(self, address: str, stream: int | None) -> None:
        """The link is over, or would not open."""
        self.step(Disconnected(address, stream))
        if stream is not None:
            self._links.pop(stream, None)

    def link_has_room(self) -> None:
        """Others were answered: it is this partition's turn."""
        self._owner.make_ready(self)

    def link_is_silent(self, link: AppendLink) -> None:
        """Answers are due on the link: ask where the partition is, unless it has left already."""
        route = self.core.route
        if route is not None and route.master_address == link.address and not self.core.is_idle:
            self._owner.ask_about(self, link)

    def replied(self, reply: broker_pb2.AppendReply) -> None:
        """An attempt was answered."""
        error = None
        if reply.HasField("error"):
            error = ReplyError(reply.error.number, reply.error.message, reply.error.retry_after_ms)
        route = route_of(reply.route) if reply.HasField("route") else None
        self.step(
            Replied(
                reply.producer_epoch, reply.base_sequence, reply.run, reply.offset, reply.append_time_ms, error, route
            )
        )

    def resolved(self, route: Route | None) -> None:
        """The owner's question was answered, or not."""
        self.step(Resolved(route))

    def route_known(self, route: Route) -> bool:
        """A route that was asked for out of suspicion; whether the partition has left its master."""
        before = self.core.route
        self.step(RouteKnown(route))
        after = self.core.route
        return before is None or after is None or (before.segment, before.master_address) != (
            after.segment, after.master_address
        )  # fmt: skip

    # ---- the core ------------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """Feed the core and do what it says."""
        now_us = time.monotonic_ns() // 1000
        before = self.core.route
        for effect in self.core.step(event, now_us, random.random()):  # noqa: S311 - spreads retries, hides nothing
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Settled):
                self._settle(effect)
            elif isinstance(effect, OpenStream):
                self._open(effect.address)
            elif isinstance(effect, Resolve):
                self._owner.resolve(self, effect)
        if self._kept:
            self._drop_kept()
        if self.core.route is not before and self.core.route is not None:
            self._owner.route_changed(self, self.core.route)
        self._owner.set_timer(self, self.core.wake_at_us)
        if self.pending:
            self._owner.make_ready(self)

    def _open(self, address: str) -> None:
        link = self._owner.links.open(address, self)
        if link is not None:
            self.link_up(link)

    def _send(self, effect: Send) -> None:
        batch = self._batches[effect.batch_id]
        number = (effect.producer_epoch, effect.base_sequence)
        producer = self._owner.producer_id
        if batch.number != number:
            batch.number = number
            batch.header = make_header(
                partition=self.partition_id,
                message_count=effect.message_count,
                producer=producer,
                producer_epoch=effect.producer_epoch,
                base_sequence=effect.base_sequence,
                first_timestamp_ms=batch.body.first_timestamp_ms,
                last_timestamp_ms=batch.body.last_timestamp_ms,
                body_length=len(batch.body.data),
                body_crc=batch.body.crc,
                flags=batch.body.flags,
            )
        entry = AppendEntry(effect.run, self._owner.ack_level, effect.starts_run, effect.route_epoch)
        link = self._links[effect.stream]
        link.write(entry, self.partition_id, producer, effect.base_sequence, batch.header, batch.body.data)

    def _settle(self, effect: Settled) -> None:
        batch = self._batches[effect.batch_id]
        if self.core.has_batch(effect.batch_id):
            self._kept.append(effect.batch_id)  # acknowledged out of its turn: it may have to go out again
        else:
            del self._batches[effect.batch_id]
        settlement = Settlement(effect.outcome, self.number, effect.offset, effect.append_time_ms, effect.error)
        # The record of an outcome comes before anybody can act on it.
        self._owner.settled(batch.payload_bytes, batch.body.message_count, settlement, batch.ids)
        for sink, start, at, count in batch.slices:
            sink.settle(start, at, count, settlement)

    def _drop_kept(self) -> None:
        for batch_id in [kept for kept in self._kept if not self.core.has_batch(kept)]:
            self._kept.remove(batch_id)
            del self._batches[batch_id]


def route_of(route: common_pb2.Route) -> Route:
    """A route as the core knows it."""
    return Route(route.epoch, route.segment, route.master_broker, route.master_address, tuple(route.next_addresses))
