"""Deliveries: what a send gives back, and how the outcome of a batch reaches each of them.

A batch is made of slices of sends. When the core settles the batch, each slice's send is told; a send is done when all
its messages are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from seriatim_api.errors import CATALOGUE, make_error

from seriatim._core.producer import Outcome, ReplyError
from seriatim._errors import SendError, SendFailedError, SendUnknownError
from seriatim._records import Part, Receipt


class Settlement(NamedTuple):
    """The outcome of a batch, as its sends need it."""

    outcome: Outcome
    partition: int
    offset: int
    timestamp_ms: int
    error: ReplyError | None
    is_final: bool = False

    def exception(self) -> SendError:
        """What is raised for a message that is not ok."""
        assert self.outcome is not Outcome.OK
        kind = SendFailedError if self.outcome is Outcome.FAILED else SendUnknownError
        error = self.error or ReplyError(0, "no reason is known")
        raised = kind(error.message or "refused", cause_number=error.number, partition=self.partition)
        if error.number in CATALOGUE:
            raised.__cause__ = make_error(error.number, error.message)
        return raised


class Delivery:
    """The delivery of one message: await it for its `Receipt`.

    Awaiting raises `SendFailedError` (provably not stored) or `SendUnknownError`. It may be awaited any number of
    times, or never. Cancelling an await does not take the message back.
    """

    __slots__ = ("_settled", "_waiters")

    def __init__(self) -> None:
        self._settled: Receipt | SendError | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._settled is not None

    @property
    def outcome(self) -> str | None:
        """ok, failed or unknown; None as long as it is not settled."""
        if self._settled is None:
            return None
        return "ok" if isinstance(self._settled, Receipt) else self._settled.outcome

    def result(self) -> Receipt:
        """The receipt of a settled delivery.

        Raises:
            SendFailedError: It is provably not stored.
            SendUnknownError: Nobody knows.
            asyncio.InvalidStateError: It is not settled yet.
        """
        if self._settled is None:
            raise asyncio.InvalidStateError("the message is on its way")
        if isinstance(self._settled, SendError):
            raise self._settled
        return self._settled

    def __await__(self) -> Generator[Any, None, Receipt]:
        if self._settled is None:
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            yield from waiter.__await__()
        return self.result()

    def settle(self, _start: int, at: int, _count: int, settlement: Settlement) -> None:
        """The batch that holds the message, at place `at` in it, is settled."""
        assert self._settled is None
        if settlement.outcome is Outcome.OK:
            self._settled = Receipt(
                settlement.partition, settlement.offset + at, settlement.timestamp_ms, settlement.is_final
            )
        else:
            self._settled = settlement.exception()
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = None

    def break_off(self, _start: int, _count: int, settlement: Settlement) -> None:
        """Settle it, unless it is settled."""
        if self._settled is None:
            self.settle(0, 0, 1, settlement)
        else:
            self._wake()


class Deliveries:
    """The deliveries of one `send_many` or `send_table`: await it for its `Part`s, in the order of their settling.

    Awaiting raises, once all is settled, if a part is not ok: `SendUnknownError` before `SendFailedError`. `settled()`
    never raises for an outcome.
    """

    __slots__ = ("_count", "_left", "_parts", "_settled_positions", "_waiters")

    def __init__(self, count: int) -> None:
        self._count = count
        self._left = count
        self._parts: list[Part] = []
        self._settled_positions: set[int] | None = None  # once a failure has to know them
        self._waiters: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return self._count

    @property
    def done(self) -> bool:
        """Whether all outcomes are known."""
        return self._left == 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is settled so far."""
        return tuple(self._parts)

    async def settled(self) -> tuple[Part, ...]:
        """Wait until all is settled."""
        if self._left:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return tuple(self._parts)

    def __await__(self) -> Generator[Any, None, tuple[Part, ...]]:
        parts = yield from self.settled().__await__()
        for kind in (SendUnknownError, SendFailedError):
            for part in parts:
                if isinstance(part.error, kind):
                    raise part.error
        return parts

    def slice(self, positions: Sequence[int]) -> DeliverySlice:
        """The messages at these positions of the call, which go to one partition."""
        return DeliverySlice(self, positions)

    def settle_positions(self, positions: Sequence[int], at: int, settlement: Settlement) -> None:
        """Consecutive messages of one batch, the first at place `at` in it, are settled."""
        is_ok, count = settlement.outcome is Outcome.OK, len(positions)
        self._parts.append(
            Part(
                settlement.partition,
                positions if isinstance(positions, range) else tuple(positions),
                settlement.outcome.value,
                settlement.offset + at if is_ok else 0,
                settlement.timestamp_ms if is_ok else 0,
                None if is_ok else settlement.exception(),
                settlement.is_final,
            )
        )
        self._left -= count
        assert self._left >= 0
        self._wake()

    def _wake(self) -> None:
        if not self._left:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = []

    def break_off_positions(self, positions: Sequence[int], settlement: Settlement) -> None:
        """Settle those of these messages that are not settled."""
        if self._settled_positions is None:
            self._settled_positions = {position for part in self._parts for position in part.positions}
        left = [position for position in positions if position not in self._settled_positions]
        if left:
            self._settled_positions.update(left)
            self.settle_positions(left, 0, settlement)
        else:
            self._wake()


class DeliverySlice:
    """Those messages of a call that go to one partition."""

    __slots__ = ("_of", "_positions")

    def __init__(self, of: Deliveries, positions: Sequence[int]) -> None:
        self._of = of
        self._positions = positions

    def settle(self, start: int, at: int, count: int, settlement: Settlement) -> None:
        """Messages [start, start + count) of the slice stand at place `at` of a batch that is settled."""
        self._of.settle_positions(self._positions[start : start + count], at, settlement)

    def break_off(self, start: int, count: int, settlement: Settlement) -> None:
        """Settle those of messages [start, start + count) of the slice that are not settled."""
        self._of.break_off_positions(self._positions[start : start + count], settlement)


class SliceOfBatch(NamedTuple):
    """`length` messages of a send, from its `start` on, at place `at` of a batch."""

    sink: Delivery | DeliverySlice
    start: int
    at: int
    length: int
