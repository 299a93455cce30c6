"""Forgets consumer groups that were deleted: the control records of deleted consumer groups leave this broker's disk.

A broker keeps how far each consumer group has acknowledged. If the controller has removed the cursor of a deleted
consumer group (`expiry`), its control records are never needed again, because a consumer group of the same name begins
above the floor of group epochs. So this duty acts at the start, and whenever the floor's record says that cursors were
removed. It asks the core for the consumer groups of such epochs, looks up which of them have a cursor, and has the core
drop the others. It scans at most once in `look_s`, because each scan reads every cursor of such an epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId

from ...core.values.effects import CursorsListed
from ...core.values.events import ForgetConsumerGroup, ListCursors
from ...interfaces.coordinator import Coordinator, Get
from ..coordinator.group_epochs import EpochFloor
from ..coordinator.keys import Keys
from ..coordinator.mirror import mirror
from ..driver.coordinator_requests import READS_PER_TXN
from ..driver.driver import Driver, ask

GROUPS_PER_LIST = 2000
"""Consumer groups that the core names in one step."""

LIST_DEADLINE_S = 10.0
"""The core answers in the step that asks it, unless it has not started yet."""

_log = structlog.get_logger(__name__)


class DeletedConsumerGroups:
    """A duty of each broker, until cancelled."""

    def __init__(self, coordinator: Coordinator, keys: Keys, driver: Driver, look_s: float) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._driver = driver
        self._look_s = look_s
        self._removed = asyncio.Event()  # cursors were removed since the last scan

    async def run(self) -> None:
        """Scan whenever cursors were removed."""
        async with asyncio.TaskGroup() as group:
            following = mirror(self._coordinator, self._keys.group_epoch, self._floor_changed)
            group.create_task(following, name="floor of group epochs")
            group.create_task(self._look_again(), name="forgotten groups")

    def _floor_changed(self, values: Mapping[str, bytes], _keys: Sequence[str]) -> None:
        if values:
            self._removed.set()

    async def _look_again(self) -> None:
        while True:
            await self._removed.wait()
            self._removed.clear()
            try:
                await self.look()
            except (SeriatimError, TimeoutError) as exc:
                _log.warning("groups_not_forgotten", error=str(exc))
                self._removed.set()
            await asyncio.sleep(self._look_s)

    async def look(self) -> int:
        """Drop the records of consumer groups that are gone. Returns how many of them had a control record here."""
        forgotten = 0
        after = (0, "")
        floor = EpochFloor.of(await self._coordinator.get(self._keys.group_epoch))
        while groups := await self._list(after, floor.expired):
            for first in range(0, len(groups), READS_PER_TXN):
                forgotten += await self._forget(groups[first : first + READS_PER_TXN], floor)
            after = groups[-1]
        if forgotten:
            _log.info("groups_forgotten", count=forgotten)
        return forgotten

    async def _forget(self, groups: Sequence[tuple[PartitionId, str]], floor: EpochFloor) -> int:
        """Forget those without a cursor. A cursor that is made from now on has an epoch above the floor."""
        gets = [Get(self._keys.cursor(partition, group)) for partition, group in groups]
        result = await self._coordinator.txn((), gets)
        responses = zip(groups, result.responses, strict=True)
        gone = [place for place, response in responses if response.item is None]
        for partition, group in gone:
            self._driver.feed(ForgetConsumerGroup(partition, group, floor.expired))
        return len(gone)

    async def _list(self, after: tuple[int, str], epoch_max: int) -> Sequence[tuple[PartitionId, str]]:
        reply = await ask(
            self._driver, lambda request: ListCursors(request, after, epoch_max, GROUPS_PER_LIST), LIST_DEADLINE_S
        )
        assert isinstance(reply, CursorsListed)
        return reply.consumer_groups
