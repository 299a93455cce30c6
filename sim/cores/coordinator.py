"""The coordinator as brokers meet it: answers that take time, get lost, or come before the write is carried out.

The records themselves are linearizable (`MemoryRecords`). A request or its answer may be lost. The coordinator
may carry out a write after it reported to the sender that the outcome is unknown. An outage of the coordinator and a
broken connection to it look the same to a broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from seriatim_api.ids import PartitionId, RunId
from seriatim_broker.core.control import rebuild
from seriatim_broker.core.values.effects import ReadCertificate, ReadChain, ReadCursor, WriteChain, WriteCursor
from seriatim_broker.core.values.events import (
    CertificateRead,
    CertificateSeen,
    ChainRead,
    ChainWritten,
    CursorRead,
    CursorWritten,
    Event,
    WriteOutcome,
    WritesRefused,
)
from seriatim_broker.core.values.log import NO_HAND_OVER
from seriatim_broker.testing.memory_records import MemoryRecords

from ..basics.interfaces import COORDINATOR_TIMEOUT_US
from ..basics.schedule import Schedule
from ..faults import Options
from ..judge import PERSON, Judge
from ..judge.modes import ONCE, ONCE_EXCLUSIVE

if TYPE_CHECKING:
    from .brokers import Broker, Process

LATE_HINT_US = 1_500_000
"""When a broker hears of a certificate whose first notice was lost: its watch continues from its last place."""

FIRST_LISTING_US = 100_000

REFUSED_WRITES_MAX = 40
"""While the coordinator refuses (3 s at most), one run of a broker may write so often to one chain or cursor."""

WRITES_AT_ONCE_MAX = 8
"""How many transactions of one broker on one chain record may be under way at once: a switch, settlements, rights. Two
were seen in any world."""

PREPARATIONS_MAX = 4
"""Preparations that a member keeps of one run of a switcher for one segment: one for each group, source and place."""

PROBE_US_MAX = 300_000
"""This long after the coordinator takes writes again a broker notices."""

_Request = ReadChain | WriteChain | ReadCertificate | ReadCursor | WriteCursor


class SimCoordinator:
    """Requests of brokers against the records, with everything that can go wrong on the way."""

    def __init__(self, schedule: Schedule, options: Options, brokers: dict[str, Broker], judge: Judge) -> None:
        self.records = MemoryRecords()
        self.is_down = False
        self.isolated: dict[str, int] = {}
        self.is_faulty = False
        self.keeps_next = False
        self.late_next: dict[str, int] = {}  # the broker's next operation on a group comes so late, and has no answer
        self.chain_written_us = 0  # when a chain was written last
        self.on_late: Callable[[Process], None] | None = None  # the broker whose move of keys comes late
        self.tidies = False  # older certificates are removed, as the controller does, but at once
        self._is_refusing = False
        self._refused: Counter[tuple[Process, object]] = Counter()
        self._told: dict[Process, None] = {}  # that writes are refused
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
        if isinstance(request, WriteChain):
            self._look_at_writes(process, request.partition)
        if isinstance(request, WriteCursor) and process.name in self.late_next and self._is_operation(request):
            self._schedule.after(COORDINATOR_TIMEOUT_US, self._no_answer, process, request)
            self._schedule.after(self.late_next.pop(process.name), self._carry_out, process, request, True)
            return
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
            self._schedule.after(COORDINATOR_TIMEOUT_US, self._no_answer, process, request)
            if late and self.on_late is not None and _hands_over(request):
                self.on_late(process)
            if late:
                self._schedule.after(
                    COORDINATOR_TIMEOUT_US + rng.randint(0, 400_000), self._carry_out, process, request, True
                )
            return
        if answer_lost:
            self._schedule.after(COORDINATOR_TIMEOUT_US, self._no_answer, process, request)
        self._schedule.after(delay, self._carry_out, process, request, answer_lost)

    def _is_operation(self, request: WriteCursor) -> bool:
        known, _ = self.records.cursor(request.partition, request.consumer_group)
        return request.record.requests[-1:] != (known.requests[-1:] if known is not None else ())

    # ---- an older copy of it comes back ----

    def rebuild(self, processes: list[Process]) -> None:
        """An administrator rebuilds the records from what all brokers know."""
        cores = {process.name: process.core.partitions for process in processes}
        for partition in sorted({partition for known in cores.values() for partition in known}):
            parts = {name: known[partition] for name, known in cores.items() if partition in known}
            reports = {name: rebuild.known_chain(part) for name, part in parts.items()}
            told = {name: chain for name, chain in reports.items() if chain is not None}
            current, _ = self.records.chain(partition)
            if not told:
                continue
            plan = rebuild.plan_chain(partition, told, current)
            if plan.conflict:
                self._judge.fail("TWICE", plan.conflict)
            if plan.chain is not None:
                self._schedule.tell("person", f"rebuilds the chain of {partition} at epoch {plan.chain.epoch}")
                self.records.put_chain(plan.chain)
                self._judge.rebuilt(plan.chain)
            cursors = [cursor for part in parts.values() for cursor in part.cursors.values()]
            for group in sorted({cursor.consumer_group for cursor in cursors}):
                states = [cursor for cursor in cursors if cursor.consumer_group == group]
                topic = next(iter(told.values())).topic
                epoch = max(chain.epoch for chain in told.values())
                before = self.records.cursor(partition, group)[0]
                record = rebuild.plan_cursor(states, before, topic, chain_epoch=epoch)
                if record is not None:
                    self.records.put_cursor(partition, group, record)
                    self._judge.cursor_written(PERSON, partition, group, before, record)

    # ---- it reads and refuses to write ----

    @property
    def is_refusing(self) -> bool:
        """Whether writes are refused; with `keeps_next` the next one is kept all the same, as etcd does."""
        return self._is_refusing

    @is_refusing.setter
    def is_refusing(self, value: bool) -> None:
        if self._is_refusing and not value:
            for process in self._told:
                after_us = self._schedule.rng.randint(1_000, PROBE_US_MAX)
                self._schedule.after(after_us, self._deliver, process, WritesRefused(False))
            self._told = {}
            self._refused.clear()
        self._is_refusing = value

    def _refuses(self, process: Process, request: WriteChain | WriteCursor) -> bool:
        """Count a write that is refused, and sometimes say that all others will be too."""
        if not self._is_refusing:
            return False
        key = (request.partition, request.consumer_group) if isinstance(request, WriteCursor) else request.partition
        self._refused[process, key] += 1
        if self._refused[process, key] > REFUSED_WRITES_MAX:
            self._judge.fail("LIMIT", f"{process.name} keeps writing {key} though the coordinator refuses")
        self._look_at_preparations()
        if process not in self._told and self._schedule.rng.random() < 0.1:
            self._told[process] = None
            self._schedule.after(1, self._deliver, process, WritesRefused(True))
        return True

    def _look_at_writes(self, process: Process, partition: PartitionId) -> None:
        """All of them compare the same revision, so all but one conflict."""
        count = len(process.core.partitions[partition].writes)
        if count > WRITES_AT_ONCE_MAX:
            self._judge.fail("LIMIT", f"{process.name} has {count} transactions on the chain of {partition} under way")

    def _look_at_preparations(self) -> None:
        for broker in self._brokers.values():
            partitions = broker.process.core.partitions.values() if broker.process is not None else ()
            for partition in partitions:
                kept = Counter((no, attempt[:12]) for no, attempt in partition.preparations)
                if any(count > PREPARATIONS_MAX for count in kept.values()):
                    self._judge.fail("LIMIT", f"{broker.name} keeps {kept} undecided preparations of one switcher")

    def certify(self, run: RunId) -> None:
        """Write a death certificate, if the run is not certified yet; brokers hear of it soon, or late."""
        if not self.records.write_certificate(run):
            return
        self._schedule.tell("coord", f"certificate of {run}")
        if self.tidies and self.records.remove_older_certificates(run):
            self._judge.seen.states.add("certificates removed")
        for name in sorted(self._brokers):
            if self._schedule.rng.random() < 0.8:
                self._schedule.after(self._schedule.rng.randint(500, 50_000), self._hint, name, run)
            else:
                self._schedule.after(LATE_HINT_US, self._hint, name, run)

    def certify_falsely(self, run: RunId, own_us: int) -> None:
        """Write a certificate of a run that lives. All others read it before anything else, the run itself late.

        The world makes the others read it at once; the product does not. ADR 0024 says what may happen if they do not.
        """
        self.records.write_certificate(run)
        self._judge.seen.states.add("certified falsely")
        self._schedule.tell("coord", f"false certificate of {run}")
        for name in sorted(self._brokers):
            if name != run.member.broker:
                self._hint(name, run)
        self._schedule.after(own_us, self._hint, run.member.broker, run)

    def tell_certificates(self, name: str) -> None:
        """Tell a broker that starts all certificates, as the first listing of its watch does."""
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
            answer = _no_success(request, WriteOutcome.UNKNOWN)
        elif isinstance(request, ReadCertificate):
            answer = CertificateRead(request.partition, request.member_run, None)
        elif isinstance(request, ReadCursor):
            answer = CursorRead(request.partition, request.consumer_group, None, 0, failed=True)
        else:
            answer = _no_success(request, WriteOutcome.UNKNOWN)
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
            proof = records.proof_of(request.member_run)
            return CertificateRead(request.partition, proof or request.member_run, proof is not None)
        if isinstance(request, ReadCursor):
            record, revision = records.cursor(request.partition, request.consumer_group)
            return CursorRead(
                request.partition, request.consumer_group, record, revision, known_revision=request.known_revision
            )
        is_refused = self._refuses(process, request)
        if is_refused and not self.keeps_next:
            return _no_success(request, WriteOutcome.REFUSED)
        self.keeps_next = False
        if isinstance(request, WriteChain):
            before = records.chain(request.chain.partition)[0]
            written = records.write_chain(
                request.chain, request.revision, request.certificate, request.cursors_revision
            )
            if written is not None:
                self._judge.chain_written(process.name, before, request.chain, request.certificate)
                self.chain_written_us = self._schedule.now_us
            outcome = _outcome(written, is_refused)
            return ChainWritten(request.partition, request.serial, outcome, written or 0)
        old = records.cursor(request.partition, request.consumer_group)[0]
        record = request.record
        if request.consumer_group in (ONCE, ONCE_EXCLUSIVE):  # an administrator has made it so
            record = replace(record, at_most_once=True)
        written = records.write_cursor(
            request.partition, request.consumer_group, record, request.revision, request.chain_revision
        )
        if written is not None:
            self._judge.cursor_written(process.name, request.partition, request.consumer_group, old, record)
        outcome = _outcome(written, is_refused)
        return CursorWritten(request.partition, request.consumer_group, request.serial, outcome, written or 0)


def _no_success(request: WriteChain | WriteCursor, outcome: WriteOutcome) -> Event:
    if isinstance(request, WriteChain):
        return ChainWritten(request.partition, request.serial, outcome, 0)
    return CursorWritten(request.partition, request.consumer_group, request.serial, outcome, 0)


def _outcome(written: int | None, is_refused: bool) -> WriteOutcome:
    if written is None:
        return WriteOutcome.CONFLICT
    return WriteOutcome.REFUSED if is_refused else WriteOutcome.DONE


def _hands_over(request: _Request) -> bool:
    return isinstance(request, WriteCursor) and request.record.handoff != NO_HAND_OVER
