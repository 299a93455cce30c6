# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of the core about writing: fences, commits, switches, settlements, the order of a producer.

Rules that overlap: no checker notices if the fence at start alone is removed, or the voiding alone. A member run takes
batches only in a segment that it opened itself ("active" is not kept on the disk), and opens only what it prepared
itself. `start-fence` removes the rule behind both: a member run goes on with what an earlier one opened. `voided`
removes voiding with both checks of the member run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim_api.ids import MemberId, RunId
from seriatim_broker.core.copies import settle
from seriatim_broker.core.dispatch import handlers, learning, links, quarantine, record
from seriatim_broker.core.state import partition, segment_log
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.directory import BrokerDirectory
from seriatim_broker.core.state.switching import Switch
from seriatim_broker.core.switching import fencing, lengths, opening, preparing, sealing
from seriatim_broker.core.values import producers
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.events import ChainWritten, LinkUp, WriteOutcome
from seriatim_broker.core.values.kinds import WriteOwner
from seriatim_broker.core.values.log import PutPreparation
from seriatim_broker.core.values.messages import FenceAnswer, FenceRequest, PrepareRequest, Replicate
from seriatim_broker.core.values.states import put
from seriatim_broker.core.writing import appending, following, replication

from .mutation import LOSS, Mutation, Patch, nothing, with_event, with_handler

# ---- fences and runs ------------------------------------------------------------------------------------


def _tail_first() -> list[Patch]:
    """A member answers with its tail, and is fenced a while later."""
    too_long = fencing.on_fenced_too_long

    def answer_only(broker: Any, of: Any, log: segment_log.SegmentLog, message: FenceRequest) -> FenceAnswer:
        return fencing.fence_answer(broker, log, message)

    def fence_late(broker: Any, of: partition.Partition) -> None:
        fencing.fence_unsealed(broker, of)
        too_long(broker, of)

    return [(fencing, "fence_and_answer", answer_only), (fencing, "on_fenced_too_long", fence_late)]


def _fence_freezes_commit() -> list[Patch]:
    def fence(self: segment_log.SegmentLog, broker: Any) -> None:
        """Refuses batches, and still takes acknowledgements."""
        if not self.record.fenced:
            self.update(broker, fenced=True)

    def advance(self: segment_log.SegmentLog, commit: int) -> bool:
        record, self.record = self.record, replace(self.record, fenced=False)
        moved = real_advance(self, commit)
        self.record = record
        return moved

    def release(broker: Any, log: segment_log.SegmentLog) -> None:
        record, log.record = log.record, replace(log.record, fenced=False)
        real_release(broker, log)
        log.record = record

    def append(broker: Any, of: partition.Partition, event: Any) -> None:
        log = of.open_log()
        if log is not None and log.record.fenced and log.active:
            log.active = False
            real_append(broker, of, event)
            log.active = log.record.sealed_len is None
        else:
            real_append(broker, of, event)

    real_advance = segment_log.SegmentLog.advance_commit
    real_release = appending.release
    real_append = appending.on_append
    return [
        (segment_log.SegmentLog, "fence", fence),
        (segment_log.SegmentLog, "advance_commit", advance),
        (appending, "release", release),
        (appending, "on_append", append),
    ]


def _fence_durable() -> list[Patch]:
    recovered = segment_log.SegmentLog.recovered.__func__  # type: ignore[attr-defined]

    def forgetful(cls: type[segment_log.SegmentLog], *arguments: Any) -> segment_log.SegmentLog:
        """A start finds no fence: the member goes on following its master."""
        log: segment_log.SegmentLog = recovered(cls, *arguments)
        if log.record.sealed_len is None:
            log.record = replace(log.record, fenced=False)
            log.active = True
        return log

    def no_fence(broker: Any, of: partition.Partition) -> None:
        preparing.void_switch_attempts(broker, of)

    return [
        (segment_log.SegmentLog, "recovered", classmethod(forgetful)),
        (fencing, "fence_at_start", no_fence),
    ]


