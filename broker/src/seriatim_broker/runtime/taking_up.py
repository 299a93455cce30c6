"""What is decided is finished without whoever decided it (P8): the controller takes up what has been DECIDED for 2 s.

Rule `taken-up`. Without it: (1) a program publishes, and is killed right after the decision; (2) half of the partitions
have their rows, the others never get them, and nobody else may publish under this writer.

It also asks partitions again that are done, because nobody remembers which are: so their masters know the writer still
(rule `entry-stays` in `core.writing.carrying`). Records go that nobody needs any more: of unnamed jobs, a day
after they are done, and of writers that were opened and published nothing, after a month.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from seriatim_api.errors import CorruptionError, SeriatimError

from ..core.values.writers import WriterRecord, WriterState
from ..interfaces.clock import Clock
from ..interfaces.coordinator import Coordinator, Delete, mod_revision_is
from .keys import Keys
from .mirror import mirror
from .records import writer_from_value

LOOK_S = 0.5

DECIDED_S = 2.0
"""So long the publisher that decided it has it for itself: it finishes nearly every publication in less."""

AGAIN_S = 2.0
AGAIN_S_MAX = 30.0
"""Between two tries for one publication; twice as long each time."""

AT_ONCE_MAX = 16
"""Publications that are tried at once: those that were tried least often come first, because the others wait for
something that is away."""

RECORDS_PER_TURN = 1000
"""That are read in one go when there are many: some milliseconds."""

FORGET_LOOK_S = 60.0
"""Between two looks for records that nobody needs any more."""

Finish = Callable[[str, str], Awaitable[None]]
"""Have the publication finished that this writer (incarnation of its topic, name) has decided, if it has."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Decided:
    """A publication that is DECIDED: its number, since when (wall), when it is looked at next, and how soon again."""

    sequence: int
    decided_at_ms: int
    due_us: int
    pause_s: float = AGAIN_S


def is_to_finish(record: WriterRecord) -> bool:
    """Rule `taken-up`: whether somebody has to finish what this record says, whatever became of who decided it."""
    return record.state is WriterState.DECIDED


class TakingUp:
    """A duty of the elected broker."""

    def __init__(self, coordinator: Coordinator, keys: Keys, clock: Clock) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._clock = clock
        self._finish: Finish | None = None
        self._decided: dict[str, _Decided] = {}
        self._passing: dict[str, int] = {}  # key -> when the record may go
        self._tries: dict[str, asyncio.Task[None]] = {}

    def on_finish(self, finish: Finish) -> None:
        """Who finishes publications."""
        self._finish = finish

    @property
    def waiting_count(self) -> int:
        """Publications that are decided and not finished; 0 on a broker that is not elected."""
        return len(self._decided)

    @property
    def waiting_s(self) -> float:
        """For how long the oldest of them has been decided, in seconds; 0: there is none."""
        oldest_ms = min((known.decided_at_ms for known in self._decided.values()), default=None)
        return max(0.0, (self._clock.wall_ms() - oldest_ms) / 1000) if oldest_ms is not None else 0.0

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                records = mirror(self._coordinator, self._keys.writers, self._changed, RECORDS_PER_TURN)
                group.create_task(records, name="writers")
                group.create_task(self._look_again(), name="publications that are taken up")
                group.create_task(self._forget_again(), name="writers that are forgotten")
        finally:
            tries = list(self._tries.values())
            for task in tries:
                task.cancel()
            await asyncio.gather(*tries, return_exceptions=True)
            self._decided, self._passing = {}, {}

    def _changed(self, values: Mapping[str, bytes], changed: Sequence[str]) -> None:
        now_us = self._clock.monotonic_us()
        for key in changed:
            self._passing.pop(key, None)
            value = values.get(key)
            try:
                record = writer_from_value(value) if value is not None else None
            except CorruptionError as exc:
                _log.error("writer_unreadable", key=key, error=str(exc))
                continue
            if record is not None and is_to_finish(record):
                known = self._decided.get(key)
                if known is None or known.sequence != record.sequence:
                    due_us = now_us + round(DECIDED_S * 1e6)
                    self._decided[key] = _Decided(record.sequence, record.decided_at_ms, due_us)
                continue
            self._decided.pop(key, None)
            if record is not None and record.goes_at_ms is not None:
                self._passing[key] = record.goes_at_ms

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Begin to try what is due, some at once."""
        now_us = self._clock.monotonic_us()
        due = [key for key, known in self._decided.items() if known.due_us <= now_us and key not in self._tries]
        due.sort(key=lambda key: (self._decided[key].pause_s, self._decided[key].due_us))
        for key in due[: AT_ONCE_MAX - len(self._tries)]:
            self._tries[key] = asyncio.create_task(self._take_up(key), name="a publication that is taken up")

    async def _forget_again(self) -> None:
        while True:
            await self.forget()
            await asyncio.sleep(FORGET_LOOK_S)

    async def forget(self) -> None:
        """Forget records that are not needed, one after another; nothing else waits for it."""
        now_ms = self._clock.wall_ms()
        for key in [key for key, goes_ms in self._passing.items() if goes_ms < now_ms]:
            await self._remove(key, now_ms)

    async def _take_up(self, key: str) -> None:
        known = self._decided[key]
        incarnation, writer = key.removeprefix(self._keys.writers).split("/")
        try:
            if self._finish is not None:
                await self._finish(incarnation, writer)
        except (SeriatimError, TimeoutError) as exc:
            _log.info("publication_waits", writer=writer, error=str(exc))
        except Exception as exc:
            _log.exception("publication_not_taken_up", writer=writer, error=str(exc))
        finally:
            del self._tries[key]
        known.due_us = self._clock.monotonic_us() + round(known.pause_s * 1e6)
        known.pause_s = min(2 * known.pause_s, AGAIN_S_MAX)

    async def _remove(self, key: str, now_ms: int) -> None:
        """Forget a record, if it may go as it is now."""
        try:
            item = await self._coordinator.get(key)
            goes_ms = writer_from_value(item.value).goes_at_ms if item is not None else None
            if item is not None and goes_ms is not None and goes_ms < now_ms:
                await self._coordinator.txn([mod_revision_is(key, item.mod_revision)], [Delete(key)])
        except SeriatimError as exc:
            _log.info("writer_not_removed", key=key, error=str(exc))
        else:
            self._passing.pop(key, None)
