"""Which brokers take part in the election, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from seriatim_api.ids import MemberId
from seriatim_broker.interfaces.coordinator import Coordinator, Put, WatchBatch
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.membership import election as module
from seriatim_broker.runtime.membership.election import Election
from seriatim_broker.runtime.membership.registration import Identity
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore, StoreCopy

HOUR_S = 3600.0


async def test_a_coordinator_that_is_away_at_the_start_is_waited_for(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Found on processes: the coordinator was restarted just as a broker started, and after 5 s the broker ended.
    directory: Any = SimpleNamespace(
        loaded=asyncio.Event(), is_admitted=lambda _member: False, broker_groups=dict, on_change=lambda _changed: None
    )
    held: Any = SimpleNamespace(is_held=True, id=0)
    identity = Identity("c1", MemberId("g0-0", "disk"), "g0", 0, 1, 0)
    election, elected = Election(identity, coordinator, Keys("test"), directory, held), asyncio.Event()

    async def lead() -> None:
        elected.set()
        await asyncio.Event().wait()

    standing = asyncio.create_task(election.run(lead))
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)  # it has begun to wait
    real_time = loop.time
    with monkeypatch.context() as later:
        later.setattr(loop, "time", lambda: real_time() + HOUR_S)
        for _ in range(10):
            await asyncio.sleep(0)  # turns in which what is due happens
    assert not standing.done()
    held.id = (await coordinator.grant(60)).id  # now: the coordinator, in this loop, has seen the hour pass as well
    directory.loaded.set()
    async with asyncio.timeout(60):
        await elected.wait()
    assert election.is_controller
    standing.cancel()
    await asyncio.gather(standing, return_exceptions=True)


async def test_a_controller_that_the_coordinator_forgot_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VACANCY_LOOK_S", 0.01)
    coordinator, keys = MemoryCoordinator(MemoryStore()), Keys("test")
    for _ in range(50):
        await coordinator.txn((), [Put(keys.controller, b"")])  # another broker's
    directory: Any = SimpleNamespace(is_admitted=lambda _member: True)
    held: Any = SimpleNamespace(is_held=True, id=0)
    identity = Identity("c1", MemberId("g0-0", "disk"), "g0", 0, 1, 0)
    election, elected = Election(identity, coordinator, keys, directory, held), asyncio.Event()

    async def lead() -> None:
        elected.set()
        await asyncio.Event().wait()

    watched = asyncio.Event()
    watch = coordinator.watch

    def follow(key: str, **arguments: Any) -> AsyncGenerator[WatchBatch, None]:
        watched.set()
        return watch(key, **arguments)

    monkeypatch.setattr(coordinator, "watch", follow)
    standing = asyncio.create_task(election.run(lead))
    async with asyncio.timeout(60):
        await watched.wait()
        coordinator.store.restore(StoreCopy())
        await elected.wait()
    standing.cancel()
    await asyncio.gather(standing, return_exceptions=True)
