"""Brokers are killed, frozen, cut off and stopped. Users must see that all continues, and that no message is out of
order.

Each test has a topic of its own, with steady traffic. When its block ends, the history of all sent and delivered
messages is judged.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from seriatim_local import LocalCluster

from e2e.faults.kinds.fault import lacks_copies
from e2e.observe import ChainNow, Snapshot
from e2e.workers import start_worker

from .traffic import GROUP, PARTITION_COUNT, PROGRESS_DEADLINE_S, traffic

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(90)]

slow = pytest.mark.slow


def chain_of(now: Snapshot) -> ChainNow:
    return now.chains[0]


def is_open_on(members: set[str], now: Snapshot) -> bool:
    return set(chain_of(now).open_segment.members) == members


async def test_a_killed_master(cluster: LocalCluster, tmp_path: Path) -> None:
    async with traffic(cluster, "killed-master", tmp_path) as running:
        before = chain_of(await running.look()).open_segment
        await cluster.kill(before.members[0])
        after = await running.moved_past(before.no)
        await running.goes_on()
        assert before.members[0] not in after.members
        await cluster.start_again(before.members[0])
        await running.goes_on()


@slow
@pytest.mark.timeout(240)
async def test_each_member_of_the_only_group_of_three_is_killed(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path / "three", groups=1, members=3, proxy=False, name="three") as cluster,
        traffic(cluster, "three", tmp_path) as running,
    ):
        for broker in cluster.broker_names:
            await cluster.kill(broker)
            left = {name for name in cluster.broker_names if name != broker}
            await running.observer.wait_until(partial(is_open_on, left), "two continue", PROGRESS_DEADLINE_S)
            await running.goes_on()
            await cluster.start_again(broker)
            await cluster.wait_ready()
        await running.observer.wait_until(lambda now: not lacks_copies(now, 3), "everything has three copies", 60)


async def test_a_frozen_master(cluster: LocalCluster, tmp_path: Path) -> None:
    async with traffic(cluster, "frozen-master", tmp_path) as running:
        before = chain_of(await running.look()).open_segment
        await cluster.freeze(before.members[0])
        await running.moved_past(before.no)
        await running.goes_on()
        await cluster.thaw(before.members[0])
        await running.goes_on()


@pytest.mark.parametrize(
    "end", [pytest.param("peer", marks=slow), "all", pytest.param("clients", marks=slow), pytest.param("coordinator")]
)
async def test_a_master_that_is_cut_off(cluster: LocalCluster, tmp_path: Path, end: str) -> None:
    async with traffic(cluster, f"cut-from-{end}", tmp_path) as running:
        before = chain_of(await running.look()).open_segment
        other = before.members[1] if end == "peer" else end
        await cluster.cut(before.members[0], other)
        if end != "coordinator":
            await running.moved_past(before.no)
        await running.goes_on()
        await cluster.heal()
        await running.goes_on()


async def test_both_members_killed_and_back(cluster: LocalCluster, tmp_path: Path) -> None:
    async with traffic(cluster, "both-killed", tmp_path) as running:
        for _ in range(3):
            before = chain_of(await running.look()).open_segment
            await cluster.kill(before.group)
            await running.moved_past(before.no)
            await running.accepts()
            dead = next(segment for segment in chain_of(await running.look()).segments if segment.no == before.no)
            if dead.state == "UNSETTLED":
                break
            await cluster.start_again(before.group)  # on a busy machine the segment may move before the kill
        assert dead.state == "UNSETTLED", "no member is left that could know its length"
        await cluster.start_again(before.group)
        await running.observer.wait_until(Snapshot.settled, "the segment is settled", PROGRESS_DEADLINE_S)
        await running.goes_on()


async def test_a_graceful_stop_loses_no_outcome(cluster: LocalCluster, tmp_path: Path) -> None:
    async with traffic(cluster, "stopped", tmp_path) as running:
        before = chain_of(await running.look()).open_segment
        await cluster.stop_gracefully(before.members[0])
        await running.goes_on()
        assert running.not_ok == 0
        await cluster.start_again(before.members[0])
        await running.goes_on()


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_standby_takes_over_from_a_consumer(cluster: LocalCluster, tmp_path: Path, how: str) -> None:
    """A thawed consumer finds old deliveries in its buffers. It must not treat them as new."""
    topic = f"takeover-{how}"

    def arguments(name: str) -> list[str]:
        return [
            "--bootstrap", ",".join(cluster.bootstrap), "--topic", topic, "--partitions", str(PARTITION_COUNT),
            "--group", GROUP, "--name", name, "--history", str(tmp_path / f"{name}.jsonl"),
        ]  # fmt: skip

    def active(name: str, now: Snapshot) -> bool:
        return all(reader.active == name for reader in now.readers) and len(now.readers) == PARTITION_COUNT

    module, log = "e2e.tests.process.reader", tmp_path / "readers.log"
    async with (
        traffic(cluster, topic, tmp_path, reads=False) as running,
        start_worker("first", module, arguments("first"), log=log) as first,
    ):
        await first.wait_for("ready", PROGRESS_DEADLINE_S)
        async with start_worker("second", module, arguments("second"), log=log) as second:
            await second.wait_for("ready", PROGRESS_DEADLINE_S)
            assert {reader.active for reader in (await running.look()).readers} <= {"first", "second"}
            os.kill(first.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            await running.observer.wait_until(
                lambda now: active("second", now), "the standby reads", PROGRESS_DEADLINE_S
            )
            await running.accepts()
            if how == "frozen":
                os.kill(first.pid, signal.SIGCONT)
                await running.accepts()
            await running.finish()
