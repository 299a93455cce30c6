"""The controller: one broker that is elected to look after the cluster. No switch needs it.

It admits incarnations, creates and deletes topics, switches away from broker groups of which no member is left, and has
sealed segments copied that have too few copies. It empties broker groups that are cordoned or drained, balances open
segments, finishes publications that were decided, and tidies the coordinator. `election` decides which broker it is.
Its work is in `topics`, `caretaker`, `drainer`, `balancer`, `unfinished_publications` and
`cleanup`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog
from seriatim_api.errors import SeriatimError

from ..membership.election import Election
from .balancer import Balancer
from .caretaker import Caretaker
from .cleanup import Cleanup
from .drainer import Drainer
from .topics import Topics
from .unfinished_publications import UnfinishedPublications

RETRY_S = 0.1

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Controller:
    """Runs in every broker, and does its duties in the elected one."""

    election: Election
    topics: Topics
    _caretaker: Caretaker
    _drainer: Drainer
    balancer: Balancer
    _cleanup: Cleanup
    _unfinished_publications: UnfinishedPublications

    async def run(self) -> None:
        """Stand for election, and do the duties while elected, until cancelled."""
        await self.election.run(self._lead)

    async def _lead(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self.topics.begin(group)
                group.create_task(self._persist(self.topics.keep_finishing), name="unfinished topics")
                group.create_task(self._persist(self._caretaker.watch_members), name="members")
                group.create_task(self._persist(self._caretaker.heal), name="heal")
                group.create_task(self._persist(self._drainer.run), name="groups that are left")
                group.create_task(self._persist(self.balancer.run), name="balance")
                group.create_task(self._persist(self._cleanup.run), name="cleanup")
                group.create_task(self._persist(self._unfinished_publications.run), name="publications")
        finally:
            self.topics.end()

    async def _persist(self, duty: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a duty until it ends. It is tried again after an error of the coordinator, until the election is lost."""
        while self.election.is_controller:
            try:
                await duty()
                return
            except SeriatimError as exc:
                _log.warning("controller_waits", error=str(exc))
            await asyncio.sleep(RETRY_S)
