# ruff: noqa: SLF001 - a mutant replaces steps that nobody else may touch
"""Rules of the protocol, removed one at a time: the simulation must find each of these mutants.

A mutant replaces named decision points of the core for the time of a run. Which promise breaks first, and seeds that
showed it when it was written, stand beside it; `python -m e2e.sim --mutation NAME` looks for others.

What was found about rules that overlap: taking away the fence at start, or the voiding, or both, changes nothing that
anybody can see, because a run of the core takes batches only in a segment that it opened itself ("active" is not kept
on the disk), and opens only what it prepared itself. `start-fence` therefore takes away the rule behind all three: a
run goes on with what an earlier one opened. `voided` takes away voiding with both checks of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from seriatim_api.ids import MemberId
from seriatim_broker.core import (
    appending,
    copying,
    dispatch,
    fencing,
    learning,
    partition,
    preparing,
    record,
    replica,
    replication,
    right,
    settle,
    switch,
    tables,
)
from seriatim_broker.core.effects import Send
from seriatim_broker.core.events import WriteOutcome
from seriatim_broker.core.groups import crossing, cursors, delivery
from seriatim_broker.core.log import PutPreparation
from seriatim_broker.core.messages import (
    CopyAnswer,
    CursorSync,
    FenceAnswer,
    FenceRequest,
    PrepareRequest,
    Replicate,
)
from seriatim_broker.core.state import drop, put

from . import world

Patch = tuple[object, str, Any]


@dataclass(frozen=True)
class Mutation:
    """A removed rule: what it says, what is patched, what may be reported, and in which worlds it shows soon."""

    rule: str
    patches: Callable[[], list[Patch]]
    breaks: tuple[str, ...]
    profile: str = "anything"
    seeds: tuple[int, ...] = ()
    world: str = "cores"
    batch_count: int = 0


# ---- the three that the issue names ---------------------------------------------------------------------


def _attempt_id() -> list[Patch]:
    """What a member prepared last for a segment is what it knows of it, whoever's attempt that was."""

    def prepare(outbox: Any, of: partition.Partition, sender: Any, message: PrepareRequest) -> None:
        preparing.on_prepare(outbox, of, sender, message)
        newest = of.preparations.get((message.segment_no, message.attempt))
        if newest is None:
            return
        for no, attempt in list(of.preparations):
            if no == message.segment_no and attempt != message.attempt:
                overwritten = replace(newest, attempt=attempt, members=of.preparations[no, attempt].members)
                of.preparations = put(of.preparations, (no, attempt), overwritten)
                outbox.write(PutPreparation(of.id, overwritten))

    return [_with_handler(PrepareRequest, prepare)]


def _start_fence() -> list[Patch]:
    """A restarted member goes on where it was: no fence, nothing voided, nothing forgotten."""
    recovered = replica.SegmentLog.recovered.__func__  # type: ignore[attr-defined]

    def going_on(cls: type[replica.SegmentLog], *arguments: Any) -> replica.SegmentLog:
        log: replica.SegmentLog = recovered(cls, *arguments)
        log.active = not log.record.fenced and log.record.sealed_len is None
        return log

    def no_fence(outbox: Any, of: partition.Partition) -> None:
        for log in of.logs.values():
            if log.active and log.record.members[0] == outbox.member:
                log.unbroken = True
                log.followers = tuple(replica.Follower(member) for member in log.record.members[1:])

    return [
        (replica.SegmentLog, "recovered", classmethod(going_on)),
        (fencing, "fence_at_start", no_fence),
    ]


