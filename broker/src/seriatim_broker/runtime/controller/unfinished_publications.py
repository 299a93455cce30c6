"""The controller finishes a publication that was decided, if its publisher has not finished it within 2 s.

Rule `taken-up` (I13). Without it:
  1. A program publishes, and is killed right after the decision.
  2. Half of the partitions have their rows, and the others never get them.
  3. No program may publish under this writer any more.

The controller asks all partitions again, also those that are done, because no broker remembers which ones are. So the
masters of these still know the writer (rule `asked-is-heard` in `core.writing.admission`).

It also removes records that are not needed any more: records of unnamed jobs a day after they are done, and records of
writers that were opened and published nothing after a month.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from seriatim_api.errors import CorruptionError, SeriatimError

from ...core.values.writers import WriterRecord, WriterState
from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator, Delete, mod_revision_is
from ..coordinator.keys import Keys
from ..coordinator.mirror import mirror
from ..coordinator.records import writer_from_value
from ..membership.wall_clocks import WallClocks

LOOK_S = 0.5

DECIDED_S = 2.0
"""In this time only the publisher that decided tries to finish. It finishes nearly every publication in less."""

AGAIN_S = 2.0
AGAIN_S_MAX = 30.0
"""First and longest pause between two tries of one publication. Each pause is twice the one before."""

AT_ONCE_MAX = 16
"""Publications that are tried at once. Those that were tried least often come first, because the others wait for a disk
that is away."""

ROUND_SHARE = 50
"""If many wait, at least one of this many is tried at once. A try takes 30 s, so each has its turn within half an hour.

Rule `each-has-its-turn` (I9): masters remember a writer for an hour after the last question. Without it:
  1. 3,000 publications wait for a disk. Each has its rows in some partitions. 16 at once for 30 s each: a round takes
     94 minutes.
  2. After an hour without a question, a master lets other writers push out one of these writers.
  3. The disk comes back. The master is asked, reads DECIDED, and stores the rows again.
"""

OVERDUE_S = 20
"""One that was tried often is as urgent as a new one when it is overdue by this many times its pause, which is 30 s."""

RECORDS_PER_TURN = 1000
"""Records that are read before the event loop has its turn: some milliseconds."""

FORGET_LOOK_S = 60.0
"""Pause between two searches for records that are not needed any more."""

Finish = Callable[[str, str], Awaitable[None]]
"""`finish(incarnation, writer)`: finish what this writer of that topic has decided, if there is something."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Decided:
    """A publication that is DECIDED: its sequence, since when (wall clock), when it is tried next, and the pause."""

    sequence: int
    decided_at_ms: int
    due_us: int
    pause_s: float = AGAIN_S


def is_to_finish(record: WriterRecord) -> bool:
    """Whether the publication of this record must be finished, whatever became of its publisher (rule `taken-up`)."""
    return record.state is WriterState.DECIDED


class UnfinishedPublications:
    """A duty of the elected broker."""

    def __init__(self, coordinator: Coordinator, keys: Keys, clock: Clock) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._clock = clock
        self._clocks = WallClocks(coordinator, keys, clock)
        self._finish: Finish | None = None
        self._decided: dict[str, _Decided] = {}
        self._passing: dict[str, int] = {}  # key -> when the record may go
        self._tries: dict[str, asyncio.Task[None]] = {}

    def on_finish(self, finish: Finish) -> None:
        """`finish` finishes publications."""
        self._finish = finish

    @property
    def waiting_count(self) -> int:
        """Publications that are decided and not finished; 0 on a broker that is not elected."""
        return len(self._decided)

    @property
    def waiting_s(self) -> float:
        """Seconds since the oldest of them was decided; 0: there is none."""
        oldest_ms = min((known.decided_at_ms for known in self._decided.values()), default=None)
        return max(0.0, (self._clock.wall_ms() - oldest_ms) / 1000) if oldest_ms is not None else 0.0

    async def run(self) -> None:
        """Follow the writers' records, try what is due and remove what is not needed, until cancelled."""
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
                _log.error("record_unreadable", key=key, error=str(exc))
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
        """Begin to try publications that are due, up to 16 at once."""
        now_us = self._clock.monotonic_us()
        due = [key for key, known in self._decided.items() if known.due_us <= now_us and key not in self._tries]
        due.sort(key=lambda key: self._decided[key].due_us + self._decided[key].pause_s * OVERDUE_S * 1e6)
        at_once = max(AT_ONCE_MAX, len(self._decided) // ROUND_SHARE)
        for key in due[: max(0, at_once - len(self._tries))]:
            self._tries[key] = asyncio.create_task(self._take_up(key), name="a publication that is taken up")

    async def _forget_again(self) -> None:
        while True:
            await self.forget()
            await asyncio.sleep(FORGET_LOOK_S)

    async def forget(self) -> None:
        """Remove records that are not needed, one after another. Nothing else waits for this.

        The earliest clock of the brokers counts (rule `earliest-clock`): a program that sends a publication again
        within a day must find its record.
        """
        try:
            now_ms = await self._clocks.earliest_ms() if self._passing else None
        except SeriatimError as exc:
            _log.info("writers_not_removed", error=str(exc))
            return
        if now_ms is None:
            return
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
        """Remove a record, if it may still go."""
        try:
            item = await self._coordinator.get(key)
            goes_ms = writer_from_value(item.value).goes_at_ms if item is not None else None
            if item is not None and goes_ms is not None and goes_ms < now_ms:
                await self._coordinator.txn([mod_revision_is(key, item.mod_revision)], [Delete(key)])
        except SeriatimError as exc:
            _log.info("writer_not_removed", key=key, error=str(exc))
        else:
            self._passing.pop(key, None)