def _start_fence() -> list[Patch]:
    """A restarted member goes on where it was: no fence, nothing voided, nothing forgotten."""
    recovered = segment_log.SegmentLog.recovered.__func__  # type: ignore[attr-defined]

    def going_on(cls: type[segment_log.SegmentLog], *arguments: Any) -> segment_log.SegmentLog:
        log: segment_log.SegmentLog = recovered(cls, *arguments)
        log.active = not log.record.fenced and log.record.sealed_len is None
        return log

    def no_fence(broker: Any, of: partition.Partition) -> None:
        for log in of.logs.values():
            if log.active and log.record.members[0] == broker.member:
                log.unbroken = True
                log.followers = tuple(segment_log.Follower(member) for member in log.record.members[1:])

    return [
        (segment_log.SegmentLog, "recovered", classmethod(going_on)),
        (fencing, "fence_at_start", no_fence),
    ]


def _voided() -> list[Patch]:
    def open_(broker: Any, of: partition.Partition, chain: Any, segment: Any) -> None:
        """A master opens what an earlier run prepared."""
        run = broker.member_run
        if segment.master == broker.member:
            broker.member_run = segment.master_run
        real(broker, of, chain, segment)
        broker.member_run = run

    real = learning._open
    return [(learning, "_open", open_), (preparing, "void_switch_attempts", nothing)]


def _commit_of_a_restarted_master() -> list[Patch]:
    real = fencing.fence_answer

    def answer(broker: Any, log: segment_log.SegmentLog, message: FenceRequest) -> FenceAnswer:
        if log.record.members[0] != broker.member:
            return real(broker, log, message)
        unbroken, log.unbroken = log.unbroken, True
        found = real(broker, log, message)
        log.unbroken = unbroken
        return found

    return [(fencing, "fence_answer", answer)]


def _cut_at_own_commit() -> list[Patch]:
    real: Any = partition.Partition.recover

    def recover(self: partition.Partition, *arguments: Any) -> None:
        real(self, *arguments)
        for log in self.logs.values():
            if log.record.sealed_len is None and log.tail > log.commit:
                log.tail_checksum = log.checksum_at(log.commit)
                log.table = type(log.live_table)(log.table_as_of(BrokerConfig(), log.commit))
                log.tail = log.durable = log.commit
                log.uncertain = ()
                log.flushed = log.commit

    return [(partition.Partition, "recover", recover)]


# ---- commit ---------------------------------------------------------------------------------------------


def _every_member() -> list[Patch]:
    def move(broker: Any, of: partition.Partition, log: segment_log.SegmentLog) -> None:
        real_followers, log.followers = log.followers, ()
        real(broker, of, log)
        log.followers = real_followers

    real = replication._move_commit
    return [(replication, "_move_commit", move)]


def _slave_flushes_first() -> list[Patch]:

    def replicate(broker: Any, of: partition.Partition, sender: Any, message: Any) -> None:
        marks = len(broker.out.marks)
        following.on_replicate(broker, of, sender, message)
        for mark in [mark for mark in broker.out.marks[marks:] if type(mark).__name__ == "Send"]:
            broker.out.marks.remove(mark)
            broker.out.emit(mark)

    return [with_handler(Replicate, replicate)]


def _old_acknowledgements() -> list[Patch]:
    def resume(broker: Any, of: Any, log: Any, follower: Any) -> None:
        """On a new connection a follower is taken to have what was sent on the old one."""
        follower.in_step = True
        follower.out_of_step_us = None
        follower.received = follower.durable = log.tail
        replication._move_commit(broker, of, log)

    return [(replication, "_resume_follower", resume)]


# ---- the switch -----------------------------------------------------------------------------------------


def _attempt_id() -> list[Patch]:
    """The newest preparation for a segment overwrites those of all other switch attempts."""

    def prepare(broker: Any, of: partition.Partition, sender: Any, message: PrepareRequest) -> None:
        preparing.on_prepare(broker, of, sender, message)
        newest = of.preparations.get((message.segment_no, message.switch_attempt))
        if newest is None:
            return
        for no, attempt in list(of.preparations):
            if no == message.segment_no and attempt != message.switch_attempt:
                overwritten = replace(newest, switch_attempt=attempt, members=of.preparations[no, attempt].members)
                of.preparations = put(of.preparations, (no, attempt), overwritten)
                broker.out.write(PutPreparation(of.id, overwritten))

    return [with_handler(PrepareRequest, prepare)]


