"""Which functions one key-ordered grant enters: python -m broker.tests.core.grant_trace

A real core serves a consumer group, with the readers of the driver and the stream of a consumer around it. One message
goes all the way: its key is read, it is granted, its body is read and leaves in a frame, the consumer acknowledges it,
the ledger is written on both members, and the acknowledgement is confirmed. Before that, another message went the same
way. So nothing is counted that happens only when a server begins.

Functions of the broker count once, however often they are entered. Comprehensions and lambdas are a part of the
function that has them. What only a test double calls does not count. A test compares the number with `grant_functions`
in `tools/limits.toml`.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, Final, TypeVar, cast

import seriatim_broker
from seriatim_api.ids import PartitionId
from seriatim_api.protocol import PROTOCOL
from seriatim_api.v1 import broker_pb2
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.log import Batch
from seriatim_broker.rpc.streams.consume import ConsumeStream
from seriatim_broker.runtime.driver.keyed_reads import KeyedReads
from seriatim_broker.testing.simulated_bodies import SimulatedBodies

from tools import lines

from .keyed_support import KeyedServing
from .support import M01, STREAM

_E = TypeVar("_E")

PRODUCT: Final = str(Path(seriatim_broker.__file__).parent)
DOUBLES: Final = str(Path(PRODUCT, "testing"))


@dataclass(frozen=True, slots=True)
class Entered:
    """A function of the broker that was entered.

    Attributes:
        place: Its module and its name.
        lines: How many lines it has.
    """

    place: str
    lines: int


@dataclass(slots=True)
class Trace:
    """The functions that were entered, in the order in which they were entered first."""

    codes: dict[CodeType, None] = field(default_factory=dict)

    @property
    def functions(self) -> list[Entered]:
        """Those of the product."""
        return [
            Entered(f"{code.co_filename.removeprefix(PRODUCT)[1:]}: {code.co_qualname}", _line_count(code))
            for code in self.codes
        ]

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Note what is entered meanwhile."""
        before = sys.getprofile()
        sys.setprofile(self._entered)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _entered(self, frame: FrameType, event: str, _what: object) -> None:
        code = frame.f_code
        callers = (frame, frame.f_back)
        is_double = any(caller is not None and caller.f_code.co_filename.startswith(DOUBLES) for caller in callers)
        is_product = code.co_filename.startswith(PRODUCT) and not is_double
        if event == "call" and is_product and not code.co_name.startswith("<"):
            self.codes[code] = None


def _line_count(code: CodeType) -> int:
    found, _ = inspect.getsourcelines(code)
    return len(found)


class Disk:
    """It has the batches of segment 1."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    async def read(self, _partition: PartitionId, _no: int, begin: int, end: int, *_: Any, **__: Any) -> list[Batch]:
        """One batch, as if no more had room."""
        return [batch for batch in self._batches if begin <= batch.header.base_index < end][:1]


class Keyed(SimulatedBodies):
    """The key of each message is its index."""

    def keys(self, batch: Batch) -> tuple[bytes | None, ...]:
        """One key, of the one message."""
        return (b"%d" % batch.header.base_index,)


class Served(KeyedServing):
    """A broker with a consumer. Each of its messages goes its way alone, because the disk gives one at a time."""

    def __init__(self) -> None:
        super().__init__("abc")
        self.disk_reads = KeyedReads(cast(Any, Disk(self.batches)), Keyed())
        self.fed: list[ev.Event] = []
        driver = SimpleNamespace(new_stream=lambda _deliver: STREAM, feed=self.fed.append)
        counters = SimpleNamespace(delivered_batches=0, delivered_bytes=0)
        services = cast(Any, SimpleNamespace(driver=driver, counters=counters))
        hello = broker_pb2.ConsumerHello(protocol=PROTOCOL)
        self.stream = ConsumeStream(services, cast(Any, None), hello, lambda: None)

    def check(self) -> None:
        """Nothing: what a check enters is no part of a grant."""

    def newest(self, kind: type[_E]) -> _E:
        """The newest effect of a kind."""
        return self.all(kind)[-1]

    def leaves(self) -> fx.DeliveryEvent:
        """What the core delivers leaves in a frame."""
        event = self.newest(fx.Deliver).event
        self.stream._deliver(1, event)
        if isinstance(event, fx.AcksConfirmed):
            self.stream._confirm()  # it waits for other frames otherwise
        self.stream.next_frame()
        return event

    async def read_key(self) -> None:
        """The key of the next message is read."""
        self.do(await self.disk_reads.keys(self.newest(fx.ReadKeys)))

    async def grant(self, number: int) -> None:
        """The message is granted, goes its way, and is confirmed as acknowledged on both members."""
        self.do(await self.disk_reads.rows(self.newest(fx.ReadRows)))
        granted = self.leaves()
        assert isinstance(granted, fx.Granted)
        ack = broker_pb2.Ack(subscription=1, number=number, tokens=granted.tokens, offsets=granted.offsets)
        self.stream.take(broker_pb2.ConsumeRequest(ack=ack).SerializeToString())
        self.do(self.fed[-1])
        self.wait(self.config.ack_replication_us)
        self.persist_everywhere()
        assert self.leaves() == fx.AcksConfirmed(number)


async def _traced() -> Trace:
    trace, served = Trace(), Served()
    served.begin()
    await served.read_key()
    served.persist_everywhere()  # the reservation
    await served.grant(1)
    served.wait(served.config.heartbeat_us, (M01,))
    with trace.taken():
        await served.read_key()
        await served.grant(2)
    return trace


def traced() -> list[Entered]:
    """The functions that one grant enters, in their order."""
    return asyncio.run(_traced()).functions


def main() -> None:
    """Print them, and which of them are longer than a function may be."""
    limits = lines.limits()
    functions = traced()
    for number, function in enumerate(functions, 1):
        print(f"{number:4} {function.lines:4} {function.place}")
    print(f"{len(functions)} functions, at most {limits['grant_functions']}")
    for function in functions:
        if function.lines > limits["limits"]["function_lines"]:
            print(f"longer than {limits['limits']['function_lines']} lines: {function.place}")


if __name__ == "__main__":
    main()
