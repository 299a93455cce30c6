"""A process with several consumers of the demo. They work on messages by key, with handlers that fail by chance.

`python -m e2e.demo_orders.consumer --help`. `e2e.demo.member` has what it says, and what its parent says. The line
`poison` tells it which aircraft fails from now on.

The handler is what an application would write: it works, and writes to a store under the token of its grant (`store`).
Everything else records what happens: `attempts` each call of a handler, and the client's recorder each delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from seriatim import Client, GiveUp, KeyedConsumer, Message, Retry
from seriatim.history import HistoryWriter

from e2e.demo.flights import event_number
from e2e.demo.member import Member, command_line
from e2e.demo_orders.delivery_attempts import DeliveryAttemptWriter, Outcome
from e2e.demo_orders.fates import AGAIN_S, TIMEOUT_S, Poison, fate_of
from e2e.demo_orders.settings import PLANTED
from e2e.demo_orders.store import OvertakenError, Store

SESSION_MS: Final = 2_000
"""The least that a consumer may choose. A frozen process loses its keys after twice this time."""

IN_FLIGHT_MAX: Final = 32
"""So few messages of a partition a consumer holds at most, so that all consumers have work."""


RAISED: Final[Mapping[type[BaseException], Outcome]] = {
    Retry: "asked again", GiveUp: "gave up", OvertakenError: "overtaken", asyncio.CancelledError: "cancelled",
}  # fmt: skip
"""What an attempt came to that raised one of these."""


class UnreadableEventError(Exception):
    """The handler cannot read the events of this aircraft: its poison."""


class Desk:
    """What the consumers of this process do with messages, and what they record of it.

    Attributes:
        poison: The aircraft that fails now.
        finished: By consumer: how many messages were worked on and taken.
    """

    def __init__(self, seed: int, store: Store, attempts: DeliveryAttemptWriter, history: HistoryWriter) -> None:
        self._seed, self._store, self._attempts, self._history = seed, store, attempts, history
        self.poison: Poison | None = None
        self.finished: dict[str, int] = {}

    def told(self, line: Mapping[str, Any]) -> None:
        """Take a line of the parent: which aircraft fails now."""
        if "poison" in line:
            self.poison = Poison(*line["poison"]) if line["poison"] else None

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
        except (Retry, GiveUp, OvertakenError, asyncio.CancelledError) as error:
            outcome = RAISED[type(error)]
            raise
        finally:
            self._attempts.ends(message, number, consumer, outcome, time.monotonic())
            self._history.flush()  # the lines of this delivery outlive the process, before it is acknowledged

    async def _work(self, consumer: str, message: Message, number: int) -> Outcome:
        assert message.key is not None
        fate = fate_of(self._seed, number, message.attempt)
        await asyncio.sleep(fate.work_s)
        may_be_repeat = message.attempt > 1 or message.maybe_repeated
        if not (may_be_repeat and self._store.has(message.key, message.offset)):
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
        if self.poison is not None and self.poison.strikes(key, number):
            if self.poison.how == "gives up":
                raise GiveUp("no attempt can read this event")
            raise UnreadableEventError("this event cannot be read")
        if kind == "asks again":
            raise Retry(AGAIN_S, "the other service is not ready")
        if kind == "raises":
            raise ConnectionError("the other service has hung up")


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


async def _main(arguments: argparse.Namespace) -> None:
    names: list[str] = arguments.names.split(",")
    async with AsyncExitStack() as stack:
        history = stack.enter_context(HistoryWriter(arguments.history, names[0]))
        history.flush()  # a process that is killed at once leaves a file with its first line
        attempts = stack.enter_context(closing(DeliveryAttemptWriter(arguments.attempts)))
        store = stack.enter_context(closing(Store(arguments.store, fences=arguments.plant != "no-fence")))
        desk = Desk(arguments.seed, store, attempts, history)
        desk.told(json.loads(arguments.poison))
        member = Member(lambda: {"finished": desk.finished}, desk.told)
        client = await stack.enter_async_context(
            Client.connect(arguments.bootstrap, recorder=history, message_id=event_number)
        )
        await member.expect(client, arguments.topic, len(names))
        consumers = [
            await client.consumer(
                arguments.topic, arguments.group, mode="key_ordered", name=name, session_ms=SESSION_MS,
                in_flight_max=IN_FLIGHT_MAX, on_assignment=partial(member.assigned, name),
            )
            for name in names
        ]  # fmt: skip
        work = [_consume(consumer, desk, arguments.concurrency, arguments.plant) for consumer in consumers]
        has_finished = await member.work(consumers, work)
    if has_finished:
        member.done()


def main() -> None:
    parser = command_line("e2e.demo_orders.consumer", __doc__)
    parser.add_argument("--group", required=True)
    parser.add_argument("--names", required=True, help="the names of the consumers, with commas between them")
    parser.add_argument("--concurrency", type=int, required=True, help="how many handlers each consumer runs at once")
    parser.add_argument("--seed", type=int, required=True, help="of the fates of attempts")
    parser.add_argument("--poison", default="{}", help="what the parent reports at first, as JSON")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--attempts", type=Path, required=True)
    parser.add_argument("--plant", choices=("", *PLANTED), default="", help="a planted fault")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
