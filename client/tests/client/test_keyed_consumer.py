"""Consumers by key against a fake broker: handlers, iteration, and `receive`."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import time
import traceback
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import pytest
from seriatim import Client, GiveUp, KeyedConsumer, Message, Retry
from seriatim._consuming import handlers
from seriatim._consuming import keyed_consumer as keyed
from seriatim._consuming.pools import PoolCalls
from seriatim._values.settings import ConsumerSettings
from seriatim._values.topics import topic_of
from seriatim_api import errors
from seriatim_api.v1 import records_pb2

from ..fake_broker import FakeCluster, connected, running, until
from ..fake_keyed import FakeKeyed
from ..in_process import InProcess, run

pytestmark = pytest.mark.usefixtures("carriage")

SHARED = records_pb2.CONSUMER_MODE_SHARED


@asynccontextmanager
async def consuming(
    rows: str = "", partitions: int = 1, mode: Any = "key_ordered", **options: Any
) -> AsyncIterator[tuple[FakeKeyed, KeyedConsumer]]:
    """A consumer, and its group: each letter of `rows` is a message with that key and a number."""
    async with running() as cluster:
        cluster.create_topic("t", partitions)
        number = SHARED if mode == "shared" else records_pb2.CONSUMER_MODE_KEY_ORDERED
        group = FakeKeyed(cluster, number, **options)
        add(group, cluster, rows)
        async with (
            Client.connect(cluster.brokers[0].address) as client,
            client.consumer("t", "g", mode=mode, session_ms=60_000) as consumer,
        ):
            await until(lambda: len(consumer.joined) == partitions)
            yield group, consumer


@asynccontextmanager
async def consuming_in_virtual_time(rows: str, **options: Any) -> AsyncIterator[tuple[FakeKeyed, KeyedConsumer]]:
    """As `consuming`, with a broker that is called without a network, for a test that `run` runs: no time is lost."""
    place = InProcess(1)
    place.cluster.create_topic("t", 1)
    group = FakeKeyed(place.cluster, records_pb2.CONSUMER_MODE_KEY_ORDERED, **options)
    add(group, place.cluster, rows)
    async with KeyedConsumer(
        topic_of(place.cluster.topics["t"]), "g", "c1", None, ConsumerSettings(), place.carriages, place, "test",  # type: ignore[arg-type]
        None, None, None, None, "key_ordered",
    ) as consumer:  # fmt: skip
        await until(lambda: len(consumer.joined) == 1)
        yield group, consumer


def add(group: FakeKeyed, cluster: FakeCluster, rows: str) -> None:
    """Messages with these keys, one partition after another."""
    ids = list(cluster.topics["t"].partition_ids)
    before = len(group.rows)
    for at, key in enumerate(rows):
        group.add(ids[at % len(ids)], [(key.encode(), b"%d" % (before + at))])


def values(items: list[keyed.KeyedMessage]) -> list[int]:
    return [int(item.message.value) for item in items]


@asynccontextmanager
async def handling(consumer: KeyedConsumer, handler: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
    """`run` in a task, until the end of the block."""
    task = asyncio.create_task(consumer.run(handler, *args, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# ---- handlers -------------------------------------------------------------------------------------------


async def test_handlers_of_one_key_run_one_after_another() -> None:
    done: list[int] = []
    running_keys: set[bytes | None] = set()

    async def handle(message: Message) -> None:
        assert message.key not in running_keys
        running_keys.add(message.key)
        await asyncio.sleep(0.001)
        running_keys.discard(message.key)
        done.append(int(message.value))

    async with consuming("abababcc") as (group, consumer), handling(consumer, handle, 8):
        await until(lambda: not group.values_left)
    assert [value for value in done if value in (0, 2, 4)] == [0, 2, 4]


async def test_a_handler_that_raises_returns_its_message_with_a_reason() -> None:
    failures = [Retry(0.01, "not yet"), ValueError("no"), asyncio.CancelledError(), GiveUp("never")]
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.attempt)
        if failures:
            raise failures.pop(0)

    async with consuming("a") as (group, consumer), handling(consumer, handle, 2):
        await until(lambda: not group.values_left)
        reasons = [(nack.reason, nack.delay_ms, nack.is_last) for nack in group.nacks]
    assert seen == [1, 2, 3, 4, 5]
    assert reasons == [
        ("not yet", 10, False),
        ("ValueError: no", 0, False),
        ("the handler was cancelled", 0, False),
        ("GiveUp: never", 0, True),
    ]


class InterruptError(BaseException):
    """As `KeyboardInterrupt`, which asyncio throws through the event loop of all tests."""


async def test_an_interrupt_in_a_handler_ends_run_and_repeats_it() -> None:
    raised: list[BaseException] = [InterruptError()]
    seen: list[int] = []

    async def handle(message: Message) -> None:
        if raised:
            raise raised.pop()
        seen.append(int(message.value))

    async with consuming("ab") as (group, consumer):
        with pytest.raises(InterruptError):
            await consumer.run(handle, 1)
        assert not group.nacks
        async with handling(consumer, handle, 1):
            await until(lambda: not group.values_left)
    assert sorted(seen) == [0, 1]


def test_a_handler_may_take_longer_than_three_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    async def handle(message: Message) -> None:
        calls.append(message.attempt)
        await asyncio.sleep(1.0)

    async def scenario() -> None:
        async with consuming_in_virtual_time("a", grant_ms=300) as (group, consumer), handling(consumer, handle, 1):
            await until(lambda: not group.values_left)
            assert len(group.extends) >= 3

    run(scenario(), monkeypatch)
    assert calls == [1]


def test_a_handler_that_never_returns_harms_no_other_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keyed, "SLOW_S", 0.05)

    async def scenario() -> None:
        async def handle(message: Message) -> None:
            if message.key == b"a":
                await asyncio.Event().wait()

        async with consuming_in_virtual_time("aabbcc", grant_ms=60) as (group, consumer), handling(consumer, handle, 2):
            await until(lambda: group.values_left == [b"0", b"1"])
            await until(lambda: "has worked on message 1:0 of t/0" in caplog.text)
            await until(lambda: len(group.extends) >= 3)
            assert group.values_left == [b"0", b"1"]
            assert caplog.text.count("later messages of its key wait") == 1

    run(scenario(), monkeypatch)


def test_a_handler_that_takes_too_long_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async def handle(message: Message) -> None:
            if message.attempt < 3:
                await asyncio.Event().wait()

        async with consuming_in_virtual_time("a") as (group, consumer), handling(consumer, handle, 1, timeout_s=0.02):
            await until(lambda: not group.values_left)
            assert [nack.reason for nack in group.nacks] == ["the handler took longer than 0.02 s"] * 2

    run(scenario(), monkeypatch)


async def test_a_time_out_of_the_handler_is_its_own() -> None:
    async def handle(message: Message) -> None:
        if message.attempt == 1:
            raise TimeoutError("the other service")

    async with consuming("a") as (group, consumer), handling(consumer, handle, 1, timeout_s=10):
        await until(lambda: not group.values_left)
        assert [nack.reason for nack in group.nacks] == ["TimeoutError: the other service"]


async def test_plain_functions_run_in_as_many_threads_as_asked_for() -> None:
    meeting = threading.Barrier(12)

    def handle(_message: Message) -> None:
        meeting.wait(10)

    async with consuming("abcdefghijkl") as (group, consumer), handling(consumer, handle, 12):
        await until(lambda: not group.values_left)


async def test_a_cancelled_run_gives_back_what_its_handlers_had() -> None:
    started = asyncio.Event()

    async def hang(_message: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    async def finish(_message: Message) -> None:
        pass

    async with consuming("a") as (group, consumer):
        async with handling(consumer, hang, 1):
            await started.wait()
        assert not group.nacks
        async with handling(consumer, finish, 1):
            await until(lambda: not group.values_left)


@pytest.mark.parametrize(
    ("arguments", "options"), [((0,), {}), ((10_001,), {}), ((1,), {"timeout_s": 0}), ((1,), {"pool": "threads"})]
)
async def test_bad_arguments_of_run_are_refused(arguments: Any, options: Any) -> None:
    async def handle(_message: Message) -> None:
        pass

    with ThreadPoolExecutor(1) as threads:
        options = {name: threads if name == "pool" else value for name, value in options.items()}
        async with consuming() as (_, consumer):
            with pytest.raises(errors.BadRequestError):
                await consumer.run(handle, *arguments, **options)


# ---- processes -------------------------------------------------------------------------------------------


def note_process(folder: str, message: Message) -> None:
    """Work in another process: it says which one."""
    time.sleep(0.05)
    with open(f"{folder}/{int(message.value)}", "w") as out:
        out.write(str(os.getpid()))


class NeedsTwoError(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


async def test_failures_leave_in_one_frame() -> None:
    async def handle(_message: Message) -> None:
        raise Retry(60)

    async with running() as cluster:
        cluster.create_topic("t", 1)
        group = FakeKeyed(cluster)
        async with (
            Client.connect(cluster.brokers[0].address) as client,
            client.consumer("t", "g", mode="key_ordered", session_ms=60_000) as consumer,
        ):
            await until(lambda: len(consumer.joined) == 1)
            async with handling(consumer, handle):
                add(group, cluster, "abcdef")
                await until(lambda: len(group.nacks) == 6)
            (stream,) = cluster.brokers[0].consume_streams
    assert sum(stream.many) > 1


def fail_then_work(message: Message) -> Any:
    if message.attempt == 1:
        raise NeedsTwoError("no", "good")
    if message.attempt == 2:
        raise Retry(0.01, "once more")
    return threading.Lock()  # what a handler returns is not needed, and need not be picklable


def die(_message: Message) -> None:
    os._exit(3)


@asynccontextmanager
async def processes(count: int) -> AsyncIterator[ProcessPoolExecutor]:
    """Processes that share nothing with this one."""
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@pytest.mark.timeout(120)
async def test_handlers_run_in_processes(tmp_path: Any) -> None:
    handler = partial(note_process, str(tmp_path))
    async with (
        processes(2) as pool,
        consuming("abcdef") as (group, consumer),
        handling(consumer, handler, 4, pool=pool),
    ):
        await until(lambda: not group.values_left, 60)
    pids = {path.read_text() for path in tmp_path.iterdir()}
    assert str(os.getpid()) not in pids
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.timeout(120)
async def test_failures_in_processes_need_not_be_picklable() -> None:
    async with processes(1) as pool, consuming("a") as (group, consumer):
        async with handling(consumer, fail_then_work, 4, pool=pool):
            await until(lambda: not group.values_left, 60)
        assert [nack.reason for nack in group.nacks] == ["NeedsTwoError: no good", "once more"]


# The thread of a pool whose process died fails if a call is cancelled meanwhile (Python 3.11.7 has no guard there): it
# ends the same, with a traceback of its own.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.timeout(120)
async def test_a_dead_process_ends_run_and_the_messages_come_again() -> None:
    async def finish(_message: Message) -> None:
        pass

    async with processes(1) as pool, consuming("abc") as (group, consumer):
        with pytest.raises(errors.PreconditionError, match="one of its processes died"):
            await consumer.run(die, 3, pool=pool)
        assert not group.nacks, "which message killed it is not known"
        async with handling(consumer, finish, 1):
            await until(lambda: not group.values_left)
    assert max(row.attempts for row in group.rows) == 1, "an attempt was begun, and counts"


async def test_a_cancelled_call_that_began_in_a_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process died, and another call heard of it first."""
    monkeypatch.setattr("seriatim._consuming.pools.LOOK_S", 600.0)
    begun: list[bool] = []
    async with processes(1) as pool:
        calls = PoolCalls(time.sleep, pool, None)
        calling = asyncio.create_task(calls.call(0.2, lambda: True, lambda: begun.append(True)))
        try:
            await until(lambda: calls._marks is not None and calls._marks.has_begun((0, 1)))
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
        finally:
            calls.close()
    assert begun == [True]


