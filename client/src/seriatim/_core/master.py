"""The way to the partition's master: its route, the stream to it, questions, complaints and back-off. Pure.

The route names the master as of an epoch of the chain; one with an epoch below the known one is ignored. A stream is
opened to it when there is work.

*Complaints.* If the stream to the master breaks or cannot be opened while there is work, or the oldest attempt has no
reply for `reply_timeout_ms`, another broker is told (`Resolve` with `failed_segment`); its answer names the new
master. Meanwhile the old address is tried again and late replies are still taken: being wrong costs a switch, never
order. A master that says that it is none is no reason for a complaint at first: it mostly knows who is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from seriatim_api.errors import CATALOGUE, RoutingError, UnavailableError

from .producer_types import Connected, Disconnected, OpenStream, ProducerConfig, ReplyError, Resolve, Route
from .state import State

US_PER_MS: Final = 1000

_COMPLAIN_AFTER_FAILURES: Final = 3
"""Refusals in a row by a master that does not know where its segment went, after which the question is a complaint."""


class Master(State):
    """What is known of the master, and when to do what to reach it."""

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
        self._broken = False  # the stream broke, or would not open, since it last was up
        self.is_stale = False  # the master says it is none
        self._failures = 0  # in a row, without any ok
        self.retry_at_us = 0  # nothing is opened or sent before
        self._complain_at_us = 0  # nobody is asked before

    # ---- what happens --------------------------------------------------------------------------------

    def connected(self, event: Connected) -> bool:
        """A stream is up; whether it is the one that attempts go out on from now on."""
        if self.route is None or event.address != self.route.master_address or self.stream is not None:
            return False
        self.stream = event.stream
        self._opening = self._broken = False
        return True

    def disconnected(self, event: Disconnected, now_us: int, jitter: float, *, has_work: bool) -> bool:
        """A stream is over, or would not open; whether the master cannot be reached now."""
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
        """The master ended the run: say when and where the next may begin."""
        self._back_off(now_us, jitter)
        self.retry_at_us = max(self.retry_at_us, now_us + error.retry_after_ms * US_PER_MS)
        if error.retriable and issubclass(CATALOGUE[error.number], (RoutingError, UnavailableError)):
            self.is_stale = True
            self._complain_at_us = now_us

    def accepted(self) -> None:
        """The master took something."""
        self._failures = 0

    def resolved(self, route: Route | None, now_us: int, jitter: float) -> bool:
        """A question was answered, or (None) by nobody; whether the master is another now."""
        self._resolving = False
        if route is not None and self.learn(route, now_us):
            return True
        # Nothing new: give the master another chance before asking again.
        self.is_stale = False
        self._complain_at_us = now_us + self._backoff_us(jitter)
        self._failures += 1
        return False

    def learn(self, route: Route, now_us: int) -> bool:
        """Adopt a route that is newer than the known one; whether the master is another (or its segment is)."""
        known = self.route
        if known is not None and route.epoch < known.epoch:
            return False
        if not route.master_address:
            return False
        if known is not None and (route.segment, route.master_broker) == (known.segment, known.master_broker):
            if route.master_address == known.master_address or self.stream is not None:
                # The same place as of a later epoch; attempts under way stay what they are.
                self.route = replace(route, master_address=known.master_address)
                return False
        elif known is not None and route.epoch == known.epoch:
            return False  # two places in one epoch cannot be; keep to the first
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
        """When a question is due, if one is.

        Args:
            reply_due_us: When the master will have been silent for too long; None if it owes nothing.
        """
        if self._resolving:
            return None
        if self.route is None:
            return max(self._complain_at_us, self.retry_at_us)
        if self._broken or self.is_stale:
            return self._complain_at_us
        return reply_due_us

    def ask(self) -> Resolve:
        """The question that is due."""
        assert not self._resolving
        self._resolving = True
        route = self.route
        if route is None:
            return Resolve(None, 0, None)
        if self.is_stale and not self._broken and self._failures < _COMPLAIN_AFTER_FAILURES:
            return Resolve(None, route.epoch, None)
        return Resolve(route.segment, route.epoch, route.master_address)

    def connect(self, now_us: int) -> OpenStream | None:
        """The stream that is wanted."""
        if self.route is None or self.stream is not None or self._opening or now_us < self.retry_at_us:
            return None
        self._opening = True
        return OpenStream(self.route.master_address)

    @property
    def awaits_retry(self) -> bool:
        """Whether there is something to do at `retry_at_us`: open a stream, or begin a run if there is none."""
        return self.route is not None and not self._opening and not self.is_stale

    # ---- back-off ------------------------------------------------------------------------------------

    def _backoff_us(self, jitter: float) -> int:
        assert 0 <= jitter < 1
        full_ms = min(self._config.backoff_ms_max, self._config.backoff_ms_min << min(self._failures, 16))
        return int(full_ms * US_PER_MS * (1 + jitter) / 2)

    def _back_off(self, now_us: int, jitter: float) -> None:
        self.retry_at_us = now_us + self._backoff_us(jitter)
        self._failures += 1
