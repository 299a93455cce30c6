"""How long a partition accepts nothing when its master is killed, restarted or frozen, while a producer sends to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from seriatim import Client
from seriatim_local import LocalCluster

from e2e.bench.load.measurement import Measured
from e2e.bench.load.setup import DEADLINE_S, SteadySender
from e2e.bench.measures.figures import percentile
from e2e.bench.workloads import Fault
from e2e.observe import Observer, Snapshot

FROZEN_S: Final = 3.0


async def run_faults(
    load: Fault, topic: str, client: Client, cluster: LocalCluster, progress: Callable[[str], None]
) -> Measured:
    """Do the fault to the master of partition 0 again and again, while a message is sent each millisecond.

    Raises:
        SeriatimError: The cluster did not come back.
        TimeoutError: It did not come back in time.
    """
    observer = Observer(client.admin(), topic)
    gaps_ms: list[float] = []
    async with client.producer(topic) as producer, asyncio.TaskGroup() as tasks:
        sender = SteadySender(producer)
        running = [tasks.create_task(sender.send(), name="send"), tasks.create_task(sender.note(), name="note")]
        for number in range(load.times):
            await sender.wait_for_ack_after(time.monotonic())
            before = (await observer.look()).chains[0].open_segment
            master = before.members[0]
            progress(f"{load.fault} {number + 1} of {load.times}: {master}")
            begun_at = time.monotonic()
            await _strike(load, cluster, master)
            # Over a distance, acknowledgements that were on their way arrive after the fault, so they prove nothing.
            left = partial(_has_left, segment_no=before.no)
            await observer.wait_until(left, "the partition continues in a later segment", DEADLINE_S)
            await sender.wait_for_ack_after(time.monotonic())
            if load.fault != "freeze":
                await cluster.start_again(master)
            await observer.wait_until(Snapshot.settled, "the partition accepts again", DEADLINE_S)
            gaps_ms.append(sender.gap_s(begun_at) * 1000)
            await cluster.wait_ready(deadline_s=DEADLINE_S)
        for task in running:
            task.cancel()
    found = Measured(values={"gap_ms": percentile(gaps_ms, 0.5)})
    found.details = {"gaps_ms": [round(gap, 1) for gap in gaps_ms], "max_ms": round(max(gaps_ms), 1)}
    found.problem = f"{sender.not_ok} messages were not acknowledged" if sender.not_ok else ""
    return found


def _has_left(found: Snapshot, segment_no: int) -> bool:
    return found.chains[0].open_segment.no > segment_no


async def _strike(load: Fault, cluster: LocalCluster, master: str) -> None:
    match load.fault:
        case "kill":
            await cluster.kill(master)
        case "restart":
            await cluster.stop_gracefully(master)
        case "freeze":
            await cluster.freeze(master)
            await asyncio.sleep(FROZEN_S)
            await cluster.thaw(master)
