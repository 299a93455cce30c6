"""One exclusive consumer on one partition: its server, the contiguity of deliveries, and acknowledgements. Pure.

Bodies, streams and timers belong to the caller. Here a batch is a base index and a count. `joining` has the life of a
subscription.

`step(event, now_us, jitter)` changes state and returns effects, in order. The caller sends `Timer()` at `wake_at_us` at
the latest. Events and effects are in `consumer_types`. The core checks:

* Deliveries, skips and gaps follow one another without a hole, from the index of the join on. The end of a segment
  comes at its sealed length. Anything else is a mistake of a broker or of this client, and raises an
  `OrderViolationError`.
* If a delivery has an older server epoch than the grant, it is dropped, because that server has lost its serving right.
  A delivery with a newer server epoch and without a new `Joined` is a violation.
* If no heartbeat of a grant was answered for `session_ms`, its deliveries are dropped, and the consumer looks for the
  server again. A cut, or a pause of this process, may have held them back while another consumer got the same messages.
  The age of a heartbeat counts from its sending.
* A grant in a higher group epoch starts over, at any place: the consumer group was rewound, or lost its place. The
  application is notified before it gets a message of this grant.
* If the server asks the consumer to yield the partition to another one, the application gets nothing more under this
  grant until the server says that it need not. So what it has ends at a known index, and the other consumer begins
  there.
* The application can acknowledge only messages that were delivered under the current grant, under its token. Messages
  that it got under an earlier grant come again, flagged. To acknowledge those changes nothing.
"""

from __future__ import annotations

from seriatim_api.errors import OrderViolationError
from seriatim_api.ids import make_offset

from .consumer_types import (
    AckConfirmed,
    AckedDurably,
    Acknowledge,
    AskedToYield,
    Assigned,
    Connected,
    ConsumerConfig,
    Deliver,
    Delivered,
    Dropped,
    Effect,
    Event,
    GapDeclared,
    Grown,
    Joined,
    Passed,
    SegmentEnded,
    SendAck,
    SendJoin,
    SendLeave,
    SendSpreadOver,
    SendYielded,
    Skipped,
    Yield,
    YieldAsked,
    YieldEnded,
)
from .joining import DROPPED, HEARD, US_PER_MS, ConsumerPhase, Joining, end_of_gap
from .producer_types import ReplyError


