"""Rules of the protocol, removed one at a time: the simulation must find each of these mutants.

A mutant replaces named decision points of the core for the time of a run. Which seeds find it is written down beside it,
so that the test that all are found stays short; `python -m e2e.sim --mutation NAME` looks for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from seriatim_broker.core import appending, copying, partition, replica, right, settle, switch
from seriatim_broker.core.events import WriteOutcome
from seriatim_broker.core.log import LocalSegment, Preparation
from seriatim_broker.core.messages import FenceAnswer, FenceRequest, PrepareRequest

Patch = tuple[object, str, Any]


@dataclass(frozen=True)
class Mutation:
    """A removed rule: what it says, what is patched, and seeds that are known to find it."""

    rule: str
    patches: Callable[[], list[Patch]]
    seeds: tuple[int, ...] = ()


# ---- the three that the issue names ---------------------------------------------------------------------


def _attempt_id() -> list[Patch]:
    """A member opens what it prepared last for the segment, whoever's attempt that was."""

    def newest(self: partition.Partition, segment: Any) -> Preparation | None:
        found = [p for (no, _), p in self.preparations.items() if no == segment.no]
        return found[-1] if found else None

    def key(_self: partition.Partition, message: PrepareRequest) -> tuple[int, bytes]:
        return message.segment_no, message.attempt

    return [(partition.Partition, "chosen_preparation", newest), (partition.Partition, "preparation_key", key)]


def _start_fence() -> list[Patch]:
    """A restarted member goes on where it was: no fence, nothing voided, nothing forgotten."""
    recovered = replica.SegmentLog.recovered.__func__  # type: ignore[attr-defined]

    def going_on(cls: type[replica.SegmentLog], *arguments: Any) -> replica.SegmentLog:
        log: replica.SegmentLog = recovered(cls, *arguments)
        log.active = not log.record.fenced and log.record.sealed_len is None
        return log

    def no_fence(self: partition.Partition, outbox: Any) -> None:
        for log in self.logs.values():
            if log.active and log.record.members[0] == outbox.member:
                log.unbroken = True
                log.followers = {member: replica.Follower() for member in log.record.members[1:]}

    return [
        (replica.SegmentLog, "recovered", classmethod(going_on)),
        (partition.Partition, "fence_at_start", no_fence),
    ]


def _tail_first() -> list[Patch]:
    """A member answers with its tail, and is fenced a while later."""
    too_long = partition.Partition.on_fenced_too_long

    def answer_only(
        self: partition.Partition, outbox: Any, log: replica.SegmentLog, message: FenceRequest
    ) -> FenceAnswer:
        return self.fence_answer(outbox, log, message)

    def fence_late(self: partition.Partition, outbox: Any) -> None:
        self.fence_unsealed(outbox)
        too_long(self, outbox)

    return [
        (partition.Partition, "fence_and_answer", answer_only),
        (partition.Partition, "on_fenced_too_long", fence_late),
    ]


# ---- fencing --------------------------------------------------------------------------------------------


def _fence_freezes_commit() -> list[Patch]:
    def fence(self: replica.SegmentLog, outbox: Any) -> None:
        """Refuses batches, and still takes acknowledgements."""
        if not self.record.fenced:
            self.update(outbox, fenced=True)

    def advance(self: replica.SegmentLog, commit: int) -> bool:
        record, self.record = self.record, replace(self.record, fenced=False)
        moved = real_advance(self, commit)
        self.record = record
        return moved

    def release(outbox: Any, log: replica.SegmentLog) -> None:
        record, log.record = log.record, replace(log.record, fenced=False)
        real_release(outbox, log)
        log.record = record

    def append(self: partition.Partition, outbox: Any, event: Any) -> None:
        log = self.open_log()
        if log is not None and log.record.fenced and log.active:
            log.active = False
            real_append(self, outbox, event)
            log.active = log.record.sealed_len is None
        else:
            real_append(self, outbox, event)

    real_advance = replica.SegmentLog.advance_commit
    real_release = appending.release
    real_append = partition.Partition.on_append
    return [
        (replica.SegmentLog, "fence", fence),
        (replica.SegmentLog, "advance_commit", advance),
        (appending, "release", release),
        (partition.Partition, "on_append", append),
    ]


