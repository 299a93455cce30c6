"""What a call of the client returns before it has begun: the caller awaits it, or enters it with `async with`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class _Closable(Protocol):
    async def close(self) -> Any:
        """End it, and free what it holds."""


T = TypeVar("T", bound=_Closable)


class Opening(Generic[T]):
    """A producer, consumer, writer or range reader that begins when it is awaited, or entered with `async with`.

    After `await`, the application closes it, or the client does at its own end. `async with` closes it at the end of
    the block.
    """

    def __init__(self, begin: Callable[[], Awaitable[T]]) -> None:
        self._begin = begin
        self._begun: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._begin().__await__()

    async def __aenter__(self) -> T:
        self._begun = await self._begin()
        enter = getattr(self._begun, "__aenter__")  # noqa: B009 - the protocol names only what all share
        await enter()
        return self._begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave = getattr(self._begun, "__aexit__")  # noqa: B009
        await leave(kind, error, trace)
