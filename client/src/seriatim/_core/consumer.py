"""One exclusive consumer on one partition: its server, the contiguity of deliveries, and acknowledgements. Pure.

Bodies, streams and timers belong to the caller. Here a batch is a base index and a count. The life of a subscription:

    RESOLVING ──place known──▶ OPENING ──stream up──▶ JOINING ──Joined──▶ STANDBY ⇄ ACTIVE
        ▲                                                │                    │
        └── refused, revoked, stream broken, no answer ──┴────────────────────┘
    SegmentEnded: to OPENING at the next server's address, or RESOLVING if it is not known.

`step(event, now_us, jitter)` changes state and returns effects, in order. The caller sends `Timer()` at `wake_at_us` at
the latest. Events and effects are in `consumer_types`. The core checks:

* Deliveries, skips and gaps follow one another without a hole, from the index of the join on. The end of a segment
  comes at its sealed length. Anything else is a mistake of a broker or of this client, and raises an
  `OrderViolationError`.
* If a delivery has an older server epoch than the grant, it is dropped, because that server has lost its serving right.
  A delivery with a newer server epoch and without a new `Joined` is a violation.
* If no heartbeat of a grant was answered for `session_ms`, its deliveries are dropped, and the consumer looks for the
  server anew. A cut, or a pause of this process, may have held them back while another consumer got the same messages.
  The age of a heartbeat counts from its sending. Brokers of version 0.2 and older answer no heartbeats; their grants
  have no limit.
* A grant in a higher group epoch begins anew, at any place: the consumer group was rewound, or lost its place. The
  application is told before it gets a message of this grant.
* The application can acknowledge only messages that were delivered under the current grant, under its token. Messages
  that it got under an earlier grant come again, flagged. To acknowledge those changes nothing.

Each join has a new subscription number. So events that are still under way for an earlier join are recognised.
"""

from __future__ import annotations

import enum
from typing import Final, Literal

from seriatim_api.errors import CATALOGUE, NotActiveError, OrderViolationError, StaleGroupEpochError
from seriatim_api.ids import make_offset, split_offset

from .consumer_types import (
    AckConfirmed,
    AckedDurably,
    Acknowledge,
    Answered,
    Assigned,
    Connected,
    ConsumerConfig,
    ConsumerGroupChanged,
    Deliver,
    Delivered,
    Disconnected,
    Dropped,
    Effect,
    Ended,
    Event,
    GapDeclared,
    GapFound,
    Joined,
    Leave,
    OpenStream,
    Passed,
    Paused,
    Place,
    Refused,
    Resolve,
    Resolved,
    SegmentEnded,
    SendAck,
    SendJoin,
    SendLeave,
    Skipped,
    Timer,
)
from .producer_types import ReplyError
from .state import State

_US_PER_MS: Final = 1000

NEVER_US: Final = 1 << 62
"""Later than any time."""

_TOLD_MAX: Final = 3
"""The consumer follows this many referrals from one broker to another without a pause. Then it asks again."""


class ConsumerPhase(enum.Enum):
    """The state of a subscription."""

    RESOLVING = "resolving"
    OPENING = "opening"
    JOINING = "joining"
    STANDBY = "standby"
    ACTIVE = "active"
    ENDED = "ended"


_HEARD = (ConsumerPhase.JOINING, ConsumerPhase.STANDBY, ConsumerPhase.ACTIVE)
_JOINED = (ConsumerPhase.STANDBY, ConsumerPhase.ACTIVE)


