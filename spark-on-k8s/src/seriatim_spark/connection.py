"""One client for each process and cluster, with a thread of its own in which its event loop runs.

Spark forks its Python workers and uses each for one task after another. A client is made when a task first needs it,
and never before a fork. Later tasks of the worker use it again.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from seriatim_spark.errors import ClusterError, translated
from seriatim_spark.options import Target

if TYPE_CHECKING:
    import seriatim

CONNECTIONS_MAX: Final = 16
"""The most connections of one process. If another is needed, the oldest one is closed."""

CLOSE_DEADLINE_S: Final = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _End:
    """The end of the items, with the error that ended them, if there was one."""

    error: BaseException | None


class Connection:
    """A client and its thread. Calls may come from any other thread."""

    def __init__(self, target: Target) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="seriatim spark", daemon=True)
        self._thread.start()
        self._context: Any = None
        self.target = target
        try:
            self.client: seriatim.Client = self.run(self._open(), None)
        except BaseException:
            self.close()
            raise

    async def _open(self) -> seriatim.Client:
        import seriatim

        target = self.target
        tls = None
        if target.tls_ca is not None:
            tls = seriatim.Tls(target.tls_ca, target.tls_cert, target.tls_key, target.tls_server_name)
        with translated("", target.bootstrap):
            self._context = seriatim.Client.connect(target.bootstrap, name=f"spark-{os.getpid()}", tls=tls)
            client: seriatim.Client = await self._context.__aenter__()
        return client

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        """Run a coroutine in the client's thread, and wait for it as `wait` does."""
        return self.wait(self.begin(coroutine), timeout_s)

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine in the client's thread. The caller must `wait` for it or cancel it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def wait(self, future: Future[T], timeout_s: float | None) -> T:
        """Wait for a call that `begin` has started. An interrupt in this thread, or the end of the time, cancels the
        call.

        Raises:
            ClusterError: The call took longer than `timeout_s` (None: only its own deadline counts).
        """
        try:
            return future.result(timeout_s)
        except TimeoutError as exc:
            future.cancel()
            raise ClusterError(f"{self.target.bootstrap} did not answer for {timeout_s:g} s") from exc
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[T], ahead: int, timeout_s: float) -> Iterator[T]:
        """The items of an asynchronous generator, some of them made in advance.

        Args:
            source: The generator. It runs in the client's thread, and is closed when this iterator is closed.
            ahead: The most items that wait.
            timeout_s: Seconds to wait for each item.

        Raises:
            ClusterError: No item came within `timeout_s` seconds.
        """
        arrived = threading.Condition()
        room = asyncio.Event()
        items: deque[T | _End] = deque()

        def put(item: T | _End) -> None:
            with arrived:
                items.append(item)
                arrived.notify()

        async def pump() -> None:
            error: BaseException | None = None
            try:
                async with contextlib.aclosing(source) as opened:  # type: ignore[type-var]  # it is a generator
                    async for item in opened:
                        put(item)
                        while len(items) >= ahead:
                            room.clear()
                            if len(items) >= ahead:  # an item may have been taken meanwhile
                                await room.wait()
            except BaseException as exc:
                error = exc
                if isinstance(exc, asyncio.CancelledError):
                    raise
            finally:
                put(_End(error))

        task = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while True:
                with arrived:
                    if not arrived.wait_for(lambda: items, timeout_s):
                        raise ClusterError(f"{self.target.bootstrap} gave nothing for {timeout_s:g} s")
                    item = items.popleft()
                if isinstance(item, _End):
                    if item.error is not None:
                        raise item.error
                    return
                self._loop.call_soon_threadsafe(room.set)
                yield item
        finally:
            task.cancel()

    def close(self) -> None:
        """End the client and its thread. Calls for which other threads wait are cancelled."""

        async def end() -> None:
            if self._context is not None:
                await self._context.__aexit__(None, None, None)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        if not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):  # an error does not matter, because the client is not used any more
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(CLOSE_DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_DEADLINE_S)


_connections: dict[tuple[int, Target], Connection] = {}
_lock = threading.Lock()


def connected(target: Target) -> Connection:
    """The connection of this process to a cluster. The first call makes it.

    Raises:
        ClusterError: The certificates cannot be used.
    """
    with _lock:
        key = (os.getpid(), target)
        found = _connections.get(key)
        if found is None:
            for other in [other for other in _connections if other[0] != key[0]]:
                del _connections[other]  # made before a fork: its thread does not exist in this process
            while len(_connections) >= CONNECTIONS_MAX:
                _connections.pop(next(iter(_connections))).close()
            found = _connections[key] = Connection(target)
        return found


@atexit.register
def close_all() -> None:
    """Close the connections of this process."""
    with _lock:
        for (pid, _), connection in list(_connections.items()):
            if pid == os.getpid():
                connection.close()
        _connections.clear()