async def test_a_pool_that_was_shut_down_ends_run() -> None:
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    async with consuming("a") as (group, consumer):
        with pytest.raises(errors.PreconditionError, match="shut down"):
            await consumer.run(lambda _message: None, 3, pool=threads)
        assert not group.nacks


async def test_a_handler_that_cannot_be_sent_to_a_process_is_refused() -> None:
    async with processes(1) as pool, consuming("a") as (_, consumer):
        with pytest.raises(errors.BadRequestError, match="top of a module"):
            await consumer.run(lambda _message: None, 3, pool=pool)


async def test_messages_and_failures_are_pickled_as_plain_values() -> None:
    async with consuming("a") as (_, consumer):
        [item] = await consumer.receive()
        assert pickle.loads(pickle.dumps(item.message)) == item.message
    again = pickle.loads(pickle.dumps(Retry(2.5, "later")))
    assert (again.delay_s, again.reason, str(again)) == (2.5, "later", "later")
    assert handlers.failed_by(again) == (2.5, "later", False)


# ---- iteration -------------------------------------------------------------------------------------------


async def test_an_acknowledgement_of_an_item_counts_once() -> None:
    async with consuming("aa") as (group, consumer):
        items = aiter(consumer)
        first = await anext(items)
        async with first:
            assert first.ack()
        assert first.ack(), "it counted"
        second = await anext(items)
        assert (int(second.message.value), second.is_current, first.is_current) == (1, True, False)
        first.nack()
        second.ack()
        await until(lambda: not group.values_left)
        assert not group.nacks


