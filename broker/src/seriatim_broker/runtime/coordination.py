"""The coordinator on behalf of the core: reads gathered into few transactions, writes with an honest outcome.

All reads of one turn of the loop go out together, up to `READS_PER_TXN` in a transaction (a transaction of reads alone
is linearizable), so that a switch of a thousand partitions is ten reads and not a thousand. Writes are one transaction
each, `WRITES_IN_FLIGHT_MAX` at once. Nothing is repeated here: whatever was not answered in time is reported as such,
and the core reads before it does anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog
from seriatim_api.errors import CorruptionError, SeriatimError, UnavailableError

from ..core.effects import ReadCertificate, ReadChain, ReadCursor, WriteChain, WriteCursor
from ..core.events import CertificateRead, ChainRead, ChainWritten, CursorRead, CursorWritten, Event, WriteOutcome
from ..interfaces.coordinator import Compare, Coordinator, Get, KeyValue, Put, mod_revision_is, present
from .keys import Keys
from .records import ChainArchive, cursor_from_value, cursor_to_value

READS_PER_TXN = 100
"""Below the coordinator's limit of 128 operations."""

READS_IN_FLIGHT_MAX = 16
WRITES_IN_FLIGHT_MAX = 64
DEADLINE_S = 2.0
"""Of one transaction; the core tries again at its own pace."""

_log = structlog.get_logger(__name__)

_Answer = Callable[[KeyValue | None, bool], Event]
"""Makes the event from what was read; the flag says that nothing was."""


