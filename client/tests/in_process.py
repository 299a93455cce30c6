"""Fake brokers without gRPC, on a loop with virtual time: what a client does is the same each time, and takes no time.

A test counts the calls that the client's own code makes, and lets one of them raise (`Injector`). If nothing will ever
happen again while something is waited for, the loop says so at once (`DeadlockError`), so no test waits for a hang.
"""

from __future__ import annotations

import asyncio
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
from seriatim._transport.silence import Silence
from seriatim_api.errors import SeriatimError
from seriatim_api.status import error_from_proto, from_status

from .fake_broker import FakeBroker, FakeCluster

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

    def stream_stream(self, path: str) -> Any:
        handler = self._broker._append if path.endswith("/Append") else self._broker._consume
        return lambda: _Call(handler)


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
        self.silence = Silence()
        for number in range(broker_count):
            FakeBroker(self.cluster, f"fake-{number}").address = f"here:{number + 1}"

    def _broker(self, address: str) -> FakeBroker:
        return next(broker for broker in self.cluster.brokers if broker.address == address)

    # ---- channels ----

    def get(self, address: str, _purpose: str) -> _Channel:
        return _Channel(self._broker(address))

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
    """Exceptions that are injected into coroutines that nothing awaits any more are expected."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


__all__ = ["DeadlockError", "InProcess", "InjectedError", "Injector", "SeriatimError", "error_from_proto", "run"]