def _commit_of_a_restarted_master() -> list[Patch]:
    real = partition.Partition.fence_answer

    def answer(
        self: partition.Partition, outbox: Any, log: replica.SegmentLog, message: FenceRequest
    ) -> FenceAnswer:
        if log.record.members[0] != outbox.member:
            return real(self, outbox, log, message)
        unbroken, log.unbroken = log.unbroken, True
        found = real(self, outbox, log, message)
        log.unbroken = unbroken
        return found

    return [(partition.Partition, "fence_answer", answer)]


# ---- commit ---------------------------------------------------------------------------------------------


def _every_member() -> list[Patch]:
    def move(self: partition.Partition, outbox: Any, log: replica.SegmentLog) -> None:
        real_followers, log.followers = log.followers, {}
        real(self, outbox, log)
        log.followers = real_followers

    real = partition.Partition._move_commit
    return [(partition.Partition, "_move_commit", move)]


def _slave_flushes_first() -> list[Patch]:
    real = partition.Partition.on_replicate

    def replicate(self: partition.Partition, outbox: Any, sender: Any, message: Any) -> None:
        marks = len(outbox.marks)
        real(self, outbox, sender, message)
        for mark in [mark for mark in outbox.marks[marks:] if type(mark).__name__ == "Send"]:
            outbox.marks.remove(mark)
            outbox.emit(mark)

    return [(partition.Partition, "on_replicate", replicate)]


# ---- switch ---------------------------------------------------------------------------------------------


def _no_tail_copy() -> list[Patch]:
    return [(switch.Switch, "tail", lambda self: None)]


def _table_travels() -> list[Patch]:
    real = switch.Switch._choose_groups

    def choose(self: switch.Switch, outbox: Any, of: Any) -> None:
        self.table = ()
        real(self, outbox, of)

    return [(switch.Switch, "_choose_groups", choose)]


def _any_source_shorter() -> list[Patch]:
    def seal(self: switch.Switch, old: Any) -> Any:
        found = real(self, old)
        answer = self.answers[self.source] if self.source is not None else None
        if answer is not None and not answer.unbroken and answer.tail:
            first = answer.tail[0].header
            return replace(
                found, length=answer.commit, checksum=first.previous_checksum, tail_from=None, tail_copies=()
            )
        return found

    real = switch.Switch._seal
    return [(switch.Switch, "_seal", seal)]


def _certificate() -> list[Patch]:
    real_write = partition.Partition.write_chain

    def write(self: partition.Partition, outbox: Any, owner: str, chain: Any, detail: int = 0, certificate: Any = None):  # type: ignore[no-untyped-def]  # noqa: ANN202
        real_write(self, outbox, owner, chain, detail)

    def certified(self: switch.Switch, outbox: Any, of: Any, exists: bool | None) -> None:
        real(self, outbox, of, True)

    real = switch.Switch.on_certificate
    return [(switch.Switch, "on_certificate", certified), (partition.Partition, "write_chain", write)]


def _told_before_the_transaction() -> list[Patch]:
    real = partition.Partition.on_chain_written

    def written(self: partition.Partition, outbox: Any, serial: int, outcome: WriteOutcome, revision: int) -> None:
        owner = self.writes[serial][0]
        if outcome is WriteOutcome.UNKNOWN and owner == "switch":
            outcome = WriteOutcome.DONE
        real(self, outbox, serial, outcome, revision)

    return [(partition.Partition, "on_chain_written", written)]


def _failed_early() -> list[Patch]:
    real = partition.Partition.fence_and_answer

    def fence(
        self: partition.Partition, outbox: Any, log: replica.SegmentLog, message: FenceRequest
    ) -> FenceAnswer:
        answer = real(self, outbox, log, message)
        record = log.record
        log.record = replace(record, sealed_len=log.commit)
        appending.settle_waiting(outbox, log, self.route())
        log.record = record
        return answer

    return [(partition.Partition, "fence_and_answer", fence)]


