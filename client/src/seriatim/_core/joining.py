"""How a consumer finds the server of one partition's cursor segment, joins there, and stays joined. Pure.

The parts that depend on the mode of the consumer group, what is delivered and acknowledged, are in the classes that
derive from `Joining`: `consumer` for exclusive groups, and `keyed_consumer` for groups in which order is by key.

    RESOLVING ──place known──▶ OPENING ──stream up──▶ JOINING ──Joined──▶ STANDBY ⇄ ACTIVE
        ▲                                                │ ▲                  │
        │                                                │ └─ older Joined ───┤
        └── refused, revoked, stream broken, no answer ──┴────────────────────┘
    SegmentEnded: to OPENING at the next server's address, or RESOLVING if it is not known.

Each join has a new subscription number. So events that are still under way for an earlier join are recognised.
"""

from __future__ import annotations

import enum
from typing import Final, Literal

from seriatim_api.errors import CATALOGUE, CoordinatorBehindError, NotActiveError, StaleGroupEpochError
from seriatim_api.ids import make_offset, split_offset
from seriatim_api.reported_gaps import Told, tell, told_below

from .consumer_types import (
    Acknowledge,
    Answered,
    Connected,
    ConsumerConfig,
    ConsumerGroupChanged,
    Disconnected,
    Effect,
    Ended,
    Event,
    GapDeclared,
    GapFound,
    Joined,
    Leave,
    OpenStream,
    Paused,
    Place,
    Refused,
    Resolve,
    Resolved,
    SegmentEnded,
    SendJoin,
    SendLeave,
)
from .state import State

US_PER_MS: Final = 1000

NEVER_US: Final = 1 << 62
"""Later than any time."""

DROPPED: Final = "dropped by retention"
"""The reason of a gap, for humans."""

_TOLD_MAX: Final = 3
"""The consumer follows this many referrals from one broker to another without a pause. Then it asks again."""

_OPENING: Final = -1
"""The stream's number between `OpenStream` and its answer."""


class ConsumerPhase(enum.Enum):
    """The state of a subscription."""

    RESOLVING = "resolving"
    OPENING = "opening"
    JOINING = "joining"
    STANDBY = "standby"
    ACTIVE = "active"
    ENDED = "ended"


HEARD = (ConsumerPhase.JOINING, ConsumerPhase.STANDBY, ConsumerPhase.ACTIVE)
_JOINED = (ConsumerPhase.STANDBY, ConsumerPhase.ACTIVE)


def end_of_gap(event: GapDeclared) -> int:
    """The first offset after a declared gap."""
    return make_offset(event.segment, event.to_index) if event.to_index else make_offset(event.segment + 1, 0)


