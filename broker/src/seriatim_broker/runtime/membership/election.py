"""Elects one broker to look after the cluster: a key under its lease, which the other brokers watch.

Every transaction of the elected broker also compares that key. So a broker that lost the election without noticing it
changes nothing. What it does while it is elected is in `controller`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from seriatim_api.errors import NotServingError, SeriatimError
from seriatim_api.v1 import records_pb2

from ...interfaces.coordinator import (
    Compare,
    Coordinator,
    Delete,
    Get,
    Operation,
    Put,
    TxnResult,
    absent,
    create_revision_is,
)
from ..coordinator.keys import Keys
from .directory import Directory
from .lease import LeaseKeeper
from .registration import Identity

RETRY_S = 0.1
LEASE_LOOK_S = 0.2

VACANCY_LOOK_S = 10.0
"""How often a broker reads the election key, although it watches it. The price is one read of the coordinator."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Election:
    """Stands for election. While it is elected it does the duties.

    Attributes:
        is_controller: Whether this broker is elected, as far as it knows.
        controller: The broker that is elected, as far as this one knows; empty if none is.
    """

    _identity: Identity
    _coordinator: Coordinator
    _keys: Keys
    _directory: Directory
    _lease: LeaseKeeper
    _revision: int = 0  # of the key's creation, when it was ours
    is_controller: bool = False
    controller: str = ""

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stand for election, and run `lead` while elected, until cancelled. Losing the election cancels `lead`."""
        while True:
            try:
                if not self._lease.is_held:
                    await asyncio.sleep(RETRY_S)
                elif await self._elect():
                    await self._lead(lead)
                else:
                    await self._wait_for_vacancy()
            except SeriatimError as exc:
                _log.warning("controller_interrupted", error=str(exc))
                await asyncio.sleep(RETRY_S)
            finally:
                self.is_controller = False

    async def resign(self) -> None:
        """Delete the election key when the process ends. Another broker can be elected at once."""
        if self.is_controller:
            with contextlib.suppress(SeriatimError):
                await self.txn([], [Delete(self._keys.controller)])
            self.is_controller = False

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation]) -> TxnResult:
        """Make a transaction as the elected controller. It also compares the election key.

        Raises:
            NotServingError: This broker is not elected any more. Nothing was written.
        """
        if not self._revision:
            raise NotServingError("this broker is not the controller")
        mine = create_revision_is(self._keys.controller, self._revision)
        result = await self._coordinator.txn([mine, *compares], then, [Get(self._keys.controller)], deadline_s=2.0)
        if not result.succeeded:
            item = result.responses[0].item
            if item is None or item.create_revision != self._revision:
                self.is_controller = False
                raise NotServingError("this broker is not the controller any more", retry_after_ms=200)
        return result

    async def _elect(self) -> bool:
        member = self._identity.member
        if not self._directory.is_admitted(member) and await self._somebody_is_admitted():
            await asyncio.sleep(RETRY_S)
            return False
        record = records_pb2.ControllerRecord(broker=member.broker, run=self._identity.run)
        key = self._keys.controller
        result = await self._coordinator.txn(
            [absent(key)], [Put(key, record.SerializeToString(), self._lease.id)], [Get(key)], deadline_s=2.0
        )
        if result.succeeded:
            self._revision = result.revision
            self.controller = member.broker
            return True
        item = result.responses[0].item
        if item is None:
            return False
        found = records_pb2.ControllerRecord.FromString(item.value)
        self.controller = found.broker
        if (found.broker, found.run) == (record.broker, record.run) and item.lease == self._lease.id:
            self._revision = item.create_revision  # our own, whose answer was lost
            return True
        return False

    async def _somebody_is_admitted(self) -> bool:
        await self._directory.loaded.wait()  # it waits as long as the coordinator is away
        return bool(self._directory.broker_groups())

    async def _wait_for_vacancy(self) -> None:
        """Wait until the election key is gone or is another broker's.

        A watch alone is not enough. If the coordinator lost its data, its revision went back, and the watch is silent
        until the old revision comes again. So the key is read every `VACANCY_LOOK_S`, too.
        """
        key, found = self._keys.controller, 0
        while True:
            result = await self._coordinator.txn((), [Get(key)])
            item = result.responses[0].item
            if item is None or found not in (0, item.create_revision):
                return
            found = item.create_revision
            watch = self._coordinator.watch(key, start_revision=result.revision + 1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(VACANCY_LOOK_S), contextlib.aclosing(watch) as batches:
                    await anext(batches, None)
                    return

    async def _lead(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        _log.info("controller_elected", broker=self.controller, election=self._revision)
        self.is_controller = True
        leading = asyncio.ensure_future(lead())
        deposed = asyncio.ensure_future(self._wait_deposed())
        try:
            await asyncio.wait([leading, deposed], return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
        finally:
            self.is_controller = False
            for task in (leading, deposed):
                task.cancel()
            await asyncio.gather(leading, deposed, return_exceptions=True)
            _log.info("controller_stands_down", broker=self._identity.member.broker)

    async def _wait_deposed(self) -> None:
        vacancy = asyncio.ensure_future(self._wait_for_vacancy())
        try:
            while self._lease.is_held and not vacancy.done():
                await asyncio.wait([vacancy], timeout=LEASE_LOOK_S)
        finally:
            vacancy.cancel()
            await asyncio.gather(vacancy, return_exceptions=True)
