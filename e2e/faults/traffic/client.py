"""A client process of the fault suite: a producer, or the readers of consumer groups. Its parent tells it what to do.

`python -m e2e.faults.traffic.client producer|reader [--namespace NAME]`. One process serves one case after another,
because starting a process takes longer than a case. Commands come as lines, `{"do": "begin", "case": 3, ...}`. Each
case has its own client, connections and history. Each line of the process names its case, so that the parent does not
take it for an answer of another case:

    producer    begin → `sending 3`, `progress` ten times a second, stop → `settled 3`, end → `ended 3`
    reader      begin → `joined 3 GROUP`, `read`, `gap`, end → `ended 3`; several groups of one case may begin

Every message is a number. The client library's own recorder writes the history.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from seriatim import AckLevel, Client, Consumer, Delivery, Gap, Producer, Receipt, SendError, Tls
from seriatim.history import HistoryWriter
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import split_offset

from e2e.faults.systems import namespaces
from e2e.workers import Parent

TICK_S: Final = 0.005
SAY_S: Final = 0.1
OUTSTANDING_MAX: Final = 2_000
"""The most messages that are sent and have no outcome yet.

A partition that accepts nothing must not fill the memory.
"""

OPEN_RETRY_S: Final = 0.2
OPEN_DEADLINE_S: Final = 60.0
DELIVERY_TIMEOUT_MS: Final = 120_000

NEIGHBOURS: Final = 5
"""This many messages after each other are delayed alike, so that batches have several messages."""

DELAYS_MS: Final = (500, 4000)
CANCELLED_SHARE: Final = 0.05
CANCEL_DEADLINE_S: Final = 80.0


def marker_of(topic: str) -> bytes:
    """Return bytes that every message of a topic contains, and no message of another.

    They find the topic in a broker's files.
    """
    return b" " + topic.encode() + b" "


def value_of(number: int, topic: str, size_bytes: int, due_ms: int = 0) -> bytes:
    """Return the value of the message with that number. It has at least `size_bytes` bytes.

    Args:
        number: The number.
        topic: The topic.
        size_bytes: The size.
        due_ms: When it is due, in ms since 1970; 0: it is not delayed.
    """
    return (b"%d%s%d " % (number, marker_of(topic), due_ms)).ljust(size_bytes, b".")


def due_of(value: bytes) -> int:
    """Return when the message with this value is due, in ms since 1970; 0: it is not delayed."""
    return int(value.split(b" ", 3)[2])


def number_of(value: bytes) -> int:
    """Return the number of the message with this value."""
    return int(value[: value.index(b" ")])


async def opened(open_it: Callable[[], Any]) -> Any:
    """Open a client's producer or consumer.

    Try again while no broker answers, because clients also begin during faults.
    """
    until = time.monotonic() + OPEN_DEADLINE_S
    while True:
        try:
            return await open_it()
        except SeriatimError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(OPEN_RETRY_S)


@asynccontextmanager
async def recorded_client(begin: dict[str, Any]) -> AsyncIterator[tuple[Client, HistoryWriter]]:
    """The client of one case, which writes a history."""
    name, tls = begin["name"], Tls(**begin["tls"]) if begin["tls"] else None
    with HistoryWriter(Path(begin["history"]), name) as history:
        history.flush()  # a process that is killed at once leaves a file with its first line
        async with Client.connect(
            begin["bootstrap"], name=name, tls=tls, recorder=history, message_id=number_of
        ) as client:
            yield client, history


class Sending:
    """The producer's part of one case."""

    def __init__(self, parent: Parent, begin: dict[str, Any]) -> None:
        self._parent = parent
        self._begin = begin
        self._case = begin["case"]
        self._ack_level = AckLevel.REPLICATED_FLUSHED if begin["flush"] else AckLevel.REPLICATED
        self._sending = True
        self._paused = False
        self._acks: list[tuple[int, float, int]] = []  # partition, when, segment
        self._outstanding = 0
        self._changed = asyncio.Event()
        self._counts = {"ok": 0, "failed": 0, "unknown": 0}
        self._clock_shift_ms = 0
        self._over = asyncio.Event()
        self._dice = random.Random(self._case)
        self._answers: Counter[str] = Counter()  # to cancellations
        self._delay_ms = self._due_ms = 0  # of the next delayed message

    def told(self, command: dict[str, Any]) -> None:
        """Take a command for this case."""
        if command["do"] == "stop":
            self._sending = False
        elif command["do"] == "pause":
            self._paused = command["paused"]
        elif command["do"] == "end":
            self._sending = False
            self._over.set()

    async def run(self) -> None:
        """Send, wait until every send has an outcome, and end when the parent says so."""
        async with recorded_client(self._begin) as (client, history):
            producer = await opened(
                lambda: client.producer(
                    self._begin["topic"], delivery_timeout_ms=DELIVERY_TIMEOUT_MS, ack_level=self._ack_level
                )
            )
            self._parent.say(f"sending {self._case}")
            reporting = asyncio.create_task(self._report(history), name="progress")
            try:
                await self._send(producer, client)
                self._say_progress()
                self._parent.say(f"settled {self._case}", **self._counts, answers=self._answers)
                await self._over.wait()
            finally:
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)
        self._parent.say(f"ended {self._case}")

    async def _send(self, producer: Producer, client: Client) -> None:
        rate, size, keys = self._begin["rate"], self._begin["size_bytes"], self._begin["keys"]
        number, due, last = self._begin["first"], 0.0, time.monotonic()
        async with asyncio.TaskGroup() as settling:
            while self._sending:
                await asyncio.sleep(TICK_S)
                now = time.monotonic()
                due = min(due + (now - last) * rate, rate * 0.1)  # after a pause at most 0.1 s is made up for
                last = now
                while due >= 1.0 and self._outstanding < OUTSTANDING_MAX and not self._paused:
                    due -= 1.0
                    if self._begin["delays"]:
                        settling.create_task(self._send_delayed(producer, client, number), name=f"outcome of {number}")
                        number += 1
                        continue
                    value = value_of(number, self._begin["topic"], size)
                    if keys:
                        delivery = await producer.send(value, key=b"key-%d" % (number % keys))
                    else:
                        delivery = await producer.send(value, partition=number % producer.partition_count)
                    self._outstanding += 1
                    settling.create_task(self._settle(delivery), name=f"outcome of {number}")
                    number += 1

    async def _send_delayed(self, producer: Producer, client: Client, number: int) -> None:
        """Send a message that is delayed, as a rule, and cancel it perhaps."""
        block = number // NEIGHBOURS
        if not number % NEIGHBOURS:
            self._delay_ms = self._dice.randrange(*DELAYS_MS)
            self._due_ms = time.time_ns() // 1_000_000 + self._delay_ms
        is_delayed, has_time, delay_ms = block % 4 > 0, block % 2 > 0, self._delay_ms
        value = value_of(number, self._begin["topic"], self._begin["size_bytes"], self._due_ms if is_delayed else 0)
        delivery = await producer.send(
            value,
            partition=block % producer.partition_count,
            delay_ms=delay_ms if is_delayed and not has_time else None,
            due_ms=self._due_ms if is_delayed and has_time else None,
        )
        cancelled = is_delayed and self._dice.random() < CANCELLED_SHARE
        wait_s = self._dice.uniform(0.0, delay_ms / 1000)
        self._outstanding += 1
        receipt = await self._settle(delivery)
        if cancelled and receipt is not None:
            await asyncio.sleep(wait_s)
            await self._cancel(client, receipt)

    async def _cancel(self, client: Client, receipt: Receipt) -> None:
        """Cancel a message. Ask until there is an answer."""
        until = time.monotonic() + CANCEL_DEADLINE_S
        answer = "unanswered"
        while time.monotonic() < until:
            try:
                outcome = await client.cancel(self._begin["topic"], receipt.partition, receipt.offset)
            except SeriatimError:  # as a rule no broker could answer in the time of a call, or the coordinator is lost
                await asyncio.sleep(OPEN_RETRY_S)
                continue
            answer = outcome.value
            break
        self._answers[answer] += 1

    async def _settle(self, delivery: Delivery) -> Receipt | None:
        receipt = None
        try:
            receipt = await delivery
        except SendError as error:
            self._counts["unknown" if "Unknown" in type(error).__name__ else "failed"] += 1
        else:
            self._counts["ok"] += 1
            self._acks.append((receipt.partition, time.monotonic(), split_offset(receipt.offset)[0]))
            if receipt.partition == 0 and receipt.timestamp_ms:
                self._clock_shift_ms = receipt.timestamp_ms - time.time_ns() // 1_000_000
        self._outstanding -= 1
        return receipt

    async def _report(self, history: HistoryWriter) -> None:
        while True:
            self._say_progress()
            history.flush()  # so that the history has about what was reported, if this process is killed
            await asyncio.sleep(SAY_S)

    def _say_progress(self) -> None:
        acks, self._acks = self._acks, []
        self._parent.say("progress", case=self._case, acks=acks, clock_shift_ms=self._clock_shift_ms, **self._counts)


