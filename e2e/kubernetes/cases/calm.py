"""A case without a fault: it measures how much the machine itself delays traffic.

Compare other cases with its figures.
"""

from __future__ import annotations

import time
from typing import Final

from e2e.bench.measures.machine import machine_cpu
from e2e.kubernetes.stage import Stage

CALM_MESSAGES: Final = 10_000
"""Messages of 20 s."""


async def nothing_broken(stage: Stage) -> None:
    """Let messages flow. Measure the longest pause, and how busy the processors are."""
    async with stage.traffic() as traffic:
        began, before = time.monotonic(), machine_cpu()
        await traffic.load.goes_on(CALM_MESSAGES)
        used = machine_cpu() - before
        stage.figure("longest pause", await traffic.load.gap_s(began))
        stage.processors(used)