def _no_tail_copy() -> list[Patch]:
    return [(lengths, "uncertain_tail", lambda switch: None)]


def _tail_from_the_commit() -> list[Patch]:
    """What every member has in memory needs no copy, whether or not its disk has it."""
    real = segment_log.SegmentLog.advance_commit

    def advance(self: segment_log.SegmentLog, commit: int) -> bool:
        moved = real(self, commit)
        self.advance_flushed(self.commit)
        return moved

    return [(segment_log.SegmentLog, "advance_commit", advance)]


def _table_travels() -> list[Patch]:
    real = opening.choose_broker_groups

    def choose(broker: Any, of: Any, switch: Switch) -> None:
        switch.sealing.table = producers.NO_TABLE
        real(broker, of, switch)

    return [(opening, "choose_broker_groups", choose)]


def _any_source_shorter() -> list[Patch]:
    def seal(switch: Switch, old: Any) -> Any:
        found = real(switch, old)
        plan = switch.sealing
        answer = plan.answers[plan.source] if plan.source is not None else None
        if answer is not None and not answer.unbroken and answer.tail:
            first = answer.tail[0].header
            return replace(
                found, length=answer.commit, checksum=first.previous_checksum, tail_from=None, tail_copies=()
            )
        return found

    real = lengths.seal
    return [(lengths, "seal", seal)]


def _told_before_the_transaction() -> list[Patch]:
    real = record.on_chain_written

    def written(broker: Any, of: partition.Partition, event: ChainWritten) -> None:
        owner = of.writes[event.serial][0] if event.serial in of.writes else None
        if event.outcome is WriteOutcome.UNKNOWN and owner is WriteOwner.SWITCH:
            event = replace(event, outcome=WriteOutcome.DONE)
        real(broker, of, event)

    return [with_event(ChainWritten, written)]


def _failed_early() -> list[Patch]:
    real = fencing.fence_and_answer

    def fence(broker: Any, of: partition.Partition, log: segment_log.SegmentLog, message: FenceRequest) -> FenceAnswer:
        answer = real(broker, of, log, message)
        known = log.record
        log.record = replace(known, sealed_len=log.commit)
        appending.settle_waiting(broker, log, of.route())
        log.record = known
        return answer

    return [(fencing, "fence_and_answer", fence)]


def _older_chain() -> list[Patch]:
    real = learning.learn

    def learn(broker: Any, of: partition.Partition, chain: Any, revision: int = 0) -> None:
        """What was heard last is the record."""
        if of.chain is not None and chain.epoch < of.chain.epoch:
            of.chain = None
        real(broker, of, chain, revision)

    return [(record, "learn", learn)]


# ---- opened over, and settled ---------------------------------------------------------------------------


def _certificate() -> list[Patch]:
    def write(
        self: partition.Partition,
        broker: Any,
        owner: WriteOwner,
        chain: Any,
        detail: int = 0,
        certificate: Any = None,
        cursors_revision: int = 0,
    ) -> None:
        real_write(self, broker, owner, chain, detail, None, cursors_revision)

    def certified(broker: Any, of: Any, run: RunId, exists: bool | None) -> None:
        real(broker, of, run, True)

    real_write = partition.Partition.write_chain
    real = sealing.on_certificate
    return [(sealing, "on_certificate", certified), (partition.Partition, "write_chain", write)]


def _old_certificate() -> list[Patch]:
    real_ask = sealing._ask_certificate
    real_write = partition.Partition.write_chain

    def ask(broker: Any, of: Any, switch: Switch) -> None:
        """Any certificate of that member will do."""
        real_ask(broker, of, switch)
        assert switch.chain is not None
        wanted = switch.chain.open_segment.master_run_id
        if broker.directory.ended.get(wanted.member):
            sealing.on_certificate(broker, of, wanted, True)

    def write(
        self: partition.Partition,
        broker: Any,
        owner: WriteOwner,
        chain: Any,
        detail: int = 0,
        certificate: Any = None,
        cursors_revision: int = 0,
    ) -> None:
        ended = broker.directory.ended.get(certificate.member) if certificate is not None else None
        if ended is not None and ended < certificate.run:
            certificate = RunId(certificate.member, ended)
        real_write(self, broker, owner, chain, detail, certificate, cursors_revision)

    return [(sealing, "_ask_certificate", ask), (partition.Partition, "write_chain", write)]