def _tail_first() -> list[Patch]:
    """A member answers with its tail, and is fenced a while later."""
    too_long = fencing.on_fenced_too_long

    def answer_only(outbox: Any, of: Any, log: replica.SegmentLog, message: FenceRequest) -> FenceAnswer:
        return fencing.fence_answer(outbox, log, message)

    def fence_late(outbox: Any, of: partition.Partition) -> None:
        fencing.fence_unsealed(outbox, of)
        too_long(outbox, of)

    return [(fencing, "fence_and_answer", answer_only), (fencing, "on_fenced_too_long", fence_late)]


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

    def append(outbox: Any, of: partition.Partition, event: Any) -> None:
        log = of.open_log()
        if log is not None and log.record.fenced and log.active:
            log.active = False
            real_append(outbox, of, event)
            log.active = log.record.sealed_len is None
        else:
            real_append(outbox, of, event)

    real_advance = replica.SegmentLog.advance_commit
    real_release = appending.release
    real_append = appending.on_append
    return [
        (replica.SegmentLog, "fence", fence),
        (replica.SegmentLog, "advance_commit", advance),
        (appending, "release", release),
        (appending, "on_append", append),
    ]


def _commit_of_a_restarted_master() -> list[Patch]:
    real = fencing.fence_answer

    def answer(outbox: Any, log: replica.SegmentLog, message: FenceRequest) -> FenceAnswer:
        if log.record.members[0] != outbox.member:
            return real(outbox, log, message)
        unbroken, log.unbroken = log.unbroken, True
        found = real(outbox, log, message)
        log.unbroken = unbroken
        return found

    return [(fencing, "fence_answer", answer)]


# ---- commit ---------------------------------------------------------------------------------------------


def _every_member() -> list[Patch]:
    def move(outbox: Any, of: partition.Partition, log: replica.SegmentLog) -> None:
        real_followers, log.followers = log.followers, ()
        real(outbox, of, log)
        log.followers = real_followers

    real = replication._move_commit
    return [(replication, "_move_commit", move)]


def _slave_flushes_first() -> list[Patch]:

    def replicate(outbox: Any, of: partition.Partition, sender: Any, message: Any) -> None:
        marks = len(outbox.marks)
        replication.on_replicate(outbox, of, sender, message)
        for mark in [mark for mark in outbox.marks[marks:] if type(mark).__name__ == "Send"]:
            outbox.marks.remove(mark)
            outbox.emit(mark)

    return [_with_handler(Replicate, replicate)]


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
    def write(
        self: partition.Partition, outbox: Any, owner: str, chain: Any, detail: int = 0, certificate: Any = None
    ) -> None:
        real_write(self, outbox, owner, chain, detail)

    def certified(self: switch.Switch, outbox: Any, of: Any, exists: bool | None) -> None:
        real(self, outbox, of, True)

    real_write = partition.Partition.write_chain
    real = switch.Switch.on_certificate
    return [(switch.Switch, "on_certificate", certified), (partition.Partition, "write_chain", write)]


def _voided() -> list[Patch]:
    def open_(outbox: Any, of: partition.Partition, chain: Any, segment: Any) -> None:
        """A master opens what an earlier run prepared."""
        run = outbox.run
        if segment.master == outbox.member:
            outbox.run = segment.master_run
        real(outbox, of, chain, segment)
        outbox.run = run

    real = learning._open
    return [(learning, "_open", open_), (preparing, "void_attempts", _nothing)]


def _mark_inherited() -> list[Patch]:
    real = switch.Switch._choose_groups

    def choose(self: switch.Switch, outbox: Any, of: Any) -> None:
        self.table_complete = self.table_complete or self.source is not None
        real(self, outbox, of)

    return [(switch.Switch, "_choose_groups", choose)]


def _told_before_the_transaction() -> list[Patch]:
    real = record.on_chain_written

    def written(outbox: Any, of: partition.Partition, serial: int, outcome: WriteOutcome, revision: int) -> None:
        owner = of.writes[serial][0]
        if outcome is WriteOutcome.UNKNOWN and owner == "switch":
            outcome = WriteOutcome.DONE
        real(outbox, of, serial, outcome, revision)

    return [(record, "on_chain_written", written)]


def _failed_early() -> list[Patch]:
    real = fencing.fence_and_answer

    def fence(outbox: Any, of: partition.Partition, log: replica.SegmentLog, message: FenceRequest) -> FenceAnswer:
        answer = real(outbox, of, log, message)
        known = log.record
        log.record = replace(known, sealed_len=log.commit)
        appending.settle_waiting(outbox, log, of.route())
        log.record = known
        return answer

    return [(fencing, "fence_and_answer", fence)]


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
    """Any batch may begin a run where it comes, as if the broker forgot what it refused."""
    real = appending.append

    def append(outbox: Any, log: Any, event: Any, route: Any) -> Any:
        log.runs = drop(log.runs, event.header.producer)
        return real(outbox, log, replace(event, starts_run=True), route)

    return [(appending, "append", append)]


