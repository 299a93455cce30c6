"""The coordinator: one member frozen, one lost, all restarted. Messages do not pass through it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

from e2e.kubernetes import coordinator
from e2e.kubernetes.machines import container_pids
from e2e.kubernetes.stage import Stage

GAP_LIMIT_S: Final = 0.3
FROZEN_MESSAGES: Final = 3_000
"""Messages that must pass while a member is frozen: some seconds' worth."""


async def etcd_member_frozen(stage: Stage) -> None:
    """One of three hangs with its connections open."""
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
    """All members deleted at once: the data path goes on without any."""
    async with stage.traffic() as traffic:
        names = [pod["metadata"]["name"] for pod in await coordinator.members(stage.place)]
        async with traffic.struck("delete etcd", ", ".join(names)):
            await stage.place.kubectl("delete", "pod", *names, "--wait=false")
            stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
            await coordinator.wait_ready(stage.place)
            stage.figure("gap until all are back", await traffic.gap_s(), limit=GAP_LIMIT_S)
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
