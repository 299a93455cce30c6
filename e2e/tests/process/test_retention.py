"""Retention on real brokers: messages beyond the limit are dropped on all disks, and every kind of reader is
notified."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from seriatim import Client, Gap, LostRange, RetainedRange, TopicSettings, sync
from seriatim.cli._operations import retention_change
from seriatim_api import errors
from seriatim_api.ids import make_offset
from seriatim_local import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

MESSAGES = 4_000
LIMIT_BYTES = 1 << 20
TRIM_DEADLINE_S = 30.0


async def until_kept(client: Client, topic: str, fits: Callable[[RetainedRange], bool]) -> RetainedRange:
    """Wait until the kept range of a topic's only partition fits. Return it."""
    until = time.monotonic() + TRIM_DEADLINE_S
    while True:
        (kept,) = await client.retained(topic)
        if fits(kept):
            return kept
        assert time.monotonic() < until, kept
        await asyncio.sleep(0.2)


def read_synchronously(bootstrap: Sequence[str], group: str) -> tuple[list[Gap], int]:
    gaps: list[Gap] = []
    with sync.Client.connect(bootstrap) as client, client.consumer("kept", group, on_gap=gaps.append) as consumer:
        (message, *_) = consumer.fetch(1, 20)
    return gaps, message.offset


async def test_what_is_too_much_goes_and_readers_are_told(tmp_path: Path) -> None:
    options = ("--set", "retention_look_s=0.5")
    async with LocalCluster(tmp_path, groups=2, proxy=False, broker_options=options) as cluster:
        await cluster.wait_ready()
        async with Client.connect(cluster.bootstrap) as client:
            admin = client.admin()
            await admin.create_topic("kept", settings=TopicSettings(retention_ms=0))
            await admin.create_group("kept", "late")
            await admin.create_group("kept", "later")
            async with client.producer("kept") as producer:
                for first in range(0, MESSAGES, 100):
                    await (await producer.send_many([b"%d" % (first + n) + bytes(1000) for n in range(100)]))
            (before,) = await client.retained("kept")
            assert (before.offset, before.messages) == (make_offset(1, 0), MESSAGES)
            assert before.size_bytes is not None
            assert before.size_bytes > 3 * LIMIT_BYTES
            assert before.since_ms is not None

            await refuse_nonsense(client)
            wanted = TopicSettings(retention_ms=0, retention_bytes=LIMIT_BYTES)
            told = await retention_change.losses(client, "kept", wanted, datetime.now(UTC))
            assert [loss.unread_by for loss in told] == [("late", "later")]

            await admin.update_topic("kept", retention_bytes=LIMIT_BYTES)
            kept = await until_kept(client, "kept", lambda one: one.messages < MESSAGES)
            assert kept.size_bytes is not None
            assert 0 < kept.size_bytes <= LIMIT_BYTES
            assert kept.since_ms is not None
            assert kept.since_ms >= before.since_ms
            foretold = told[0].messages
            assert abs(foretold - (MESSAGES - kept.messages)) <= 200, "what was said is what went"

            (late,) = (await admin.describe_group("kept", "late")).partitions
            assert late.lag == kept.messages, "what was dropped is not to be read any more"

            gaps: list[Gap] = []
            async with client.consumer("kept", "late", on_gap=gaps.append) as consumer:
                (message, *_) = await consumer.fetch(1, 20)
                await consumer.ack(message)
            gone = MESSAGES - kept.messages
            expected = Gap("kept", 0, make_offset(1, 0), "dropped by retention", kept.offset, gone)
            assert gaps == [expected]
            assert message.offset == kept.offset
            assert await asyncio.to_thread(read_synchronously, cluster.bootstrap, "later") == ([expected], kept.offset)

            losses: list[LostRange] = []
            async with client.read_range("kept", 0, make_offset(1, 5), "end", on_loss=losses.append) as reader:
                rows = [row.offset async for row in reader]
            assert len(rows) == kept.messages
            assert losses == [LostRange("kept", 0, make_offset(1, 5), kept.offset, "dropped")]
            plan = await admin.plan_move("kept", "late", make_offset(1, 5), partitions=[0])
            assert plan.moves[0].error_number == errors.OffsetOutOfRangeError.number

            await admin.create_group("kept", "new")
            async with client.consumer("kept", "new", on_gap=gaps.append) as consumer:
                (message, *_) = await consumer.fetch(1, 20)
            assert message.offset == kept.offset
            assert len(gaps) == 1, "a new group has missed nothing"


async def refuse_nonsense(client: Client) -> None:
    """Check that settings which no broker could keep are refused, and change nothing."""
    admin = client.admin()
    for wrong in (
        {"retention_ms": 5},
        {"retention_bytes": 100},
        {"retention_ms": 5000, "unread_ms_max": 2000},
        {"retention_ms": -1},
    ):
        with pytest.raises(errors.BadRequestError):
            await admin.update_topic("kept", **wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.BadRequestError):
            await admin.create_topic("wrong", settings=TopicSettings(**wrong))  # type: ignore[arg-type]
    assert [topic.settings.retention_bytes for topic in await admin.list_topics()] == [0]