async def test_a_block_that_raises_gives_the_item_back() -> None:
    async with consuming("a") as (group, consumer):
        item = await anext(aiter(consumer))
        with pytest.raises(ValueError, match="no"):
            async with item:
                raise ValueError("no")
        await until(lambda: len(group.nacks) == 1)


def test_an_item_can_be_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with consuming_in_virtual_time("a", grant_ms=30_000) as (group, consumer):
            item = await anext(aiter(consumer))
            assert item.extend(300)
            await until(lambda: any(extend.grant_ms == 300_000 for extend in group.extends))
            await asyncio.sleep(50.0)  # longer than the grant of the policy, in which it would be extended otherwise
            assert len(group.extends) == 1, "it is not moved back"
            assert item.ack()
            assert not item.extend(5)
            with pytest.raises(errors.BadRequestError):
                item.extend(0)

    run(scenario(), monkeypatch)


# ---- receive ---------------------------------------------------------------------------------------------


async def test_receive_gives_messages_of_different_keys_and_no_others() -> None:
    async with consuming("aabbc") as (group, consumer):
        assert group.grants == {}, "nothing is held before the first call"
        first = await consumer.receive(2)
        assert values(first) == [0, 2]
        assert sum(len(grant.left) for grant in group.grants.values()) == 2
        second = await consumer.receive(10)
        assert values(second) == [4]
        for item in (*second, *reversed(first)):
            assert item.ack()
        assert sorted(values(await consumer.receive(10))) == [1, 3]