def _settle_without_copy() -> list[Patch]:
    real = settle._go_on

    def go_on(broker: Any, of: Any, no: int, settlement: Any) -> None:
        settlement.stored = settlement.stored or {broker.member: None}
        real(broker, of, no, settlement)

    return [(settle, "_go_on", go_on)]


def _answer_once() -> list[Patch]:
    real = settle.on_link_up

    def on_link_up(broker: Any, of: Any, member: Any) -> None:
        told = {no: dict(settlement.answered) for no, settlement in of.settling.items()}
        real(broker, of, member)
        for no, settlement in of.settling.items():
            settlement.answered = told[no]

    return [(settle, "on_link_up", on_link_up)]


def _settle_at_commit() -> list[Patch]:
    return [(settle, "length_of", lambda of, no: of.logs[no].commit)]


def _mark_inherited() -> list[Patch]:
    real = opening.choose_broker_groups

    def choose(broker: Any, of: Any, switch: Switch) -> None:
        plan = switch.sealing
        plan.table_complete = plan.table_complete or plan.source is not None
        real(broker, of, switch)

    return [(opening, "choose_broker_groups", choose)]


def _merge_empty() -> list[Patch]:
    real = sealing.on_table

    def on_table(broker: Any, of: Any, no: int, table: Any) -> None:
        """The tables before are there: the mark can go."""
        real(broker, of, no, producers.NO_TABLE if table is not None else None)

    return [(sealing, "on_table", on_table)]


# ---- the order of a producer ----------------------------------------------------------------------------


def _repeat_waits() -> list[Patch]:
    def answer(broker: Any, partition: Any, log: segment_log.SegmentLog, event: Any) -> None:
        """A known batch is answered at once, and the check whether it is committed is left out."""
        entry = log.live_table.find(event.header)
        assert entry is not None
        appending._accept(broker, segment_log.Waiting(0, event.level, event.request, entry.offset, 0))

    return [(appending, "_answer_repeat", answer)]


def _each_place_is_final() -> list[Patch]:
    def is_final(partition: Any, log: segment_log.SegmentLog, segment_no: int) -> bool:
        """What was stored stays where it is: that another attempt may stand in front of it, is forgotten."""
        return True

    return [(appending, "_is_final", is_final)]


def _rest_of_the_run() -> list[Patch]:
    def refusal(log: segment_log.SegmentLog, event: Any) -> None:
        """Each batch is judged for itself."""
        return

    return [(appending, "_run_refusal", refusal)]


# ---- dismissed runs -------------------------------------------------------------------------------------


def _dismissed_run() -> list[Patch]:
    """A run whose end is certified is believed as long as it is connected."""

    def is_dismissed(self: BrokerDirectory, member: MemberId, run: int) -> bool:
        return False

    return [(BrokerDirectory, "is_dismissed", is_dismissed)]


def _dismissed_once() -> list[Patch]:
    """Its link is cut when the certificate is read; when it connects again, it is let in."""
    return [(handlers, "EVENTS", {**handlers.EVENTS, LinkUp: _without_dismissal(links.on_up)})]


def _without_dismissal(on_up: Any) -> Any:
    def let_in(broker: BrokerState, partitions: Any, event: LinkUp) -> None:
        real = BrokerDirectory.is_dismissed
        BrokerDirectory.is_dismissed = lambda *_: False  # type: ignore[method-assign]
        try:
            on_up(broker, partitions, event)
        finally:
            BrokerDirectory.is_dismissed = real  # type: ignore[method-assign]

    return let_in


def _own_death() -> list[Patch]:
    """A run that reads its own certificate goes on."""
    return [(BrokerState, "end_member_run", nothing)]


def _contradicted_is_cut() -> list[Patch]:
    """The log is cut to the length in the chain, as an uncertain tail is."""

    def forget(log: segment_log.SegmentLog, sealed_len: int) -> bool:
        log.commit = min(log.commit, sealed_len)
        return False

    return [(quarantine, "contradicts", forget)]


