"""The coordinator as brokers meet it: answers that take time, get lost, or come before the deed.

The records themselves are linearizable (`MemoryRecords`). A request may be lost, its answer may be lost, and a write
may be carried out after its sender was told that nobody knows. An outage and a broker cut off from the coordinator look
the same to that broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seriatim_api.ids import RunId
from seriatim_broker.core.effects import ReadCertificate, ReadChain, ReadCursor, WriteChain, WriteCursor
from seriatim_broker.core.events import (
    CertificateRead,
    CertificateSeen,
    ChainRead,
    ChainWritten,
    CursorRead,
    CursorWritten,
    Event,
    WriteOutcome,
)
from seriatim_broker.testing.memory_records import MemoryRecords

from .faults import Options
from .schedule import Schedule

if TYPE_CHECKING:
    from .brokers import Broker, Process
    from .checkers import Judge

LATE_HINT_US = 1_500_000
"""When a broker hears of a certificate whose first notice was lost: its watch goes on where it was."""

FIRST_LISTING_US = 100_000

TIMEOUT_US = 120_000

_Request = ReadChain | WriteChain | ReadCertificate | ReadCursor | WriteCursor


class SimCoordinator:
    """Requests of brokers against the records, with everything that can go wrong on the way."""

    def __init__(self, schedule: Schedule, options: Options, brokers: dict[str, Broker], judge: Judge) -> None:
        self.records = MemoryRecords()
        self.is_down = False
        self.isolated: dict[str, int] = {}
        self.is_faulty = False
        self._schedule = schedule
        self._options = options
        self._brokers = brokers
        self._judge = judge

    def request(self, process: Process, request: _Request) -> None:
        """Take a request; its answer comes as an event of the process."""
        rng = self._schedule.rng
        options = self._options
        delay = rng.randint(200, options.coordinator_us_max)
        is_write = isinstance(request, (WriteChain, WriteCursor))
        if self.is_down or self.isolated.get(process.name):
            lost, answer_lost, late = True, False, is_write and rng.random() < options.txn_late_share
        elif not self.is_faulty:
            lost = answer_lost = late = False
        elif is_write:
            draw = rng.random()
            lost = draw < options.txn_lost_share
            answer_lost = not lost and draw < options.txn_lost_share + options.txn_answer_lost_share
            late = lost and rng.random() < options.txn_late_share * 3
        else:
            lost, answer_lost, late = rng.random() < options.read_lost_share, False, False
        if lost:
            self._schedule.after(TIMEOUT_US, self._no_answer, process, request)
            if late:
                self._schedule.after(TIMEOUT_US + rng.randint(0, 400_000), self._carry_out, process, request, True)
            return
        if answer_lost:
            self._schedule.after(TIMEOUT_US, self._no_answer, process, request)
        self._schedule.after(delay, self._carry_out, process, request, answer_lost)

    def certify(self, run: RunId) -> None:
        """Write a death certificate, if the run is not certified yet; brokers hear of it soon, or late."""
        if not self.records.write_certificate(run):
            return
        self._schedule.tell("coord", f"certificate of {run}")
        for name in sorted(self._brokers):
            if self._schedule.rng.random() < 0.8:
                self._schedule.after(self._schedule.rng.randint(500, 50_000), self._hint, name, run)
            else:
                self._schedule.after(LATE_HINT_US, self._hint, name, run)

    def tell_certificates(self, name: str) -> None:
        """A broker that starts is told what there is, as the first listing of its watch would."""
        for run in self.records.certificates():
            self._schedule.after(FIRST_LISTING_US, self._hint, name, run)

    def _hint(self, name: str, run: RunId) -> None:
        process = self._brokers[name].process
        if process is not None and not self.is_down and not self.isolated.get(name):
            process.deliver(CertificateSeen(run))

    def _no_answer(self, process: Process, request: _Request) -> None:
        if not process.alive:
            return
        answer: Event
        if isinstance(request, ReadChain):
            answer = ChainRead(request.partition, None, 0, failed=True)
        elif isinstance(request, WriteChain):
            answer = ChainWritten(request.partition, request.serial, WriteOutcome.UNKNOWN, 0)
        elif isinstance(request, ReadCertificate):
            answer = CertificateRead(request.partition, request.run, None)
        elif isinstance(request, ReadCursor):
            answer = CursorRead(request.partition, request.group, None, 0, failed=True)
        else:
            answer = CursorWritten(request.partition, request.group, request.serial, WriteOutcome.UNKNOWN, 0)
        process.deliver(answer)

    def _carry_out(self, process: Process, request: _Request, silent: bool) -> None:
        answer = self._answer(process, request)
        if not silent:
            self._schedule.after(
                self._schedule.rng.randint(200, self._options.coordinator_us_max), self._deliver, process, answer
            )

    def _deliver(self, process: Process, answer: Event) -> None:
        if process.alive:
            process.deliver(answer)

    def _answer(self, process: Process, request: _Request) -> Event:
        records = self.records
        if isinstance(request, ReadChain):
            chain, revision = records.chain(request.partition)
            return ChainRead(request.partition, chain, revision)
        if isinstance(request, ReadCertificate):
            return CertificateRead(request.partition, request.run, records.has_certificate(request.run))
        if isinstance(request, ReadCursor):
            record, revision = records.cursor(request.partition, request.group)
            return CursorRead(request.partition, request.group, record, revision)
        if isinstance(request, WriteChain):
            before = records.chain(request.chain.partition)[0]
            written = records.write_chain(request.chain, request.revision, request.certificate)
            if written is not None:
                self._judge.chain_written(process.name, before, request.chain, request.certificate)
            outcome = WriteOutcome.CONFLICT if written is None else WriteOutcome.DONE
            return ChainWritten(request.partition, request.serial, outcome, written or 0)
        old = records.cursor(request.partition, request.group)[0]
        written = records.write_cursor(request.partition, request.group, request.record, request.revision)
        if written is not None:
            self._judge.cursor_written(process.name, request.partition, request.group, old, request.record)
        outcome = WriteOutcome.CONFLICT if written is None else WriteOutcome.DONE
        return CursorWritten(request.partition, request.group, request.serial, outcome, written or 0)