async def test_receive_waits_for_a_message() -> None:
    async with consuming() as (group, consumer):
        assert await consumer.receive(timeout_s=0.02) == []
        asking = asyncio.create_task(consumer.receive(5, 10))
        await until(lambda: group.demands[-1:] == [5])
        group.add(group.joins[0].partition_id, [(b"a", b"7")])
        assert values(await asking) == [7]
        await until(lambda: group.demands[-1] == 0)


async def test_what_comes_when_no_call_waits_any_more_goes_back() -> None:
    async with consuming(partitions=3) as (group, consumer):
        assert await consumer.receive(timeout_s=0.02) == []
        await until(lambda: group.demands[-3:] == [0, 0, 0])
        for subscriber in group.subscribers:
            subscriber.demand = 1  # as if the end of the demand were still on its way
        for join in group.joins:
            group.add(join.partition_id, [(b"a", b"1")])
        await until(lambda: len(group.extends) == 3 and not group.grants)
        assert all(row.attempts == 0 for row in group.rows)
        assert len(await consumer.receive(10)) == 3


async def test_a_cancelled_receive_gives_back_what_came() -> None:
    async with consuming() as (group, consumer):
        asking = asyncio.create_task(consumer.receive(5, 60))
        await until(lambda: group.demands[-1:] == [5])
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: group.demands[-1] == 0)