class CoordinatorWork:
    """Carries out the core's reads and writes; `emit` takes the answers."""

    def __init__(self, coordinator: Coordinator, keys: Keys, emit: Callable[[Event], None]) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._emit = emit
        self._archive = ChainArchive()
        self._cursor_values: dict[str, bytes] = {}
        self._reads: list[tuple[str, _Answer]] = []
        self._read_slots = asyncio.Semaphore(READS_IN_FLIGHT_MAX)
        self._write_slots = asyncio.Semaphore(WRITES_IN_FLIGHT_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @property
    def pending_count(self) -> int:
        """Transactions that wait or are on their way."""
        return len(self._tasks)

    async def close(self) -> None:
        """End everything; nothing is emitted any more."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- reads ----

    def read_chain(self, effect: ReadChain) -> None:
        """Answered by `ChainRead`."""

        def answer(item: KeyValue | None, failed: bool) -> Event:
            if failed or item is None:
                return ChainRead(effect.partition, None, 0, failed)
            try:
                return ChainRead(
                    effect.partition, self._archive.parse(item.value, item.mod_revision), item.mod_revision
                )
            except CorruptionError as exc:
                _log.error("chain_unreadable", partition=effect.partition, error=str(exc))
                return ChainRead(effect.partition, None, 0, failed=True)

        self._read(self._keys.chain(effect.partition), answer)

    def read_certificate(self, effect: ReadCertificate) -> None:
        """Answered by `CertificateRead`."""

        def answer(item: KeyValue | None, failed: bool) -> Event:
            return CertificateRead(effect.partition, effect.run, None if failed else item is not None)

        self._read(self._keys.certificate(effect.run), answer)

    def read_cursor(self, effect: ReadCursor) -> None:
        """Answered by `CursorRead`."""
        key = self._keys.cursor(effect.partition, effect.group)

        def answer(item: KeyValue | None, failed: bool) -> Event:
            if failed or item is None:
                return CursorRead(effect.partition, effect.group, None, 0, failed)
            try:
                record = cursor_from_value(item.value)
            except CorruptionError as exc:
                _log.error("cursor_unreadable", key=key, error=str(exc))
                return CursorRead(effect.partition, effect.group, None, 0, failed=True)
            if cursor_to_value(record) != item.value:
                self._cursor_values[key] = item.value  # fields of a newer version
            return CursorRead(effect.partition, effect.group, record, item.mod_revision)

        self._read(key, answer)

    def _read(self, key: str, answer: _Answer) -> None:
        if not self._reads:
            self._loop.call_soon(self._send_reads)
        self._reads.append((key, answer))

    def _send_reads(self) -> None:
        reads, self._reads = self._reads, []
        for start in range(0, len(reads), READS_PER_TXN):
            self._start(self._carry_out_reads(reads[start : start + READS_PER_TXN]))

    async def _carry_out_reads(self, reads: Sequence[tuple[str, _Answer]]) -> None:
        items: list[KeyValue | None] = [None] * len(reads)
        failed = False
        async with self._read_slots:
            try:
                gets = [Get(key) for key, _ in reads]
                result = await self._coordinator.txn((), gets, deadline_s=DEADLINE_S)
                items = [response.item for response in result.responses]
            except SeriatimError as exc:
                _log.warning("coordinator_read_failed", keys=len(reads), error=str(exc))
                failed = True
        for (_, answer), item in zip(reads, items, strict=True):
            self._report(answer(item, failed))

    # ---- writes ----

    def write_chain(self, effect: WriteChain) -> None:
        """Answered by `ChainWritten`."""
        self._start(self._carry_out_chain_write(effect))

    async def _carry_out_chain_write(self, effect: WriteChain) -> None:
        key = self._keys.chain(effect.partition)
        if not self._archive.has_seen(effect.partition, effect.revision):
            await self._look_again(effect)
        compares = [mod_revision_is(key, effect.revision)]
        if effect.certificate is not None:
            compares.append(present(self._keys.certificate(effect.certificate)))
        put = Put(key, self._archive.serialize(effect.chain))

        def answer(outcome: WriteOutcome, revision: int) -> Event:
            if outcome is WriteOutcome.DONE:
                self._archive.written(effect.partition, revision)
            return ChainWritten(effect.partition, effect.serial, outcome, revision)

        await self._write(compares, put, answer)

    async def _look_again(self, effect: WriteChain) -> None:
        """The core learned this version from another broker: fetch what only the record itself can tell."""
        try:
            item = await self._coordinator.get(self._keys.chain(effect.partition), deadline_s=DEADLINE_S)
            if item is not None:
                self._archive.parse(item.value, item.mod_revision)
        except SeriatimError as exc:  # the transaction that follows decides
            _log.warning("chain_not_read_again", partition=effect.partition, error=str(exc))

    def write_cursor(self, effect: WriteCursor) -> None:
        """Answered by `CursorWritten`. A cursor is only written where its partition exists."""
        key = self._keys.cursor(effect.partition, effect.group)
        compares = [mod_revision_is(key, effect.revision), present(self._keys.chain(effect.partition))]
        put = Put(key, cursor_to_value(effect.record, self._cursor_values.get(key)))

        def answer(outcome: WriteOutcome, revision: int) -> Event:
            return CursorWritten(effect.partition, effect.group, effect.serial, outcome, revision)

        self._start(self._write(compares, put, answer))

    async def _write(self, compares: Sequence[Compare], put: Put, answer: Callable[[WriteOutcome, int], Event]) -> None:
        async with self._write_slots:
            try:
                result = await self._coordinator.txn(compares, [put], deadline_s=DEADLINE_S)
            except UnavailableError as exc:
                _log.warning("coordinator_write_unknown", key=put.key, error=str(exc))
                event = answer(WriteOutcome.UNKNOWN, 0)
            except SeriatimError as exc:
                # Refused as a request: nothing was written. The core reads and decides anew.
                _log.error("coordinator_write_refused", key=put.key, error=str(exc))
                event = answer(WriteOutcome.CONFLICT, 0)
            else:
                outcome = WriteOutcome.DONE if result.succeeded else WriteOutcome.CONFLICT
                event = answer(outcome, result.revision if result.succeeded else 0)
        self._report(event)

    # ---- tasks ----

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = self._loop.create_task(work, name="coordinator transaction")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, event: Event) -> None:
        if not self._closed:
            self._emit(event)
