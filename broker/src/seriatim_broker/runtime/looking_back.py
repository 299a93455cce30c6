"""Looking back: whether the coordinator still has what it had.

An older copy of the coordinator comes with an outage of it, with a revision that falls, or with member records that
fall. This duty asks for the broker's own record every few seconds, and looks at all three. It proves nothing by itself
except for the record: after an outage, or a revision below an earlier one, the core compares the chain records of its
partitions with those that it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import records_pb2

from ..core.events import CompareChains, Event, OwnRecordSeen
from ..interfaces.coordinator import Coordinator, Get
from .keys import Keys
from .membership import Identity

LOOK_S = 2.0
LOOK_DEADLINE_S = 2.0
"""A look that is not answered within this counts as an outage."""

_log = structlog.get_logger(__name__)


class LookingBack:
    """One broker's look at the coordinator."""

    def __init__(self, coordinator: Coordinator, keys: Keys, identity: Identity, emit: Callable[[Event], None]) -> None:
        self._coordinator = coordinator
        self._key = keys.member(identity.member.broker)
        self._identity = identity
        self._emit = emit
        self._revision = 0
        self._was_away = False
        self._problem = ""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Ask once."""
        try:
            result = await self._coordinator.txn((), [Get(self._key)], deadline_s=LOOK_DEADLINE_S)
        except SeriatimError:
            self._was_away = True
            return
        item = result.responses[0].item
        problem = self._problem_of(item.value if item is not None else None)
        if problem != self._problem:
            self._problem = problem
            self._emit(OwnRecordSeen(problem))
        if self._was_away or result.revision < self._revision:
            if result.revision < self._revision:
                _log.error("coordinator_revision_fell", before=self._revision, now=result.revision)
            self._emit(CompareChains())
        self._was_away = False
        self._revision = result.revision

    def _problem_of(self, value: bytes | None) -> str:
        me = self._identity
        if value is None:
            return f"it has no record of {me.member.broker}, which is registered and runs"
        record = records_pb2.MemberRecord.FromString(value)
        if record.member.incarnation == me.member.incarnation and record.run < me.run:
            return f"it knows run {record.run} of {me.member.broker}, which is in run {me.run}"
        return ""