class PartitionConsumer(Joining):
    """One consumer of a consumer group on one partition, in exclusive mode."""

    __slots__ = (
        "_ack_at_us",
        "_ack_sent",
        "_ack_wanted",
        "_gap",
        "_given_below",
        "_token",
        "_told_over",
        "at_most_once",
        "begun_index",
        "spread_over",
        "yielding",
    )

    def __init__(self, config: ConsumerConfig, subscription_base: int = 0, spread_over: int = 0) -> None:
        super().__init__(config, subscription_base)
        self.spread_over = spread_over  # this many partitions of the topic the consumer reads, which are all; else 0
        self.at_most_once = False  # as the server said last: what is delivered is acknowledged
        self.begun_index = 0  # where the grant began
        self.yielding = 0  # the number of the question to yield that is not over; 0: there is none
        self._told_over = 0  # what the server knows of `spread_over`
        self._token = 0
        self._gap = False
        self._given_below = 0  # the application has all messages below; from here to `next_index` none is for it
        self._ack_wanted = 0
        self._ack_sent = 0
        self._ack_at_us = 0

    @property
    def has_unacknowledged(self) -> bool:
        """Whether messages were delivered under this grant that the application has not acknowledged."""
        return not self.at_most_once and self._ack_wanted < self._given_below

    @property
    def _due_at_us(self) -> int | None:
        is_due = self.phase is ConsumerPhase.ACTIVE and self._ack_wanted > self._ack_sent
        return self._ack_at_us if is_due else None

    def _take(self, event: Event, now_us: int, effects: list[Effect]) -> None:
        match event:
            case Delivered():
                self._delivered(event, effects)
            case Acknowledge():
                self._acknowledge(event)
            case AckConfirmed():
                # An outdated server may mean an earlier group epoch. Without it: 1. The group is moved from 1:50 back
                # to 1:10. 2. The server reads an older copy of the coordinator, which has it at 1:50, and confirms
                # that. 3. The coordinator is rebuilt, and 1:10 to 1:49 come although they were confirmed.
                is_counted = self._is_heard(event.subscription) and not self._server_is_outdated
                if is_counted and event.segment == self.segment:
                    effects.append(AckedDurably(event.segment, event.index))
            case Skipped():
                self._skipped(event, effects)
            case GapDeclared():
                self._gap_declared(event, effects)
            case Dropped():
                self._dropped(event, effects)
            case YieldAsked():
                self._yield_asked(event, effects)
            case Yield():
                if self.yielding == event.number and self.phase is ConsumerPhase.ACTIVE:
                    assert self._stream is not None
                    offset = make_offset(self.segment, event.index)
                    effects.append(SendYielded(self._stream, self.subscription, self._token, event.number, offset))
            case Grown():
                self.spread_over = event.partitions
                self._tell_spread(effects)
            case _:
                pass

    def _end_grant(self, effects: list[Effect]) -> None:
        self.yielding = 0
        if self.phase is ConsumerPhase.ACTIVE:
            self.grant += 1
            effects.append(Assigned(self.grant, False, self.segment, self.next_index))

    def _send_due(self, now_us: int, effects: list[Effect]) -> None:
        if self._ack_wanted > self._ack_sent and now_us >= self._ack_at_us:
            assert self._stream is not None
            self._ack_sent = self._ack_wanted
            self._ack_at_us = now_us + self._config.ack_interval_ms * US_PER_MS
            offset = make_offset(self.segment, self._ack_wanted - 1)
            effects.append(SendAck(self._stream, self.subscription, self._token, offset))

    # ---- what the server says ------------------------------------------------------------------------

    def _joined(self, event: Joined, now_us: int, effects: list[Effect]) -> None:
        was_active = self.phase is ConsumerPhase.ACTIVE
        if not self._takes_join(event, now_us, effects):
            return
        self.yielding = 0
        self._was_standby = not event.active
        self.at_most_once = event.at_most_once
        self._tell_spread(effects)
        if not event.active and not was_active:
            self.phase = ConsumerPhase.STANDBY
            return
        self.grant += 1
        self._was_active = event.active
        self.phase = ConsumerPhase.ACTIVE if event.active else ConsumerPhase.STANDBY
        if event.active:
            self._gap = False
            self.next_index = self._given_below = self._ack_wanted = self._ack_sent = event.index
            self.begun_index = event.index
            self._token = event.token
        effects.append(Assigned(self.grant, event.active, event.segment, event.index))

    def _connected(self, event: Connected, now_us: int, effects: list[Effect]) -> None:
        super()._connected(event, now_us, effects)
        if effects and isinstance(effects[-1], SendJoin):
            self._told_over = self.spread_over

    def _tell_spread(self, effects: list[Effect]) -> None:
        """Notify the server of more partitions than the join said."""
        if self._told_over != self.spread_over and self.phase in HEARD:
            assert self._stream is not None
            self._told_over = self.spread_over
            effects.append(SendSpreadOver(self._stream, self.subscription, self.spread_over))

    def _yield_asked(self, event: YieldAsked, effects: list[Effect]) -> None:
        if not self._is_heard(event.subscription) or self.phase is not ConsumerPhase.ACTIVE:
            return
        if not event.is_over:
            self.yielding = event.number
            effects.append(AskedToYield(event.number))
        elif event.number == self.yielding:
            self.yielding = 0
            effects.append(YieldEnded())

    def _delivered(self, event: Delivered, effects: list[Effect]) -> None:
        if not self._is_heard(event.subscription) or event.server_epoch < self._server_epoch:
            return
        if self._server_is_outdated:
            return
        if self.phase is not ConsumerPhase.ACTIVE or event.server_epoch > self._server_epoch:
            self._violated(f"delivery under server epoch {event.server_epoch} without a grant of it")
        if event.segment != self.segment or not event.batches:
            self._violated(f"delivery of segment {event.segment}, the grant is for segment {self.segment}")
        base, count = event.batches[0]
        if event.from_index != self.next_index or not base <= self.next_index < base + count:
            self._violated(f"delivery from {event.from_index} (batch at {base}), expected {self.next_index}")
        end = base + count
        for base, count in event.batches[1:]:
            if base != end:
                self._violated(f"batch at {base} after one that ended at {end}")
            end += count
        effects.append(
            Deliver(
                self.grant, self.segment, self.next_index, event.maybe_repeated_below, max(1, event.delivery_attempt)
            )
        )
        # Rule `client-acks-early` (I3, I8): only the application acknowledges, so `_ack_wanted` stays. Without it:
        # 1. The application gets message a. The client acknowledges a at once.
        # 2. The application dies before it has worked on a.
        # 3. The next consumer begins after a, and no consumer ever works on a.
        self.next_index = self._given_below = end

    def _skipped(self, event: Skipped, effects: list[Effect]) -> None:
        if not self._is_heard(event.subscription) or self._server_is_outdated:
            return
        if self.phase is not ConsumerPhase.ACTIVE or event.segment != self.segment:
            self._violated(f"skip in segment {event.segment} without a grant for it")
        if event.from_index != self.next_index or event.to_index <= event.from_index:
            self._violated(f"skip from {event.from_index} to {event.to_index}, expected {self.next_index}")
        self._pass(event.to_index)
        effects.append(Passed(event.segment, event.from_index, event.to_index))

    def _gap_declared(self, event: GapDeclared, effects: list[Effect]) -> None:
        if self._is_heard(event.subscription):
            here = event.segment == self.segment
            # If the gap is in an earlier segment, this segment is complete. If it is in a later one, the consumer group
            # has left this segment, and the event of its end was lost: the server got no answer when it moved the
            # cursor, and later found it moved.
            self._gap = self._gap or event.segment >= self.segment
            delivered_below = self.next_index if here else 0
            first = make_offset(event.segment, max(event.from_index, delivered_below))
            self._tell_gone(first, end_of_gap(event), event.reason, 0, effects)

    def _dropped(self, event: Dropped, effects: list[Effect]) -> None:
        """Pass over messages that retention dropped, and notify the application. It has nothing to acknowledge
        there."""
        if not self._is_heard(event.subscription) or self._server_is_outdated:
            return
        if self.phase is not ConsumerPhase.ACTIVE or event.segment != self.segment or event.to_index < self.next_index:
            self._violated(f"messages up to {event.segment}:{event.to_index} were dropped, expected {self.next_index}")
        self._pass(event.to_index)
        end_offset = make_offset(event.segment, event.to_index)
        self._tell_gone(event.from_offset, end_offset, DROPPED, event.messages, effects)

    def _pass(self, to_index: int) -> None:
        """Pass over indexes without a message for the application. They are acknowledged with the last one before."""
        self.next_index = to_index
        if self._ack_wanted >= self._given_below:
            self._ack_wanted = to_index

    def _segment_ended(self, event: SegmentEnded, now_us: int, effects: list[Effect]) -> None:
        if not self._is_heard(event.subscription):
            return
        as_expected = event.segment == self.segment and event.sealed_len == self.next_index
        if self.phase is ConsumerPhase.ACTIVE and not self._gap and not as_expected:
            self._violated(f"segment {event.segment} ended at {event.sealed_len}, expected {self.next_index}")
        self._end_grant(effects)
        self._gap = False
        self._go_on_at(event, now_us)

    # ---- what the application says -------------------------------------------------------------------

    def _acknowledge(self, event: Acknowledge) -> None:
        if event.grant != self.grant or self.phase is not ConsumerPhase.ACTIVE or event.segment != self.segment:
            return
        assert event.index <= self.next_index, "only what was delivered can be acknowledged"
        # Rule `acked-with-the-last`: with the last message that the application has, the skip after it is acknowledged
        # too. Without it: 1. The application works on the last message of a sealed segment. 2. A skip after it comes.
        # 3. The application acknowledges the message. 4. It has no later message to acknowledge, so the skip is never
        # acknowledged, and the consumer group stays in front of it for ever.
        index = self.next_index if event.index >= self._given_below else event.index
        self._ack_wanted = max(self._ack_wanted, index)

    # ---- helpers -------------------------------------------------------------------------------------

    def _send_last_words(self, effects: list[Effect]) -> None:
        assert self._stream is not None
        if self.phase is ConsumerPhase.ACTIVE and self._ack_wanted > self._ack_sent:
            offset = make_offset(self.segment, self._ack_wanted - 1)
            effects.append(SendAck(self._stream, self.subscription, self._token, offset))
        effects.append(SendLeave(self._stream, self.subscription))

    def _violated(self, text: str) -> None:
        self.phase = ConsumerPhase.ENDED
        raise OrderViolationError(text, segment=self.segment, index=self.next_index)


__all__ = [
    "ConsumerConfig",
    "ConsumerPhase",
    "PartitionConsumer",
    "ReplyError",
]
