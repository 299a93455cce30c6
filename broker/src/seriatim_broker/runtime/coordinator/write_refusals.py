"""Whether the coordinator takes writes. The broker learns it from refused writes, and probes until one is taken again.

If a coordinator answers reads and refuses writes (etcd over its quota, a right that was taken away), it refuses the
next write too, until an administrator acts. So the first such refusal is logged once, and the core is told to hold its
writes back. Then the broker writes one small key of its own after 0.5 s, and again after pauses that double up to 5 s.
The first write that is taken ends this.

A write that is refused for its own content (too large) does not come here, because it says nothing about other writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from seriatim_api.errors import CoordinatorRefusedError, SeriatimError

from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator, Put

PROBE_S = 0.5
PROBE_S_MAX = 5.0
"""First and longest pause between two probes. Each pause is twice the one before."""

REMIND_S = 600.0
"""While the coordinator refuses, the log says so again after this time."""

_log = structlog.get_logger(__name__)


class WriteRefusals:
    """What this broker knows about the coordinator and writes.

    Args:
        key: The key that probes write.
        tell: Called with True when the coordinator begins to refuse, and with False when it takes writes again.
    """

    def __init__(self, coordinator: Coordinator, key: str, tell: Callable[[bool], None], clock: Clock) -> None:
        self._coordinator = coordinator
        self._key = key
        self._tell = tell
        self._clock = clock
        self._text = ""
        self._since_us = 0
        self._began = asyncio.Event()

    @property
    def is_refusing(self) -> bool:
        """Whether the coordinator's last answer to a write was a refusal."""
        return bool(self._text)

    @property
    def warning(self) -> str:
        """A human-readable text: that it refuses, for how long, and why. Empty if it does not."""
        if not self._text:
            return ""
        for_s = (self._clock.monotonic_us() - self._since_us) // 1_000_000
        return (
            f"the coordinator has refused to write for {for_s} s, so no switch, crossing or administration ends: "
            f"{self._text}"
        )

    def refused(self, error: CoordinatorRefusedError) -> None:
        """The coordinator refused a write."""
        if self._text:
            return
        self._text = str(error)
        self._since_us = self._clock.monotonic_us()
        _log.error("coordinator_refuses_writes", error=self._text)
        self._began.set()
        self._tell(True)

    async def run(self) -> None:
        """Probe while the coordinator refuses, until cancelled."""
        while True:
            await self._began.wait()
            self._began.clear()
            await self._probe_until_taken()

    async def _probe_until_taken(self) -> None:
        pause_s = PROBE_S
        told_us = self._since_us
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PROBE_S_MAX)
            try:
                await self._coordinator.txn((), [Put(self._key, b"")], deadline_s=2.0)
            except SeriatimError as exc:
                if isinstance(exc, CoordinatorRefusedError):
                    self._text = str(exc)
                if self._clock.monotonic_us() - told_us >= REMIND_S * 1_000_000:
                    told_us = self._clock.monotonic_us()
                    _log.error("coordinator_refuses_writes", error=self.warning)
                continue
            for_ms = (self._clock.monotonic_us() - self._since_us) // 1000
            self._text = ""
            _log.info("coordinator_takes_writes", after_ms=for_ms)
            self._tell(False)
            return
