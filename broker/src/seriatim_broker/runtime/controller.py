"""The controller: one broker, elected, that looks after the cluster. Never needed for a switch.

It admits incarnations, creates and deletes topics, notices groups of which nobody is left, has sealed segments copied
that have too few copies, empties groups that are to be left, spreads the heads over the others, finishes publications
that were decided, and removes what nobody needs any more. Who it is decides `election`; what it does stands in
`topics`, `caretaker`, `drainer`, `balancer`, `taking_up` and `tidying`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from seriatim_api.errors import SeriatimError

from .balancer import Balancer
from .caretaker import Caretaker
from .drainer import Drainer
from .election import Election
from .taking_up import TakingUp
from .tidying import Tidying
from .topics import Topics

RETRY_S = 0.1

_log = structlog.get_logger(__name__)


class Controller:
    """Runs in every broker; does something in the elected one."""

    def __init__(
        self,
        election: Election,
        topics: Topics,
        caretaker: Caretaker,
        drainer: Drainer,
        balancer: Balancer,
        tidying: Tidying,
        taking_up: TakingUp,
    ) -> None:
        self.election = election
        self.topics = topics
        self.balancer = balancer
        self._caretaker = caretaker
        self._drainer = drainer
        self._tidying = tidying
        self._taking_up = taking_up

    async def run(self) -> None:
        """Stand for election, and lead while elected, until cancelled."""
        await self.election.run(self._lead)

    async def _lead(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self.topics.begin(group)
                group.create_task(self._persist(self.topics.finish_topics), name="unfinished topics")
                group.create_task(self._persist(self._caretaker.watch_members), name="members")
                group.create_task(self._persist(self._caretaker.heal), name="heal")
                group.create_task(self._persist(self._drainer.run), name="groups that are left")
                group.create_task(self._persist(self.balancer.run), name="balance")
                group.create_task(self._persist(self._tidying.run), name="tidying")
                group.create_task(self._persist(self._taking_up.run), name="publications")
        finally:
            self.topics.end()

    async def _persist(self, duty: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A duty is tried again after the coordinator was away; the loss of the election ends it."""
        while self.election.is_leader:
            try:
                await duty()
                return
            except SeriatimError as exc:
                _log.warning("controller_waits", error=str(exc))
            await asyncio.sleep(RETRY_S)