def _one_level_a_log() -> list[Patch]:
    """The first of those who wait decides for all of them."""
    real = appending.release

    def release(broker: BrokerState, log: segment_log.SegmentLog) -> None:
        waiting = list(log.waiting)
        if waiting:
            log.waiting = [entry._replace(level=waiting[0].level) for entry in waiting]
        real(broker, log)
        left = {entry.request for entry in log.waiting}
        log.waiting = [entry for entry in waiting if entry.request in left] or ()

    return [(appending, "release", release)]


# ---- append time ----------------------------------------------------------------------------------------


def _append_time_back() -> list[Patch]:
    return [(segment_log.SegmentLog, "_append_time_ms", lambda self, broker: broker.now.wall_ms)]


def _append_time_believed() -> list[Patch]:
    """What was appended last is taken for true, however far ahead it is."""
    return [
        (segment_log.SegmentLog, "_append_time_ms", lambda self, broker: max(self.last_append_ms, broker.now.wall_ms))
    ]


def _append_time_of_a_restart() -> list[Patch]:
    """A member that restarted answers a fence without the append time of its last batch."""
    recovered = segment_log.SegmentLog.recovered.__func__  # type: ignore[attr-defined]

    def forgetful(cls: type[segment_log.SegmentLog], *arguments: Any) -> segment_log.SegmentLog:
        log: segment_log.SegmentLog = recovered(cls, *arguments)
        log.last_append_ms = 0
        return log

    return [(segment_log.SegmentLog, "recovered", classmethod(forgetful))]


def _append_time_of_the_chain() -> list[Patch]:
    """A segment does not begin at the append time that the chain knows, but at what members answer."""
    real = learning._open

    def open_(broker: Any, of: partition.Partition, chain: Any, segment: Any) -> None:
        real(broker, of, chain, replace(segment, append_floor_ms=0))

    return [(learning, "_open", open_)]


def _decides_alone() -> list[Patch]:
    return [
        (sealing, "_waits_for_second", lambda *_: False),
        (settle, "_waits_for_second", lambda *_: False),
    ]


def _shortest_of_started() -> list[Patch]:
    def choose(switch: Switch, with_length: list[Any]) -> Any:
        answers = switch.sealing.answers
        unbroken = [member for member in with_length if answers[member].unbroken]
        return unbroken[0] if unbroken else min(with_length, key=lambda member: answers[member].length or 0)

    return [(lengths, "choose_source", choose), (lengths, "believed", _every_length)]


def _every_length(_broker: Any, _of: Any, switch: Switch) -> list[Any]:
    return [member for member, answer in switch.sealing.answers.items() if answer.length is not None]