# ---- unsettled segments ---------------------------------------------------------------------------------


def _settle_without_copy() -> list[Patch]:
    real = settle._go_on

    def go_on(outbox: Any, of: Any, no: int, settlement: Any) -> None:
        settlement.stored = settlement.stored or {outbox.member: None}
        real(outbox, of, no, settlement)

    return [(settle, "_go_on", go_on)]


def _settle_at_commit() -> list[Patch]:
    return [(settle, "length_of", lambda of, no: of.logs[no].commit)]


# ---- producers and readers ------------------------------------------------------------------------------


def _rest_of_the_run() -> list[Patch]:
    return [(appending, "_run_refusal", lambda log, event: None)]


def _cut_at_own_commit() -> list[Patch]:
    real = partition.Partition.recover

    def recover(self: partition.Partition, found: Any) -> None:
        real(self, found)
        for log in self.logs.values():
            if log.record.sealed_len is None and log.tail > log.commit:
                log.tail_checksum = log.checksum_at(log.commit)
                log.table = type(log.table)(log.table.as_of(log.no, log.commit))
                log.tail = log.durable = log.commit
                log.uncommitted = []

    return [(partition.Partition, "recover", recover)]


def _above_commit() -> list[Patch]:
    return [(replica.SegmentLog, "readable_below", property(lambda self: self.tail))]


def _copy_listed_unfinished() -> list[Patch]:
    return [(replica.SegmentLog, "is_whole", property(lambda self: self.record.sealed_len is not None))]


def _no_lease() -> list[Patch]:
    return [(right, "silent_members", lambda *arguments: [])]


MUTATIONS: dict[str, Mutation] = {
    "attempt-id": Mutation("a member opens only what was prepared under the attempt that the chain names", _attempt_id),
    "start-fence": Mutation("a run never goes on with what an earlier one opened", _start_fence),
    "tail-first": Mutation("fencing and reading the answer are one step", _tail_first),
    "fence-freezes-commit": Mutation("a fenced member commits and acknowledges nothing more", _fence_freezes_commit),
    "unbroken": Mutation("only an unbroken master answers with its commit", _commit_of_a_restarted_master),
    "every-member": Mutation("commit waits for every member", _every_member),
    "slave-flushes": Mutation("a slave acknowledges what it has flushed", _slave_flushes_first),
    "tail-copy": Mutation("the uncertain tail is copied before the transaction", _no_tail_copy),
    "table": Mutation("the producer table travels with the switch", _table_travels),
    "known-commit": Mutation("a length is an answered tail, not the commit a slave happened to know", _any_source_shorter),
    "certificate": Mutation("opened over only with the certificate of the master's run", _certificate),
    "unknown-outcome": Mutation("after a time-out, read before doing anything else", _told_before_the_transaction),
    "failed-early": Mutation("failed is answered only once the chain says so", _failed_early),
    "settle-copy": Mutation("a settler copies its tail before the transaction", _settle_without_copy),
    "settle-tail": Mutation("a fenced disk's tail settles, not the commit it knew", _settle_at_commit),
    "run-refused": Mutation("after a refusal the rest of the run is refused", _rest_of_the_run),
    "own-commit": Mutation("truncate only to the sealed length in the chain", _cut_at_own_commit),
    "above-commit": Mutation("consumers are served below commit only", _above_commit),
    "whole": Mutation("a copy counts once it is whole", _copy_listed_unfinished),
    "serve-lease": Mutation("a server delivers only under its lease", _no_lease),
}


@contextmanager
def applied(name: str) -> Iterator[None]:
    """Run with one rule removed; with an empty name with all of them."""
    patches = MUTATIONS[name].patches() if name else []
    before = [(owner, attribute, vars(owner)[attribute]) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


__all__ = ["MUTATIONS", "LocalSegment", "Mutation", "applied", "copying"]