async def test_several_calls_share_what_comes() -> None:
    async with consuming("abcdef") as (_, consumer):
        calls = await asyncio.gather(consumer.receive(3, 1), consumer.receive(3, 1))
        assert sorted(values(calls[0] + calls[1])) == [0, 1, 2, 3, 4, 5]


def test_an_unacknowledged_received_message_comes_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with consuming_in_virtual_time("ab", grant_ms=200) as (group, consumer):
            first, second = await consumer.receive(2)
            assert first.message.attempt == 1  # read, so it is begun
            assert second.extend(30)
            [again] = await consumer.receive(2, 5)
            assert (again.message.value, again.message.attempt) == (first.message.value, 2)
            assert not first.ack()
            assert second.ack()
            [extended] = [extend for extend in group.extends if extend.grant_ms == 30_000]
            assert len(extended.tokens) == 1

    run(scenario(), monkeypatch)


def test_a_received_message_that_was_not_read_is_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with consuming_in_virtual_time("a", grant_ms=200) as (_, consumer):
            [item] = await consumer.receive()
            assert item.peek().value == b"0"
            [again] = await consumer.receive(2, 5)
            assert (again.message.attempt, again.message.maybe_repeated) == (1, True)
            assert not item.ack()

    run(scenario(), monkeypatch)


async def test_one_message_of_eight_partitions_sends_no_other_back() -> None:
    async with consuming("abcdefgh" * 4, partitions=8) as (group, consumer):
        received = []
        for _ in range(16):
            (item,) = await consumer.receive(1, 5.0)
            received.append(item.message)
            item.ack()
        assert not any(message.maybe_repeated for message in received)
        back = sum(len(extend.tokens) for extend in group.extends if not extend.grant_ms)
        assert back < 50, "it asks one partition after another; all at once gave 105 back"
        assert len({message.partition for message in received}) == 8, "and each in its turn"


async def test_a_message_of_a_partition_that_was_not_asked_comes_soon() -> None:
    async with consuming("", partitions=8) as (group, consumer):
        add(group, group.cluster, "abcdefg")
        for _ in range(7):
            (item,) = await consumer.receive(1, 5.0)
            item.ack()
        add(group, group.cluster, "h")
        (item,) = await consumer.receive(1, 5.0)
        assert item.message.key == b"h"


def test_a_received_message_is_kept_as_long_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with consuming_in_virtual_time("a", grant_ms=100) as (_, consumer):
            [item] = await consumer.receive(hold_s=30)
            assert await consumer.receive(timeout_s=0.4) == []
            assert item.ack()

    run(scenario(), monkeypatch)


async def test_a_received_message_can_be_given_back() -> None:
    async with consuming("a") as (group, consumer):
        [item] = await consumer.receive()
        item.nack(0.01, "not now")
        item.nack(0.01, "twice changes nothing")
        [again] = await consumer.receive()
        assert (again.message.attempt, [nack.reason for nack in group.nacks]) == (2, ["not now"])
        assert not item.ack()


async def test_a_consumer_is_used_in_one_way() -> None:
    async def handle(_message: Message) -> None:
        pass

    async with consuming("a") as (_, consumer):
        await consumer.receive()
        with pytest.raises(errors.PreconditionError, match="asks for messages"):
            await consumer.run(handle)
        with pytest.raises(errors.PreconditionError):
            await anext(aiter(consumer))
    async with consuming("a") as (_, consumer):
        await anext(aiter(consumer))
        with pytest.raises(errors.PreconditionError, match="push"):
            await consumer.receive()


