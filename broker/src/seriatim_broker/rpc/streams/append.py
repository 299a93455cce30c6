"""Append streams: batches come in, replies go out. `over_tcp` and `over_grpc` carry them.

The batches of a frame are checked one by one, and each goes to the core in its order. So does a batch that cannot be
taken: `refuse` says why, and the core refuses the rest of that producer run with it. Replies of one turn of the event
loop leave together. Nothing is decided here about order or durability.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from seriatim_api.batch import FLAG_DELAYED, FLAG_PUBLISH, FLAG_STAGED, BatchHeader
from seriatim_api.errors import (
    BadRequestError,
    ChecksumMismatchError,
    MessageTooLargeError,
    OverloadedError,
    SeriatimError,
)
from seriatim_api.exclusive import is_exclusive
from seriatim_api.ids import PartitionId
from seriatim_api.protocol import PROTOCOL, check_protocol
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2
from seriatim_api.wire.framed_connection import SLICE_S
from seriatim_api.wire.frames import AppendEntry, AppendFrame, FrameError, read_append_frame

from ...core.values.delays import DELAYS_DEFAULT
from ...core.values.effects import AppendAccepted, AppendRefused
from ...core.values.events import AckLevel, Append
from ...core.values.producers import WINDOW_BATCHES
from ...core.values.sizes import limits_of_chunk, refusal
from ...runtime.driver.driver import Reply
from ..calls.addresses import Addresses
from ..calls.limits import MESSAGE_SIZE_BYTES_MAX, PARTITION_BYTES_MAX, RETRY_AFTER_MS, STREAM_BYTES_MAX
from ..calls.services import Services

_PIECE = FLAG_STAGED | FLAG_PUBLISH


class AppendStream:
    """One client's stream. See `ServedStream`.

    Args:
        services: The broker.
        addresses: What is reported to the client about where brokers are.
        hello: The client's hello.
        wake: Called when `next_frame` has something.

    Raises:
        UnsupportedVersionError: The client speaks another protocol.
    """

    drains = True
    frame_size_bytes_max = MESSAGE_SIZE_BYTES_MAX

    def __init__(
        self, services: Services, addresses: Addresses, hello: broker_pb2.ClientHello, wake: Callable[[], None]
    ) -> None:
        check_protocol(hello.protocol, "the client", "the broker")
        self._services = services
        self._addresses = addresses
        self._wake = wake
        self._bytes = 0
        self._partition_bytes: dict[int, int] = {}
        self._pending: dict[int, int] = {}  # request: size
        self._replies: list[broker_pb2.AppendReply] = []
        self._is_new = True
        wake()

    @property
    def owes(self) -> bool:
        """See `ServedStream`."""
        return bool(self._pending or self._replies)

    @property
    def waiting_count(self) -> int:
        """See `ServedStream`."""
        return len(self._replies)

    def end(self) -> None:
        """See `ServedStream`. Replies to the stream are dropped, and its bytes do not count any more."""
        for request, size in self._pending.items():
            self._services.driver.forget_request(request)
            self._services.in_flight_bytes -= size
        self._pending.clear()

    # ---- in ----

    def _credit(self) -> broker_pb2.AppendReplies:
        return broker_pb2.AppendReplies(
            credit=broker_pb2.StreamCredit(
                protocol=PROTOCOL,
                stream_bytes_max=STREAM_BYTES_MAX,
                partition_bytes_max=PARTITION_BYTES_MAX,
                batch_bytes_max=self._services.batch_bytes_max,
                window_batches_max=WINDOW_BATCHES,
                broker=self._services.identity.member.broker,
                run=self._services.identity.run,
            )
        )

    def take(self, frame: bytes | memoryview) -> Iterator[None]:
        """See `ServedStream`. All batches of the frame go to the core in their order."""
        until_s = time.monotonic() + SLICE_S
        for entry, header, view in read_frame(frame).batches:
            body = bytes(view)
            size = len(header.raw) + len(body)
            self._feed(entry, header, body, size)
            if time.monotonic() > until_s:
                yield
                until_s = time.monotonic() + SLICE_S

    def _feed(self, entry: AppendEntry, header: BatchHeader, body: bytes, size: int) -> None:
        level = entry.ack_level or AckLevel.REPLICATED_FLUSHED
        refuse = self._refusal(header, body, size, level)
        refuse_new = self._too_large(header, body) or self._without_owner(header) if refuse is None else None
        delays = self._services.topic_limits.delays(header.partition) if header.flags & FLAG_DELAYED else DELAYS_DEFAULT
        level = min(level, AckLevel.REPLICATED_FLUSHED)
        driver = self._services.driver
        request = driver.new_request(partial(self._replied, header, entry.run))
        self._hold(request, header.partition, size)
        driver.feed(
            Append(
                request,
                PartitionId(header.partition),
                header,
                body,
                entry.run,
                entry.starts_run,
                level,
                refuse,
                refuse_new=refuse_new,
                delays=delays,
            )
        )

    def _refusal(self, header: BatchHeader, body: bytes, size: int, level: int) -> SeriatimError | None:
        """Why a batch cannot be taken; None if it can."""
        services = self._services
        if level > AckLevel.REPLICATED_FLUSHED:
            return BadRequestError(f"there is no ack level {level}")
        if len(body) > services.batch_bytes_max:
            return MessageTooLargeError(
                f"a batch has at most {services.batch_bytes_max} bytes, not {len(body)}",
                size_bytes=len(body),
                size_bytes_max=services.batch_bytes_max,
            )
        if services.checksum(0, body) != header.body_crc:
            return ChecksumMismatchError("the body is not the one that its checksum was made from")
        overload = self._overload(header.partition, size)
        if overload is not None:
            return overload
        # Rule `only-readable` (I1): a body that readers cannot take apart is not stored. Without it:
        #   1. A client sends a batch whose offsets point after its data. It is acknowledged.
        #   2. Arrow reads after the data, in each broker and in each program that gets the batch. Either keys have
        #      the memory of that process, or the process ends.
        #   3. The broker that starts again, or the next one that serves the consumer group, reads the batch again.
        is_piece = header.flags & _PIECE == _PIECE and header.message_count == 1  # of a manifest: it is no Arrow batch
        if not is_piece:
            try:
                services.bodies.check(body, header.message_count, header.flags)
            except SeriatimError as exc:
                return exc
        return None

    def _too_large(self, header: BatchHeader, body: bytes) -> SeriatimError | None:
        """Why a batch that can be read is over the limits of its topic or chunk (rule `topic-limits`); else None.

        The core takes a batch that is marked as staged in the stage topic only.
        """
        services = self._services
        is_staged = header.flags & _PIECE == FLAG_STAGED
        try:
            limits = limits_of_chunk(header.stage) if is_staged else services.topic_limits.of(header.partition)
        except BadRequestError as exc:
            return exc
        if limits is None or header.flags & _PIECE == _PIECE:
            return None
        error = refusal(limits, len(body), services.bodies.largest_message(body, header.message_count))
        if error is None or is_staged or services.topic_limits.is_current():
            return error
        # Without it: 1. This broker is cut off from the coordinator, and continues as a master. 2. An administrator
        # raises the limit of the topic. 3. This broker fails the messages of producers that know the new limit, for
        # hours.
        return OverloadedError(
            "a message is over the limit that this broker knows, and the coordinator does not tell it whether that was "
            "raised: nothing was stored; the producer sends it again",
            retry_after_ms=200,
        )

    def _without_owner(self, header: BatchHeader) -> SeriatimError | None:
        """Why a batch cannot be taken because its producer has no owner; else None. As in rule `topic-limits`."""
        limits = self._services.topic_limits
        if not limits.is_exclusive(header.partition) or is_exclusive(header.producer):
            return None
        if not limits.is_current():
            return OverloadedError(
                "the topic took messages of exclusive producers only, and the coordinator does not tell this broker "
                "whether that was changed: nothing was stored; the producer sends it again",
                retry_after_ms=200,
            )
        return BadRequestError(
            "the topic takes messages of exclusive producers only (exclusive_only): nothing was stored. Send with an "
            "owner, or change the topic"
        )

    def _overload(self, partition: int, size: int) -> SeriatimError | None:
        services = self._services
        if services.storage.is_saturated:
            return OverloadedError("the disk is behind with its writes", retry_after_ms=RETRY_AFTER_MS)
        if self._partition_bytes.get(partition, 0) + size > PARTITION_BYTES_MAX:
            return OverloadedError("the producer exceeds its credit on the partition", retry_after_ms=RETRY_AFTER_MS)
        if self._bytes + size > STREAM_BYTES_MAX:
            return OverloadedError("the producer exceeds its credit on the stream", retry_after_ms=RETRY_AFTER_MS)
        if services.in_flight_bytes + size > services.in_flight_bytes_max:
            return OverloadedError("this broker has too many unanswered batches", retry_after_ms=RETRY_AFTER_MS)
        return None

    def _hold(self, request: int, partition: int, size: int) -> None:
        self._pending[request] = size
        self._bytes += size
        self._partition_bytes[partition] = self._partition_bytes.get(partition, 0) + size
        self._services.in_flight_bytes += size

    def _let_go(self, request: int, partition: int) -> None:
        size = self._pending.pop(request, None)
        if size is None:
            return
        self._bytes -= size
        self._services.in_flight_bytes -= size
        left = self._partition_bytes[partition] - size
        if left:
            self._partition_bytes[partition] = left
        else:
            del self._partition_bytes[partition]

    # ---- out ----

    def _replied(self, header: BatchHeader, run: int, effect: Reply) -> None:
        assert isinstance(effect, (AppendAccepted, AppendRefused))
        self._let_go(effect.request, header.partition)
        reply = broker_pb2.AppendReply(
            partition_id=header.partition,
            producer=header.producer,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            run=run,
        )
        if isinstance(effect, AppendAccepted):
            self._count(header)
            reply.offset = effect.offset
            reply.append_time_ms = effect.append_time_ms
            reply.offset_is_final = effect.is_final
            if header.flags & FLAG_DELAYED and effect.due_time_ms is not None:
                reply.due_time_ms = effect.due_time_ms
        else:
            self._services.counters.add(self._services.counters.refused, str(effect.error.number))
            reply.error.CopyFrom(error_to_proto(effect.error))
            if effect.route is not None:
                reply.route.CopyFrom(self._addresses.route(effect.route))
        self._replies.append(reply)
        self._wake()

    def _count(self, header: BatchHeader) -> None:
        """A batch was accepted. One that is refused does not count, and is reported by `refused`."""
        counters, size = self._services.counters, len(header.raw) + header.body_length
        counters.appended_batches += 1
        counters.appended_messages += header.message_count
        counters.appended_bytes += size
        counters.committed_batches += 1
        self._services.traffic.add(PartitionId(header.partition), size)

    def next_frame(self) -> Sequence[bytes] | None:
        """See `ServedStream`."""
        if self._is_new:
            self._is_new = False
            return (self._credit().SerializeToString(),)
        if not self._replies:
            return None
        replies, self._replies = self._replies, []
        return (broker_pb2.AppendReplies(replies=replies).SerializeToString(),)


def read_frame(frame: bytes | memoryview) -> AppendFrame:
    """Read the frame of a client.

    Raises:
        BadRequestError: It cannot be read.
    """
    try:
        return read_append_frame(frame)
    except FrameError as exc:
        raise BadRequestError(f"not an append frame: {exc}; nothing of it was stored") from exc
