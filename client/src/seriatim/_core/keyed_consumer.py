"""One consumer on one partition of a consumer group in which order is by key: its grants and acknowledgements. Pure.

A grant has messages of one key, under a token. The application works on them in their order, and acknowledges each.
`joining` has how the consumer finds its server. The core checks:

* Only a grant that is held counts: it ends when its messages are acknowledged, when the application fails on one, when
  the server says so, and when the server or the stream is lost.
* Within a grant, only the next message can be acknowledged.
* When the consumer group moves on to the next segment, grants continue there under the same tokens. Acknowledgements
  that were not confirmed are repeated there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from seriatim_api.ids import make_offset

from .consumer_types import (
    AcksConfirmed,
    Assigned,
    ConsumerConfig,
    Demanded,
    Dropped,
    Effect,
    Event,
    Fail,
    GapDeclared,
    Granted,
    GrantsEnded,
    Hold,
    Joined,
    Release,
    SegmentEnded,
    SendAcks,
    SendDemand,
    SendExtend,
    SendLeave,
    SendNack,
    TakeGrants,
    TokensVoid,
)
from .joining import DROPPED, US_PER_MS, ConsumerPhase, Joining, end_of_gap
from .state import State

UNCONFIRMED_MAX: Final = 10_000
"""Maximum number of requests with acknowledgements that are kept for a repetition. Older ones are not repeated: their
messages may come again."""

TOKENS_MAX: Final = 50_000
"""Maximum number of tokens that are in one request."""

ALL_MESSAGES: Final = 100_000
"""A demand for as many messages as the consumer's other limits allow. It is renewed when half of it is used up."""

ROWS_SOON: Final = 1_000
"""Maximum number of acknowledgements that wait for more. Fewer do if the consumer is given few messages at once: the
server gives more when a fourth of what the consumer may hold is acknowledged, so nothing is gained by an earlier
request."""

ROWS_SHARE: Final = 4

FAIL_MS: Final = 5
"""Failures of this many ms are reported together, after what was acknowledged before them. Each on its own would cost a
broker as much as some hundred messages."""

RELEASE_MS: Final = 0
"""A grant that is given back ends at once."""


class HeldGrant(State):
    """A grant that this consumer has: its messages, and how many of them are acknowledged.

    A grant of one message that nothing has happened to is no object, but the offset of the message.

    `until_us`: the application asked for it until then; 0: it did not. `is_manual`: it is extended only when the
    application asks.
    """

    __slots__ = ("done", "is_manual", "is_started", "offsets", "token", "until_us")

    def __init__(self, token: int, offsets: tuple[int, ...]) -> None:
        self.token = token
        self.offsets = offsets
        self.done = 0
        self.is_started = False
        self.until_us = 0
        self.is_manual = False


