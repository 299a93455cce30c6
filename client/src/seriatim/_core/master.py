"""The way to the partition's master: its route, the stream to it, questions, complaints and back-off. Pure.

The route names the master as of a chain epoch. A route with an epoch below the known one is ignored. The producer opens
a stream to the master when there is work.

*Complaints.* The producer complains to another broker (`Resolve` with `failed_segment`) in two cases, if there is work:
the stream to the master breaks or cannot be opened, or the oldest send attempt has no reply for `reply_timeout_ms`,
while the client itself ran. The answer names the new master. Meanwhile the producer tries the old address again, and
still accepts late replies. A wrong complaint costs a switch, but never order.

If a broker answers that it is not the master, the producer does not complain at first. It only asks, because that
broker mostly knows the master.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from seriatim_api.errors import CATALOGUE, RoutingError, UnavailableError

from .producer_types import Connected, Disconnected, OpenStream, ProducerConfig, ReplyError, Resolve, Route
from .state import State

US_PER_MS: Final = 1000

_COMPLAIN_AFTER_FAILURES: Final = 3
"""After this many refusals in a row, by a master that does not know where its segment went, the question becomes a
complaint."""


class Master(State):
    """What the producer knows of the master, and when it does what to reach it."""

    __slots__ = (
        "_broken",
        "_complain_at_us",
        "_config",
        "_failures",
        "_opening",
        "_resolving",
        "is_stale",
        "retry_at_us",
        "route",
        "stream",
    )

    def __init__(self, config: ProducerConfig, route: Route | None) -> None:
        self._config = config
        self.route = route
        self.stream: int | None = None
        self._opening = False
        self._resolving = False
        self._broken = False  # the stream broke, or could not be opened, since it was up last
        self.is_stale = False  # the broker says that it is not the master
        self._failures = 0  # in a row, without any ok
        self.retry_at_us = 0  # before this time the producer opens and sends nothing
        self._complain_at_us = 0  # before this time it asks no broker

    # ---- what happens --------------------------------------------------------------------------------

    def connected(self, event: Connected) -> bool:
        """A stream is up. Returns whether send attempts go out on it from now on."""
        if self.route is None or event.address != self.route.master_address or self.stream is not None:
            return False
        self.stream = event.stream
        self._opening = self._broken = False
        return True

    def disconnected(self, event: Disconnected, now_us: int, jitter: float, *, has_work: bool) -> bool:
        """A stream has ended, or could not be opened. Returns whether the master cannot be reached now."""
        if self.route is None or event.address != self.route.master_address:
            return False
        would_not_open = event.stream is None and self._opening
        if not would_not_open and (event.stream is None or event.stream != self.stream):
            return False
        self.stream = None
        self._opening = False
        self._broken = has_work
        self._back_off(now_us, jitter)
        return True

    def refused(self, error: ReplyError, now_us: int, jitter: float) -> None:
        """The master ended the producer run. Decide when, and at which master, the next one may begin."""
        self._back_off(now_us, jitter)
        self.retry_at_us = max(self.retry_at_us, now_us + error.retry_after_ms * US_PER_MS)
        if error.retriable and issubclass(CATALOGUE[error.number], (RoutingError, UnavailableError)):
            self.is_stale = True
            self._complain_at_us = now_us

    def accepted(self) -> None:
        """The master accepted a batch."""
        self._failures = 0

    def resolved(self, route: Route | None, now_us: int, jitter: float) -> bool:
        """A question was answered (None: no broker answered). Returns whether the master is another one now."""
        self._resolving = False
        if route is not None and self.learn(route, now_us):
            return True
        # Nothing new: give the master another chance before asking again.
        self.is_stale = False
        self._complain_at_us = now_us + self._backoff_us(jitter)
        self._failures += 1
        return False

    def learn(self, route: Route, now_us: int) -> bool:
        """Adopt a route, if it is newer than the known one. Returns whether the master or its segment is another."""
        known = self.route
        if known is not None and route.epoch < known.epoch:
            return False
        if not route.master_address:
            return False
        if known is not None and (route.segment, route.master_broker) == (known.segment, known.master_broker):
            if route.master_address == known.master_address or self.stream is not None:
                # The same master and segment, as of a later chain epoch. Send attempts that are under way continue.
                self.route = replace(route, master_address=known.master_address)
                return False
        elif known is not None and route.epoch == known.epoch:
            return False  # one chain epoch cannot have two masters, so keep the first one
        if known is None or route.master_address != known.master_address:
            self.stream = None
            self._opening = False
        if known is None or route.epoch > known.epoch:
            self._failures = 0
        self.route = route
        self._broken = self.is_stale = False
        self.retry_at_us = self._complain_at_us = now_us
        return True

    # ---- what to do ----------------------------------------------------------------------------------

    def ask_at_us(self, reply_due_us: int | None) -> int | None:
        """The time at which a question is due; None: none is.

        Args:
            reply_due_us: The time from which the master is silent for too long; None if it owes no reply.
        """
        if self._resolving:
            return None
        if self.route is None:
            return max(self._complain_at_us, self.retry_at_us)
        if self._broken or self.is_stale:
            return self._complain_at_us
        return reply_due_us

    def ask(self) -> Resolve:
        """The question or complaint that is due."""
        assert not self._resolving
        self._resolving = True
        route = self.route
        if route is None:
            return Resolve(None, 0, None)
        if self.is_stale and not self._broken and self._failures < _COMPLAIN_AFTER_FAILURES:
            return Resolve(None, route.epoch, None)
        return Resolve(route.segment, route.epoch, route.master_address)

    def connect(self, now_us: int) -> OpenStream | None:
        """The stream to open now; None: none."""
        if self.route is None or self.stream is not None or self._opening or now_us < self.retry_at_us:
            return None
        self._opening = True
        return OpenStream(self.route.master_address)

    @property
    def awaits_retry(self) -> bool:
        """Whether there is something to do at `retry_at_us`: open a stream, or begin a producer run."""
        return self.route is not None and not self._opening and not self.is_stale

    # ---- back-off ------------------------------------------------------------------------------------

    def _backoff_us(self, jitter: float) -> int:
        assert 0 <= jitter < 1
        full_ms = min(self._config.backoff_ms_max, self._config.backoff_ms_min << min(self._failures, 16))
        return int(full_ms * US_PER_MS * (1 + jitter) / 2)

    def _back_off(self, now_us: int, jitter: float) -> None:
        self.retry_at_us = now_us + self._backoff_us(jitter)
        self._failures += 1
