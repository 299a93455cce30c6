"""Fake brokers without gRPC, on a loop with virtual time: what a client does is the same each time, and takes no time.

A test counts the calls that the client's own code makes, and lets one of them raise (`Injector`). If nothing will ever
happen again while something is waited for, the loop says so at once (`DeadlockError`), so no test waits for a hang.
"""

from __future__ import annotations

import asyncio
import gc
import random
import selectors
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeVar

import grpc.aio
import pytest
import seriatim
from seriatim._core.credit import CreditPool
from seriatim._transport.carriages import Carriages
from seriatim._transport.silence import Silence
from seriatim_api.errors import SeriatimError
from seriatim_api.network.round_trips import RoundTrips
from seriatim_api.status import error_from_proto, from_status

from .fake_broker import FakeBroker, FakeCluster, serve_tcp

T = TypeVar("T")

SOURCES = str(Path(seriatim.__file__).parent)


GUARDS = ("entry.<locals>.enter", "Alarms._ring", "AppendLinks._task_ended")
"""What catches exceptions cannot catch one in its own first step, so that one is not injected there."""

BEGINNING_S = 1000.0
PATIENCE_S = 600.0
"""All deadlines together are shorter."""


class DeadlockError(Exception):
    """Nothing is under way, and the test still waits."""


class InjectedError(Exception):
    """What an injector raises."""


class _Selector(selectors.SelectSelector):
    """Instead of waiting, lets the time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGINNING_S

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise DeadlockError
        self.now += max(0.0, timeout)
        if self.now > BEGINNING_S + PATIENCE_S:
            raise DeadlockError  # what is under way is only what looks around now and then
        return []


def run(main: Coroutine[Any, Any, T], monkeypatch: pytest.MonkeyPatch) -> T:
    """Run in virtual time, from a fixed seed."""
    selector = _Selector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.set_exception_handler(lambda _loop, _context: None)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "time", lambda: selector.now)
        patch.setattr(time, "monotonic", lambda: selector.now)
        patch.setattr(time, "monotonic_ns", lambda: int(selector.now * 1e9))
        patch.setattr(random, "random", lambda: 0.5)
        patch.setattr("os.urandom", lambda size: bytes(size))
        try:
            return loop.run_until_complete(main)
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()


class Injector:
    """Counts the calls in the client's own code, of its own functions and of built-in ones, and lets one raise.

    Args:
        at: Which call raises, from 1 on; 0: none.
        built_in: Whether calls of built-in functions count as well.
    """

    def __init__(self, at: int, *, built_in: bool) -> None:
        self._at = at
        self._kinds = ("call", "c_call") if built_in else ("call",)
        self.count = 0
        self.where = ""

    def __enter__(self) -> Self:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event not in self._kinds or not code.co_filename.startswith(SOURCES):
            return
        if event == "call" and code.co_qualname in GUARDS:
            return
        self.count += 1
        if self.count == self._at:
            called = code.co_qualname if event == "call" else f"{argument.__name__} in {code.co_qualname}"
            self.where = f"call {self.count}: {called} ({Path(code.co_filename).name}:{frame.f_lineno})"
            raise InjectedError(self.where)


class _Call:
    """A stream, from both ends."""

    def __init__(self, handler: Any) -> None:
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self._received: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.create_task(handler(None, _Context(self._sent, self._received)))
        self._task.add_done_callback(lambda _: self._received.put_nowait(grpc.aio.EOF))

    async def write(self, data: Any) -> None:
        self._sent.put_nowait(data)

    async def read(self) -> Any:
        return await self._received.get()

    async def done_writing(self) -> None:
        self._sent.put_nowait(grpc.aio.EOF)

    async def wait_for_connection(self) -> None:
        """It is there."""

    def cancel(self) -> None:
        self._task.cancel()

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    async def details(self) -> str:
        return ""

    async def trailing_metadata(self) -> tuple[()]:
        return ()


class _Context:
    """The broker's end of a call."""

    def __init__(self, requests: asyncio.Queue[Any], replies: asyncio.Queue[Any]) -> None:
        self._requests = requests
        self._replies = replies

    def peer(self) -> str:
        return "here"

    async def read(self) -> Any:
        return await self._requests.get()

    async def write(self, data: Any) -> None:
        self._replies.put_nowait(data)

    async def abort(self, code: grpc.StatusCode, text: str, metadata: Any) -> None:
        raise from_status(code, text, metadata)


class _Channel:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    def unary_unary(self, path: str, **_options: Any) -> Any:
        """It asks what the client's own transport asks."""
        method = getattr(self._broker, path.rpartition("/")[2], None)
        return lambda request, **_options: method(request, _Context(asyncio.Queue(), asyncio.Queue()))

    def stream_stream(self, path: str, **_options: Any) -> Any:
        handler = self._broker._append if path.endswith("/Append") else self._broker._consume
        return lambda: _Call(handler)


