"""Compares clusters of larger broker groups with clusters of groups of two, in turns, so that both meet one machine.

Three questions: how long one message takes, how many messages a second one partition takes, and how long it accepts
nothing when its master is killed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from statistics import mean
from typing import Final

from e2e.bench.load.measurement import Measured
from e2e.bench.workloads import Batches, BesideTwo, Fault, OneAtATime, Workload

OnCluster = Callable[[Workload, int], Awaitable[Measured]]
"""Runs a workload on a new cluster whose broker groups have that many members."""

PAIR: Final = 2


async def beside_two(load: BesideTwo, on_cluster: OnCluster) -> Measured:
    """Measure everything, and return how the larger groups compare with groups of two."""
    found, problems = Measured(), []

    async def compared(part: Workload) -> tuple[float, float]:
        (measure,) = part.measures
        values: dict[int, list[float]] = {PAIR: [], load.members: []}
        for _ in range(load.rounds):
            for members, mine in values.items():
                measured = await on_cluster(part, members)
                mine.append(measured.values[measure])
                problems.append(measured.problem)
        for members, mine in values.items():
            found.details[f"{measure} of {members}"] = [round(value, 3) for value in mine]
        return mean(values[load.members]), mean(values[PAIR])

    one = OneAtATime(kind="one_at_a_time", seconds=load.seconds)
    p50_ms, pair_ms = await compared(Workload(name="one", text="one in flight", load=one, measures={"p50_ms": None}))
    batches = Batches(kind="batches", rows=2000, seconds=load.seconds)
    rate, pair_rate = await compared(
        Workload(name="batches", text="batches", load=batches, measures={"messages_per_s": None})
    )
    kills = Fault(kind="fault", fault="kill", times=load.times)
    gap_ms, pair_gap_ms = await compared(
        Workload(name="kill", text="kill -9", load=kills, groups=2, measures={"gap_ms": None})
    )
    found.values = {"p50_ratio": p50_ms / pair_ms, "rate_ratio": rate / pair_rate, "more_gap_ms": gap_ms - pair_gap_ms}
    found.problem = "; ".join(dict.fromkeys(filter(None, problems)))
    return found
