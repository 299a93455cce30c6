"""Consume streams: joins, acks and credits come in, deliveries go out.

The core decides which consumer is active, what may be delivered, and how much. This module makes frames of its events.
Deliveries of one turn of the event loop leave together, in their order. The client's credit bounds what waits to leave.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import google_crc32c
from google.protobuf.message import DecodeError
from seriatim_api.batch import make_header
from seriatim_api.errors import (
    BadRequestError,
    SeriatimError,
    UnsupportedModeError,
)
from seriatim_api.ids import NAME_LENGTH_MAX, OFFSET_MAX, PartitionId
from seriatim_api.protocol import check_protocol
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2
from seriatim_api.wire.frames import delivery_frame_pieces

from ...core.values import effects as fx
from ...core.values.events import (
    ConsumerAck,
    ConsumerAcks,
    ConsumerCredit,
    ConsumerDemand,
    ConsumerExtend,
    ConsumerGone,
    ConsumerJoin,
    ConsumerLeave,
    ConsumerNack,
    ConsumerPing,
    ConsumerSpreadOver,
    ConsumerYielded,
    StartPosition,
)
from ...core.values.keyed import DELAY_MS_MAX, ERROR_BYTES_MAX, ConsumerMode
from ...counters.consumer_groups import ConsumerGroupCounts
from ...interfaces.same_names import fill
from ...interfaces.settings_records import mode_from_number, mode_to_number
from ...runtime.coordinator.records import operation_to_number
from ..calls.addresses import Addresses
from ..calls.limits import DELIVERY_FRAME_BYTES
from ..calls.services import Services, check_group

IN_FLIGHT_DEFAULT = 1_000
IN_FLIGHT_MAX = 100_000
ROWS_MAX = 100_000
"""Maximum number of rows that are in one request of a consumer."""

REQUEST_BYTES_MAX = 4 << 20
"""A longer request is refused before it is parsed. `ROWS_MAX` rows have 2 MiB at most. A row of one byte takes 8 bytes
of memory, so without this limit a request of the length that gRPC takes would need several hundred MiB."""

PARTITIONS_MAX = 20_000
"""A consumer that says that it reads more partitions of one topic is not counted when partitions are spread."""

SUBSCRIPTIONS_MAX = 100_000
"""Maximum number of subscriptions that are open on one stream. A topic has 20,000 partitions at most."""


AHEAD_BYTES_MAX = 16 << 20
"""Maximum number of bytes that are read for a consumer and wait for its connection. Its credit may be larger, because
it also has what is on the way. Without it: 1. A consumer far away has 200 MiB of credit. 2. Its network becomes slow.
3. The broker reads 200 MiB for it, and keeps them."""

CONFIRM_S = 0.5
"""A confirmation of single acknowledgements waits this long for messages to leave with it, because a frame of its own
costs as much as dozens of messages. Consumers only need it to forget what they would repeat to the next server."""


class ConsumeStream:
    """One consumer's stream. See `ServedStream`.

    Args:
        services: The broker.
        addresses: What is reported to the client about where brokers are.
        hello: The consumer's hello.
        wake: Called when `next_frame` has something.

    Raises:
        UnsupportedVersionError: The client speaks another protocol.
    """

    drains = False
    frame_size_bytes_max = REQUEST_BYTES_MAX
    owes = False

    def __init__(
        self, services: Services, addresses: Addresses, hello: broker_pb2.ConsumerHello, wake: Callable[[], None]
    ) -> None:
        check_protocol(hello.protocol, "the client", "the broker")
        self._services = services
        self._addresses = addresses
        self._wake = wake
        self._events: deque[tuple[int, fx.DeliveryEvent]] = deque()
        self._stream = services.driver.new_stream(self._deliver)
        self._counts: dict[int, ConsumerGroupCounts] = {}  # by subscription
        self._open: set[int] = set()  # subscriptions that joined, and that neither side has ended
        self._confirmed: dict[int, fx.AcksConfirmed] = {}  # the newest one of each subscription, which waits
        self._confirming: asyncio.TimerHandle | None = None
        self._owed_bytes = 0  # credit of the client that the core does not have yet
        self._ahead_bytes = 0  # credit that the core has, and bytes that it has delivered and that have not left
        self._give_credit(hello.credit_bytes)

    @property
    def waiting_count(self) -> int:
        """See `ServedStream`."""
        return len(self._events)

    def end(self) -> None:
        """See `ServedStream`. All subscriptions of the stream end with it."""
        if self._confirming is not None:
            self._confirming.cancel()
        for counts in self._counts.values():
            counts.joined -= 1
        self._services.driver.forget_stream(self._stream)
        self._services.driver.feed(ConsumerGone(self._stream))

    # ---- in ----

    def take(self, frame: bytes | memoryview) -> Iterator[None]:
        """See `ServedStream`."""
        feed = self._services.driver.feed
        request = read_request(frame)
        requests = request.many.requests if request.HasField("many") else (request,)
        for each in requests:
            match each.WhichOneof("request"):
                case "join":
                    self._join(each.join)
                case "leave":
                    feed(ConsumerLeave(self._stream, each.leave.subscription))
                    self._open.discard(each.leave.subscription)
                    self._count_for(each.leave.subscription, None)
                case "ack":
                    self._ack(each.ack)
                case "credit":
                    self._give_credit(each.credit.bytes)
                case "ping":
                    if not each.ping.session_ms:
                        raise BadRequestError(
                            "a heartbeat says how long its consumer keeps a grant: `session_ms` is not 0"
                        )
                    feed(ConsumerPing(self._stream, each.ping.number, each.ping.session_ms))
                case "nack":
                    self._nack(each.nack)
                case "extend":
                    extend = each.extend
                    if len(extend.tokens) > ROWS_MAX:
                        raise BadRequestError(f"a request extends at most {ROWS_MAX} grants")
                    tokens = tuple(extend.tokens)
                    feed(ConsumerExtend(self._stream, extend.subscription, tokens, extend.grant_ms, extend.unseen))
                case "demand":
                    demand = each.demand
                    messages = min(demand.messages, IN_FLIGHT_MAX)
                    feed(ConsumerDemand(self._stream, demand.subscription, messages, demand.run_max))
                case "yielded":
                    yielded = each.yielded
                    if yielded.offset > OFFSET_MAX:
                        raise _no_offset(yielded.offset)
                    feed(
                        ConsumerYielded(
                            self._stream, yielded.subscription, yielded.token, yielded.number, yielded.offset
                        )
                    )
                case "spread_over":
                    told = each.spread_over
                    feed(ConsumerSpreadOver(self._stream, told.subscription, min(told.partitions, PARTITIONS_MAX)))
                case "many":
                    raise BadRequestError("requests that leave together are not among others that do")
                case _:
                    raise BadRequestError("the request is of a kind that is not known here, or a second hello")
        return iter(())

    def _join(self, join: broker_pb2.Join) -> None:
        try:
            if not 0 < len(join.consumer) <= NAME_LENGTH_MAX:
                raise BadRequestError(f"a consumer has a name of at most {NAME_LENGTH_MAX} characters")
            mode = consumer_mode(join.mode)
            check_group(join.group, is_broadcast=mode is ConsumerMode.BROADCAST)
            start = start_position(join.start, mode)
        except SeriatimError as exc:
            self._deliver(join.subscription, fx.SubscriptionRefused(exc, 0, ""))
            return
        # What a consumer says names its subscription. So one number on a stream stands for one partition and group.
        if join.subscription in self._open:
            raise BadRequestError(f"subscription {join.subscription} is open already: each join has a new number")
        if len(self._open) >= SUBSCRIPTIONS_MAX:
            raise BadRequestError(f"a stream has at most {SUBSCRIPTIONS_MAX} subscriptions")
        self._open.add(join.subscription)
        partition = PartitionId(join.partition_id)
        self._count_for(join.subscription, self._services.counters.groups.join(partition, join.group))
        self._services.driver.feed(
            ConsumerJoin(
                self._stream,
                join.subscription,
                partition,
                join.group,
                join.consumer,
                start,
                join.was_active,
                mode,
                min(join.in_flight_max or IN_FLIGHT_DEFAULT, IN_FLIGHT_MAX),
                join.run_max,
                join.on_demand,
                join.spread_over if join.partition < join.spread_over <= PARTITIONS_MAX else 0,
                join.partition,
                join.was_standby,
            )
        )

    def _count_for(self, subscription: int, counts: ConsumerGroupCounts | None) -> None:
        """Count what the subscription does there from now on; None: it has ended."""
        before = self._counts.pop(subscription, None)
        if before is not None:
            before.joined -= 1
        if counts is not None:
            self._counts[subscription] = counts

    def _ack(self, ack: broker_pb2.Ack) -> None:
        if not (ack.tokens or ack.offsets or ack.started):
            if ack.offset > OFFSET_MAX:
                raise _no_offset(ack.offset)
            self._services.driver.feed(ConsumerAck(self._stream, ack.subscription, ack.token, ack.offset))
            return
        if len(ack.tokens) != len(ack.offsets):
            raise BadRequestError("an acknowledgement names an offset for each token")
        if len(ack.tokens) + len(ack.started) > ROWS_MAX:
            raise BadRequestError(f"a request acknowledges at most {ROWS_MAX} messages")
        tokens, offsets, started = tuple(ack.tokens), tuple(ack.offsets), tuple(ack.started)
        if (highest := max(offsets, default=0)) > OFFSET_MAX:
            raise _no_offset(highest)
        if (counts := self._counts.get(ack.subscription)) is not None:
            counts.acked_messages += len(tokens)
        self._services.driver.feed(ConsumerAcks(self._stream, ack.subscription, ack.number, tokens, offsets, started))

    def _nack(self, nack: broker_pb2.Nack) -> None:
        delay_ms = nack.delay_ms if nack.HasField("delay_ms") else None
        if delay_ms is not None and delay_ms > DELAY_MS_MAX:
            raise BadRequestError(f"a message can be delayed by at most {DELAY_MS_MAX} ms (40 days)")
        if nack.offset > OFFSET_MAX:
            raise _no_offset(nack.offset)
        if (counts := self._counts.get(nack.subscription)) is not None:
            counts.failed_attempts += 1
        reason = nack.reason.encode()[:ERROR_BYTES_MAX].decode(errors="ignore")
        self._services.driver.feed(
            ConsumerNack(self._stream, nack.subscription, nack.token, nack.offset, delay_ms, reason, nack.is_last)
        )

    def _give_credit(self, size_bytes: int) -> None:
        self._owed_bytes += size_bytes
        given = min(self._owed_bytes, AHEAD_BYTES_MAX - self._ahead_bytes)
        if given > 0:
            self._owed_bytes -= given
            self._ahead_bytes += given
            self._services.driver.feed(ConsumerCredit(self._stream, given))

    # ---- out ----

    def _deliver(self, subscription: int, event: fx.DeliveryEvent) -> None:
        if isinstance(event, fx.EndOfSegment | fx.Revoked | fx.SubscriptionRefused):
            self._open.discard(subscription)
        if isinstance(event, fx.AcksConfirmed):
            self._confirmed[subscription] = event  # it takes the place of all earlier ones
            if self._confirming is None:
                self._confirming = asyncio.get_running_loop().call_later(CONFIRM_S, self._confirm)
            return
        if self._confirmed:
            self._confirm()
        self._events.append((subscription, event))
        self._wake()

    def _confirm(self) -> None:
        """The confirmations that wait leave now."""
        if self._confirming is not None:
            self._confirming.cancel()
            self._confirming = None
        confirmed, self._confirmed = self._confirmed, {}
        self._events.extend(confirmed.items())
        self._wake()

    def next_frame(self) -> Sequence[bytes | memoryview] | None:
        """See `ServedStream`."""
        if not self._events:
            return None
        events: list[bytes] = []
        batches: list[tuple[bytes, bytes]] = []  # headers and bodies
        size = 0
        while self._events and size < DELIVERY_FRAME_BYTES:
            subscription, event = self._events.popleft()
            events.append(self._encode(subscription, event).SerializeToString())
            if isinstance(event, fx.Batches):
                batches += [(batch.header.raw, batch.body) for batch in event.batches]
                added = sum(batch.size_bytes for batch in event.batches)
                size += added
                self._services.counters.delivered_batches += len(event.batches)
                self._services.counters.delivered_bytes += added
                if (counts := self._counts.get(subscription)) is not None:
                    counts.delivered_messages += sum([batch.header.message_count for batch in event.batches])
            elif isinstance(event, fx.Granted):
                header = make_header(  # only the count, the length and the checksum mean anything
                    partition=0,
                    message_count=len(event.offsets),
                    producer=bytes(16),
                    producer_epoch=0,
                    base_sequence=0,
                    first_timestamp_ms=0,
                    last_timestamp_ms=0,
                    body_length=len(event.body),
                    body_crc=google_crc32c.value(event.body),
                )
                batches.append((header, event.body))
                added = len(header) + len(event.body)
                size += added
                self._services.counters.delivered_batches += 1
                self._services.counters.delivered_bytes += added
                if (counts := self._counts.get(subscription)) is not None:
                    counts.delivered_messages += len(event.offsets)
                    counts.grants += len(event.counts)
                    counts.repeated_grants += event.repeated_count
            elif isinstance(event, fx.SubscriptionRefused | fx.Revoked | fx.EndOfSegment):
                self._count_for(subscription, None)  # it has ended
        self._ahead_bytes -= size
        if self._owed_bytes:
            self._give_credit(0)
        return delivery_frame_pieces(events, batches)

    def _encode(self, subscription: int, event: fx.DeliveryEvent) -> broker_pb2.DeliveryEvent:
        """Translate an event for consumers. No other code here depends on the kinds of these events."""
        out = broker_pb2.DeliveryEvent(subscription=subscription)
        match event:
            case fx.Batches():
                out.batches.segment = event.segment_no
                out.batches.batch_count = len(event.batches)
                out.batches.from_index = event.from_index
                out.batches.maybe_repeated_below = event.maybe_repeated_below
                out.batches.attempt = event.delivery_attempt
                out.batches.server_epoch = event.server_epoch
            case fx.Granted():
                granted = out.granted
                granted.server_epoch = event.server_epoch
                granted.token.extend(event.tokens)
                granted.count.extend(event.counts)
                granted.attempt.extend(event.attempts)
                granted.maybe_repeated.extend(event.maybe_repeated)
                granted.offset.extend(event.offsets)
            case fx.AcksConfirmed():
                out.acks_confirmed.number = event.number
            case fx.TokensVoid():
                out.tokens_void.tokens.extend(event.tokens)
                out.tokens_void.error.CopyFrom(error_to_proto(event.error))
            case fx.AckConfirmed():
                out.ack_confirmed.segment = event.segment_no
                out.ack_confirmed.index = event.index
            case fx.Joined():
                begun_by, mode = operation_to_number(event.begun_by), mode_to_number(event.mode)
                fill(out.joined, event, segment=event.segment_no, begun_by=begun_by, mode=mode)
            case fx.YieldAsked():
                fill(out.yield_asked, event)
            case fx.Paused():
                fill(out.paused, event)
            case fx.Skip():
                fill(out.skip, event, segment=event.segment_no)
            case fx.EndOfSegment():
                fill(out.end_of_segment, event, segment=event.segment_no, next_segment=event.next_segment_no)
                out.end_of_segment.next_server_address = self._addresses.of(event.next_server)
            case fx.Gap():
                fill(out.gap, event, segment=event.segment_no)
            case fx.Dropped():
                fill(out.dropped, event, segment=event.segment_no)
            case fx.SubscriptionRefused():
                out.refused.error.CopyFrom(error_to_proto(event.error))
                out.refused.segment = event.segment_no
                out.refused.server_address = self._addresses.of(event.server)
            case fx.Revoked():
                out.revoked.error.CopyFrom(error_to_proto(event.error))
            case fx.Pong():
                out.pong.number = event.number
                out.pong.unserved.extend(event.unserved)
            case _:
                raise AssertionError(f"no such delivery: {event!r}")
        return out


def consumer_mode(number: int) -> ConsumerMode:
    """The mode that a client asks for.

    Raises:
        UnsupportedModeError: This version does not serve it.
    """
    try:
        return mode_from_number(number)
    except ValueError as exc:
        raise UnsupportedModeError(f"this version does not know consumer mode {number}") from exc


def start_position(number: int, mode: ConsumerMode = ConsumerMode.EXCLUSIVE) -> StartPosition:
    """Where a consumer group without a cursor begins.

    Unspecified is the earliest message; in broadcast mode it is the end, because a consumer that is new or was away for
    long does not want all that was ever sent.

    Raises:
        BadRequestError: There is no such position.
    """
    try:
        is_broadcast = mode is ConsumerMode.BROADCAST
        return StartPosition(number or (StartPosition.LATEST if is_broadcast else StartPosition.EARLIEST))
    except ValueError as exc:
        raise BadRequestError(f"there is no start position {number}") from exc


def _no_offset(number: int) -> BadRequestError:
    """The refusal of a number of more than 63 bits."""
    return BadRequestError(f"{number} is no offset")


def read_request(frame: bytes | memoryview) -> broker_pb2.ConsumeRequest:
    """Read the request of a consumer.

    Raises:
        BadRequestError: It is too long, or cannot be read.
    """
    if len(frame) > REQUEST_BYTES_MAX:
        raise BadRequestError(f"a request of a consumer has at most {REQUEST_BYTES_MAX} bytes")
    try:
        return broker_pb2.ConsumeRequest.FromString(bytes(frame))
    except DecodeError as exc:
        raise BadRequestError("not a consume request") from exc