class Reading:
    """A reader's part of one case: one consumer of one group."""

    def __init__(self, parent: Parent, begin: dict[str, Any]) -> None:
        self._parent = parent
        self._begin = begin
        self._case = begin["case"]
        self._pause_s = begin["pause_s"]
        self._over = asyncio.Event()
        self._delivered = 0

    def told(self, command: dict[str, Any]) -> None:
        """Take a command for this case."""
        if command["do"] == "hurry":
            self._pause_s = 0.0
        elif command["do"] == "end":
            self._over.set()

    async def run(self) -> None:
        """Read and acknowledge until the parent says `end`."""
        group, credit = self._begin["group"], self._begin["credit_bytes"]
        async with recorded_client(self._begin) as (client, _history):
            consumer = await opened(
                lambda: client.consumer(
                    self._begin["topic"], group, name=self._begin["name"], on_gap=self._tell_gap, credit_bytes=credit
                )
            )
            reading = asyncio.create_task(self._read(consumer), name="reading")
            ending = asyncio.create_task(self._over.wait(), name="end")
            done, _ = await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            if reading in done:
                ending.cancel()
                reading.result()
            reading.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)
        self._parent.say(f"ended {self._case}")

    def _tell_gap(self, gap: Gap) -> None:
        segment, _index = split_offset(gap.offset)
        self._parent.say("gap", case=self._case, group=self._begin["group"], partition=gap.partition, segment=segment)

    async def _read(self, consumer: Consumer) -> None:
        joined = False
        while True:
            count = self._begin["fetch_count"] if self._pause_s else 500
            messages = await consumer.fetch(count, timeout_s=0.2)
            for message in messages:
                await consumer.ack(message)
            self._delivered += len(messages)
            now_ms = time.time_ns() // 1_000_000
            late: dict[int, int] = {}
            for message in messages:
                due_ms = 0 if message.maybe_repeated else due_of(message.value)
                if due_ms:
                    late[message.partition] = max(late.get(message.partition, 0), now_ms - due_ms)
            if not joined and len(consumer.joined) == self._begin["partitions"]:
                joined = True
                self._parent.say(f"joined {self._case} {self._begin['group']}")
            self._parent.say(
                "read", case=self._case, group=self._begin["group"], delivered=self._delivered, at=time.monotonic(),
                late=list(late.items()),
            )  # fmt: skip
            if self._pause_s:
                await asyncio.sleep(self._pause_s)