def _cut_at_own_commit() -> list[Patch]:
    real: Any = partition.Partition.recover

    def recover(self: partition.Partition, *arguments: Any) -> None:
        real(self, *arguments)
        for log in self.logs.values():
            if log.record.sealed_len is None and log.tail > log.commit:
                log.tail_checksum = log.checksum_at(log.commit)
                log.table = type(log.table)(log.table.as_of(log.no, log.commit))
                log.tail = log.durable = log.commit
                log.uncommitted = []

    return [(partition.Partition, "recover", recover)]


def _above_commit() -> list[Patch]:
    return [(replica.SegmentLog, "readable_below", property(lambda self: self.tail))]


def _copy_in_memory() -> list[Patch]:
    real = copying.on_copy_answer

    def on_copy_answer(outbox: Any, of: Any, sender: Any, message: Any) -> None:
        """What is in memory counts as copied."""
        real(outbox, of, sender, message)
        log = of.logs.get(message.segment_no)
        if log is not None and message.segment_no in of.copies:
            log.durable = log.tail
            copying._go_on(outbox, of, message.segment_no)

    return [_with_handler(CopyAnswer, on_copy_answer)]


def _with_handler(message: type, handler: Any) -> Patch:
    return dispatch, "MESSAGES", {**dispatch.MESSAGES, message: handler}


def _no_lease() -> list[Patch]:
    return [(right, "silent_members", lambda *arguments: [])]


def _readers_skip() -> list[Patch]:
    return [(tables, "want_before", lambda outbox, of, no: ())]


def _all_acknowledged() -> list[Patch]:
    real = crossing.cross_if_done

    def cross(outbox: Any, of: Any, head: Any) -> None:
        """Delivered is as good as acknowledged."""
        head.safe_acked = max(head.safe_acked, head.delivered)
        real(outbox, of, head)

    return [(crossing, "cross_if_done", cross)]


def _acks_on_every_eligible_member() -> list[Patch]:
    real = cursors.sync

    def sync(outbox: Any, of: Any, head: Any) -> None:
        """Only this member's disk counts; the others hear nothing."""
        effects = len(outbox.effects)
        real(outbox, of, head)
        outbox.effects = [*outbox.effects[:effects], *(e for e in outbox.effects[effects:] if not _is_sync(e))]
        for waiting in head.syncs.values():
            for member in [member for member in waiting.waiting if member != outbox.member]:
                del waiting.waiting[member]

    return [(cursors, "sync", sync)]


def _is_sync(effect: Any) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, CursorSync)


def _reservations() -> list[Patch]:
    real = delivery.deliver_held_back

    def deliver(outbox: Any, of: Any, head: Any) -> None:
        """Delivers without having said so durably."""
        head.safe_reserved = 1 << 40
        real(outbox, of, head)

    return [(delivery, "deliver_held_back", deliver)]


def _incarnation() -> list[Patch]:
    def replace_disk(self: world.World, slot: Any) -> None:
        """An emptied disk comes back under the old identity."""
        self._lost_disks += 1
        self.judge.graveyard.append((MemberId(slot.name, "wiped"), slot.disk.durable.twin()))
        slot.disk.wipe()

    return [(world.World, "replace_disk", replace_disk)]


_LOSS = ("I1", "I2", "I5", "I6", "I10", "I12", "TABLE", "COPY", "CORE")

