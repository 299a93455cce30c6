"""Append streams against a scripted core: what is handed on, refused without room, and counted."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import google_crc32c
import grpc
import pytest
import pytest_asyncio
from seriatim_api import errors
from seriatim_api.batch import FLAG_DELAYED, FLAG_PUBLISH, FLAG_STAGED, HEADER_SIZE_BYTES
from seriatim_api.bodies import SCHEMA
from seriatim_api.delay_limits import DelayLimits
from seriatim_api.exclusive import exclusive_producer
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.protocol import PROTOCOL
from seriatim_api.publications import make_chunk_id
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_api.wire.frames import AppendEntry, write_append_frame, write_field
from seriatim_broker.adapters.arrow_bodies import ArrowBodies
from seriatim_broker.adapters.system_clock import SystemClock
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.delays import KnownDelayLimits
from seriatim_broker.core.values.events import AckLevel, Append, Event, Moment, Tick
from seriatim_broker.counters.broker import Counters
from seriatim_broker.rpc.calls.limits import PARTITION_BYTES_MAX, STREAM_BYTES_MAX
from seriatim_broker.rpc.calls.services import Services
from seriatim_broker.rpc.streams.over_grpc import GrpcStreams
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.topic_limits import TopicLimits
from seriatim_broker.runtime.driver.driver import Driver
from seriatim_broker.runtime.driver.traffic import Traffic
from seriatim_broker.runtime.membership.registration import Identity
from seriatim_broker.testing.memory_disk import MemoryDisk
from seriatim_broker.testing.simulated_bodies import SimulatedBodies
from seriatim_broker.testing.simulated_storage import SimulatedStorage
from seriatim_broker.testing.virtual_time import LoopTimers

from broker.tests.headers import header_of

BODIES = ArrowBodies()
BODIES.prepare()
BODY = BODIES.single(None, bytes(500_000), 1, ())


class QuietCore:
    """Answers nothing but refusals, and what the test lets go."""

    def __init__(self) -> None:
        self.appends: list[Append] = []
        self.partitions: dict[PartitionId, Any] = {}
        self.due_ms: int | None = 0
        self.arrived = asyncio.Event()

    async def until_count(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.appends) < count:
                self.arrived.clear()
                await self.arrived.wait()

    def start(self, now: Moment) -> list[fx.Effect]:
        return []

    def step(self, event: Event, now: Moment) -> list[fx.Effect]:
        if isinstance(event, Append):
            self.appends.append(event)
            self.arrived.set()
            if event.refuse is not None:
                return [fx.AppendRefused(event.request, event.refuse, None)]
            return []
        return [fx.AppendAccepted(append.request, 5, 6, due_time_ms=self.due_ms) for append in self.appends]

    def next_wake_us(self) -> int | None:
        return None


class Call:
    """One stream, as a servicer sees it."""

    def __init__(self, services: Services) -> None:
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.replies: list[broker_pb2.AppendReply] = []
        self.arrived = asyncio.Event()
        self.status: tuple[Any, ...] = ()
        self.task = asyncio.create_task(GrpcStreams(services, cast(Any, None))._append(None, self))
        self.incoming.put_nowait(
            b"".join(write_field(1, [broker_pb2.ClientHello(protocol=PROTOCOL).SerializeToString()]))
        )

    async def read(self) -> Any:
        return await self.incoming.get()

    async def write(self, data: bytes) -> None:
        self.replies += broker_pb2.AppendReplies.FromString(data).replies
        self.arrived.set()

    async def abort(self, *status: Any) -> None:
        self.status = status
        raise asyncio.CancelledError

    def peer(self) -> str:
        return "test"

    def send(self, partition: int, *, level: int = 5, body: bytes = BODY, **more: Any) -> None:
        header = header_of(body, partition=partition, producer_epoch=1, **more)
        self.incoming.put_nowait(write_append_frame([(AppendEntry(1, level, True, 0), header, body)]))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()

    async def end(self) -> None:
        self.incoming.put_nowait(grpc.aio.EOF)
        await asyncio.wait_for(self.task, 60)


@pytest.fixture
def core() -> QuietCore:
    return QuietCore()


async def make_services(core: QuietCore) -> Services:
    """A broker with this core, on the loop that runs."""
    storage = SimulatedStorage(MemoryDisk(), LoopTimers(), lambda: 0, lambda: 0)
    driver = Driver(core, storage, SystemClock(), Counters(), lambda _error: None, SimulatedBodies())
    nowhere: Any = Mock()  # nothing is asked of it
    driver.start(nowhere, nowhere)
    return Services(
        identity=Identity("c", MemberId("g0-0", "disk"), "g0", 0, 3, 0),
        driver=driver,
        storage=storage,
        directory=nowhere,
        coordinator=nowhere,
        keys=Keys("c"),
        counters=Counters(),
        traffic=Traffic(SystemClock()),
        checksum=google_crc32c.extend,
        bodies=BODIES,
        batch_bytes_max=1 << 20,
        topic_limits=TopicLimits(1 << 20),
    )


@pytest_asyncio.fixture(loop_scope="session")
async def services(core: QuietCore) -> Services:
    return await make_services(core)


def release(services: Services) -> None:
    """Any other event makes the core accept all."""
    services.driver.feed(Tick())


def limit(services: Services, partition: int, batch_bytes: int, message_bytes: int) -> None:
    """The topic with that partition has these limits."""
    settings = records_pb2.TopicSettings(batch_size_bytes_max=batch_bytes, message_size_bytes_max=message_bytes)
    record = records_pb2.TopicRecord(name=f"t{partition}", partition_ids=[partition], settings=settings)
    services.topic_limits.change(record.name, record)
    services.topic_limits.is_current = lambda: True


async def test_a_limit_that_may_be_old_refuses_for_the_moment_only(services: Services, core: QuietCore) -> None:
    limit(services, 1, 1 << 20, 1000)
    services.topic_limits.is_current = lambda: False
    call = Call(services)
    call.send(1, body=BODIES.single(b"k", bytes(2000), 1, ()))
    await core.until_count(1)
    assert isinstance(core.appends[0].refuse_new, errors.OverloadedError)
    release(services)
    await call.end()


@pytest.mark.parametrize(
    ("limits", "message_bytes", "is_over"),
    [
        ((1 << 20, 1000), 1000, False),
        ((1 << 20, 1000), 1001, True),
        ((5000, 1 << 20), 4000, False),
        ((5000, 1 << 20), 5000, True),
        ((100, 1 << 20), 50, False),
    ],
)
async def test_a_batch_over_the_limits_of_its_topic_is_refused(
    services: Services, core: QuietCore, limits: tuple[int, int], message_bytes: int, is_over: bool
) -> None:
    limit(services, 1, *limits)
    call = Call(services)
    body = BODIES.single(b"k" * 10, bytes(message_bytes - 10), 1, ())
    call.send(1, body=body)
    call.send(2, body=body)
    await core.until_count(2)
    assert isinstance(core.appends[0].refuse_new, errors.MessageTooLargeError) == is_over
    assert core.appends[0].refuse is None, "a batch that was stored before the limit was lowered is answered"
    assert core.appends[1].refuse_new is None
    services.topic_limits.change("t1", None)
    call.send(1, body=body)
    await core.until_count(3)
    assert core.appends[2].refuse_new is None
    release(services)
    await call.end()


async def test_a_delayed_batch_comes_with_the_limits_of_its_topic(services: Services, core: QuietCore) -> None:
    settings = records_pb2.TopicSettings(delay_max_ms=0, delayed_pending_max=7, retention_bytes=5)
    services.topic_limits.change("t1", records_pb2.TopicRecord(partition_ids=[1], settings=settings))
    call = Call(services)
    for partition in (1, 2):
        call.send(partition, flags=FLAG_DELAYED)
    await core.until_count(2)
    assert [event.delays for event in core.appends] == [
        KnownDelayLimits(DelayLimits(0, 7), are_current=False, retention_bytes=5),
        KnownDelayLimits(DelayLimits(), are_current=False),
    ]
    services.topic_limits.is_current = lambda: True
    services.topic_limits.change("t1", None)
    call.send(1, flags=FLAG_DELAYED)
    await core.until_count(3)
    assert core.appends[2].delays == KnownDelayLimits()
    release(services)
    await call.end()


async def test_a_topic_for_exclusive_producers_refuses_others_by_what_is_known(
    services: Services, core: QuietCore
) -> None:
    settings = records_pb2.TopicSettings(exclusive_only=True)
    services.topic_limits.change("t1", records_pb2.TopicRecord(partition_ids=[1], settings=settings))
    call = Call(services)
    call.send(1)
    await core.until_count(1)
    services.topic_limits.is_current = lambda: True
    call.send(1)
    call.send(1, producer=exclusive_producer(1, "loader"))
    await core.until_count(3)
    assert [type(event.refuse_new) for event in core.appends] == [
        errors.OverloadedError, errors.BadRequestError, type(None),
    ]  # fmt: skip
    release(services)
    await call.end()


@pytest.mark.parametrize("due_ms", [0, 9, None])
async def test_the_reply_to_a_delayed_batch_has_its_due_time_if_the_core_knows_it(
    services: Services, core: QuietCore, due_ms: int | None
) -> None:
    call = Call(services)
    for flags in (FLAG_DELAYED, 0):
        call.send(1, flags=flags)
    await core.until_count(2)
    core.due_ms = due_ms
    release(services)
    await call.end()
    delayed, ordinary = call.replies
    assert (delayed.due_time_ms if delayed.HasField("due_time_ms") else None) == due_ms
    assert not ordinary.HasField("due_time_ms")


async def test_a_staged_batch_is_as_small_as_its_chunk_says(services: Services, core: QuietCore) -> None:
    limit(services, 1, 10, 10)  # the stage topic's own limits are those of no target
    call = Call(services)
    body = BODIES.single(b"k", bytes(99), 1, ())
    for chunk in (make_chunk_id(bytes(16), 5000, 100), make_chunk_id(bytes(16), 5000, 99), b"c" * 16):
        call.send(1, body=body, flags=FLAG_STAGED, stage=chunk)
    await core.until_count(3)
    assert [type(append.refuse_new) for append in core.appends] == [
        type(None), errors.MessageTooLargeError, errors.BadRequestError,
    ]  # fmt: skip
    release(services)
    await call.end()


async def test_over_the_credit_of_a_partition_only_that_partition_is_refused(
    services: Services, core: QuietCore
) -> None:
    call = Call(services)
    fits = PARTITION_BYTES_MAX // len(BODY)
    for _ in range(fits + 1):
        call.send(1)
    call.send(2)
    await call.until(lambda: len(call.replies) == 1)
    assert call.replies[0].error.number == errors.OverloadedError.number
    assert call.replies[0].error.retry_after_ms > 0
    assert [append.refuse is None for append in core.appends] == [True] * fits + [False, True]
    release(services)
    await call.until(lambda: len(call.replies) == fits + 2)
    assert services.in_flight_bytes == 0
    await call.end()


async def test_over_the_credit_of_the_stream_everything_is_refused(services: Services, core: QuietCore) -> None:
    call = Call(services)
    fits = STREAM_BYTES_MAX // len(BODY)
    for partition in range(fits + 3):
        call.send(partition)
    await call.until(lambda: len(call.replies) == 3)
    assert {reply.error.number for reply in call.replies} == {errors.OverloadedError.number}
    other = Call(services)
    other.send(99)
    await core.until_count(fits + 4)
    release(services)
    await other.end()
    await call.end()


async def test_a_disk_that_cannot_take_more_is_said_so(services: Services, core: QuietCore) -> None:
    storage: Any = services.storage
    storage.queue_count_max = -1
    call = Call(services)
    call.send(1)
    await call.until(lambda: len(call.replies) == 1)
    assert call.replies[0].error.number == 400
    storage.queue_count_max = 1_000
    call.send(1)
    await core.until_count(2)
    assert core.appends[1].refuse is None
    release(services)
    await call.end()


NOT_READABLE = {
    "no Arrow message": b"rows",
    "offsets after the data": BODIES.single(b"k" * 77, b"value", 1, ()).replace(
        struct.pack("<2i", 0, 77), struct.pack("<2i", 0, 1 << 20)
    ),
    "a schema": SCHEMA.serialize().to_pybytes(),
}


@pytest.mark.parametrize("what", NOT_READABLE)
async def test_a_body_that_readers_could_not_read_is_refused(services: Services, core: QuietCore, what: str) -> None:
    call = Call(services)
    call.send(1, body=NOT_READABLE[what])
    call.send(2)
    await call.until(lambda: len(call.replies) == 1)
    assert call.replies[0].error.number == errors.UnreadableBodyError.number
    await core.until_count(2)
    assert [append.refuse is None for append in core.appends] == [False, True], "the core refuses the run with it"
    release(services)
    await call.end()


async def test_staged_batches_are_checked_and_manifests_are_not(services: Services, core: QuietCore) -> None:
    call = Call(services)
    call.send(1, body=b"rows", flags=FLAG_STAGED)
    call.send(1, body=b"a manifest", flags=FLAG_STAGED | FLAG_PUBLISH)
    await core.until_count(2)
    assert [append.refuse is None for append in core.appends] == [False, True]
    release(services)
    await call.end()


async def test_only_accepted_batches_are_counted(services: Services, core: QuietCore) -> None:
    storage: Any = services.storage
    counters = services.counters
    storage.queue_count_max = -1
    call = Call(services)
    for _ in range(3):
        call.send(1)
    await call.until(lambda: len(call.replies) == 3)
    assert (counters.appended_batches, counters.appended_messages, counters.appended_bytes) == (0, 0, 0)
    assert counters.refused == {"400": 3}
    assert not services.traffic.measure().partitions
    storage.queue_count_max = 1_000
    call.send(1)
    await core.until_count(4)
    assert counters.appended_batches == 0  # nothing is decided yet
    release(services)
    await call.until(lambda: len(call.replies) == 4)
    size = HEADER_SIZE_BYTES + len(BODY)
    assert (counters.appended_batches, counters.appended_messages, counters.appended_bytes) == (1, 1, size)
    assert services.traffic.measure().partitions == {PartitionId(1): (1, size)}
    await call.end()


async def test_what_a_stream_held_is_free_when_it_breaks(services: Services, core: QuietCore) -> None:
    call = Call(services)
    call.send(1)
    await core.until_count(1)
    assert services.in_flight_bytes > 0
    call.task.cancel()
    await asyncio.gather(call.task, return_exceptions=True)
    assert services.in_flight_bytes == 0
    assert services.stream_count == 0
    release(services)  # replies to a stream that has ended


async def test_a_batch_that_is_held_back_is_answered_later_at_the_lowest_level_too(
    services: Services, core: QuietCore
) -> None:
    call = Call(services)
    call.send(1, level=AckLevel.NONE)
    await core.until_count(1)
    release(services)  # the planned switch is given up
    await call.until(lambda: len(call.replies) == 1)
    assert not call.replies[0].HasField("error")
    assert services.in_flight_bytes == 0
    await call.end()


async def test_the_limit_of_streams(services: Services) -> None:
    services.stream_count_max = 0
    call = Call(services)
    await asyncio.gather(call.task, return_exceptions=True)
    assert call.status[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