class Part(Protocol):
    """What a process does in one case."""

    def told(self, command: dict[str, Any]) -> None:
        """Take a command for this case."""

    async def run(self) -> None:
        """Work until the parent says `end`."""


def serve(make: Callable[[Parent, dict[str, Any]], Part], namespace: str | None) -> None:
    """Serve one case after another, until the parent closes the pipe or a part fails.

    Args:
        make: Makes the part that a `begin` asks for.
        namespace: The network namespace to live in; None: where the process was started.
    """
    if namespace is not None:
        namespaces.enter(namespace)
    asyncio.run(_serve(make))


async def _serve(make: Callable[[Parent, dict[str, Any]], Part]) -> None:
    running: dict[int, list[Part]] = {}
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    tasks: set[asyncio.Task[None]] = set()

    def over(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not failed.done():  # the first error ends the process
            failed.set_exception(error)

    def told(command: dict[str, Any]) -> None:
        if command["do"] == "begin":
            part = make(parent, command)
            running.setdefault(command["case"], []).append(part)
            task = asyncio.create_task(part.run())
            tasks.add(task)
            task.add_done_callback(over)
            return
        for known in running.get(command["case"], ()):
            known.told(command)
        if command["do"] == "end":
            running.pop(command["case"], None)

    parent = Parent(told)
    parent.say("ready")
    listening = asyncio.create_task(parent.listen(), name="parent")
    await asyncio.wait([listening, failed], return_when=asyncio.FIRST_COMPLETED)
    listening.cancel()
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(listening, *tasks, return_exceptions=True)
    if failed.done():
        failed.result()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.faults.traffic.client", description=__doc__)
    parser.add_argument("role", choices=("producer", "reader"))
    parser.add_argument("--namespace", help="the network namespace to live in; default: where it was started")
    options = parser.parse_args()
    serve(Sending if options.role == "producer" else Reading, options.namespace)


if __name__ == "__main__":
    main()
