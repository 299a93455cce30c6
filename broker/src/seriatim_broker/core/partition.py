"""One partition on one broker: its chain as far as it is known, its logs, and what this member does about them.

This module holds the state and the rules of membership: fence, prepare, open, seal, replicate. What takes several steps
has a module of its own: `switch`, `settle`, `copying`, `tables`, `groups`.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.ids import MemberId, PartitionId, RunId

from . import appending, copying, groups, right, settle, switch, tables
from .chain import Chain, Segment, SegmentState
from .effects import AppendRefused, ReadChain, Resolved, RouteInfo, Send, WriteChain
from .events import Append, WriteOutcome
from .log import (
    CursorState,
    DropPreparation,
    DropSegment,
    LocalSegment,
    Preparation,
    PutPreparation,
    PutSegment,
    PutTailCopy,
    RecoveredPartition,
    TailCopy,
    merge_tails,
)
from .messages import (
    ChainUpdate,
    FenceAnswer,
    FenceRequest,
    Heartbeat,
    PrepareAnswer,
    PrepareRequest,
    QuiesceAnswer,
    QuiesceRequest,
    ReplicaTail,
    Replicate,
    ReplicateAck,
    ReplicateRefused,
    ResumeReplica,
    StoreTail,
    TailStored,
)
from .outbox import LogDurable, Outbox
from .replica import Follower, SegmentLog
from .state import State


class Quiescence(State):
    """A planned switch is near: new batches wait, in order, until it has happened or is given up."""

    __slots__ = ("asked_by", "deadline_us", "queued", "reported", "switch")

    def __init__(self, asked_by: str, switch_id: bytes, deadline_us: int) -> None:
        self.asked_by = asked_by
        self.switch = switch_id
        self.deadline_us = deadline_us
        self.queued: list[Append] = []
        self.reported = False


class Waiter(State):
    """Somebody who asked for a route and waits until the chain is past a segment."""

    __slots__ = ("asked_us", "deadline_us", "past", "request")

    def __init__(self, request: int, past: int | None, asked_us: int, deadline_us: int) -> None:
        self.request = request
        self.asked_us = asked_us
        self.past = past
        self.deadline_us = deadline_us


class Partition(State):
    """The state of one partition on one broker."""

    __slots__ = (
        "before_tables",
        "chain",
        "copies",
        "cursors",
        "fenced_at_us",
        "groups",
        "id",
        "logs",
        "preparations",
        "probe_wanted",
        "probed_at_us",
        "quiescence",
        "read_pause_us",
        "reading",
        "revision",
        "rights",
        "settling",
        "switch",
        "table_waits",
        "tail_copies",
        "waiters",
        "writes",
    )

    def __init__(self, partition: PartitionId) -> None:
        self.id = partition
        self.chain: Chain | None = None
        self.revision = 0
        self.logs: dict[int, SegmentLog] = {}
        self.preparations: dict[tuple[int, bytes], Preparation] = {}
        self.tail_copies: dict[int, TailCopy] = {}
        self.cursors: dict[tuple[int, str], CursorState] = {}
        self.reading = False
        self.read_pause_us = 0
        self.probed_at_us: int | None = None
        self.probe_wanted: int | None = None  # once the chain is read
        self.waiters: list[Waiter] = []
        self.quiescence: Quiescence | None = None
        self.fenced_at_us: int | None = None
        self.switch: switch.Switch | None = None
        self.settling: dict[int, settle.Settlement] = {}
        self.copies: dict[int, copying.Copying] = {}
        self.before_tables: tables.KnownTables = {}
        self.table_waits: list[tables.TableWait] = []
        self.groups: dict[str, groups.GroupHead] = {}
        self.rights: dict[int, right.Right] = {}
        self.writes: dict[int, tuple[str, int, Chain]] = {}

    # ---- start ------------------------------------------------------------------------------------------

    def recover(self, found: RecoveredPartition, suspect: bool) -> None:
        """Take up what the disk holds."""
        for preparation in found.preparations:
            self.preparations[preparation.segment_no, preparation.attempt] = preparation
        for segment in found.segments:
            chosen = self.preparations.get((segment.record.no, segment.record.attempt))
            table = chosen.table if chosen is not None else ()
            self.logs[segment.record.no] = SegmentLog.recovered(self.id, segment, table, suspect)
        for tail in found.tail_copies:
            self.tail_copies[tail.segment_no] = tail
        for cursor in found.cursors:
            self.cursors[cursor.segment_no, cursor.group] = cursor

    def fence_at_start(self, outbox: Outbox) -> None:
        """A run never goes on with what an earlier one opened, nor opens what that one prepared to be master of."""
        self.fence_unsealed(outbox)
        self.void_attempts(outbox)

    def fence_unsealed(self, outbox: Outbox) -> None:
        """Fence every segment that is not known to be sealed."""
        for log in self.logs.values():
            if log.record.sealed_len is None and not log.record.fenced:
                log.fence(outbox)

    def void_attempts(self, outbox: Outbox) -> None:
        """Void the attempts under which earlier runs prepared to be master."""
        for key, preparation in list(self.preparations.items()):
            if preparation.members[0] == outbox.member and preparation.run != outbox.run and not preparation.voided:
                self.preparations[key] = replace(preparation, voided=True)
                outbox.write(PutPreparation(self.id, self.preparations[key]))

    # ---- the chain --------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost by forgetting this object: no data, nothing under way."""
        return not (
            self.logs
            or self.preparations
            or self.tail_copies
            or self.switch
            or self.waiters
            or self.groups
            or self.copies
            or self.table_waits
            or self.probed_at_us is not None
            or self.probe_wanted is not None
            or self.reading
            or self.writes
        )

    def read_chain(self, outbox: Outbox) -> None:
        """Ask the coordinator, unless that is under way."""
        if not self.reading:
            self.reading = True
            outbox.emit(ReadChain(self.id))

    def on_chain_read(self, outbox: Outbox, chain: Chain | None, revision: int, failed: bool) -> None:
        """The coordinator answered, or did not."""
        self.reading = False
        if not failed:
            self.read_pause_us = 0
        if failed:
            if self.needs_chain(outbox):
                self.read_pause_us = min(
                    max(2 * self.read_pause_us, outbox.config.retry_us), outbox.config.retry_us_max
                )
                spread_us = self.id * 7919 % self.read_pause_us  # so that thousands of partitions do not ask at once
                outbox.poll(self.read_pause_us + spread_us, "read", self.id)
        elif chain is None:
            for waiter in self.waiters:
                error = errors.UnknownTopicError(f"there is no partition {self.id}")
                outbox.emit(Resolved(waiter.request, None, error))
            self.waiters = []
            self.copies = {}
            groups.on_no_partition(outbox, self)
        else:
            self.learn(outbox, chain, revision)
        if self.switch is not None:
            self.switch.on_chain_read(outbox, self, chain, revision, failed)
        groups.on_chain_read(outbox, self, failed)
        if self.probe_wanted is not None:
            wanted, self.probe_wanted = self.probe_wanted, None
            if self.chain is not None:
                self.probe_master(outbox, wanted)
        self.answer_waiters(outbox)

    def write_chain(
        self, outbox: Outbox, owner: str, chain: Chain, detail: int = 0, certificate: RunId | None = None
    ) -> None:
        """One transaction on the record, compared with the revision that was read last."""
        serial = outbox.new_serial()
        self.writes[serial] = (owner, detail, chain)
        outbox.emit(WriteChain(self.id, serial, chain, self.revision, certificate))

    def is_writing(self, owner: str, detail: int = 0) -> bool:
        """Whether a transaction of that owner is under way."""
        return any((kind, no) == (owner, detail) for kind, no, _ in self.writes.values())

    def on_chain_written(self, outbox: Outbox, serial: int, outcome: WriteOutcome, revision: int) -> None:
        """A transaction ended. Whoever lost, or does not know, reads before it does anything else."""
        owner, detail, chain = self.writes.pop(serial)
        if outcome is WriteOutcome.DONE:
            if owner == "switch":
                self._note_switch(outbox, chain)
            self.learn(outbox, chain, revision)
            self._announce(outbox, chain, revision, detail)
        else:
            self.read_chain(outbox)
        if owner == "switch" and self.switch is not None:
            self.switch.on_written(outbox, self, outcome)
        elif owner == "settle":
            settle.on_written(outbox, self, detail, outcome)
        elif owner == "right":
            right.on_written(outbox, self, detail, outcome)
        elif owner == "copy":
            copying.on_written(outbox, self, detail, outcome)

    def _note_switch(self, outbox: Outbox, chain: Chain) -> None:
        """Tell the operator, and pass over a group that failed for a while."""
        running = self.switch
        old = chain.segments[-2] if len(chain.segments) > 1 else None
        if running is None or old is None:
            return
        if not running.is_planned:
            switch.note_failure(outbox, old.group)
        outbox.note(
            "switched",
            self.id,
            kind=running.kind.value,
            reason=running.reason,
            segment=chain.open_segment.no,
            group=chain.open_segment.group,
            old_state=old.state.value,
            took_us=outbox.now.mono_us - running.started_us,
        )

    def _announce(self, outbox: Outbox, chain: Chain, revision: int, detail: int) -> None:
        """Tell the members concerned what the chain says now."""
        told: dict[MemberId, None] = {}
        for segment in chain.segments:
            if segment.no >= chain.open_segment.no - 1 or segment.no == detail:
                told.update(dict.fromkeys((*segment.members, *segment.eligible)))
        for member in told:
            if member != outbox.member and outbox.is_linked(member):
                outbox.send(member, ChainUpdate(chain, revision))

    def needs_chain(self, outbox: Outbox) -> bool:
        """Whether somebody here waits for the chain."""
        return bool(
            self.waiters
            or self.groups
            or self.settling
            or self.copies
            or self._has_unsealed()
            or (self.chain is None and self.logs)
        )

    def learn(self, outbox: Outbox, chain: Chain, revision: int = 0) -> None:
        """Take up a record; an older one than the known one says nothing."""
        known = self.chain
        if known is not None and chain.epoch <= known.epoch:
            if chain.epoch == known.epoch:
                self.revision = max(self.revision, revision)
            return
        self.chain = chain
        self.revision = revision
        outbox.watch_peers(self.id, chain)
        self._drop_forgotten(outbox, chain)
        for segment in chain.segments:
            self._agree(outbox, chain, segment)
        self._discard_preparations(outbox, chain)
        right.on_learned(outbox, self, known, chain)
        groups.on_learned(outbox, self, chain)
        tables.on_learned(outbox, self, chain)
        if self.switch is not None:
            self.switch.on_learned(outbox, self, chain)
        settle.on_learned(outbox, self, chain)
        copying.on_learned(outbox, self, chain)
        self.answer_waiters(outbox)

    def _drop_forgotten(self, outbox: Outbox, chain: Chain) -> None:
        """Retention: what the record no longer names is dropped here too."""
        first = chain.segments[0].no
        for no in [no for no in self.logs if no < first]:
            del self.logs[no]
            outbox.write(DropSegment(self.id, no))
        for key in [key for key in self.cursors if key[0] < first]:
            del self.cursors[key]
        for no in [no for no in self.tail_copies if no < first]:
            del self.tail_copies[no]
            outbox.write(DropSegment(self.id, no))

    def _agree(self, outbox: Outbox, chain: Chain, segment: Segment) -> None:
        """Bring what is here in line with what the record says of one segment."""
        log = self.logs.get(segment.no)
        if log is not None and log.record.sealed_len is not None:
            return
        mine = outbox.member in segment.members
        if segment.state is SegmentState.OPEN:
            if mine and log is None:
                self._open(outbox, chain, segment)
            return
        if log is None:
            if not mine:
                return
            log = self._empty_log(outbox, segment, fenced=True)
        if segment.state is SegmentState.SEALED:
            assert segment.sealed_len is not None
            assert segment.sealed_checksum is not None
            self._end_quiescence(outbox)
            log.seal(outbox, segment.sealed_len, segment.sealed_checksum)
            appending.settle_waiting(outbox, log, self.route())
        elif segment.state is SegmentState.UNSETTLED:
            self._end_quiescence(outbox)
            log.fence(outbox)
            appending.abandon_waiting(outbox, log, self.route())
        elif not log.record.lost:
            log.update(outbox, fenced=True, lost=True)
            appending.abandon_waiting(outbox, log, self.route())
        if self.fenced_at_us is not None and not self._has_unsealed():
            self.fenced_at_us = None

    def _has_unsealed(self) -> bool:
        """Whether a segment here may still be open, as far as this member knows."""
        decided_below = self.chain.open_segment.no if self.chain is not None else 0
        return any(
            log.record.sealed_len is None and not log.record.lost and log.no >= decided_below
            for log in self.logs.values()
        )

    def _empty_log(self, outbox: Outbox, segment: Segment, fenced: bool) -> SegmentLog:
        """A log with nothing in it: of a member that was listed, and never took a batch."""
        preparation = self.preparations.get((segment.no, segment.attempt))
        table = preparation.table if preparation is not None else ()
        assert self.chain is not None
        record = LocalSegment(
            segment.no, segment.attempt, segment.members, self.chain.flush, segment.incomplete_table, fenced=fenced
        )
        log = SegmentLog(self.id, record, table)
        self.logs[segment.no] = log
        outbox.write(PutSegment(self.id, record))
        return log

    def _open(self, outbox: Outbox, chain: Chain, segment: Segment) -> None:
        """The record says that this member belongs to the open segment: begin, if it was prepared in this run."""
        preparation = self.chosen_preparation(segment)
        master = segment.master == outbox.member
        fit = preparation is not None and preparation.run == outbox.run and not preparation.voided
        if master:
            fit = fit and segment.master_run == outbox.run
        log = self._empty_log(outbox, segment, fenced=not fit)
        if not fit:
            self.note_fenced(outbox)
            return
        log.active = True
        log.last_append_ms = segment.opened_at_ms
        if master:
            log.unbroken = True
            log.update(outbox, opened_run=outbox.run)
            log.followers = {member: Follower() for member in segment.members[1:]}
            for member in log.followers:
                self._resume_follower(outbox, log, member)

    def chosen_preparation(self, segment: Segment) -> Preparation | None:
        """What was prepared here under the attempt that the record names."""
        return self.preparations.get((segment.no, segment.attempt))

    def _discard_preparations(self, outbox: Outbox, chain: Chain) -> None:
        """What the record did not choose is of no more use; what it chose stays as table and tail copy."""
        for no, attempt in list(self.preparations):
            if no > chain.open_segment.no:
                continue
            segment = chain.segment(no)
            if segment is None or segment.attempt != attempt:
                del self.preparations[no, attempt]
                outbox.write(DropPreparation(self.id, no, attempt))

    def route(self) -> RouteInfo | None:
        """Where to append, as far as this broker knows."""
        if self.chain is None:
            return None
        segment = self.chain.open_segment
        return RouteInfo(self.id, self.chain.epoch, segment.no, segment.master.broker, self.chain.send_chain[1:])

    # ---- routes -----------------------------------------------------------------------------------------

    def resolve(self, outbox: Outbox, request: int, failed_segment: int | None, deadline_us: int) -> None:
        """Answer with the route, now if it is known to be good, else after a look at the coordinator."""
        self.waiters.append(Waiter(request, failed_segment, outbox.now.mono_us, deadline_us))
        outbox.wake(deadline_us, "waiters", self.id)
        if failed_segment is None and self._is_mine(outbox):
            self.answer_waiters(outbox)
            return
        if failed_segment is not None and self.chain is not None and self.chain.open_segment.no == failed_segment:
            self.begin_switch(outbox, "complaint", failed_segment)
            self._look_for(outbox, self.waiters[-1:])
        else:
            self.read_chain(outbox)

    def probe_master(self, outbox: Outbox, segment_no: int) -> None:
        """A client finds the master silent: ask it, and look after a moment whether it answered."""
        self.probe_wanted = segment_no if self.chain is None else None
        segment = self.chain.open_segment if self.chain is not None else None
        if self.probed_at_us is not None or segment is None or segment.no != segment_no:
            return
        if segment.master == outbox.member:
            return
        self.probed_at_us = outbox.now.mono_us
        if outbox.is_linked(segment.master):
            outbox.send(segment.master, Heartbeat(outbox.now.mono_us))
        else:
            outbox.connect(segment.master.broker)
        outbox.poll(outbox.config.probe_us, "probe", self.id, segment_no)

    def on_probe_due(self, outbox: Outbox, segment_no: int) -> None:
        """No word from the master since it was asked: it is taken for dead."""
        probed_at_us, self.probed_at_us = self.probed_at_us, None
        segment = self.chain.open_segment if self.chain is not None else None
        if probed_at_us is None or segment is None or segment.no != segment_no:
            return
        link = outbox.links.get(segment.master.broker)
        heard = link is not None and link.up and link.member == segment.master and link.heard_us >= probed_at_us
        if not heard:
            self.begin_switch(outbox, "silent to a client", segment_no)

    def _is_mine(self, outbox: Outbox) -> bool:
        log = self.open_log()
        return log is not None and log.active

    def answer_waiters(self, outbox: Outbox) -> None:
        """Answer those whose segment the chain is past, and those whose time is up."""
        if not self.waiters:
            return
        still: list[Waiter] = []
        for waiter in self.waiters:
            late = outbox.now.mono_us >= waiter.deadline_us
            known = self.chain is not None and not self.reading
            past = self.chain is not None and (waiter.past is None or self.chain.open_segment.no > waiter.past)
            if late and self.chain is None:
                error = errors.CoordinatorUnavailableError("the chain could not be read in time")
                outbox.emit(Resolved(waiter.request, None, error))
            elif late or (past and known) or (past and waiter.past is not None):
                outbox.emit(Resolved(waiter.request, self.route(), None))
            elif known and waiter.past is not None and self.switch is None:
                still.append(waiter)
                self.begin_switch(outbox, "complaint", waiter.past)
            else:
                still.append(waiter)
        self.waiters = still
        self._look_for(outbox, [waiter for waiter in still if waiter.past is not None])

    def _look_for(self, outbox: Outbox, complaints: list[Waiter]) -> None:
        """Somebody else may run the switch, and nobody tells a broker that is no member: look, less and less often."""
        if complaints:
            age_us = outbox.now.mono_us - max(waiter.asked_us for waiter in complaints)
            outbox.poll(max(outbox.config.retry_us, age_us // 2), "read", self.id)

    # ---- appending --------------------------------------------------------------------------------------

    def open_log(self) -> SegmentLog | None:
        """The log of the last segment here."""
        if self.chain is None:
            return None
        return self.logs.get(self.chain.open_segment.no)

    def on_append(self, outbox: Outbox, event: Append) -> None:
        """A producer's batch."""
        log = self.open_log()
        if log is None or not log.active or not log.unbroken:
            error: errors.SeriatimError
            if log is not None and log.record.fenced:
                error = errors.SegmentMovedError(f"segment {log.no} is fenced; the next one opens elsewhere")
            else:
                error = errors.NotServingError("this broker is not the master of the open segment")
            outbox.emit(AppendRefused(event.request, error, self.route()))
            return
        if self.quiescence is not None:
            if len(self.quiescence.queued) >= outbox.config.queued_appends_max:
                overload = errors.OverloadedError("a planned switch is near", retry_after_ms=50)
                event = replace(event, body=b"", refuse=overload)
            self.quiescence.queued.append(event)
            return
        self._append(outbox, log, event)

    def _append(self, outbox: Outbox, log: SegmentLog, event: Append) -> None:
        batch = appending.append(outbox, log, event, self.route() if event.refuse else None)
        if batch is None:
            return
        for member, follower in log.followers.items():
            if follower.in_step:
                outbox.send(member, Replicate(self.id, log.no, log.record.attempt, log.commit, (batch,)))
                log.told_commit = log.commit

    def on_log_durable(self, outbox: Outbox, mark: LogDurable) -> None:
        """This member's disk has the log up to there."""
        log = self.logs.get(mark.segment_no)
        if log is None or log.generation != mark.generation:
            return
        log.durable = max(log.durable, min(mark.tail, log.tail))
        if log.active and log.unbroken:
            self._move_commit(outbox, log)

    def _move_commit(self, outbox: Outbox, log: SegmentLog) -> None:
        """Commit is the least index over all members; replies, readers and followers hear of it."""
        if log.record.flush:
            safe = min([log.durable, *(follower.durable for follower in log.followers.values())])
        else:
            safe = min([log.tail, *(follower.received for follower in log.followers.values())])
        moved = log.advance_commit(safe)
        appending.release(outbox, log)
        if not moved:
            return
        groups.pump(outbox, self, log.no)
        if self.quiescence is not None:
            self._report_quiet(outbox, log)
        if log.told_commit < log.commit:
            outbox.poll(outbox.config.commit_idle_us, "commit", self.id)

    def tell_commit(self, outbox: Outbox) -> None:
        """No frame carried the commit to the followers for a while: it goes alone."""
        log = self.open_log()
        if log is None or not log.active or not log.unbroken or log.told_commit >= log.commit:
            return
        log.told_commit = log.commit
        for member, follower in log.followers.items():
            if follower.in_step:
                outbox.send(member, Replicate(self.id, log.no, log.record.attempt, log.commit, ()))

    # ---- replication ------------------------------------------------------------------------------------

    def _resume_follower(self, outbox: Outbox, log: SegmentLog, member: MemberId) -> None:
        """First word on a connection: where are you? Acknowledgements of an older connection do not count."""
        self._out_of_step(outbox, log.followers[member])
        outbox.send(member, ResumeReplica(self.id, log.no, log.record.attempt))

    def _out_of_step(self, outbox: Outbox, follower: Follower) -> None:
        """Without this follower nothing commits: it has a while to come back, then the segment moves on."""
        follower.in_step = False
        if follower.out_of_step_us is None:
            follower.out_of_step_us = outbox.now.mono_us
            outbox.poll(2 * outbox.config.resume_us, "step", self.id)

    def on_step_due(self, outbox: Outbox) -> None:
        """Is a follower out of step for too long?"""
        log = self.open_log()
        if log is None or not log.active or not log.unbroken:
            return
        since = [follower.out_of_step_us for follower in log.followers.values() if follower.out_of_step_us is not None]
        if not since:
            return
        left_us = min(since) + 2 * outbox.config.resume_us - outbox.now.mono_us
        if left_us > 0:
            outbox.poll(left_us, "step", self.id)
        else:
            self.begin_switch(outbox, "follower out of step", log.no)
            outbox.poll(outbox.config.retry_us_max, "step", self.id)

    def resume_followers(self, outbox: Outbox) -> None:
        """Ask those again that were not ready."""
        log = self.open_log()
        if log is None or not log.active or not log.unbroken:
            return
        for member, follower in log.followers.items():
            if not follower.in_step and outbox.is_linked(member):
                self._resume_follower(outbox, log, member)

    def on_resume(self, outbox: Outbox, sender: MemberId, message: ResumeReplica) -> None:
        """The master asks where this member is."""
        log = self._followed_log(outbox, sender, message.segment_no, message.attempt)
        if log is not None:
            outbox.send(
                sender,
                ReplicaTail(self.id, log.no, log.record.attempt, log.tail, log.tail_checksum, log.durable),
            )

    def _followed_log(self, outbox: Outbox, sender: MemberId, no: int, attempt: bytes) -> SegmentLog | None:
        """The log that a master speaks of; answers and returns None if this member does not follow it."""
        log = self.logs.get(no)
        follows = log is not None and log.active and not log.unbroken and sender == log.record.members[0]
        if log is not None and follows and log.record.attempt == attempt:
            return log
        if log is None and (no, attempt) in self.preparations:
            self.read_chain(outbox)  # the switch's word has not come yet; the master asks again when it is refused
        outbox.send(sender, ReplicateRefused(self.id, no, attempt, "fenced" if log is not None else "not opened"))
        return None

    def on_replica_tail(self, outbox: Outbox, sender: MemberId, message: ReplicaTail) -> None:
        """A follower says where it is: send on from there."""
        log = self.logs.get(message.segment_no)
        if log is None or not log.active or log.record.attempt != message.attempt or sender not in log.followers:
            return
        follower = log.followers[sender]
        if message.tail > log.tail or message.tail < log.commit:
            self.begin_switch(outbox, "follower disagrees", log.no)
            return
        if message.checksum != log.checksum_at(message.tail):
            self.begin_switch(outbox, "follower disagrees", log.no)
            return
        follower.in_step = True
        follower.out_of_step_us = None
        follower.received = message.tail
        follower.durable = message.durable
        rest = tuple(batch for batch in log.uncommitted if batch.header.base_index >= message.tail)
        log.told_commit = log.commit
        outbox.send(sender, Replicate(self.id, log.no, log.record.attempt, log.commit, rest))
        self._move_commit(outbox, log)

    def on_replicate(self, outbox: Outbox, sender: MemberId, message: Replicate) -> None:
        """Batches from the master: only the next ones, with the chain unbroken."""
        log = self._followed_log(outbox, sender, message.segment_no, message.attempt)
        if log is None:
            return
        for batch in message.batches:
            if batch.header.end_index <= log.tail:
                continue  # sent again after a resume
            if not log.follow(outbox, batch):
                outbox.send(sender, ReplicateRefused(self.id, log.no, log.record.attempt, "gap"))
                return
        if log.advance_commit(min(message.commit, log.tail)):
            groups.pump(outbox, self, log.no)
        if message.batches:
            ack = ReplicateAck(self.id, log.no, log.record.attempt, log.tail, log.tail)
            if not log.record.flush:
                outbox.send(sender, replace(ack, durable=log.durable))
            outbox.when_durable(Send(sender.broker, ack))

    def on_replicate_ack(self, outbox: Outbox, sender: MemberId, message: ReplicateAck) -> None:
        """A follower has more."""
        log = self.logs.get(message.segment_no)
        if log is None or not log.active or log.record.attempt != message.attempt:
            return
        follower = log.followers.get(sender)
        if follower is None or not follower.in_step:
            return
        follower.received = max(follower.received, min(message.received, log.tail))
        follower.durable = max(follower.durable, min(message.durable, log.tail))
        self._move_commit(outbox, log)

    def on_replicate_refused(self, outbox: Outbox, sender: MemberId, message: ReplicateRefused) -> None:
        """A follower takes no more: it lost step, was fenced, or did not hear yet that the segment is open."""
        log = self.logs.get(message.segment_no)
        if log is None or not log.active or sender not in log.followers or log.record.attempt != message.attempt:
            return
        if message.reason == "gap":
            if log.followers[sender].in_step:
                self._resume_follower(outbox, log, sender)
        elif message.reason == "not opened" and self.chain is not None:
            self._out_of_step(outbox, log.followers[sender])
            outbox.send(sender, ChainUpdate(self.chain, self.revision))
            self.read_chain(outbox)  # perhaps it is this member that has not heard
            outbox.poll(outbox.config.commit_idle_us, "follow", self.id)
        else:
            self.read_chain(outbox)
            self.begin_switch(outbox, "follower fenced", log.no)

    # ---- links ------------------------------------------------------------------------------------------

    def on_link_up(self, outbox: Outbox, member: MemberId) -> None:
        """A connection to another broker stands (again)."""
        log = self.open_log()
        if log is not None and log.active and log.unbroken and member in log.followers:
            self._resume_follower(outbox, log, member)
        if self.chain is not None and any(member in segment.members for segment in self.chain.segments[-2:]):
            outbox.send(member, ChainUpdate(self.chain, self.revision))
        if self.switch is not None:
            self.switch.on_link_up(outbox, self, member)
        if any(log.record.sealed_len is None and not log.active for log in self.logs.values()):
            self.read_chain(outbox)  # what was decided while this member was away?
        right.on_link_up(outbox, self, member)
        groups.on_link_up(outbox, self, member)
        settle.on_link_up(outbox, self, member)
        copying.on_link_up(outbox, self, member)

    def on_link_lost(self, outbox: Outbox, member: MemberId) -> None:
        """A connection broke; it may come back."""
        log = self.open_log()
        if log is not None and member in log.followers:
            self._out_of_step(outbox, log.followers[member])
        if self.switch is not None:
            self.switch.on_link_lost(outbox, self, member)
        right.on_link_lost(outbox, self, member)
        copying.on_link_lost(outbox, self, member)

    def on_peer_dead(self, outbox: Outbox, broker: str) -> None:
        """Another member is refused, silent, or did not come back in time: its segments here move on."""
        log = self.open_log()
        if log is None or log.record.sealed_len is not None:
            return
        others = [member for member in log.record.members if member.broker == broker]
        if others and outbox.member in log.record.members:
            self.begin_switch(outbox, "peer dead", log.no)

    def begin_switch(self, outbox: Outbox, reason: str, segment_no: int) -> None:
        """Run the switch of this segment, unless it is under way."""
        if self.switch is not None and self.switch.segment_no >= segment_no and not self.switch.is_planned:
            self.switch.hurry(outbox, self)
            return
        if self.chain is not None and self.chain.open_segment.no > segment_no:
            return
        if self.switch is not None:
            self.switch.give_up(outbox, self, errors.UnavailableError("a member failed meanwhile"))
        self.switch = switch.Switch(switch.Kind.FAILOVER, reason, segment_no, None)
        self.switch.begin(outbox, self)

    # ---- fence ------------------------------------------------------------------------------------------

    def on_fence(self, outbox: Outbox, sender: MemberId, message: FenceRequest) -> None:
        """Fence and say what is here, in one step; the answer leaves when both are on the disk."""
        if self._answer_decided(outbox, sender, message.segment_no):
            return
        log = self.logs.get(message.segment_no)
        if log is None:
            preparation = self.preparations.get((message.segment_no, message.attempt))
            if preparation is None:
                outbox.send(sender, _ignorant(self.id, message))
                return
            record = LocalSegment(
                message.segment_no,
                message.attempt,
                preparation.members,
                preparation.flush,
                preparation.incomplete_table,
                fenced=True,
            )
            log = SegmentLog(self.id, record, preparation.table)
            self.logs[log.no] = log
            outbox.write(PutSegment(self.id, record))
        answer = self.fence_and_answer(outbox, log, message)
        outbox.when_durable(Send(sender.broker, answer))
        self.note_fenced(outbox)

    def fence_and_answer(self, outbox: Outbox, log: SegmentLog, message: FenceRequest) -> FenceAnswer:
        """The one step: nothing is appended or committed between the fence and the tail that is answered."""
        log.fence(outbox)
        right.refuse_server(outbox, self, log.no)
        return self.fence_answer(outbox, log, message)

    def fence_answer(self, outbox: Outbox, log: SegmentLog, message: FenceRequest) -> FenceAnswer:
        """Only a master without a break since it opened the segment may speak of its commit; others of their tail."""
        length: int | None = log.commit if log.unbroken else log.tail
        if log.suspect:
            length = None
        return FenceAnswer(
            partition=self.id,
            segment_no=log.no,
            switch=message.switch,
            fenced=True,
            length=length,
            checksum=log.checksum_at(length) if length is not None else 0,
            unbroken=log.unbroken,
            commit=log.commit,
            last_append_ms=log.last_append_ms,
            table=log.table.as_of(log.no, length) if length is not None else (),
            incomplete_table=log.record.incomplete_table,
            tail=log.tail_copy(length).batches if length is not None else (),
        )

    def _answer_decided(self, outbox: Outbox, sender: MemberId, segment_no: int) -> bool:
        """Tell a late switcher that the chain has moved on."""
        if self.chain is None:
            return False
        segment = self.chain.segment(segment_no)
        if segment is not None and segment.state is SegmentState.OPEN:
            return False
        if segment is None and segment_no > self.chain.open_segment.no:
            return False
        outbox.send(sender, ChainUpdate(self.chain, self.revision))
        return True

    def note_fenced(self, outbox: Outbox) -> None:
        """A segment must not stay fenced because a switcher died: this member looks after it in a while."""
        if self.fenced_at_us is None:
            self.fenced_at_us = outbox.now.mono_us
            outbox.poll(outbox.config.fenced_us, "fenced", self.id)

    def on_fenced_too_long(self, outbox: Outbox) -> None:
        """No newer chain came: run the switch here."""
        if self.fenced_at_us is None:
            return
        if outbox.now.mono_us < self.fenced_at_us + outbox.config.fenced_us:
            outbox.poll(self.fenced_at_us + outbox.config.fenced_us - outbox.now.mono_us, "fenced", self.id)
            return
        log = self.open_log()
        if not self._has_unsealed():
            self.fenced_at_us = None
            return
        if log is not None and log.record.fenced and log.no == max(self.logs):
            self.begin_switch(outbox, "fenced too long", log.no)
        else:
            self.read_chain(outbox)
        outbox.poll(outbox.config.retry_us_max, "fenced", self.id)

    # ---- prepare ----------------------------------------------------------------------------------------

    def on_prepare(self, outbox: Outbox, sender: MemberId, message: PrepareRequest) -> None:
        """Write what a segment would start from, under the attempt's own id, beside what others prepared."""
        refusal = self.prepare_refusal(outbox, message)
        answer = PrepareAnswer(self.id, message.segment_no, message.attempt, outbox.run, refusal)
        if refusal:
            outbox.send(sender, answer)
            return
        key = self.preparation_key(message)
        if key not in self.preparations:
            preparation = Preparation(
                message.segment_no,
                message.attempt,
                message.members,
                message.flush,
                message.incomplete_table,
                message.table,
                message.tail,
                outbox.run,
            )
            self.preparations[key] = preparation
            outbox.write(PutPreparation(self.id, preparation))
            outbox.poll(4 * outbox.config.fenced_us, "prepared", self.id)
        outbox.when_durable(Send(sender.broker, answer))

    def on_prepared_long_ago(self, outbox: Outbox) -> None:
        """Nobody said what became of an attempt: look, for this member may be the master that everybody waits for."""
        known = self.chain.open_segment.no if self.chain is not None else 0
        if any(no > known for no, _ in self.preparations):
            self.read_chain(outbox)
            outbox.poll(10 * outbox.config.retry_us_max, "prepared", self.id)

    def preparation_key(self, message: PrepareRequest) -> tuple[int, bytes]:
        """Each attempt has its own place: two switchers never overwrite each other."""
        return message.segment_no, message.attempt

    def prepare_refusal(self, outbox: Outbox, message: PrepareRequest) -> str:
        """Why a preparation is not taken; empty if it is."""
        if outbox.member not in message.members:
            return "not a member"
        known = self.preparations.get((message.segment_no, message.attempt))
        if known is not None and (known.voided or known.run != outbox.run):
            return "voided"
        if message.segment_no in self.logs:
            return "fenced or holds a batch"
        if self.chain is not None and message.segment_no <= self.chain.open_segment.no:
            return "decided"
        return ""

    def on_store_tail(self, outbox: Outbox, sender: MemberId, message: StoreTail) -> None:
        """Keep a second copy of an uncertain tail for a settler."""
        known = self.tail_copies.get(message.tail.segment_no)
        merged = message.tail if known is None else merge_tails(known, message.tail)
        if merged != known:
            self.tail_copies[merged.segment_no] = merged
            outbox.write(PutTailCopy(self.id, merged))
        stored = TailStored(self.id, message.tail.segment_no, message.settle)
        outbox.when_durable(Send(sender.broker, stored))

    # ---- planned switch: the master's part --------------------------------------------------------------

    def on_quiesce(self, outbox: Outbox, sender: MemberId, message: QuiesceRequest) -> None:
        """Queue new batches and report when commit = tail."""
        log = self.logs.get(message.segment_no)
        if log is None or not log.active or not log.unbroken or self.quiescence is not None:
            outbox.send(sender, QuiesceAnswer(self.id, message.segment_no, message.switch, quiet=False))
            return
        deadline_us = outbox.now.mono_us + outbox.config.planned_switch_us
        self.quiescence = Quiescence(sender.broker, message.switch, deadline_us)
        outbox.wake(deadline_us, "quiesce", self.id)
        self._report_quiet(outbox, log)

    def _report_quiet(self, outbox: Outbox, log: SegmentLog) -> None:
        quiescence = self.quiescence
        assert quiescence is not None
        if log.commit == log.tail and not quiescence.reported:
            quiescence.reported = True
            answer = QuiesceAnswer(self.id, log.no, quiescence.switch, quiet=True)
            outbox.send_broker(quiescence.asked_by, answer)

    def on_quiesce_deadline(self, outbox: Outbox) -> None:
        """The plan took too long, or its planner is silent: go on accepting."""
        quiescence = self.quiescence
        if quiescence is None or outbox.now.mono_us < quiescence.deadline_us:
            return
        log = self.open_log()
        if log is not None and log.active:
            outbox.send_broker(quiescence.asked_by, QuiesceAnswer(self.id, log.no, quiescence.switch, quiet=False))
            self._end_quiescence(outbox)
        # a fenced log keeps its queue until the chain says where the batches should go

    def _end_quiescence(self, outbox: Outbox) -> None:
        """Give the queued batches back: to the log if it is still active, else to their senders with the new route."""
        quiescence = self.quiescence
        if quiescence is None:
            return
        self.quiescence = None
        for event in quiescence.queued:
            self.on_append(outbox, event)


def _ignorant(partition: PartitionId, message: FenceRequest) -> FenceAnswer:
    """Unknown here: "I cannot say", never "not found"."""
    return FenceAnswer(partition, message.segment_no, message.switch, False, None, 0, False, 0, 0, (), True, ())
