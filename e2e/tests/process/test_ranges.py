"""Range reads on real brokers: every message once and in order, whichever member dies during the read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from seriatim import Client, LostRange, Producer, sync
from seriatim_api import errors
from seriatim_api.ids import make_offset, split_offset
from seriatim_local import LocalCluster

from e2e.observe import Observer, Snapshot

from .traffic import PROGRESS_DEADLINE_S

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

PER_SEGMENT = 2_000


class Filled:
    """A topic of one partition. A test fills one segment after another."""

    def __init__(self, cluster: LocalCluster, client: Client, name: str) -> None:
        self.cluster = cluster
        self.client = client
        self.name = name
        self.values: list[bytes] = []
        self.times: list[datetime] = []

    async def fill(self, producer: Producer, count: int = PER_SEGMENT) -> None:
        """Add messages in batches of 100, so that a test can act while a reader is between two batches."""
        for _ in range(count // 100):
            values = [b"%d" % (len(self.values) + more) for more in range(100)]
            await (await producer.send_many(values))
            self.values += values
        self.times.append(datetime.now(UTC))

    async def switch(self) -> None:
        """Open the next segment on another group."""
        admin = self.client.admin()
        chain = await admin.describe_chain(self.name, 0)
        await admin.switch_partition(chain.partition_id)

    async def members(self, offset: int) -> tuple[str, ...]:
        """Return the members of the segment of that offset."""
        chain = await self.client.admin().describe_chain(self.name, 0)
        return next(segment.members for segment in chain.segments if segment.no == split_offset(offset)[0])

    async def read(self, **options: object) -> list[bytes]:
        """Return all values that a range reader gives."""
        async with self.client.read_range(self.name, 0, **options) as reader:  # type: ignore[arg-type]
            return [message.value async for message in reader]


@asynccontextmanager
async def filled(cluster: LocalCluster, name: str, segments: int = 3) -> AsyncIterator[Filled]:
    """Make a topic with `segments` segments. The last one is open."""
    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic(name)
        topic = Filled(cluster, client, name)
        async with client.producer(name) as producer:
            for number in range(segments):
                if number:
                    await topic.switch()
                await topic.fill(producer)
        yield topic


async def test_a_range_over_segments_of_several_groups_is_read_whole(cluster: LocalCluster) -> None:
    async with filled(cluster, "ranges") as topic:
        client = topic.client
        assert await topic.read() == topic.values
        (first,) = await client.offsets(topic.name, "earliest")
        (last,) = await client.offsets(topic.name, "end")
        assert (first.offset, first.position, first.blocked) == (make_offset(1, 0), 0, False)
        assert (last.position, split_offset(last.offset)[1]) == (3 * PER_SEGMENT, PER_SEGMENT)
        middle = make_offset(split_offset(last.offset)[0], 50)
        assert await topic.read(start=make_offset(1, 150), end=middle) == topic.values[150 : 2 * PER_SEGMENT + 50]
        plan = await client.plan_range(topic.name, 0, first.offset, last.offset, cut_bytes=1 << 16)
        assert sum(piece.rows for piece in plan.pieces) == len(topic.values)
        assert len(plan.pieces) > 3
        assert plan == await client.plan_range(topic.name, 0, first.offset, last.offset, cut_bytes=1 << 16)
        rows: list[bytes] = []
        sent: list[tuple[bytes, int, int]] = []
        for piece in plan.pieces:
            async with client.read_range(topic.name, 0, piece.start, piece.end) as reader:
                async for table in reader.tables():
                    rows += table.table.column("value").to_pylist()
                    numbers = range(table.sequence, table.sequence + table.table.num_rows)
                    sent += [(table.producer, table.producer_epoch, number) for number in numbers]
                assert reader.skipped == 0
        assert rows == topic.values
        assert len({producer for producer, _, _ in sent}) == 1
        assert sent == sorted(sent), "a producer's numbers rise"
        assert len(set(sent)) == len(rows)
        assert await asyncio.to_thread(_read_synchronously, cluster, topic.name) == topic.values


def _read_synchronously(cluster: LocalCluster, name: str) -> list[bytes]:
    with sync.Client.connect(cluster.bootstrap) as client, client.read_range(name, 0) as reader:
        return [message.value for message in reader]


async def test_a_range_begins_at_the_first_message_at_or_after_a_time(cluster: LocalCluster) -> None:
    async with filled(cluster, "times") as topic:
        client = topic.client
        for number, time in enumerate(topic.times[:-1]):
            (found,) = await client.offsets(topic.name, time)
            assert found.found
            assert found.position == (number + 1) * PER_SEGMENT
            assert await topic.read(start=time) == topic.values[(number + 1) * PER_SEGMENT :]
        assert await topic.read(end=topic.times[0]) == topic.values[:PER_SEGMENT]
        (future,) = await client.offsets(topic.name, datetime.now(UTC) + timedelta(days=1))
        (end,) = await client.offsets(topic.name)
        assert not future.found
        assert future.offset == end.offset
        (before,) = await client.offsets(topic.name, datetime(1970, 1, 1, tzinfo=UTC))
        assert (before.found, before.position) == (True, 0)


async def test_what_is_no_range_is_refused_and_the_end_is_said(cluster: LocalCluster) -> None:
    async with filled(cluster, "no-ranges", 2) as topic:
        client = topic.client
        (end,) = await client.offsets(topic.name)
        for start, until in ((0, end.offset + 1), (end.offset + 7, "end"), (0, make_offset(99, 0))):
            with pytest.raises(errors.OffsetOutOfRangeError) as refused:
                await topic.read(start=start, end=until)
            assert refused.value.details["end"] == str(end.offset)
        with pytest.raises(errors.OffsetOutOfRangeError) as refused:
            await topic.read(start=make_offset(1, PER_SEGMENT + 1))
        assert refused.value.details["end"] == str(make_offset(1, PER_SEGMENT))
        for wrong in (
            partial(topic.read, start=end.offset, end=make_offset(1, 0)),
            partial(client.offsets, topic.name, datetime(1969, 12, 31, tzinfo=UTC)),
            partial(client.offsets, topic.name, datetime(2026, 1, 1)),  # noqa: DTZ001 - that is what is refused
            partial(client.plan_range, topic.name, 0, 0, end.offset, cut_bytes=1),
        ):
            with pytest.raises(errors.BadRequestError):
                await wrong()
        with pytest.raises(errors.PartitionOutOfRangeError):
            await client.offsets(topic.name, partitions=[1])
        with pytest.raises(errors.UnknownTopicError):
            await client.offsets("nowhere")
        assert await topic.read(start=end.offset) == []


async def test_a_reader_reports_how_far_it_is_and_its_group_has_no_consumers(cluster: LocalCluster) -> None:
    async with filled(cluster, "reported", 2) as topic:
        client, admin = topic.client, topic.client.admin()
        await client.report_progress(topic.name, "spark", {0: make_offset(1, 150)})
        (row,) = (await admin.describe_group(topic.name, "spark")).partitions
        assert (row.external, row.error, row.lag) == (True, None, 2 * PER_SEGMENT - 150)
        assert row.settings is None, "a group without consumers has no way to consume"
        assert row.reported_at_ms > 0
        async with client.consumer(topic.name, "spark") as consumer:
            with pytest.raises(errors.PreconditionError):
                await consumer.fetch(timeout_s=10.0)
        (end,) = await client.offsets(topic.name)
        await client.report_progress(topic.name, "spark", {0: end.offset})
        (row,) = (await admin.describe_group(topic.name, "spark")).partitions
        assert (row.lag, row.group_epoch) == (0, 1)
        await client.report_progress(topic.name, "spark", {0: make_offset(1, 10)})
        (row,) = (await admin.describe_group(topic.name, "spark")).partitions
        assert (row.lag, row.group_epoch) == (2 * PER_SEGMENT - 10, 2)
        for offset in (make_offset(99, 0), make_offset(1, PER_SEGMENT + 1)):
            with pytest.raises(errors.OffsetOutOfRangeError):
                await client.report_progress(topic.name, "spark", {0: offset})
        with pytest.raises(errors.PartitionOutOfRangeError):
            await client.report_progress(topic.name, "spark", {1: end.offset})
        async with client.consumer(topic.name, "people") as consumer:
            assert await consumer.fetch(timeout_s=10.0)
        with pytest.raises(errors.PreconditionError):
            await client.report_progress(topic.name, "people", {0: end.offset})
        await admin.delete_group(topic.name, "spark")
        with pytest.raises(errors.UnknownGroupError):
            await admin.describe_group(topic.name, "spark")


async def test_a_topic_that_is_made_again_is_not_taken_for_the_one_that_is_read(cluster: LocalCluster) -> None:
    async with filled(cluster, "again", 1) as topic:
        client = topic.client
        (end,) = await client.offsets(topic.name)
        reader = await client.read_range(topic.name, 0, credit_bytes=1 << 16)
        assert (await anext(reader)).value == b"0"
        await client.admin().delete_topic(topic.name)
        with pytest.raises(errors.UnknownTopicError):
            await client.offsets(topic.name, incarnation=end.incarnation)
        with pytest.raises(errors.UnknownTopicError):
            _ = [message async for message in reader]
        await client.admin().create_topic(topic.name)
        with pytest.raises(errors.PreconditionError):
            await client.offsets(topic.name, incarnation=end.incarnation)


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_reader_goes_on_where_it_was_when_its_broker_is_gone(cluster: LocalCluster, how: str) -> None:
    async with filled(cluster, f"gone-{how}") as topic:
        strike = cluster.kill if how == "killed" else cluster.freeze
        found: list[bytes] = []
        struck: set[str] = set()
        async with topic.client.read_range(topic.name, 0, credit_bytes=1 << 16) as reader:
            async for message in reader:
                found.append(message.value)
                if len(found) % PER_SEGMENT == 150:  # kill one of the two members of this segment
                    victim = (await topic.members(message.offset))[0]
                    if victim not in struck:
                        struck.add(victim)
                        await strike(victim)
        assert found == topic.values
        assert struck


async def test_behind_an_unsettled_segment_is_the_end_until_a_member_is_back(cluster: LocalCluster) -> None:
    async with filled(cluster, "unsettled", 1) as topic:
        observer = Observer(topic.client.admin(), topic.name)
        opened = (await observer.look()).chains[0].open_segment
        no, group = opened.no, opened.group
        await cluster.kill(group)
        await observer.wait_until(lambda now: now.chains[0].open_segment.no > no, "it has moved", PROGRESS_DEADLINE_S)
        async with topic.client.producer(topic.name) as producer:
            await topic.fill(producer, 100)
        (end,) = await topic.client.offsets(topic.name)
        assert end.blocked
        assert split_offset(end.offset)[1] == 0
        readable = await topic.read()
        assert readable == topic.values[: end.position]
        assert len(readable) < len(topic.values)
        await cluster.start_again(group)
        await observer.wait_until(Snapshot.settled, "the segment is settled", PROGRESS_DEADLINE_S)
        assert await topic.read() == topic.values


async def test_what_retention_drops_is_told_also_in_the_middle_of_a_range(tmp_path: Path) -> None:
    """The test has a cluster of its own, whose brokers look often for messages to drop."""
    options = ("--set", "retention_look_s=0.2")
    async with LocalCluster(tmp_path, groups=2, members=2, name="trimmed", broker_options=options) as cluster:
        async with Client.connect(cluster.bootstrap) as client:
            await client.admin().create_topic("trimmed")
            topic = Filled(cluster, client, "trimmed")
            losses: list[LostRange] = []
            found: list[tuple[int, bytes]] = []
            async with client.producer("trimmed") as producer:
                await topic.fill(producer, 8_000)
                reader = await client.read_range("trimmed", 0, 0, on_loss=losses.append, credit_bytes=1 << 16)
                found += [(message.offset, message.value) for message in await reader.fetch()]
                await client.admin().update_topic("trimmed", retention_ms=1_000)  # not before: it would drop the start
                async with asyncio.timeout(PROGRESS_DEADLINE_S):
                    while (await client.offsets("trimmed", "earliest"))[0].offset < make_offset(1, 5_000):
                        await topic.fill(producer, 500)
            found += [(message.offset, message.value) async for message in reader]
        for offset, value in found:
            no, index = split_offset(offset)
            assert no > 1 or value == b"%d" % index
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        assert losses, "the reader was in the middle of what was dropped"
        for left, right in pairwise(offsets):  # a hole is a loss that the reader was notified of, or a segment's end
            told_here = [loss for loss in losses if left < loss.start < right or loss.start == left + 1]
            assert right == left + 1 or told_here or split_offset(right)[1] == 0, (left, right)
        async with Client.connect(cluster.bootstrap) as client:
            (first,), (end,) = await client.offsets("trimmed", "earliest"), await client.offsets("trimmed")
            assert first.position > 0
            with pytest.raises(errors.MessagesGoneError) as gone:
                async with client.read_range("trimmed", 0, make_offset(1, 0)) as below:
                    _ = [message async for message in below]
            assert gone.value.details["start"] == str(make_offset(1, 0))
            told: list[LostRange] = []
            async with client.read_range("trimmed", 0, make_offset(1, 0), end.offset, on_loss=told.append) as again:
                rest = [message.value async for message in again]
            assert [loss.reason for loss in told] == ["dropped"] * len(told)
            assert told
            assert rest == topic.values[end.position - len(rest) : end.position]
            (before,) = await client.offsets("trimmed", datetime(1970, 1, 1, tzinfo=UTC))
            assert before.offset >= first.offset
            plan = await client.plan_range("trimmed", 0, make_offset(1, 0), end.offset)
            assert plan.losses[0].reason == "dropped"


async def test_a_lost_segment_raises_unless_the_reader_takes_losses(tmp_path: Path) -> None:
    """The test has a cluster of its own, because disks that were declared lost must not come back."""
    async with LocalCluster(tmp_path, groups=2, members=2, name="lost") as cluster, filled(cluster, "lost", 1) as topic:
        observer = Observer(topic.client.admin(), topic.name)
        opened = (await observer.look()).chains[0].open_segment
        no = opened.no
        await cluster.kill(opened.group)
        await observer.wait_until(lambda now: now.chains[0].open_segment.no > no, "it has moved", PROGRESS_DEADLINE_S)
        async with topic.client.producer(topic.name) as producer:
            await topic.fill(producer, 100)
        await topic.client.admin().declare_gap(topic.name, 0, no, "test")
        with pytest.raises(errors.MessagesGoneError):
            await topic.read()
        losses: list[LostRange] = []
        found = await topic.read(on_loss=losses.append)
        assert found == topic.values[PER_SEGMENT:]
        assert [(loss.start, loss.end, loss.reason) for loss in losses] == [
            (make_offset(no, 0), make_offset(no + 1, 0), "lost")
        ]
        (end,) = await topic.client.offsets(topic.name)
        plan = await topic.client.plan_range(topic.name, 0, 0, end.offset)
        assert [(loss.start, loss.reason) for loss in plan.losses] == [(make_offset(no, 0), "lost")]