class Joining(State):
    """The subscription of one consumer on one partition."""

    __slots__ = (
        "_alive_us",
        "_complain",
        "_config",
        "_deadline_us",
        "_failures",
        "_group_epoch",
        "_place",
        "_resolving",
        "_retry_at_us",
        "_server_epoch",
        "_server_is_outdated",
        "_stream",
        "_told",
        "_unfounded",
        "_was_active",
        "_was_standby",
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
        self._was_standby = False
        self._group_epoch = 0
        self._server_epoch = 0
        self._failures = 0
        self._unfounded = 0  # complaints in a row, of a server that brokers have heard
        self._retry_at_us = 0
        self._deadline_us = 0  # for the answer to the join
        self._server_is_outdated = False  # its last answer to the join was older than what is known
        self._told: tuple[Told, ...] = ()  # what the application knows to be gone
        self._alive_us = 0  # when the newest heartbeat that the server has answered (or the join) was sent

    @property
    def place(self) -> Place | None:
        """The server of the cursor segment; None: not known."""
        return self._place

    @property
    def group_epoch(self) -> int:
        """The group epoch that the server reported last; 0: none yet."""
        return self._group_epoch

    @property
    def server_epoch(self) -> int:
        """The server epoch of the grant, or of the standby's join."""
        return self._server_epoch

    @property
    def waits_for(self) -> str:
        """What the consumer waits for, and where, for humans."""
        address = self._place.address if self._place is not None else ""
        tries = f" (try {self._failures + 1})" if self._failures else ""
        match self.phase:
            case ConsumerPhase.RESOLVING:
                than = f", other than the one at {address}, of which it complained" if self._complain else ""
                return f"brokers to name its server{than}{tries}"
            case ConsumerPhase.OPENING:
                return f"a stream to its server at {address}{tries}"
            case ConsumerPhase.JOINING:
                return f"the answer of its server at {address} to its join{tries}"
            case _:
                return f"messages of segment {self.segment} from its server at {address}"

    @property
    def wake_at_us(self) -> int | None:
        """The latest time for the next `Timer`, in µs; None: not needed."""
        if self.phase is ConsumerPhase.RESOLVING:
            return None if self._resolving else self._retry_at_us
        if self.phase is ConsumerPhase.JOINING:
            return self._deadline_us
        if self.phase not in _JOINED:
            return None
        own_us = self._due_at_us
        return self._lapses_at_us if own_us is None else min(self._lapses_at_us, own_us)

    @property
    def _due_at_us(self) -> int | None:
        """When the mode's own part has something to send; None: it has nothing."""
        raise NotImplementedError

    @property
    def _lapses_at_us(self) -> int:
        return self._alive_us + self._config.session_ms * US_PER_MS

    @property
    def lapses_at_us(self) -> int:
        """The time, in µs, until which the present grant certainly counts. From then on, call `has_lapsed`."""
        if self.phase not in _JOINED:
            return 0
        return self._lapses_at_us

    def has_lapsed(self, now_us: int) -> bool:
        """Whether the grant does not count any more, because the server answered no heartbeat for `session_ms`."""
        return self.phase in _JOINED and now_us >= self._lapses_at_us

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
            # 2. Another server and another consumer take over, and the consumer group continues.
            # 3. The cut heals. The application gets the old deliveries without a flag, because they were the first when
            #    they were sent.
            self._lapse(now_us, jitter, effects)
        match event:
            case Joined():
                self._joined(event, now_us, effects)
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
            case Leave():
                self._leave(effects)
            case _:
                self._take(event, now_us, effects)
        self._pump(now_us, jitter, effects)
        return effects

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
        if self.phase is ConsumerPhase.ACTIVE:
            self._send_due(now_us, effects)

    # ---- what depends on the mode --------------------------------------------------------------------

    def _take(self, event: Event, now_us: int, effects: list[Effect]) -> None:
        """Take in an event about messages."""
        raise NotImplementedError

    def _send_due(self, now_us: int, effects: list[Effect]) -> None:
        """Send what is due."""
        raise NotImplementedError

    def _joined(self, event: Joined, now_us: int, effects: list[Effect]) -> None:
        """The server answered the join, or changed its answer."""
        raise NotImplementedError

    def _segment_ended(self, event: SegmentEnded, now_us: int, effects: list[Effect]) -> None:
        """The consumer group has left the segment: join at the server of the next one."""
        raise NotImplementedError

    def _end_grant(self, effects: list[Effect]) -> None:
        """What was delivered does not count any more."""
        raise NotImplementedError

    def _send_last_words(self, effects: list[Effect]) -> None:
        """Send the last acknowledgements, and leave the server."""
        raise NotImplementedError

    # ---- finding the server --------------------------------------------------------------------------

    def _resolved(self, event: Resolved, now_us: int, jitter: float) -> None:
        self._resolving = False
        if self.phase is not ConsumerPhase.RESOLVING:
            return
        # Rule `no-complaint-twice` (HEARD): after a complaint without an answer the next question is a plain one.
        # Without it:
        # 1. Brokers hold a complaint until its deadline, because the server is there. Their answers come too late.
        # 2. The consumer complains again, for ever, of a server that would answer a join.
        self._complain = False
        if event.place is None or not event.place.address:
            self._back_off(now_us, jitter)
            return
        # Brokers hear the server, so it may only be slow to answer the join. With the same time again, no try differs
        # from the one before, and the consumer leaves each time before the answer comes.
        self._unfounded = self._unfounded + 1 if event.place.confirmed else 0
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
        self._deadline_us = now_us + self._join_timeout_us + event.round_trip_us
        self._alive_us = now_us  # the join counts as the first heartbeat
        self._server_is_outdated = False
        effects.append(SendJoin(event.stream, self.subscription, self._was_active, self._was_standby))

    @property
    def _join_timeout_us(self) -> int:
        config = self._config
        return min(config.join_timeout_ms << min(self._unfounded, 16), config.join_timeout_ms_max) * US_PER_MS

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

    def _is_heard(self, subscription: int) -> bool:
        return subscription == self.subscription and self.phase in HEARD

    def _takes_join(self, event: Joined, now_us: int, effects: list[Effect]) -> bool:
        """Take up what the server says of itself and of the consumer group. Returns whether the answer counts."""
        known = (self._group_epoch, self.segment, self._server_epoch)
        if not self._is_heard(event.subscription):
            return False
        self._server_is_outdated = (event.group_epoch, event.segment, event.server_epoch) < known
        if self._server_is_outdated:
            # It does not know its successor. The join's deadline finds that one, or the server answers again.
            # Rule `client-outdated-servers` (I2): until then, no message counts that comes from this server, and where
            # its segment ends is no violation. Without it:
            # 1. The consumer group is in segment 3. An older copy of the coordinator says that it is in segment 1.
            # 2. The server reads the older cursor, and answers the join again: from 1:10 on.
            # 3. Its next delivery, or the end of segment 1, ends the consumer, which expects 3:0.
            if self.phase in _JOINED:
                # What was granted does not count there, and a new deadline runs. Without it: 1. The server answers the
                # join again from the older copy. 2. It answers heartbeats, so the grant does not lapse. 3. The consumer
                # takes nothing from it, and waits for ever.
                self._end_grant(effects)
                self.phase = ConsumerPhase.JOINING
                self._deadline_us = now_us + self._join_timeout_us
            return False
        is_moved = 0 < self._group_epoch < event.group_epoch
        self._failures = self._unfounded = 0
        self._group_epoch, self.segment, self._server_epoch = event.group_epoch, event.segment, event.server_epoch
        assert self._place is not None
        self._place = Place(event.segment, self._place.address, event.server_epoch)
        if is_moved:
            what = event.begun_by or "moved"
            effects.append(ConsumerGroupChanged(what, event.group_epoch, event.segment, event.index))
            self._begin_anew(event, is_next=event.group_epoch == known[0] + 1)
        self._hold(event.paused, event.index, effects)
        return True

    def _begin_anew(self, event: Joined, *, is_next: bool) -> None:
        """The consumer group reads on from another place. What is gone from there on is reported again.

        An administrator who rewinds may also ask for messages that are gone already, before the place where it begins.
        So all is reported again then, and also if this may have missed a rewind, because `event` is not of the next
        group epoch.
        """
        is_rewound = event.begun_by is not None or not is_next
        self._told = () if is_rewound else told_below(self._told, make_offset(event.segment, event.index))

    def _tell_gone(self, first: int, end: int, reason: str, messages: int, effects: list[Effect]) -> None:
        """Notify the application of a gap, but for what was reported to it before.

        Rule `told-by-one-server` (TOLD): what another server has reported is not reported again. Without it:
          1. Segment 1 is declared lost. The server of segment 2 notifies a consumer of it.
          2. The consumer group continues to segment 3 before a message is acknowledged. Its server does not know what
             was reported, and notifies the consumer of segment 1 again.
          3. The application counts each lost message twice.
        """
        self._told, parts = tell(self._told, Told(first, end, messages))
        for part in parts:
            no, index = split_offset(part.first)
            to_end = reason != DROPPED and part.end == make_offset(no + 1, 0)
            effects.append(GapFound(no, index, reason, 0 if to_end else part.end, part.messages))

    def _go_on_at(self, event: SegmentEnded, now_us: int) -> None:
        """Go to the server of the next segment."""
        self._complain = False
        self._retry_at_us = now_us
        if event.next_address:
            self._go_to(Place(event.next_segment, event.next_address, 0))
        else:
            self._stream = None
            self.phase = ConsumerPhase.RESOLVING

    def _hold(self, paused: bool, index: int, effects: list[Effect]) -> None:
        """Notify the application if the consumer group was paused or resumed."""
        if paused != self.paused:
            self.paused = paused
            what: Literal["pause", "resume"] = "pause" if paused else "resume"
            effects.append(ConsumerGroupChanged(what, self._group_epoch, self.segment, index))

    def _refused(self, event: Refused, now_us: int, jitter: float, effects: list[Effect]) -> None:
        if not self._is_heard(event.subscription):
            return
        kind = CATALOGUE.get(event.error.number)
        retriable = kind is not None and (kind.retriable or kind in (StaleGroupEpochError, CoordinatorBehindError))
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

    def _leave(self, effects: list[Effect]) -> None:
        if self.phase in HEARD:
            self._send_last_words(effects)
        self._end_grant(effects)
        self.phase = ConsumerPhase.ENDED
        effects.append(Ended(None))

    def _back_off(self, now_us: int, jitter: float) -> None:
        assert 0 <= jitter < 1
        full_ms = min(self._config.backoff_ms_max, self._config.backoff_ms_min << min(self._failures, 16))
        self._retry_at_us = now_us + int(full_ms * US_PER_MS * (1 + jitter) / 2)
        self._failures += 1