MUTATIONS: dict[str, Mutation] = {
    "attempt-id": Mutation(
        "a member opens only what was prepared under the attempt id that the chain record names",
        _attempt_id,
        LOSS,
        "switchers-race",
    ),
    "start-fence": Mutation(
        "a member run never continues a segment that an earlier run opened", _start_fence, LOSS, "restarts"
    ),
    "tail-first": Mutation("fencing and reading the answer are one step", _tail_first, LOSS, "switchers-race"),
    "fence-freezes-commit": Mutation(
        "a fenced member commits nothing more", _fence_freezes_commit, LOSS, "switchers-race"
    ),
    "unbroken": Mutation(
        "only an unbroken master answers with its commit", _commit_of_a_restarted_master, LOSS, "restarts"
    ),
    "every-member": Mutation("the commit waits for every member", _every_member, ("I12",)),
    "slave-flushes": Mutation("a slave acknowledges only what it has flushed", _slave_flushes_first, ("I12",)),
    "tail-copy": Mutation("the uncertain tail is copied before the transaction", _no_tail_copy, ("I12",), "restarts"),
    "tail-from-commit": Mutation(
        "the uncertain tail begins at what every member is known to have flushed",
        _tail_from_the_commit,
        ("I12",),
        "suspects",
    ),
    "table": Mutation("the producer table travels with the switch", _table_travels, ("TABLE",)),
    "known-commit": Mutation(
        "the length is an answered tail, not the commit that the member knew", _any_source_shorter, LOSS, "restarts"
    ),
    "certificate": Mutation(
        "a segment is opened over only with the certificate of the master's run",
        _certificate,
        ("I7", "RT"),
        "groups-die",
    ),
    "unknown-outcome": Mutation(
        "after a time-out a switcher reads the chain first",
        _told_before_the_transaction,
        ("I7", *LOSS),
        "switchers-race",
    ),
    "failed-early": Mutation(
        "a send attempt is answered as failed only once the chain record says so",
        _failed_early,
        ("I10",),
        "switchers-race",
    ),
    "mark-inherited": Mutation("an incomplete table stays marked", _mark_inherited, ("TABLE",), "groups-die"),
    "settle-copy": Mutation(
        "the member that settles copies its tail before the transaction", _settle_without_copy, ("I12",), "groups-die"
    ),
    "settle-tail": Mutation(
        "a segment is settled at a fenced disk's tail, not at the commit that it knew",
        _settle_at_commit,
        ("I6",),
        "groups-die",
    ),
    "answered-anew": Mutation(
        "suspects tell each other their tails on each link",
        _answer_once,
        ("I13",),
        "suspects-restart",
    ),
    "own-commit": Mutation(
        "a member truncates only to the sealed length in the chain record", _cut_at_own_commit, LOSS, "restarts"
    ),
    "fence-durable": Mutation("a fence survives a restart", _fence_durable, LOSS, "fences"),
    "voided": Mutation("a member run opens only what it prepared itself", _voided, ("RT",), "prepared"),
    "old-acks": Mutation(
        "acknowledgements of an older connection do not count", _old_acknowledgements, LOSS, "switchers-race"
    ),
    "older-chain": Mutation("an older chain record is ignored", _older_chain, LOSS, "switchers-race"),
    "old-certificate": Mutation(
        "a certificate of an earlier run proves nothing about this one", _old_certificate, ("I7", "RT"), "fences"
    ),
    "merge-empty": Mutation(
        "a merge includes the tables of the settled segments", _merge_empty, ("TABLE",), "groups-die"
    ),
    "append-time-back": Mutation("append time never goes back", _append_time_back, ("TIME",), "clocks"),
    "append-time-believed": Mutation(
        "append time is never far ahead of the master's clock", _append_time_believed, ("TIME",), "clocks"
    ),
    "append-time-restart": Mutation(
        "a restarted member knows the append time of its last batch", _append_time_of_a_restart, ("TIME",), "clocks"
    ),
    "append-time-chain": Mutation(
        "a segment begins at the append time that the chain record names",
        _append_time_of_the_chain,
        ("TIME",),
        "clocks",
    ),
    "repeat-waits": Mutation("a repeat is answered only once it is committed", _repeat_waits, ("I12", "I1", "I6")),
    "each-place-final": Mutation(
        "a place is final only if the tables of all segments before it are known",
        _each_place_is_final,
        ("PLACE",),
        "groups-die",
    ),
    "dismissed-run": Mutation(
        "a broker believes nothing that a dismissed run says", _dismissed_run, LOSS, "false-certificates"
    ),
    "dismissed-once": Mutation(
        "a dismissed run is refused when it connects again", _dismissed_once, LOSS, "false-certificates"
    ),
    "own-death": Mutation(
        "a member run that reads its own certificate ends", _own_death, ("I13", *LOSS), "false-certificates"
    ),
    "run-refused": Mutation(
        "after a refusal the rest of the producer run is refused",
        _rest_of_the_run,
        ("GAP", "I2"),
        world="brokers",
        batch_count=150,
    ),
    "second-member": Mutation(
        "a disk that was just started waits for the other one", _decides_alone, LOSS, "older-disks"
    ),
    "one-level": Mutation("each batch waits for its own ack level", _one_level_a_log, ("I12", *LOSS), "mixed-levels"),
    "contradicted": Mutation(
        "a disk that the chain contradicts keeps what it has", _contradicted_is_cut, ("KEPT", *LOSS), "contradicted"
    ),
    "longest-of-started": Mutation(
        "of disks that were just started, the longest tail decides", _shortest_of_started, LOSS, "older-disks"
    ),
}
"""By name."""