class _Transport(asyncio.Transport):
    """The client's end of a connection. Like the event loop's, it ends if the protocol raises.

    Args:
        protocol: The client's.
        reader: Gets what the client writes.
    """

    def __init__(self, protocol: asyncio.BufferedProtocol, reader: asyncio.StreamReader) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._reader = reader
        self._waiting = bytearray()  # what the client has not read
        self._is_paused = False
        self._is_closed = False
        self._has_ended = False
        self._reads = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _NoSocket() if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits."""

    def write(self, data: Any) -> None:
        if not self._is_closed:
            self._loop.call_soon(self._reader.feed_data, bytes(data))

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read_soon()

    def arrived(self, data: bytes) -> None:
        """The broker has sent this."""
        self._waiting += data
        self._read_soon()

    def ended(self) -> None:
        """The broker has gone."""
        self._has_ended = True
        self._read_soon()

    def _read_soon(self) -> None:
        if not self._reads:
            self._reads = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._reads = False
        if self._is_closed or self._is_paused:
            return
        if not self._waiting:
            if self._has_ended:
                self._lose(None)
            return
        try:
            place = self._protocol.get_buffer(-1)
            count = min(len(place), len(self._waiting))
            assert count, "there is room"
            place[:count] = self._waiting[:count]  # type: ignore[index]
            del self._waiting[:count]
            self._protocol.buffer_updated(count)
        except Exception as exc:
            self._lose(exc)
            return
        self._read_soon()

    def abort(self) -> None:
        self._lose(None)

    close = abort

    def _lose(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon(self._protocol.connection_lost, error)
            self._reader.feed_eof()


class _NoSocket:
    def setsockopt(self, *_: object) -> None:
        """There is nothing to set."""


class _Writer:
    """The broker's end."""

    def __init__(self, transport: _Transport) -> None:
        self._client = transport
        self.transport = self

    def get_extra_info(self, _name: str) -> str:
        return "here"

    def write(self, data: bytes) -> None:
        self._client.arrived(data)

    async def drain(self) -> None:
        """Nothing waits."""

    def abort(self) -> None:
        self._client.ended()


class _Names:
    async def addresses(self, host: str) -> list[str]:
        """They stand for themselves."""
        return [host]


class _AnyHome:
    """There is one event loop."""

    def check(self) -> None:
        """All is well."""

    check_open = check


class InProcess:
    """A cluster in this process, as the client's parts see it: channels and a caller in one."""

    def __init__(self, broker_count: int = 2) -> None:
        self.cluster = FakeCluster()
        self.home = _AnyHome()
        self.lookup = _Names()
        self.silence = Silence()
        self.round_trips = RoundTrips()
        self.credit_pool = CreditPool()
        for number in range(broker_count):
            broker = FakeBroker(self.cluster, f"fake-{number}")
            broker.address = f"here:{number + 1}"
            broker.stream_port = number + 1 if broker.takes_tcp else 0
        self.carriages = Carriages(self)  # type: ignore[arg-type]
        self._serving: set[asyncio.Task[None]] = set()

    def _broker(self, address: str) -> FakeBroker:
        return next(broker for broker in self.cluster.brokers if broker.address == address)

    # ---- channels ----

    def get(self, address: str, _purpose: str) -> _Channel:
        return _Channel(self._broker(address))

    def dialing(self) -> tuple[None, str]:
        """Without TLS. What is dialed next is in this process."""
        loop: Any = asyncio.get_running_loop()
        loop.create_connection = self._connect
        return None, ""

    async def _connect(self, make: Any, host: str, port: int) -> tuple[Any, Any]:
        broker = self._broker(f"{host}:{port}")
        protocol, reader = make(), asyncio.StreamReader(limit=64 << 20)
        transport = _Transport(protocol, reader)
        protocol.connection_made(transport)
        task = asyncio.create_task(serve_tcp(broker, reader, _Writer(transport)))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return transport, protocol

    def drop(self, address: str, purpose: str, channel: Any) -> None:
        """There is nothing to give up."""

    def warm(self, address: str) -> None:
        """All are warm."""

    # ---- caller ----

    def learn(self, addresses: Any) -> None:
        """All are known."""

    async def routing(self, method: str, request: Any, _timeout_s: float, **_options: Any) -> Any:
        return await getattr(self.cluster.brokers[0], method)(request, _Context(asyncio.Queue(), asyncio.Queue()))

    async def topic(self, request: Any, timeout_s: float, **_options: Any) -> Any:
        return await self.routing("GetTopic", request, timeout_s)


@contextmanager
def quiet_hooks() -> Iterator[None]:
    """Exceptions that are injected into coroutines that nothing awaits any more are expected.

    A traceback may hold such a coroutine in a cycle of references. Cycles are collected here, because the collection
    may otherwise come in a later test, which then fails for it.
    """
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        gc.collect()
        sys.unraisablehook = before


__all__ = ["DeadlockError", "InProcess", "InjectedError", "Injector", "SeriatimError", "error_from_proto", "run"]
