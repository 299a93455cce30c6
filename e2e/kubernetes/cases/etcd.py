"""The coordinator: one member is frozen, one loses its disk, all are slow, all are restarted.

Messages do not pass through the coordinator, so they flow on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from e2e.kubernetes import coordinator
from e2e.kubernetes.machines import container_pids, kill_container
from e2e.kubernetes.stage import Stage

GAP_LIMIT_S: Final = 0.3
SLOW_SWITCH_LIMIT_S: Final = 2.0
STOPPED_S: Final = 0.2
RUNNING_S: Final = 0.05
SLOW_MESSAGES: Final = 3_000
FROZEN_MESSAGES: Final = 3_000
"""Messages that must pass while a member is frozen. They take some seconds."""


async def etcd_member_frozen(stage: Stage) -> None:
    """One of three members hangs, and its connections stay open."""
    async with stage.traffic() as traffic:
        pod = (await coordinator.members(stage.place))[0]
        pids = container_pids(pod)
        async with traffic.struck("freeze etcd", pod["metadata"]["name"]):
            _signal(pids, signal.SIGSTOP)
            try:
                await traffic.load.goes_on(FROZEN_MESSAGES)
                stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
            finally:
                _signal(pids, signal.SIGCONT)
        await coordinator.wait_ready(stage.place)
        await stage.wait_healthy()


async def etcd_restarted(stage: Stage) -> None:
    """All members are deleted at once. The data path continues without them."""
    async with stage.traffic() as traffic:
        names = [pod["metadata"]["name"] for pod in await coordinator.members(stage.place)]
        async with traffic.struck("delete etcd", ", ".join(names)):
            await stage.place.kubectl("delete", "pod", *names, "--wait=false")
            stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
            await coordinator.wait_ready(stage.place)
            stage.figure("gap until all are back", await traffic.gap_s(), limit=GAP_LIMIT_S)
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


async def etcd_slow(stage: Stage) -> None:
    """All members run only a fifth of the time. Meanwhile a master dies, and its partitions must still move."""
    async with stage.traffic() as traffic:
        pods = await coordinator.members(stage.place)
        pids = [pid for pod in pods for pid in container_pids(pod)]
        async with traffic.struck("slow etcd", "all members"), _slow(pids):
            await traffic.load.goes_on(SLOW_MESSAGES)
            stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
            victim = await traffic.master()
            async with traffic.struck("kill container", victim):
                kill_container(await stage.pod_of(victim))
                stage.figure("gap when a master dies meanwhile", await traffic.gap_s(), limit=SLOW_SWITCH_LIMIT_S)
        await coordinator.wait_ready(stage.place)
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


@asynccontextmanager
async def _slow(pids: list[int]) -> AsyncIterator[None]:
    """Stop processes and let them continue, again and again, for as long as the block lasts."""

    async def stop_and_go() -> None:
        while True:
            _signal(pids, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_S)
            _signal(pids, signal.SIGCONT)
            await asyncio.sleep(RUNNING_S)

    task = asyncio.create_task(stop_and_go(), name="slow etcd")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        _signal(pids, signal.SIGCONT)


async def etcd_disk_lost(stage: Stage) -> None:
    """One of three members loses its disk. The two commands of the runbook bring it back as a new member."""
    async with stage.traffic() as traffic:
        name = (await coordinator.members(stage.place))[-1]["metadata"]["name"]
        async with traffic.struck("lose etcd disk", name):
            began = time.monotonic()
            await coordinator.replace_disk(stage.place, name)
            stage.figure("a member again after", time.monotonic() - began)
            stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
        await stage.wait_healthy()


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