MUTATIONS: dict[str, Mutation] = {
    "attempt-id": Mutation(
        "a member opens only what was prepared under the chain's attempt", _attempt_id, _LOSS, "switchers-race"
    ),
    "start-fence": Mutation("a run never goes on with what an earlier one opened", _start_fence, _LOSS, "restarts"),
    "tail-first": Mutation("fencing and reading the answer are one step", _tail_first, _LOSS, "switchers-race"),
    "fence-freezes-commit": Mutation(
        "a fenced member commits nothing more", _fence_freezes_commit, _LOSS, "switchers-race"
    ),
    "unbroken": Mutation(
        "only an unbroken master answers with its commit", _commit_of_a_restarted_master, _LOSS, "restarts"
    ),
    "every-member": Mutation("commit waits for every member", _every_member, ("I12",)),
    "slave-flushes": Mutation("a slave acknowledges what it has flushed", _slave_flushes_first, ("I12",)),
    "tail-copy": Mutation("the uncertain tail is copied before the transaction", _no_tail_copy, ("I12",), "restarts"),
    "table": Mutation("the producer table travels with the switch", _table_travels, ("TABLE",)),
    "known-commit": Mutation(
        "an answered tail is the length, not the commit known", _any_source_shorter, _LOSS, "restarts"
    ),
    "certificate": Mutation(
        "opened over only with the certificate of the master's run", _certificate, ("I7", "RT"), "groups-die"
    ),
    "unknown-outcome": Mutation(
        "after a time-out, read first", _told_before_the_transaction, ("I7", *_LOSS), "switchers-race"
    ),
    "failed-early": Mutation(
        "failed is answered only once the chain says so", _failed_early, ("I10",), "switchers-race"
    ),
    "mark-inherited": Mutation("an incomplete table stays marked", _mark_inherited, ("TABLE",), "groups-die"),
    "settle-copy": Mutation(
        "a settler copies its tail before the transaction", _settle_without_copy, ("I12",), "groups-die"
    ),
    "settle-tail": Mutation(
        "a fenced disk's tail settles, not the commit it knew", _settle_at_commit, ("I6",), "groups-die"
    ),
    "own-commit": Mutation("truncate only to the sealed length in the chain", _cut_at_own_commit, _LOSS, "restarts"),
    "above-commit": Mutation("consumers are served below commit only", _above_commit, ("I6", "I12")),
    "readers-skip": Mutation("readers skip what stands earlier already", _readers_skip, ("I9",), "groups-die"),
    "copy-durable": Mutation("a copy counts once it is on the disk", _copy_in_memory, ("COPY",), "lost-disks"),
    "all-acknowledged": Mutation("a group crosses when it acknowledged all", _all_acknowledged, ("I3", "I8", "CORE")),
    "ack-copies": Mutation(
        "an ack counts on every eligible member", _acks_on_every_eligible_member, ("I9", "I11"), "restarts"
    ),
    "reservations": Mutation("a delivery is reserved durably first", _reservations, ("I9",), "restarts"),
    "incarnation": Mutation("an emptied disk is another member", _incarnation, ("I14", *_LOSS), "lost-disks"),
}
"""By name."""


def _nothing(*_arguments: Any) -> None:
    """A step that is not taken."""


def _without(module: object, name: str) -> Callable[[], list[Patch]]:
    return lambda: [(module, name, _nothing)]


OVERLAPPING: dict[str, Mutation] = {
    "fence-at-start": Mutation("a start fences", _without(fencing, "fence_unsealed"), _LOSS, "restarts"),
    "void-at-start": Mutation("a start voids", _without(preparing, "void_attempts"), _LOSS, "restarts"),
    "fence-and-void": Mutation("a start fences and voids", _without(fencing, "fence_at_start"), _LOSS, "restarts"),
    "voided": Mutation("a run opens only what it prepared itself", _voided, ("RT",), "restarts"),
    "run-refused": Mutation(
        "after a refusal the rest of the run is refused", _rest_of_the_run, ("GAP", "I2"), "groups-die"
    ),
    "serve-lease": Mutation("a server delivers only under its lease", _no_lease, ("SERVER",)),
}
"""Rules whose absence shows rarely or never, because others cover for them; for `--mutation`."""


@contextmanager
def applied(mutation: Mutation | None) -> Iterator[None]:
    """Run with one rule removed; with None with all of them."""
    patches = mutation.patches() if mutation is not None else []
    before = [(owner, attribute, vars(owner)[attribute]) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


__all__ = ["MUTATIONS", "OVERLAPPING", "Mutation", "applied"]