@pytest.mark.parametrize(
    "options",
    [{"max_messages": 0}, {"max_messages": 1001}, {"timeout_s": 0}, {"timeout_s": 1e9}, {"hold_s": 0}, {"hold_s": 1e9}],
)
async def test_bad_arguments_of_receive_are_refused(options: Any) -> None:
    async with consuming() as (_, consumer):
        with pytest.raises(errors.BadRequestError):
            await consumer.receive(**options)


async def test_an_iteration_ends_quietly_when_the_consumer_is_closed() -> None:
    """As `run` does."""
    async with consuming("a") as (group, consumer):

        async def iterate() -> list[int]:
            found = []
            async for item in consumer:
                async with item as message:
                    found.append(int(message.value))
            return found

        iterating = asyncio.create_task(iterate())
        await until(lambda: not group.values_left)
        await consumer.close()
        assert await iterating == [0]
        assert await iterate() == [], "nothing comes any more"


async def test_a_signal_may_close_the_consumer_without_repeats() -> None:
    """As in docs/using/by-key.md: the block of the consumer ends before the task that closes it."""
    begun, end = asyncio.Event(), asyncio.Event()

    async def handle(_message: Message) -> None:
        begun.set()
        await end.wait()

    async with consuming("a") as (group, consumer):
        working = asyncio.create_task(consumer.run(handle))
        await begun.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        end.set()
        await working
        await consumer.close()
        assert closing.done() or consumer._left.is_set()
        assert not group.values_left
        await closing


async def test_receive_ends_with_the_consumer() -> None:
    async with consuming() as (group, consumer):
        asking = asyncio.create_task(consumer.receive(timeout_s=60))
        await until(lambda: bool(group.demands))
        await consumer.close()
        with pytest.raises(errors.PreconditionError, match="closed"):
            await asking


