"""The broker's lease at the coordinator: a hint to other brokers that it runs. The election uses it as well.

Nothing that must hold depends on it. A lease that was lost is granted again, and the owners of keys under it are
notified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from seriatim_api.errors import CoordinatorRefusedError, SeriatimError

from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator

TTL_S = 3
"""etcd's shortest lease is 2 s."""

RENEWALS = 3
"""Keep-alives within a lifetime."""

GRANT_RETRY_S = 0.2
GRANT_RETRY_S_MAX = 5.0
"""First and longest pause before a lease is asked for again. The pause doubles while the coordinator refuses writes."""

_log = structlog.get_logger(__name__)


class LeaseKeeper:
    """Holds one lease as long as `run` runs.

    Attributes:
        id: The lease, or 0 while there is none.
    """

    def __init__(self, coordinator: Coordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._changed: list[Callable[[int], None]] = []
        self._until_us = 0
        self.id = 0

    @property
    def is_held(self) -> bool:
        """Whether the lease has certainly not ended yet. The time counts from before its last renewal."""
        return self.id != 0 and self._clock.monotonic_us() < self._until_us

    def on_change(self, changed: Callable[[int], None]) -> None:
        """Call `changed` with each new lease, and with 0 when it is lost."""
        self._changed.append(changed)

    async def run(self) -> None:
        """Get a lease, renew it, and get another one if it is lost, until cancelled."""
        pause_s = GRANT_RETRY_S
        while True:
            try:
                await self._renew() if self.id else await self._grant()
                pause_s = GRANT_RETRY_S
            except SeriatimError as exc:
                if isinstance(exc, CoordinatorRefusedError):
                    pause_s = min(2 * pause_s, GRANT_RETRY_S_MAX)
                _log.warning("lease_not_renewed", error=str(exc))
                if self.id and self._clock.monotonic_us() >= self._until_us:
                    self._set(0)
            await asyncio.sleep(TTL_S / RENEWALS if self.id else pause_s)

    async def revoke(self) -> None:
        """Give the lease back when the process ends."""
        lease, self.id = self.id, 0
        if lease:
            try:
                await self._coordinator.revoke(lease, deadline_s=1.0)
            except SeriatimError as exc:
                _log.info("lease_not_revoked", error=str(exc))

    async def _grant(self) -> None:
        before_us = self._clock.monotonic_us()
        lease = await self._coordinator.grant(TTL_S, deadline_s=TTL_S)
        self._until_us = before_us + lease.ttl_s * 1_000_000
        self._set(lease.id)

    async def _renew(self) -> None:
        before_us = self._clock.monotonic_us()
        left_s = await self._coordinator.keep_alive(self.id, deadline_s=TTL_S / RENEWALS)
        if left_s == 0:
            self._set(0)
        else:
            self._until_us = before_us + left_s * 1_000_000

    def _set(self, lease: int) -> None:
        self.id = lease
        for changed in self._changed:
            changed(lease)
