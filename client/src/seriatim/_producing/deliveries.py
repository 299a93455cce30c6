"""Deliveries: the values that sends return, and the way of a batch's outcome to each of them.

A batch consists of single messages and of slices of sends. When the core settles the batch, each of them gets the
outcome. A send is done when all its messages are settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from seriatim_api.errors import CATALOGUE, make_error

from seriatim._core.producer import Outcome, ReplyError
from seriatim._values.errors import SendError, SendFailedError, SendUnknownError
from seriatim._values.records import Part, Receipt

_OK: Final = Outcome.OK

_receipt_of: Final[Callable[[tuple[int, int, int, bool, int | None]], Receipt]] = partial(tuple.__new__, Receipt)
"""The same as `Receipt(*fields)`, in half the time."""


class Settlement(NamedTuple):
    """The outcome of a batch, as its sends need it."""

    outcome: Outcome
    partition: int
    offset: int
    timestamp_ms: int
    error: ReplyError | None
    is_final: bool = False
    due_ms: int | None = 0

    def exception(self) -> SendError:
        """The error for a message whose outcome is not `ok`."""
        assert self.outcome is not Outcome.OK
        kind = SendFailedError if self.outcome is Outcome.FAILED else SendUnknownError
        error = self.error or ReplyError(0, "no reason is known")
        raised = kind(error.message or "refused", cause_number=error.number, partition=self.partition)
        if error.number in CATALOGUE:
            raised.__cause__ = make_error(error.number, error.message)
        return raised


class Delivery:
    """The delivery of one message: await it for its `Receipt`.

    You may await it any number of times, or never. To cancel an await does not take the message back.

    Raises:
        SendFailedError: The message is provably not stored, and is never delivered.
        SendUnknownError: The message may be stored or not.
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
        """`ok`, `failed` or `unknown`; None until the message is settled."""
        if self._settled is None:
            return None
        return "ok" if isinstance(self._settled, Receipt) else self._settled.outcome

    def result(self) -> Receipt:
        """The receipt of a settled delivery.

        Raises:
            SendFailedError: The message is provably not stored, and is never delivered.
            SendUnknownError: The message may be stored or not.
            asyncio.InvalidStateError: The message is not settled yet.
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

    def settle(self, at: int, settlement: Settlement) -> int:
        """Take the outcome of the batch that has the message at place `at`. Returns 1, the number of messages."""
        assert self._settled is None
        outcome, partition, offset, timestamp_ms, _, is_final, due_ms = settlement
        if outcome is _OK:
            self._settled = _receipt_of((partition, offset + at, timestamp_ms, is_final, due_ms))
        else:
            self._settled = settlement.exception()
        if self._waiters is not None:
            self._wake()
        return 1

    def _wake(self) -> None:
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = None

    def break_off(self, settlement: Settlement) -> None:
        """Settle the message, unless it is settled already."""
        if self._settled is None:
            self.settle(0, settlement)
        else:
            self._wake()


class Deliveries:
    """The deliveries of one `send_many` or `send_table`: await it for its `Part`s, in the order in which they settle.

    An await ends when all messages are settled. `settled()` does the same and never raises because of an outcome. To
    cancel an await does not take the messages back.

    Raises:
        SendUnknownError: A part may be stored or not.
        SendFailedError: A part is provably not stored, and no part is unknown.
    """

    __slots__ = ("_count", "_left", "_parts", "_settled_positions", "_waiters")

    def __init__(self, count: int) -> None:
        self._count = count
        self._left = count
        self._parts: list[Part] = []
        self._settled_positions: set[int] | None = None  # filled only by `break_off_positions`
        self._waiters: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return self._count

    @property
    def done(self) -> bool:
        """Whether all outcomes are known."""
        return self._left == 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that are settled so far."""
        return tuple(self._parts)

    async def settled(self) -> tuple[Part, ...]:
        """Wait until all messages are settled. It never raises because of an outcome."""
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
        """Take the outcome of consecutive messages of one batch. The first of them is at place `at` in it."""
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
                settlement.due_ms if is_ok else 0,
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
        """Settle these messages, except those that are settled already."""
        if self._settled_positions is None:
            self._settled_positions = {position for part in self._parts for position in part.positions}
        left = [position for position in positions if position not in self._settled_positions]
        if left:
            self._settled_positions.update(left)
            self.settle_positions(left, 0, settlement)
        else:
            self._wake()


class DeliverySlice:
    """Messages of a call that go to one partition."""

    __slots__ = ("_of", "_positions")

    def __init__(self, of: Deliveries, positions: Sequence[int]) -> None:
        self._of = of
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def first(self, count: int) -> DeliverySlice:
        """The first `count` messages."""
        return DeliverySlice(self._of, self._positions[:count])

    def rest(self, count: int) -> DeliverySlice:
        """The messages after the first `count`."""
        return DeliverySlice(self._of, self._positions[count:])

    def settle(self, at: int, settlement: Settlement) -> int:
        """Take the outcome of the batch that has the messages from place `at` on. Returns their number."""
        self._of.settle_positions(self._positions, at, settlement)
        return len(self._positions)

    def break_off(self, settlement: Settlement) -> None:
        """Settle the messages, except those that are settled already."""
        self._of.break_off_positions(self._positions, settlement)


Sink = Delivery | DeliverySlice
"""What gets the outcome of messages that follow one another in a batch."""
