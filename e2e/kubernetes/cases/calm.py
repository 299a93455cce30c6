"""A case without a fault: how much the machine itself delays traffic. Compare the figures of other cases with it."""

from __future__ import annotations

import time
from typing import Final

from e2e.bench.machine import machine_cpu
from e2e.kubernetes.stage import Stage

CALM_MESSAGES: Final = 10_000
"""Twenty seconds' worth."""


async def nothing_broken(stage: Stage) -> None:
    """Messages flow; how long the longest pause is all the same, and how busy the processors are."""
    async with stage.traffic() as traffic:
        began, before = time.monotonic(), machine_cpu()
        await traffic.load.goes_on(CALM_MESSAGES)
        used = machine_cpu() - before
        stage.figure("longest pause", await traffic.load.gap_s(began))
        stage.figure("processors busy", 100 * used.busy_s / used.total_s, "%")
        stage.figure("taken by other machines", 100 * used.stolen_s / used.total_s, "%")