class KeyedPartitionConsumer(Joining):
    """One consumer of a consumer group on one partition, if order is by key.

    Args:
        config: Times.
        subscription_base: Subscriptions are numbered from there.
        on_demand: It is granted what the application asks for (`Demanded`), and nothing before.
        in_flight_max: Maximum number of messages that are granted and not acknowledged.
    """

    __slots__ = (
        "_acked",
        "_carries",
        "_claims",
        "_demand",
        "_extend_at_us",
        "_failed",
        "_grant_ms",
        "_number",
        "_released",
        "_rows_soon",
        "_run_max",
        "_send_at_us",
        "_started",
        "_tokens",
        "_unconfirmed",
        "at_most_once",
        "grants",
        "on_demand",
    )

    def __init__(
        self,
        config: ConsumerConfig,
        subscription_base: int = 0,
        *,
        on_demand: bool = False,
        in_flight_max: int = ROWS_SOON * ROWS_SHARE,
    ) -> None:
        super().__init__(config, subscription_base)
        self._rows_soon = min(max(in_flight_max // ROWS_SHARE, 1), ROWS_SOON)
        self.on_demand = on_demand
        self.at_most_once = False  # as the server said last: what is granted does not come again
        self._demand = 0  # this many messages are asked for, and have not come
        self._run_max = 0
        self._released: dict[bool, list[int]] = {True: [], False: []}
        """Tokens of grants that were given back, not reported to the server yet: of unseen messages, and of others."""
        self.grants: dict[int, HeldGrant | int] = {}  # by token
        self._tokens: list[int] = []  # of acknowledgements that are not sent,
        self._acked: list[int] = []  # and their offsets
        self._started: dict[int, None] = {}  # tokens of grants whose next message was begun, not reported
        self._send_at_us = 0
        self._number = 0  # of the last request with acknowledgements
        self._unconfirmed: deque[tuple[int, tuple[int, ...], tuple[int, ...]]] = deque()
        self._failed: list[Fail] = []  # not reported to the server yet
        self._carries = False  # the consumer group has moved to the next segment, and the grants with it
        self._claims = False  # the server of the next segment must hear which grants continue
        self._grant_ms = 0
        self._extend_at_us = 0

    @property
    def unconfirmed(self) -> tuple[int, ...]:
        """The numbers of the requests that count and are not confirmed."""
        return tuple(number for number, _, _ in self._unconfirmed)

    def confirmed_by(self, number: int) -> tuple[list[int], list[int]]:
        """The offsets and tokens of acknowledgements that are confirmed if all requests up to `number` are."""
        rows = [row for row in self._unconfirmed if row[0] <= number]
        return [offset for row in rows for offset in row[2]], [token for row in rows for token in row[1]]

    def held_rows(self, tokens: Iterable[int]) -> tuple[list[int], list[int]]:
        """The offsets and tokens of what is held and not acknowledged of these grants."""
        offsets: list[int] = []
        found: list[int] = []
        for token in tokens:
            grant = self.grants.get(token)
            left = () if grant is None else (grant,) if isinstance(grant, int) else grant.offsets[grant.done :]
            offsets += left
            found += [token] * len(left)
        return offsets, found

    @property
    def wants_more(self) -> bool:
        """Whether the application asked for messages, and has none."""
        return bool(self._demand) and not self.grants

    @property
    def has_unsent(self) -> bool:
        """Whether acknowledgements, failures, or reports of grants that were begun, wait to be sent."""
        return bool(self._tokens or self._started or self._failed)

    # ---- the application -----------------------------------------------------------------------------

    def begin(self, token: int, now_us: int) -> bool:
        """The application begins to work on the next message of a grant, and does not end at once.

        Rule `message-started`: a message is reported as begun when the application begins it, and not when it begins an
        earlier one of its grant.

        Returns:
            Whether the grant counts.
        """
        grant = self._grant_of(token)
        if grant is None:
            return False
        if not grant.is_started:
            grant.is_started = True
            self._plan(now_us)
            self._started[token] = None
        return True

    def _grant_of(self, token: int) -> HeldGrant | None:
        """The grant, as an object from now on."""
        grant = self.grants.get(token)
        if isinstance(grant, int):
            grant = self.grants[token] = HeldGrant(token, (grant,))
        return grant

    def acknowledge(self, token: int, offset: int, now_us: int) -> bool:
        """The application is done with the next message of a grant.

        Returns:
            Whether it counts: the grant is held, and this is its next message.
        """
        grant = self.grants.get(token)
        if isinstance(grant, int):
            if grant != offset:
                return False
            del self.grants[token]
        else:
            if grant is None or grant.offsets[grant.done] != offset:
                return False
            grant.done += 1
            grant.is_started = False
            if grant.done == len(grant.offsets):
                del self.grants[token]
        self._started.pop(token, None)
        # Rule `client-acks-early` counts here too: only the application acknowledges.
        self._plan(now_us)
        self._tokens.append(token)
        self._acked.append(offset)
        if len(self._tokens) == self._rows_soon:
            self._send_at_us = now_us
        return True

    @property
    def is_enough_unsent(self) -> bool:
        """Whether the last acknowledgement was the one for which the others waited: they are sent now."""
        return len(self._tokens) == self._rows_soon

    def acknowledge_all(self, tokens: Iterable[int], now_us: int) -> int:
        """The application is done with all messages of grants. Returns of how many messages that counts."""
        self._plan(now_us)
        pop, unsent, acked = self.grants.pop, self._tokens, self._acked
        before = len(unsent)
        for token in tokens:
            grant = pop(token, None)
            self._started.pop(token, None)
            if isinstance(grant, int):
                unsent.append(token)
                acked.append(grant)
            elif grant is not None:
                left = grant.offsets[grant.done :]
                unsent += [token] * len(left)
                acked += left
        return len(unsent) - before

    def hurry(self, now_us: int, *, at_once: bool = False) -> None:
        """Nothing more waits for the application, so what it acknowledged is sent soon."""
        at_once = at_once or len(self._tokens) >= self._rows_soon
        after_us = 0 if at_once else self._config.ack_interval_ms * US_PER_MS // 5
        self._send_at_us = min(self._send_at_us, now_us + after_us)

    def _plan(self, now_us: int) -> None:
        if not self.has_unsent:
            self._send_at_us = now_us + self._config.ack_interval_ms * US_PER_MS

    # ---- what depends on the mode --------------------------------------------------------------------

    @property
    def _due_at_us(self) -> int | None:
        if self.phase is not ConsumerPhase.ACTIVE:
            return None
        times = [self._send_at_us] if self.has_unsent else []
        if self.grants:
            times.append(self._extend_at_us)
        return min(times, default=None)

    def _take(self, event: Event, now_us: int, effects: list[Effect]) -> None:
        match event:
            case Granted():
                self._granted(event, now_us, effects)
            case AcksConfirmed():
                while self._unconfirmed and self._unconfirmed[0][0] <= event.number:
                    self._unconfirmed.popleft()
            case TokensVoid():
                if self._is_heard(event.subscription):
                    self._drop(event.tokens, effects)
            case Fail():
                self._fail(event, now_us, effects)
            case Hold():
                self._hold_grant(event, now_us, effects)
            case Release():
                self._release(event, effects)
            case Demanded():
                self._demand, self._run_max = event.messages, event.run_max
                self._send_demand(effects)
            case GapDeclared():
                if self._is_heard(event.subscription):
                    first = make_offset(event.segment, event.from_index)
                    self._tell_gone(first, end_of_gap(event), event.reason, 0, effects)
            case Dropped():
                if self._is_heard(event.subscription):
                    end = make_offset(event.segment, event.to_index)
                    self._tell_gone(event.from_offset, end, DROPPED, event.messages, effects)
            case _:
                pass

    def _granted(self, event: Granted, now_us: int, effects: list[Effect]) -> None:
        if (
            not self._is_heard(event.subscription)
            or event.server_epoch < self._server_epoch
            or self.phase is not ConsumerPhase.ACTIVE
        ):
            return
        if not self.grants:
            self._extend_at_us = now_us + self._grant_ms * US_PER_MS // 3
        is_all = self._demand > ALL_MESSAGES // 2
        if len(event.tokens) == len(event.offsets):
            self.grants.update(zip(event.tokens, event.offsets, strict=True))
        else:
            offsets = iter(event.offsets)
            for token, count in zip(event.tokens, event.counts, strict=True):
                self.grants[token] = next(offsets) if count == 1 else HeldGrant(token, tuple(islice(offsets, count)))
        self._demand = max(self._demand - len(event.offsets), 0)
        effects.append(TakeGrants(event.tokens, event.counts, event.offsets))
        if is_all and self._demand <= ALL_MESSAGES // 2:
            self._demand = ALL_MESSAGES
            self._send_demand(effects)

    def _send_demand(self, effects: list[Effect]) -> None:
        if self.on_demand and self.phase is ConsumerPhase.ACTIVE:
            assert self._stream is not None
            effects.append(SendDemand(self._stream, self.subscription, self._demand, self._run_max))

    def _hold_grant(self, event: Hold, now_us: int, effects: list[Effect]) -> None:
        grant = self._grant_of(event.token)
        if grant is None:
            return
        grant.is_manual = grant.is_manual or event.is_manual
        if event.hold_ms is None:
            grant.until_us = now_us + self._grant_ms * US_PER_MS
            return
        grant.until_us = now_us + event.hold_ms * US_PER_MS
        if self.phase is ConsumerPhase.ACTIVE:
            assert self._stream is not None
            effects.append(SendExtend(self._stream, self.subscription, (event.token,), event.hold_ms))

    def _release(self, event: Release, effects: list[Effect]) -> None:
        released = self._released[event.is_unseen]
        ended = tuple(token for token in event.tokens if self.grants.pop(token, None) is not None)
        if not ended:
            return
        effects.append(GrantsEnded(ended))
        released += ended
        if self.phase is ConsumerPhase.ACTIVE:
            self._tell_released(effects)

    def _tell_released(self, effects: list[Effect]) -> None:
        for is_unseen, tokens in self._released.items():
            if not tokens:
                continue
            self._flush(effects)  # what was acknowledged of the grants, and that they were begun, comes first
            assert self._stream is not None
            for begin in range(0, len(tokens), TOKENS_MAX):
                part = tuple(tokens[begin : begin + TOKENS_MAX])
                effects.append(SendExtend(self._stream, self.subscription, part, RELEASE_MS, is_unseen))
            tokens.clear()

    def _fail(self, event: Fail, now_us: int, effects: list[Effect]) -> None:
        grant = self._grant_of(event.token)
        if grant is None or grant.offsets[grant.done] != event.offset:
            return
        del self.grants[event.token]
        self._started.pop(event.token, None)
        effects.append(GrantsEnded((event.token,)))
        # What fails while the consumer is on its way to the next server is reported there.
        # Without it: 1. The consumer group moves to the next segment, and the grants with it. 2. The application fails
        # on k:5 before the consumer has joined there. 3. The consumer extends the grant for ever.
        self._plan(now_us)
        self._failed.append(event)
        self._send_at_us = min(self._send_at_us, now_us + FAIL_MS * US_PER_MS)

    def _tell(self, effects: list[Effect]) -> None:
        """Send acknowledgements and failures. What was acknowledged of the grants comes first."""
        self._flush(effects)
        assert self._stream is not None
        for failure in self._failed:
            effects.append(SendNack(self._stream, self.subscription, failure))
        self._failed = []

    def _drop(self, tokens: tuple[int, ...], effects: list[Effect]) -> None:
        gone = tuple(token for token in tokens if self.grants.pop(token, None) is not None)
        if gone:
            for token in gone:
                self._started.pop(token, None)
            effects.append(GrantsEnded(gone))

    def _send_due(self, now_us: int, effects: list[Effect]) -> None:
        if self._claims:
            self._claims = False
            self._claim(now_us, effects)
        if self.has_unsent and now_us >= self._send_at_us:
            self._tell(effects)
        if self.grants and now_us >= self._extend_at_us:
            self._extend_at_us = now_us + self._grant_ms * US_PER_MS // 3
            self._extend(now_us, effects)

    def _flush(self, effects: list[Effect]) -> None:
        if not (self._tokens or self._started):
            return
        assert self._stream is not None
        tokens, offsets, started = tuple(self._tokens), tuple(self._acked), tuple(self._started)
        self._tokens, self._acked, self._started = [], [], {}
        self._number += 1
        if tokens:
            self._unconfirmed.append((self._number, tokens, offsets))
            if len(self._unconfirmed) > UNCONFIRMED_MAX:
                self._unconfirmed.popleft()
        effects.append(SendAcks(self._stream, self.subscription, self._number, tokens, offsets, started))

    def _extend(self, now_us: int, effects: list[Effect]) -> None:
        """Extend the grants, except those for which the application has asked for a later deadline, or asks itself."""
        assert self._stream is not None
        until_us = now_us + self._grant_ms * US_PER_MS
        tokens = [
            token
            for token, grant in self.grants.items()
            if isinstance(grant, int) or (not grant.is_manual and grant.until_us <= until_us)
        ]
        for begin in range(0, len(tokens), TOKENS_MAX):
            part = tuple(tokens[begin : begin + TOKENS_MAX])
            effects.append(SendExtend(self._stream, self.subscription, part, self._grant_ms))

    def _joined(self, event: Joined, now_us: int, effects: list[Effect]) -> None:
        if not self._takes_join(event, now_us, effects):
            return
        carries, self._carries = self._carries, False
        self._grant_ms = max(event.grant_ms, 1)
        self.at_most_once = event.at_most_once
        self._was_active = True
        self.phase = ConsumerPhase.ACTIVE
        if not carries:
            self._end_grant(effects)
        self.grant += 1
        effects.append(Assigned(self.grant, True, event.segment, event.index))
        self._claims = carries
        if self._demand:
            self._send_demand(effects)

    def _claim(self, now_us: int, effects: list[Effect]) -> None:
        """Report to the server of the next segment which grants continue, and repeat what was not confirmed."""
        assert self._stream is not None
        for number, tokens, offsets in self._unconfirmed:
            effects.append(SendAcks(self._stream, self.subscription, number, tokens, offsets, ()))
        objects = [grant for grant in self.grants.values() if isinstance(grant, HeldGrant)]
        started = tuple(grant.token for grant in objects if grant.is_started)
        if started:
            self._number += 1
            effects.append(SendAcks(self._stream, self.subscription, self._number, (), (), started))
        self._extend(now_us, effects)
        for grant in objects:
            if grant.is_manual or grant.until_us > now_us + self._grant_ms * US_PER_MS:
                left_ms = max((grant.until_us - now_us) // US_PER_MS, 1)
                effects.append(SendExtend(self._stream, self.subscription, (grant.token,), left_ms))
        self._tell(effects)
        self._tell_released(effects)

    def _segment_ended(self, event: SegmentEnded, now_us: int, effects: list[Effect]) -> None:
        if not self._is_heard(event.subscription):
            return
        self._flush(effects)  # the old server ignores it, and it is repeated at the next one
        self._carries = True
        self._go_on_at(event, now_us)

    def _lose(self, now_us: int, jitter: float, effects: list[Effect], *, complain: bool) -> None:
        carries = self._carries and self.phase is not ConsumerPhase.ACTIVE
        super()._lose(now_us, jitter, effects, complain=complain)
        self._carries = carries

    def _end_grant(self, effects: list[Effect]) -> None:
        if self._carries:
            return  # the grants continue at the server of the next segment, once it is found
        was_active = self.phase is ConsumerPhase.ACTIVE and bool(self.grants or self._tokens)
        self._tokens, self._acked, self._started = [], [], {}
        self._unconfirmed.clear()
        self._failed = []
        self._released = {True: [], False: []}
        if self.grants:
            effects.append(GrantsEnded(tuple(self.grants)))
            self.grants = {}
        if was_active:
            self.grant += 1
            effects.append(Assigned(self.grant, False, self.segment, self.next_index))

    def _send_last_words(self, effects: list[Effect]) -> None:
        assert self._stream is not None
        if self.phase is ConsumerPhase.ACTIVE:
            self._tell(effects)
        effects.append(SendLeave(self._stream, self.subscription))