async def test_a_refusal_is_told_once_and_not_once_for_each_worker(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(_message: Message) -> None:
        pass

    async with consuming() as (_, consumer):
        consumer._end(errors.UnsupportedModeError("the group is shared"))
        with pytest.raises(errors.UnsupportedModeError) as raised:
            await consumer.run(handle, 64)
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames.count("_wait_for_run") == 1
    assert len(frames) < 12
    assert not caplog.records


# ---- modes -----------------------------------------------------------------------------------------------


async def test_a_shared_consumer_asks_for_its_mode() -> None:
    async with consuming("aaa", mode="shared") as (group, consumer):
        assert values(await consumer.receive()) == [0, 1, 2]
        assert {join.mode for join in group.joins} == {SHARED}


async def test_a_failure_at_most_once_loses_only_its_message(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(int(message.value))
        raise ValueError("no")

    async with consuming("aab", at_most_once=True) as (group, consumer), handling(consumer, handle, 2):
        await until(lambda: len(seen) == 3 and not group.grants)
        assert not group.nacks
    assert [value for value in seen if value != 2] == [0, 1]
    assert caplog.text.count("does not come again because group g is at most once") == 3


async def test_at_most_once_a_message_cannot_be_given_back() -> None:
    async with consuming("a", at_most_once=True) as (group, consumer):
        [item] = await consumer.receive()
        with pytest.raises(errors.PreconditionError, match="at most once"):
            item.nack()
        with pytest.raises(ValueError, match="no"):
            async with item:
                raise ValueError("no")
        await until(lambda: not group.grants)
        assert not group.nacks


async def test_a_broadcast_consumer_has_a_position_under_its_name() -> None:
    async with connected() as (cluster, client):
        async with client.consumer("t", "g", mode="broadcast", name="c1") as consumer:
            await until(lambda: consumer.joined == (0,))
            assert consumer.group == "g"
        assert list(cluster.partition("t").groups) == ["g/c1"]
        with pytest.raises(errors.IllegalNameError):
            client.consumer("t", "g", mode="broadcast", name="a/b")
        with pytest.raises(errors.IllegalNameError):
            client.consumer("t", "g/c1")


@pytest.mark.parametrize("delay_s", [-1, 41 * 86_400, float("nan")])
async def test_an_impossible_delay_is_a_failure_with_the_policys_delay(delay_s: float) -> None:
    failures = [Retry(delay_s, "not yet")]

    async def handle(_message: Message) -> None:
        if failures:
            raise failures.pop(0)

    async with consuming("a") as (group, consumer), handling(consumer, handle, 2) as running:
        await until(lambda: not group.values_left or running.done())
        assert not running.done(), "the other keys continue"
        (nack,) = group.nacks
    assert nack.delay_ms == 0
    assert "a delay is between 0 and 40 days" in nack.reason


# ---- what waits when nothing works --------------------------------------------------------------------------------


async def _waits(_message: Message) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("kind", ["run", "run_batches", "iteration"])
async def test_messages_that_wait_go_back_unseen_when_the_work_ended(kind: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(keyed, "REST_S", 0.01)
    async with consuming("abcdefgh", run_max=2) as (group, consumer):
        if kind == "iteration":
            items = aiter(consumer)
            (await anext(items)).ack()
            await items.aclose()
        else:
            call = consumer.run(_waits, 2) if kind == "run" else consumer.run_batches(_waits, 2)
            task = asyncio.create_task(call)
            await until(lambda: len(group.grants) == 8 and any(grant.is_started for grant in group.grants.values()))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not group.grants)
        unseen = [row for row in group.rows if not row.is_given and not row.is_done]
        assert len(unseen) == {"run": 6, "run_batches": 0, "iteration": 7}[kind]

        async with handling(consumer, _returns, 1):  # and the consumer continues
            await until(lambda: not group.values_left)


async def _returns(_message: Message) -> None:
    pass


async def test_handlers_that_begin_soon_after_others_keep_what_waits() -> None:
    async with consuming("abcdefgh") as (group, consumer):
        async with handling(consumer, _waits, 2):
            await until(lambda: sum(grant.is_started for grant in group.grants.values()) == 2)
        async with handling(consumer, _returns, 1):
            await until(lambda: not group.values_left)
        assert sum(len(extend.tokens) for extend in group.extends if not extend.grant_ms) == 2, "those of two handlers"


async def test_a_close_that_is_cancelled_has_left() -> None:
    async with consuming("abcdefgh") as (group, consumer), handling(consumer, _waits, 2) as running:
        await until(lambda: sum(grant.is_started for grant in group.grants.values()) == 2)
        closing = asyncio.create_task(consumer.close(60))
        await until(lambda: len(group.grants) == 2)  # what waits went back at once
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await until(lambda: not group.subscribers and running.done())
        assert running.exception() is None, "`run` ends without an error"
        assert sum(row.is_given for row in group.rows) == 2, "others are no repeats"


def test_a_message_that_the_program_dropped_is_extended_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with consuming_in_virtual_time("ab", grant_ms=150) as (group, consumer):
            items = aiter(consumer)
            held = await anext(items)
            gone = await anext(items)
            offset = gone.message.offset
            del gone
            again = await anext(items)
            assert (again.message.offset, again.message.attempt) == (offset, 2)
            assert again.ack()
            assert held.ack(), "what the program holds is extended"
            await until(lambda: not group.values_left)
            await items.aclose()

    run(scenario(), monkeypatch)


# ---- pools: an attempt begins with the function -------------------------------------------------------------------


class Gate:
    """A plain handler whose calls wait until they may continue."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.opened = threading.Event()

    def __call__(self, message: Message) -> None:
        self.begun.append(message.value)
        assert self.opened.wait(30)


@asynccontextmanager
async def gate(threads: int) -> AsyncIterator[tuple[Gate, ThreadPoolExecutor]]:
    one = Gate()
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield one, pool
        finally:
            one.opened.set()


async def test_a_message_that_waits_for_a_thread_is_not_begun() -> None:
    async with (
        gate(2) as (one, pool),
        consuming("abcdefgh") as (group, consumer),
        handling(consumer, one, 8, pool=pool),
    ):
        await until(lambda: sum(grant.is_started for grant in group.grants.values()) == 2)
        assert len(one.begun) == 2
        one.opened.set()
        await until(lambda: not group.values_left)
    assert not group.nacks


async def test_a_message_that_waits_for_a_thread_has_no_time_limit() -> None:
    async with gate(1) as (one, pool), consuming("abcd") as (group, consumer):
        async with handling(consumer, one, 4, pool=pool, timeout_s=0.02):
            await until(lambda: len(group.nacks) == 1)
            assert len(one.begun) == 1, "the thread still works on the first one"
            one.opened.set()
            await until(lambda: not group.values_left)
        began = [int(value) for value in one.begun]
    assert len(began) == 5
    assert {nack.reason for nack in group.nacks} == {"the handler took longer than 0.02 s"}
    assert began.count(began[0]) == 2, "what took too long came again"


async def test_messages_that_waited_for_a_thread_go_back_unseen(monkeypatch: Any) -> None:
    monkeypatch.setattr(keyed, "REST_S", 0.01)
    async with gate(1) as (one, pool), consuming("abcdefgh") as (group, consumer):
        async with handling(consumer, one, 4, pool=pool):
            await until(lambda: any(grant.is_started for grant in group.grants.values()))
        await until(lambda: not group.grants)
        assert sum(row.is_given for row in group.rows) == 1
        assert sum(row.attempts for row in group.rows) == 1


def _nothing(_message: Message) -> None:
    pass


@pytest.mark.timeout(120)
async def test_a_message_that_waits_for_a_process_is_not_begun() -> None:
    context = get_context("spawn")
    opened = context.Event()
    with ProcessPoolExecutor(1, context, initializer=opened.wait) as pool:
        try:
            async with consuming("a") as (group, consumer), handling(consumer, _nothing, 2, pool=pool, timeout_s=0.5):
                await until(lambda: len(group.grants) == 1)
                await asyncio.sleep(0.7)  # longer than the limit
                assert not any(grant.is_started for grant in group.grants.values())
                opened.set()
                await until(lambda: not group.values_left, 60)
                assert not group.nacks
        finally:
            opened.set()


async def _sleep(_message: Message) -> None:
    await asyncio.sleep(0)


def _generates(_message: Message) -> Any:
    yield


@pytest.mark.parametrize("handler", [lambda message: _sleep(message), lambda message: _generates(message)])
async def test_a_plain_handler_that_returns_work_undone_ends_run(handler: Any) -> None:
    async with consuming("ab") as (group, consumer):
        with pytest.raises(errors.BadRequestError, match="its work was not done"):
            await consumer.run(handler, 2)
        assert len(group.values_left) == 2


@pytest.mark.parametrize("handler", ["print", _generates])
async def test_what_is_no_handler_is_refused(handler: Any) -> None:
    async with consuming() as (_, consumer):
        with pytest.raises(errors.BadRequestError, match="the handler is a"):
            await consumer.run(handler, 2)


class OddError(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Retry("5"), "a delay is between"),  # type: ignore[arg-type]
        (Retry(reason=5), "5"),  # type: ignore[arg-type]
        (OddError(), "OddError, whose text"),
    ],
)
@pytest.mark.parametrize("is_plain", [False, True])
async def test_an_odd_exception_of_a_handler_ends_no_consumer(error: Exception, reason: str, is_plain: bool) -> None:
    failures = [error]

    def fail(_message: Message) -> None:
        if failures:
            raise failures.pop()

    async def fail_here(message: Message) -> None:
        fail(message)

    async with consuming("a") as (group, consumer), handling(consumer, fail if is_plain else fail_here, 2):
        await until(lambda: not group.values_left)
    assert reason in group.nacks[0].reason


async def test_a_reason_that_is_no_text_is_refused() -> None:
    async with consuming("a") as (_, consumer):
        [item] = await consumer.receive()
        with pytest.raises(errors.BadRequestError, match="a reason is a text"):
            item.nack(reason=ValueError("no"))  # type: ignore[arg-type]
        assert item.ack()
