"""Keeps in a broker's record the address at which clients outside the brokers' network reach it.

Such an address may be known only after the start: a node's port or a load balancer gets it from others. So it comes
from a file, which is read again and again, and the record follows without a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import records_pb2

from ...interfaces.coordinator import Coordinator, Put, mod_revision_is
from ..coordinator.keys import Keys
from .registration import Identity

LOOK_S: Final = 1.0
"""Seconds between two looks at the address. A look reads a small file, and the coordinator only after a change."""

WRITE_DEADLINE_S: Final = 2.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class ExternalAddress:
    """The external address of this broker, as registered.

    Args:
        coordinator: Has the record.
        keys: Names it.
        identity: Only the record of this member run is changed.
        read: Returns the address; empty: there is none now. It may block, and raises ValueError for a text that is no
            address.
        mirrored: Returns the address that this process last saw in the record; empty: none. If it is another one than
            was registered, a rebuild of the coordinator has written the record, and the address is registered again.
    """

    _coordinator: Coordinator
    _keys: Keys
    _identity: Identity
    _read: Callable[[], str]
    _mirrored: Callable[[], str]
    _problem: str = ""
    _registered: str | None = None  # None: not known

    async def run(self) -> None:
        """Follow the address until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Read the address, and register it if it is another one. If the coordinator is away, the next look repeats."""
        try:
            address = await asyncio.to_thread(self._read)
        except (OSError, ValueError) as exc:
            # The registered address stays: clients that use it continue.
            if str(exc) != self._problem:
                self._problem = str(exc)
                _log.warning("external_address_unreadable", error=self._problem, registered=self._registered or "")
            return
        self._problem = ""
        if address == self._registered == self._mirrored():
            return
        try:
            if await self._register(address) and address != self._registered:
                self._registered = address
                _log.info("external_address", broker=self._identity.member.broker, address=address)
        except SeriatimError as exc:
            _log.info("external_address_not_registered", address=address, error=str(exc))

    async def _register(self, address: str) -> bool:
        key = self._keys.member(self._identity.member.broker)
        item = await self._coordinator.get(key, deadline_s=WRITE_DEADLINE_S)
        if item is None:
            return False
        record = records_pb2.MemberRecord.FromString(item.value)
        if (record.member.incarnation, record.run) != (self._identity.member.incarnation, self._identity.run):
            return False  # a later run has the slot, and says itself where it is
        if (record.external_address, record.external_run) == (address, record.run):
            return True
        record.external_address, record.external_run = address, record.run
        # Compared, because the controller writes the same record: its admission must not be lost.
        result = await self._coordinator.txn(
            [mod_revision_is(key, item.mod_revision)],
            [Put(key, record.SerializeToString())],
            deadline_s=WRITE_DEADLINE_S,
        )
        return result.succeeded
