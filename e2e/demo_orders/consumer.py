"""A process with several consumers of the demo. They work on messages by key, with handlers that fail by chance.

`python -m e2e.demo_orders.consumer --help`. It prints `ready` when the servers of all partitions know all its
consumers, and `progress` several times a second. The line `poison` tells it which aircraft fail from now on. After
`finish` it leaves the consumer group and prints `done`.

The handler is what an application would write: it works, and writes to a store under the token of its grant (`store`).
Everything else records what happens: `attempts` each call of a handler, and the client's recorder each delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import AsyncExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from seriatim import Assignment, Client, GiveUp, KeyedConsumer, Message, Retry
from seriatim.history import HistoryWriter

from e2e.demo.flights import event_number
from e2e.demo_orders.delivery_attempts import DeliveryAttemptWriter, Outcome
from e2e.demo_orders.fates import AGAIN_S, TIMEOUT_S, Poison, fate_of, poison_from_plain
from e2e.demo_orders.settings import PLANTED
from e2e.demo_orders.store import OvertakenError, Store
from e2e.workers import Parent

SAY_S: Final = 0.25
JOIN_DEADLINE_S: Final = 60.0

SESSION_MS: Final = 2_000
"""The least that a consumer may choose. A frozen process loses its keys after twice this time."""

IN_FLIGHT_MAX: Final = 32
"""So few messages of a partition a consumer holds at most, so that all consumers have work."""


class UnreadableEventError(Exception):
    """The handler cannot read the events of this aircraft: its poison."""


class Desk:
    """What the consumers of this process do with messages, and what they record of it.

    Attributes:
        poison: The aircraft that fail now, by key.
        finished: By consumer: how many messages were worked on and taken.
    """

    def __init__(self, seed: int, store: Store, attempts: DeliveryAttemptWriter, history: HistoryWriter) -> None:
        self._seed = seed
        self._store = store
        self._attempts = attempts
        self._history = history
        self.poison: dict[str, Poison] = {}
        self.finished: dict[str, int] = {}

    async def handle(self, consumer: str, message: Message) -> None:
        """Work on one message.

        Raises:
            Retry, GiveUp, UnreadableEventError, OvertakenError: What the handler of an application might raise.
        """
        number = event_number(message.value)
        self._attempts.begins(message, number, consumer, time.monotonic())
        outcome: Outcome = "raised"
        try:
            outcome = await self._work(consumer, message, number)
        except Retry:
            outcome = "asked again"
            raise
        except GiveUp:
            outcome = "gave up"
            raise
        except OvertakenError:
            outcome = "overtaken"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._attempts.ends(message, number, consumer, outcome, time.monotonic())
            self._history.flush()  # the lines of this delivery outlive the process, before it is acknowledged

    async def _work(self, consumer: str, message: Message, number: int) -> Outcome:
        assert message.key is not None
        fate = fate_of(self._seed, number, message.attempt)
        await asyncio.sleep(fate.work_s)
        if not (_may_be_repeat(message) and self._store.has(message.key, message.offset)):
            self._fail(message.key, number, fate.kind)
        verdict = self._store.write(
            message.key, message.value, offset=message.offset, token=message.grant, attempt=message.attempt,
            flagged=message.maybe_repeated, consumer=consumer,
        )  # fmt: skip
        if verdict == "repeat":
            return "repeat"
        self.finished[consumer] = self.finished.get(consumer, 0) + 1
        return "done"

    def _fail(self, key: bytes, number: int, kind: str) -> None:
        """Raise what the handler raises if it fails. It never fails on what is done already.

        Without that: 1. A consumer has worked on an event, and its acknowledgement is lost. 2. The event comes again,
        and the handler gives it up. 3. The dead letter is replayed, and the event is in the story twice.
        """
        poison = self.poison.get(key.decode())
        if poison is not None and poison.strikes(key, number):
            if poison.how == "gives up":
                raise GiveUp("no attempt can read this event")
            raise UnreadableEventError("this event cannot be read")
        if kind == "asks again":
            raise Retry(AGAIN_S, "the other service is not ready")
        if kind == "raises":
            raise ConnectionError("the other service has hung up")


def _may_be_repeat(message: Message) -> bool:
    return message.attempt > 1 or message.maybe_repeated


async def _consume(consumer: KeyedConsumer, desk: Desk, concurrency: int, planted: str) -> None:
    async def handle(message: Message) -> None:
        await desk.handle(consumer.name, message)

    if planted in ("acks-early", "out-of-order"):
        await _consume_badly(consumer, desk, concurrency, planted)
    else:
        await consumer.run(handle, concurrency, timeout_s=TIMEOUT_S)


async def _consume_badly(consumer: KeyedConsumer, desk: Desk, concurrency: int, planted: str) -> None:
    """A planted fault: acknowledge before the work, and with `out-of-order` work on all messages at once."""

    async def work(message: Message) -> None:
        with suppress(Exception):  # the fault: the message is acknowledged already
            await desk.handle(consumer.name, message)

    async def hand() -> None:
        async for item in consumer:
            item.ack()
            await work(item.message)

    async with asyncio.TaskGroup() as tasks:
        if planted == "out-of-order":
            async for item in consumer:
                item.ack()
                tasks.create_task(work(item.message))
        for _ in range(concurrency):
            tasks.create_task(hand())


async def _report(desk: Desk, parent: Parent) -> None:
    while True:
        parent.say("progress", finished=desk.finished)
        await asyncio.sleep(SAY_S)


async def _main(arguments: argparse.Namespace) -> None:
    finish, complete = asyncio.Event(), asyncio.Event()
    started: list[Desk] = []
    names: list[str] = arguments.names.split(",")
    joined: set[tuple[str, int]] = set()
    wanted = 0

    def assignment(name: str, now: Assignment) -> None:
        (joined.add if now.active else joined.discard)((name, now.partition))
        if len(joined) == wanted:
            complete.set()

    def told(line: dict[str, Any]) -> None:
        if "poison" in line:
            for desk in started:
                desk.poison = poison_from_plain(line["poison"])
        if line.get("finish"):
            finish.set()

    parent = Parent(told)
    async with AsyncExitStack() as stack:
        history = stack.enter_context(HistoryWriter(arguments.history, names[0]))
        history.flush()  # a process that is killed at once leaves a file with its first line
        attempts = stack.enter_context(DeliveryAttemptWriter(arguments.attempts))
        store = stack.enter_context(closing(Store(arguments.store, fences=arguments.plant != "no-fence")))
        desk = Desk(arguments.seed, store, attempts, history)
        desk.poison = poison_from_plain(json.loads(arguments.poison))
        started.append(desk)
        client = await stack.enter_async_context(
            Client.connect(arguments.bootstrap, recorder=history, message_id=event_number)
        )
        wanted = len(names) * (await client.admin().describe_topic(arguments.topic)).topic.partition_count
        consumers = [
            await client.consumer(
                arguments.topic, arguments.group, mode="key_ordered", name=name, session_ms=SESSION_MS,
                in_flight_max=IN_FLIGHT_MAX, on_assignment=partial(assignment, name),
            )
            for name in names
        ]  # fmt: skip
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(_consume(consumer, desk, arguments.concurrency, arguments.plant), name=consumer.name)
            for consumer in consumers
        ]
        tasks += [
            asyncio.create_task(parent.listen(), name="commands"),
            asyncio.create_task(_report(desk, parent), name="progress"),
            asyncio.create_task(finish.wait(), name="finish"),
        ]
        try:
            async with asyncio.timeout(JOIN_DEADLINE_S):
                await complete.wait()
            parent.say("ready")
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await asyncio.gather(*(consumer.close() for consumer in consumers))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    if finish.is_set():
        parent.say("done", finished=desk.finished)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo_orders.consumer", description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port,...")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--names", required=True, help="the names of the consumers, with commas between them")
    parser.add_argument("--concurrency", type=int, required=True, help="how many handlers each consumer runs at once")
    parser.add_argument("--seed", type=int, required=True, help="of the fates of attempts")
    parser.add_argument("--poison", default="[]", help="the aircraft that fail at first, as JSON")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--attempts", type=Path, required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--plant", choices=("", *PLANTED), default="", help="a planted fault")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