class PartitionConsumer(State):
    """One consumer of a consumer group on one partition, in exclusive mode."""

    __slots__ = (
        "_ack_at_us",
        "_ack_sent",
        "_ack_wanted",
        "_alive_us",
        "_complain",
        "_config",
        "_deadline_us",
        "_dropped_below",
        "_dropped_from",
        "_dropped_messages",
        "_expects_answers",
        "_failures",
        "_gap",
        "_given_below",
        "_group_epoch",
        "_place",
        "_resolving",
        "_retry_at_us",
        "_server_epoch",
        "_stream",
        "_token",
        "_was_active",
        "grant",
        "next_index",
        "paused",
        "phase",
        "segment",
        "subscription",
    )

    def __init__(self, config: ConsumerConfig, subscription_base: int = 0) -> None:
        self._config = config
        self.subscription = subscription_base
        self.phase = ConsumerPhase.RESOLVING
        self.grant = 0
        self.paused = False  # whether the consumer group is paused, as the server said last
        self.segment = 0
        self.next_index = 0  # the index of the next message that may be delivered
        self._place: Place | None = None
        self._resolving = False
        self._complain = False
        self._stream: int | None = None
        self._was_active = False
        self._token = 0
        self._group_epoch = 0
        self._server_epoch = 0
        self._gap = False
        self._given_below = 0  # the application has all messages below; from here to `next_index` none is for it
        # In this group epoch, the application was told that [_dropped_from, _dropped_below) was dropped, and that these
        # offsets had `_dropped_messages` messages.
        self._dropped_from = 0
        self._dropped_below = 0
        self._dropped_messages = 0
        self._ack_wanted = 0
        self._ack_sent = 0
        self._ack_at_us = 0
        self._failures = 0
        self._retry_at_us = 0
        self._deadline_us = 0  # for the answer to the join
        self._expects_answers = False  # whether the server answers heartbeats
        self._alive_us = 0  # when the newest heartbeat that the server has answered (or the join) was sent

    @property
    def place(self) -> Place | None:
        """The server of the cursor segment; None: not known."""
        return self._place

    @property
    def server_epoch(self) -> int:
        """The server epoch of the grant, or of the standby's join."""
        return self._server_epoch

    @property
    def wake_at_us(self) -> int | None:
        """The latest time for the next `Timer`, in µs; None: not needed."""
        if self.phase is ConsumerPhase.RESOLVING:
            return None if self._resolving else self._retry_at_us
        if self.phase is ConsumerPhase.JOINING:
            return self._deadline_us
        if self.phase not in _JOINED:
            return None
        times = [self._lapses_at_us] if self._expects_answers else []
        if self.phase is ConsumerPhase.ACTIVE and self._ack_wanted > self._ack_sent:
            times.append(self._ack_at_us)
        return min(times, default=None)

    @property
    def _lapses_at_us(self) -> int:
        return self._alive_us + self._config.session_ms * _US_PER_MS

    @property
    def lapses_at_us(self) -> int:
        """The time, in µs, until which the present grant certainly counts. From then on, call `has_lapsed`."""
        if self.phase not in _JOINED:
            return 0
        return self._lapses_at_us if self._expects_answers else NEVER_US

    def has_lapsed(self, now_us: int) -> bool:
        """Whether the grant does not count any more, because the server answered no heartbeat for `session_ms`."""
        return self._expects_answers and self.phase in _JOINED and now_us >= self._lapses_at_us

    def step(self, event: Event, now_us: int, jitter: float = 0.5) -> list[Effect]:
        """Take in one event, and return the effects to carry out, in their order.

        Args:
            event: The event. The first one is a `Timer`.
            now_us: The monotonic time in µs.
            jitter: A random number in [0, 1), for the time until a retry.

        Raises:
            OrderViolationError: The event does not follow the events before it.
        """
        effects: list[Effect] = []
        if self.phase is ConsumerPhase.ENDED:
            return effects
        if self.has_lapsed(now_us) and not isinstance(event, (Acknowledge, Answered, Leave)):
            # Rule `client-late-deliveries` (I9, I11): a grant lives as long as its heartbeats are answered. What comes
            # under a lapsed grant is dropped. Without it:
            # 1. A cut holds back deliveries of the server under this grant.
            # 2. Another server and another consumer take over, and the consumer group goes on.
            # 3. The cut heals. The application gets the old deliveries without a flag, because they were the first when
            #    they were sent.
            self._lapse(now_us, jitter, effects)
        match event:
            case Delivered():
                self._delivered(event, effects)
            case Acknowledge():
                self._acknowledge(event)
            case AckConfirmed():
                if self._is_heard(event.subscription) and event.segment == self.segment:
                    effects.append(AckedDurably(event.segment, event.index))
            case Skipped():
                self._skipped(event, effects)
            case Joined():
                self._joined(event, effects)
            case Paused():
                if self._is_heard(event.subscription):
                    self._hold(event.paused, self.next_index, effects)
            case Answered():
                if event.stream == self._stream:
                    self._alive_us = max(self._alive_us, event.sent_at_us)
            case Resolved():
                self._resolved(event, now_us, jitter)
            case Connected():
                self._connected(event, now_us, effects)
            case Disconnected():
                self._disconnected(event, now_us, jitter, effects)
            case SegmentEnded():
                self._segment_ended(event, now_us, effects)
            case Refused():
                self._refused(event, now_us, jitter, effects)
            case GapDeclared():
                self._gap_declared(event, effects)
            case Dropped():
                self._dropped(event, effects)
            case Leave():
                self._leave(effects)
            case Timer():
                pass
        self._pump(now_us, jitter, effects)
        return effects

    # ---- finding the server --------------------------------------------------------------------------

    def _resolved(self, event: Resolved, now_us: int, jitter: float) -> None:
        self._resolving = False
        if self.phase is not ConsumerPhase.RESOLVING:
            return
        if event.place is None or not event.place.address:
            self._back_off(now_us, jitter)
            return
        self._complain = False
        self._go_to(event.place)

    def _go_to(self, place: Place) -> None:
        self._place = place
        self._stream = None
        self.phase = ConsumerPhase.OPENING

    def _connected(self, event: Connected, now_us: int, effects: list[Effect]) -> None:
        if self.phase is not ConsumerPhase.OPENING or self._place is None or event.address != self._place.address:
            return
        self._stream = event.stream
        self.subscription += 1
        self.phase = ConsumerPhase.JOINING
        self._deadline_us = now_us + self._config.join_timeout_ms * _US_PER_MS
        self._alive_us = now_us  # the join counts as the first heartbeat
        self._expects_answers = False
        effects.append(SendJoin(event.stream, self.subscription, self._was_active))

    def _disconnected(self, event: Disconnected, now_us: int, jitter: float, effects: list[Effect]) -> None:
        would_not_open = event.stream is None and self.phase is ConsumerPhase.OPENING
        if self._place is None or event.address != self._place.address:
            return
        if would_not_open or (event.stream is not None and event.stream == self._stream):
            self._lose(now_us, jitter, effects, complain=True)

    def _lose(self, now_us: int, jitter: float, effects: list[Effect], *, complain: bool) -> None:
        """This broker cannot be used as the server any more: find the next one."""
        self._end_grant(effects)
        self._complain = complain
        if self._failures:
            self._back_off(now_us, jitter)
        else:
            self._failures = 1  # after the first failure, ask at once
            self._retry_at_us = now_us
        self._stream = None
        self.phase = ConsumerPhase.RESOLVING

    def _lapse(self, now_us: int, jitter: float, effects: list[Effect]) -> None:
        """Leave the server. If it lives, it gives the messages without acknowledgement to its next consumer."""
        self._send_last_words(effects)
        self._lose(now_us, jitter, effects, complain=True)

    def _end_grant(self, effects: list[Effect]) -> None:
        if self.phase is ConsumerPhase.ACTIVE:
            self.grant += 1
            effects.append(Assigned(self.grant, False, self.segment, self.next_index))

    def _pump(self, now_us: int, jitter: float, effects: list[Effect]) -> None:
        if self.phase is ConsumerPhase.JOINING and now_us >= self._deadline_us:
            assert self._stream is not None
            effects.append(SendLeave(self._stream, self.subscription))
            self._lose(now_us, jitter, effects, complain=True)
        if self.phase is ConsumerPhase.RESOLVING and not self._resolving and now_us >= self._retry_at_us:
            self._resolving = True
            place = self._place if self._complain else None
            effects.append(Resolve(place.server_epoch, place.address) if place else Resolve(None, None))
        if self.phase is ConsumerPhase.OPENING and self._stream is None:
            assert self._place is not None
            self._stream = _OPENING
            effects.append(OpenStream(self._place.address))
        if self.phase is ConsumerPhase.ACTIVE and self._ack_wanted > self._ack_sent and now_us >= self._ack_at_us:
            assert self._stream is not None
            self._ack_sent = self._ack_wanted
            self._ack_at_us = now_us + self._config.ack_interval_ms * _US_PER_MS
            offset = make_offset(self.segment, self._ack_wanted - 1)
            effects.append(SendAck(self._stream, self.subscription, self._token, offset))

    # ---- what the server says ------------------------------------------------------------------------

    def _is_heard(self, subscription: int) -> bool:
        return subscription == self.subscription and self.phase in _HEARD

    def _joined(self, event: Joined, effects: list[Effect]) -> None:
        known = (self._group_epoch, self.segment, self._server_epoch)
        if not self._is_heard(event.subscription) or (event.group_epoch, event.segment, event.server_epoch) < known:
            return  # an outdated server answered, which does not know its successor; the join's deadline finds that one
        was_active = self.phase is ConsumerPhase.ACTIVE
        is_moved = 0 < self._group_epoch < event.group_epoch
        self._failures = 0
        self._group_epoch, self.segment, self._server_epoch = event.group_epoch, event.segment, event.server_epoch
        self._expects_answers = event.answers_pings
        assert self._place is not None
        self._place = Place(event.segment, self._place.address, event.server_epoch)
        if is_moved:
            self._dropped_from = self._dropped_below = self._dropped_messages = 0
            what = event.begun_by or "moved"
            effects.append(ConsumerGroupChanged(what, event.group_epoch, event.segment, event.index))
        self._hold(event.paused, event.index, effects)
        if not event.active and not was_active:
            self.phase = ConsumerPhase.STANDBY
            return
        self.grant += 1
        self._was_active = event.active
        self.phase = ConsumerPhase.ACTIVE if event.active else ConsumerPhase.STANDBY
        if event.active:
            self._gap = False
            self.next_index = self._given_below = self._ack_wanted = self._ack_sent = event.index
            self._token = event.token
        effects.append(Assigned(self.grant, event.active, event.segment, event.index))

    def _hold(self, paused: bool, index: int, effects: list[Effect]) -> None:
        """Tell the application if the consumer group was paused or resumed."""
        if paused != self.paused:
            self.paused = paused
            what: Literal["pause", "resume"] = "pause" if paused else "resume"
            effects.append(ConsumerGroupChanged(what, self._group_epoch, self.segment, index))

    def _delivered(self, event: Delivered, effects: list[Effect]) -> None:
        if not self._is_heard(event.subscription) or event.server_epoch < self._server_epoch:
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
        # 3. The next consumer begins behind a, and no consumer ever works on a.
        self.next_index = self._given_below = end

    def _skipped(self, event: Skipped, effects: list[Effect]) -> None:
        if not self._is_heard(event.subscription):
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
            # If the gap is in an earlier segment, this segment is whole. If it is in a later one, the consumer group
            # has left this segment, and the event of its end was lost: the server got no answer when it moved the
            # cursor, and later found it moved.
            self._gap = self._gap or event.segment >= self.segment
            delivered_below = self.next_index if here else 0
            effects.append(GapFound(event.segment, max(event.from_index, delivered_below), event.reason))

    def _dropped(self, event: Dropped, effects: list[Effect]) -> None:
        """Pass over messages that retention dropped, and tell the application. It has nothing to acknowledge there."""
        if not self._is_heard(event.subscription):
            return
        if self.phase is not ConsumerPhase.ACTIVE or event.segment != self.segment or event.to_index < self.next_index:
            self._violated(f"messages up to {event.segment}:{event.to_index} were dropped, expected {self.next_index}")
        self._pass(event.to_index)
        end_offset = make_offset(event.segment, event.to_index)
        self._tell_dropped(event.from_offset, end_offset, event.messages, effects)

    def _tell_dropped(self, first: int, end: int, messages: int, effects: list[Effect]) -> None:
        """Tell each dropped part once.

        The server repeats the event until a message behind it is acknowledged, and its range may grow. It grows at its
        end if more was dropped. It grows at its beginning if messages that were given and not acknowledged were dropped
        too, so that they do not come again.
        """
        start, below, told = self._dropped_from, self._dropped_below, self._dropped_messages
        if not start or first > below or end < start:
            self._dropped_from, self._dropped_below, self._dropped_messages = first, end, messages
            effects.append(GapFound(*split_offset(first), DROPPED, end, messages))
            return
        (first_no, first_index), (start_no, start_index) = split_offset(first), split_offset(start)
        before = told_before = 0
        if first < start:
            before = start_index - first_index if first_no == start_no else max(messages - told, 0)
            effects.append(GapFound(first_no, first_index, DROPPED, start, before))
            self._dropped_from = first
        elif first_no == start_no:
            told_before = first_index - start_index
        if end > below:
            told_of_it = max(told - told_before, 0) if first < below else 0
            more = max(messages - before - told_of_it, 0)
            if more:  # if 0, `below` is the end of a segment and `end` the beginning of the next: the same place
                effects.append(GapFound(*split_offset(below), DROPPED, end, more))
            self._dropped_below = end
            told += more
        self._dropped_messages = told + before

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
        self._complain = False
        self._retry_at_us = now_us
        if event.next_address:
            self._go_to(Place(event.next_segment, event.next_address, 0))
        else:
            self._stream = None
            self.phase = ConsumerPhase.RESOLVING

    def _refused(self, event: Refused, now_us: int, jitter: float, effects: list[Effect]) -> None:
        if not self._is_heard(event.subscription):
            return
        kind = CATALOGUE.get(event.error.number)
        retriable = kind is not None and (kind.retriable or kind is StaleGroupEpochError)
        if not retriable or kind is NotActiveError:
            self._end_grant(effects)
            self.phase = ConsumerPhase.ENDED
            effects.append(Ended(event.error))
            return
        here = self._place.address if self._place is not None else ""
        told_often = self._failures >= _TOLD_MAX
        self._lose(now_us, jitter, effects, complain=False)
        if event.address and event.address != here and not told_often:
            self._go_to(Place(self.segment, event.address, 0))

    # ---- what the application says -------------------------------------------------------------------

    def _acknowledge(self, event: Acknowledge) -> None:
        if event.grant != self.grant or self.phase is not ConsumerPhase.ACTIVE or event.segment != self.segment:
            return
        assert event.index <= self.next_index, "only what was delivered can be acknowledged"
        # Rule `acked-with-the-last`: with the last message that the application has, the skip behind it is acknowledged
        # too. Without it: 1. The application works on the last message of a sealed segment. 2. A skip behind it comes.
        # 3. The application acknowledges the message. 4. It has no later message to acknowledge, so the skip is never
        # acknowledged, and the consumer group stays in front of it for ever.
        index = self.next_index if event.index >= self._given_below else event.index
        self._ack_wanted = max(self._ack_wanted, index)

    def _leave(self, effects: list[Effect]) -> None:
        if self.phase in _HEARD:
            self._send_last_words(effects)
        self._end_grant(effects)
        self.phase = ConsumerPhase.ENDED
        effects.append(Ended(None))

    # ---- helpers -------------------------------------------------------------------------------------

    def _send_last_words(self, effects: list[Effect]) -> None:
        assert self._stream is not None
        if self.phase is ConsumerPhase.ACTIVE and self._ack_wanted > self._ack_sent:
            offset = make_offset(self.segment, self._ack_wanted - 1)
            effects.append(SendAck(self._stream, self.subscription, self._token, offset))
        effects.append(SendLeave(self._stream, self.subscription))

    def _back_off(self, now_us: int, jitter: float) -> None:
        assert 0 <= jitter < 1
        full_ms = min(self._config.backoff_ms_max, self._config.backoff_ms_min << min(self._failures, 16))
        self._retry_at_us = now_us + int(full_ms * _US_PER_MS * (1 + jitter) / 2)
        self._failures += 1

    def _violated(self, text: str) -> None:
        self.phase = ConsumerPhase.ENDED
        raise OrderViolationError(text, segment=self.segment, index=self.next_index)


DROPPED: Final = "dropped by retention"
"""The reason of a gap, for people."""

_OPENING: Final = -1
"""The stream's number between `OpenStream` and its answer."""


__all__ = [
    "ConsumerConfig",
    "ConsumerPhase",
    "PartitionConsumer",
    "ReplyError",
]
