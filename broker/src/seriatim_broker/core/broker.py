"""The core of a broker process: all its partitions, its links, its timers; one method that changes state.

`step(event, now)` takes what happened and returns what is to be done, in order. There is no I/O here, no clock and no
chance: the same code runs in production under asyncio and in the simulator on virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from seriatim_api import errors
from seriatim_api.batch import Checksum
from seriatim_api.ids import MemberId, PartitionId, RunId

from . import (
    appending,
    behind,
    copying,
    disks,
    dispatch,
    dropping,
    fencing,
    following,
    gaps,
    lanes,
    leaving,
    links,
    quarantine,
    ranges,
    record,
    repair,
    replication,
    retention,
    right,
    routes,
    settle,
    standing,
    switch,
)  # fmt: skip
from .config import BrokerConfig
from .effects import AppendRefused, Deliver, Effect, EndRun, LogsListed, Pong, Send
from .events import (
    Append,
    AskCopies,
    CarryOut,
    CertificateRead,
    CertificateSeen,
    ChainRead,
    ChainWritten,
    CompareChains,
    ConsumerAck,
    ConsumerCredit,
    ConsumerGone,
    ConsumerJoin,
    ConsumerLeave,
    ConsumerPing,
    CoordinatorRebuilt,
    CreatePartition,
    CursorRead,
    CursorWritten,
    DeclareGap,
    DescribeGroup,
    DirectoryChanged,
    DiskRoom,
    DropDeleted,
    DropPartitionData,
    Event,
    ForgetGroup,
    FoundDamage,
    Heal,
    LinkDown,
    LinkUp,
    ListCursors,
    ListLed,
    ListLogs,
    LogRead,
    Moment,
    MoveHead,
    OperateGroup,
    OwnRecordSeen,
    PassGroup,
    Persisted,
    PlanSwitch,
    ReadRange,
    Received,
    Release,
    ResolveConsumer,
    ResolveProducer,
    StagedFetched,
    StartPosition,
    SurveyPartition,
    SwitchAwayFrom,
    Tick,
    Trim,
    WriterRead,
    WritesRefused,
)
from .groups import cursors, delivery, operations, progress, questions, serving, subscribing
from .log import DropCursor, DropPartition, RecoveredPartition
from .messages import (
    ChainChanges,
    ChainUpdate,
    CopiesAnswer,
    CopiesQuestion,
    HealRequest,
    Heartbeat,
    HeartbeatAnswer,
    LaneProbe,
    Message,
    MoveRequest,
    ReleaseRequest,
)
from .outbox import LogDurable, Outbox, Stored, Timer
from .partition import Partition, Partitions
from .publications import carrying
from .state import State


class BrokerCore(State):
    """One run of one broker.

    Args:
        config: Times and limits.
        member: This broker and its disk.
        run: The number of this run, raised durably before this object is made.
        nonce: 12 random bytes of this run, for ids.
        checksum: CRC-32C.
        recovered: What the disk holds.
        suspect_before_run: The run that followed the last one that did not end in order; or 0.
    """

    __slots__ = ("early", "is_behind", "outbox", "partitions", "ready")

    def __init__(
        self,
        config: BrokerConfig,
        member: MemberId,
        run: int,
        nonce: bytes,
        checksum: Checksum,
        recovered: Iterable[RecoveredPartition] = (),
        suspect_before_run: int = 0,
    ) -> None:
        self.outbox = Outbox(config, member, run, nonce, checksum)
        self.outbox.suspect_before_run = suspect_before_run
        self.partitions: Partitions = {}
        self.ready = False
        self.is_behind = False  # and what is open here is fenced
        self.early: list[Event] = []  # what came before the start was durable
        for found in recovered:
            partition = self._partition(found.partition)
            partition.recover(found, suspect_before_run)
            for cursor in found.cursors:  # what a group left in earlier segments is not read again
                if partition.cursor_in(cursor.segment_no, cursor.group) is None:
                    self.outbox.write(DropCursor(found.partition, cursor.segment_no, cursor.group))
            for log in partition.logs.values():
                if log.record.quarantined:
                    quarantine.note(self.outbox, log)

    def start(self, now: Moment) -> list[Effect]:
        """Fence and void what earlier runs left open; nothing is answered until that is durable."""
        self.outbox.now = now
        self.outbox.started_us = now.mono_us
        for partition in self.partitions.values():
            fencing.fence_at_start(self.outbox, partition)
        self.outbox.when_stored(PartitionId(0), "start", 0)
        return self._finish()

    def _started(self) -> None:
        self.ready = True
        outbox = self.outbox
        outbox.wake(outbox.now.mono_us, "heartbeat")
        for partition in self.partitions.values():
            partition.read_chain(outbox)
            if partition.unsealed_logs():
                fencing.note_fenced(outbox, partition)
        early, self.early = self.early, []
        for event in early:
            self._handle(event)

    @property
    def quarantined(self) -> dict[tuple[PartitionId, int], int]:
        """Segments that the chain contradicts, by partition and number, with how many messages are kept of each."""
        return self.outbox.quarantined

    def quarantined_logs(self) -> list[tuple[PartitionId, int, int, int]]:
        """Partition, segment, the length that the chain decided, and the length here, in their order."""
        found: list[tuple[PartitionId, int, int, int]] = []
        for partition, no in sorted(self.outbox.quarantined):
            known = self.partitions.get(partition)
            if known is None or known.chain is None:
                continue
            segment = known.chain.segment(no)
            decided = segment.sealed_len if segment is not None else 0 if known.chain.is_folded(no) else None
            if decided is not None:
                found.append((partition, no, decided, known.logs[no].tail))
        return found

    @property
    def is_disk_full(self) -> bool:
        """Whether the reserve of this broker's disk is reached."""
        return self.outbox.disk_full_since_us is not None

    def disk_state(self, member: MemberId) -> str:
        """What is wrong with a member's disk, as far as is known here: "hangs", "full", or empty."""
        if disks.is_hung(self.outbox, member):
            return "hangs"
        return "full" if disks.full_for_us(self.outbox, member) is not None else ""

    def disk_stall_us(self, mono_us: int) -> int:
        """For how long, at that time, the disk has completed nothing although a write waits; 0 if nothing waits."""
        since_us = self.outbox.write_waits_since_us
        return max(0, mono_us - since_us) if since_us is not None else 0

    def next_wake_us(self) -> int | None:
        """When a `Tick` is due: monotonic microseconds, or None."""
        return self.outbox.timers[0].at_us if self.outbox.timers and self.outbox.ended_by is None else None

    def step(self, event: Event, now: Moment) -> list[Effect]:
        """Advance by one event and say what must be done, in this order. The only method that changes state."""
        assert now.mono_us >= self.outbox.now.mono_us, "the monotonic clock went back"
        if self.outbox.ended_by is not None:
            return []  # this run is over: the process ends
        self.outbox.now = now
        if self.ready or isinstance(event, Persisted):
            self._handle(event)
        elif not isinstance(event, Tick):
            self.early.append(event)
        if self.ready:
            while (timer := self.outbox.due()) is not None:
                self._on_timer(timer)
        effects = self._finish()
        if self._look_behind():
            effects += self._finish()
        return effects if self.outbox.ended_by is None else [EndRun(self.outbox.ended_by)]

    def _finish(self) -> list[Effect]:
        """End the step: marks that are true already, messages to this broker itself, then out with the rest."""
        done: list[Effect] = []
        while True:
            effects, marks = self.outbox.finish()
            local: list[Message] = []
            for effect in effects:
                if isinstance(effect, Send) and effect.broker == self.outbox.member.broker:
                    local.append(effect.message)
                else:
                    done.append(effect)
            for mark in marks:
                self._on_mark(mark)
            for message in local:
                self._on_message(self.outbox.member, message)
            if not local and not marks:
                return done

    # ---- events -----------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        handler = _HANDLERS.get(type(event))
        assert handler is not None, f"no handler for {type(event).__name__}"
        handler(self, event)

    def _partition(self, partition: PartitionId) -> Partition:
        known = self.partitions.get(partition)
        if known is None:
            known = self.partitions[partition] = Partition(partition)
        return known

    def _forget_if_idle(self, partition: Partition) -> None:
        """A partition that this broker only was asked about leaves nothing behind.

        Rule `behind-until-read` (I13): but one whose record has lost decisions stays until it is read again. Without
        it: (1) this broker learns from others that the coordinator has lost a segment, and answers whoever asked; (2)
        it forgets the partition, and with it the next read; (3) the record is rebuilt, and this broker never notices:
        it refuses everything until it is restarted.
        """
        if partition.is_idle and partition.id not in self.outbox.behind:
            self.partitions.pop(partition.id, None)
            self.outbox.attempts.pop(partition.id, None)
            self.outbox.refused.pop(partition.id, None)

    def _on_tick(self, event: Tick) -> None:
        pass  # the timers are looked at after every event

    def _on_persisted(self, event: Persisted) -> None:
        for mark in self.outbox.persisted(event.token):
            self._on_mark(mark)

    def _on_disk_room(self, event: DiskRoom) -> None:
        outbox = self.outbox
        outbox.disk_full_since_us = outbox.now.mono_us if event.is_full else None
        outbox.note("disk_room", PartitionId(0), broker=outbox.member.broker, is_full=event.is_full)

    def _on_mark(self, mark: LogDurable | Stored) -> None:
        if isinstance(mark, Stored) and mark.kind == "start":
            self._started()
            return
        partition = self.partitions.get(mark.partition)
        if partition is None:
            return
        if isinstance(mark, LogDurable):
            replication.on_log_durable(self.outbox, partition, mark)
        elif mark.kind == "settle":
            settle.on_fenced(self.outbox, partition, mark.segment_no)
        elif mark.kind == "copy":
            copying.on_stored(self.outbox, partition, mark.segment_no)
        elif mark.kind == "repair":
            repair.on_stored(self.outbox, partition, mark.segment_no)
        else:
            assert mark.kind == "cursor"
            progress.on_synced(self.outbox, partition, self.outbox.member, mark.segment_no, None, mark.serial)

    # ---- other brokers ----------------------------------------------------------------------------------

    def _on_link_up(self, event: LinkUp) -> None:
        links.on_up(self.outbox, self.partitions, event)

    def _on_link_down(self, event: LinkDown) -> None:
        links.on_down(self.outbox, self.partitions, event)

    def _on_received(self, event: Received) -> None:
        link = self.outbox.links.get(event.broker)
        if link is None or not link.up or link.session != event.session:
            return
        lanes.on_received(link, event.message, self.outbox.now.mono_us)
        assert link.member is not None
        self._on_message(link.member, event.message)

    def _on_message(self, sender: MemberId, message: Message) -> None:
        if isinstance(message, Heartbeat):
            links.on_heartbeat(self.outbox, sender, message)
            return
        if isinstance(message, HeartbeatAnswer):
            links.on_heartbeat_answer(self.outbox, self.partitions, sender, message)
            return
        if isinstance(message, ChainUpdate | ChainChanges):
            known = self.partitions.get(message.chain.partition)
            if known is None and self.outbox.member not in message.chain.open_segment.members:
                return
            partition = self._partition(message.chain.partition)
            if isinstance(message, ChainUpdate):
                record.on_update(self.outbox, partition, sender, message)
            else:
                record.on_changes(self.outbox, partition, sender, message)
            return
        if isinstance(message, CopiesQuestion):
            outbox, reports = self.outbox, standing.reports(self.outbox, self.partitions, message)
            outbox.send(sender, CopiesAnswer(message.serial, reports))
            return
        if isinstance(message, CopiesAnswer):
            standing.on_answer(self.outbox, sender, message)
            return
        if isinstance(message, LaneProbe):
            return  # it was counted
        partition = self._partition(message.partition)
        dispatch.MESSAGES[type(message)](self.outbox, partition, sender, message)
        self._forget_if_idle(partition)

    # ---- coordinator ------------------------------------------------------------------------------------

    def _on_chain_read(self, event: ChainRead) -> None:
        partition = self._partition(event.partition)
        record.on_chain_read(self.outbox, partition, event.chain, event.revision, event.failed, event.deleted)
        self._forget_if_idle(partition)

    def _on_chain_written(self, event: ChainWritten) -> None:
        partition = self.partitions.get(event.partition)
        if partition is None or event.serial not in partition.writes:
            return  # dropped meanwhile
        record.on_chain_written(self.outbox, partition, event.serial, event.outcome, event.revision)
        self._forget_if_idle(partition)

    def _on_certificate_read(self, event: CertificateRead) -> None:
        if event.exists:
            self._note_ended(event.run)
        partition = self.partitions.get(event.partition)
        if partition is not None and partition.switch is not None:
            partition.switch.on_certificate(self.outbox, partition, event.run, event.exists)

    def _note_ended(self, run: RunId) -> None:
        """A certificate says that this run has ended, so all earlier runs of its disk have."""
        outbox = self.outbox
        outbox.ended[run.member] = max(outbox.ended.get(run.member, 0), run.run)
        if run.member == outbox.member and run.run >= outbox.run:
            outbox.end_run(
                f"a death certificate says that run {run.run} of {run.member} has ended, and this is run {outbox.run}"
            )
        links.dismiss(outbox, self.partitions)

    def _on_certificate_seen(self, event: CertificateSeen) -> None:
        outbox = self.outbox
        member = event.run.member
        self._note_ended(event.run)
        for partition in list(self.partitions.values()):
            right.on_certificate(outbox, partition, member)
            if partition.switch is not None:
                partition.switch.hurry(outbox, partition)

    def _on_cursor_read(self, event: CursorRead) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            serving.on_cursor_read(
                self.outbox, partition, event.group, event.record, event.revision, event.failed, event.known_revision
            )
            self._forget_if_idle(partition)

    def _on_cursor_written(self, event: CursorWritten) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            serving.on_cursor_written(self.outbox, partition, event.group, event.serial, event.outcome, event.revision)
            self._forget_if_idle(partition)

    def _on_writes_refused(self, event: WritesRefused) -> None:
        outbox = self.outbox
        outbox.coordinator_refuses = event.refused
        if event.refused:
            return
        for partition in list(self.partitions.values()):
            record.on_writes_taken(outbox, partition)

    def _on_compare_chains(self, event: CompareChains) -> None:
        for partition in self.partitions.values():
            if partition.decided is not None:
                partition.read_chain(self.outbox)

    def _on_rebuilt(self, event: CoordinatorRebuilt) -> None:
        for partition in list(self.partitions.values()):
            serving.on_caught_up(self.outbox, partition)
        self._on_compare_chains(CompareChains())  # and then the cursors

    def _on_own_record(self, event: OwnRecordSeen) -> None:
        if event.problem:
            behind.begin(self.outbox, behind.OWN_RECORD, event.problem)
        else:
            behind.end(self.outbox, behind.OWN_RECORD)

    def _look_behind(self) -> bool:
        """The coordinator has lost decisions: accept nothing any more. It has them again: go on, by a switch each.

        Returns:
            Whether that has changed just now.
        """
        outbox = self.outbox
        if bool(outbox.behind) == self.is_behind:
            return False
        self.is_behind = bool(outbox.behind)
        for partition in list(self.partitions.values()):
            if not self.is_behind:
                serving.on_caught_up(outbox, partition)
                record.on_writes_taken(outbox, partition)
            elif any(log.active for log in partition.logs.values()):
                fencing.fence_unsealed(outbox, partition)
                fencing.note_fenced(outbox, partition)
        return True

    def _on_directory(self, event: DirectoryChanged) -> None:
        outbox = self.outbox
        outbox.groups = dict(event.groups)
        outbox.runs = dict(event.runs)
        registered = (*(member for _, members in event.groups for member in members), *outbox.runs)
        outbox.learn_holders({member.broker: member for member in registered})
        outbox.specs = dict(event.specs)
        outbox.forms_of_all = event.forms
        newest = outbox.runs.get(outbox.member, 0)
        if newest > outbox.run:
            outbox.end_run(
                f"run {newest} of {outbox.member} has registered, and this is run {outbox.run}: another process has "
                "started with this directory or a copy of it"
            )
        links.dismiss(outbox, self.partitions)
        for partition in list(self.partitions.values()):
            if partition.chain is not None:
                outbox.watch_peers(partition.id, partition.chain)
            if partition.switch is not None:
                partition.switch.hurry(outbox, partition)
            settle.on_directory(outbox, partition)

    # ---- clients ----------------------------------------------------------------------------------------

    def _on_append(self, event: Append) -> None:
        partition = self.partitions.get(event.partition)
        if partition is None:
            error = errors.NotServingError("this broker is not the master of the open segment")
            self.outbox.emit(AppendRefused(event.request, error, None))
            return
        appending.on_append(self.outbox, partition, event)

    def _on_resolve_producer(self, event: ResolveProducer) -> None:
        partition = self._partition(event.partition)
        routes.resolve(self.outbox, partition, event.request, event.failed_segment, event.deadline_us)
        if event.silent_segment is not None:
            routes.probe_master(self.outbox, partition, event.silent_segment)

    def _on_resolve_consumer(self, event: ResolveConsumer) -> None:
        partition = self._partition(event.partition)
        questions.resolve(
            self.outbox, partition, event.request, event.group, event.failed_server_epoch, event.start,
            event.deadline_us,
        )  # fmt: skip

    def _on_describe_group(self, event: DescribeGroup) -> None:
        partition = self._partition(event.partition)
        deadline_us = self.outbox.now.mono_us + self.outbox.config.fence_timeout_us
        questions.resolve(
            self.outbox, partition, event.request, event.group, None, StartPosition.EARLIEST, deadline_us,
            describe=True,
        )  # fmt: skip

    def _on_operate_group(self, event: OperateGroup) -> None:
        operations.ask(self.outbox, self._partition(event.partition), event)

    def _on_create(self, event: CreatePartition) -> None:
        switch.begin_genesis(self.outbox, self._partition(event.partition), event)

    def _on_drop(self, event: DropPartitionData) -> None:
        self._drop(event.partition)

    def _on_drop_deleted(self, event: DropDeleted) -> None:
        for partition in [partition for partition in self.partitions if partition in event.deleted]:
            self._drop(partition)

    def _drop(self, deleted: PartitionId) -> None:
        partition = self.partitions.pop(deleted, None)
        if partition is not None:
            dropping.answer_all(self.outbox, partition)
            self.outbox.forget_peers(deleted)
            self.outbox.attempts.pop(deleted, None)
            self.outbox.refused.pop(deleted, None)
            self.outbox.behind.pop(deleted, None)
            self.outbox.write(DropPartition(deleted))

    def _on_plan_switch(self, event: PlanSwitch) -> None:
        switch.begin_planned(self.outbox, self._partition(event.partition), event)

    def _on_declare_gap(self, event: DeclareGap) -> None:
        gaps.declare(self.outbox, self._partition(event.partition), event)

    def _on_list_logs(self, event: ListLogs) -> None:
        after = (event.after_partition, event.after_segment)
        logs = sorted(
            (partition.id, no, log.readable_below)
            for partition in self.partitions.values()
            for no, log in partition.logs.items()
            if (partition.id, no) > after and log.readable_below
        )
        self.outbox.emit(LogsListed(event.request, tuple(logs[: event.limit])))

    def _on_list_led(self, event: ListLed) -> None:
        self.outbox.emit(retention.list_led(self.outbox, self.partitions, event))

    def _on_trim(self, event: Trim) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            retention.trim(self.outbox, partition, event)

    def _on_pass_group(self, event: PassGroup) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            serving.pass_group(self.outbox, partition, event)
            self._forget_if_idle(partition)

    def _on_list_cursors(self, event: ListCursors) -> None:
        self.outbox.emit(cursors.list_groups(self.partitions, event))

    def _on_forget_group(self, event: ForgetGroup) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            cursors.forget_group(self.outbox, partition, event)
            self._forget_if_idle(partition)

    def _on_found_damage(self, event: FoundDamage) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            repair.begin(self.outbox, partition, event.segment_no)

    def _on_switch_away(self, event: SwitchAwayFrom) -> None:
        switch.begin_failover(self.outbox, self._partition(event.partition), "group lost", event.segment_no)

    def _on_heal(self, event: Heal) -> None:
        partition = self._partition(event.partition)
        if event.member == self.outbox.member:
            copying.heal(self.outbox, partition, event.segment_no, event.replaces)
        else:
            self.outbox.send(event.member, HealRequest(event.partition, event.segment_no, event.replaces))
            self._forget_if_idle(partition)

    def _on_move_head(self, event: MoveHead) -> None:
        partition = self._partition(event.partition)
        if event.master == self.outbox.member:
            leaving.move_head(self.outbox, partition, event.segment_no)
        else:
            self.outbox.send(event.master, MoveRequest(event.partition, event.segment_no))
        self._forget_if_idle(partition)

    def _on_release(self, event: Release) -> None:
        partition = self._partition(event.partition)
        if event.by == self.outbox.member:
            leaving.release(self.outbox, partition, event.segment_nos, event.leaving)
        else:
            self.outbox.send(event.by, ReleaseRequest(event.partition, event.segment_nos, event.leaving))
        self._forget_if_idle(partition)

    def _on_ask_copies(self, event: AskCopies) -> None:
        standing.ask(self.outbox, event)

    # ---- range reads ------------------------------------------------------------------------------------

    def _on_survey(self, event: SurveyPartition) -> None:
        ranges.survey(self.outbox, self._partition(event.partition), event)

    def _on_read_range(self, event: ReadRange) -> None:
        ranges.read(self.outbox, self._partition(event.partition), event)

    # ---- publications -----------------------------------------------------------------------------------

    def _on_carry_out(self, event: CarryOut) -> None:
        partition = self._partition(event.partition)
        carrying.carry_out(self.outbox, partition, event)
        self._forget_if_idle(partition)

    def _on_staged_fetched(self, event: StagedFetched) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            carrying.on_fetched(self.outbox, partition, event)
            following.on_fetched(self.outbox, partition, event)

    def _on_writer_read(self, event: WriterRead) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            carrying.on_writer_read(self.outbox, partition, event)

    # ---- consumers --------------------------------------------------------------------------------------

    def _on_join(self, event: ConsumerJoin) -> None:
        self.outbox.streams.setdefault(event.stream, {})[event.subscription] = event.partition
        subscribing.join(self.outbox, self._partition(event.partition), event)

    def _on_leave(self, event: ConsumerLeave) -> None:
        partition = self._subscribed(event.stream, event.subscription)
        self.outbox.streams.get(event.stream, {}).pop(event.subscription, None)
        if partition is not None:
            subscribing.leave(self.outbox, partition, event.stream, event.subscription)
            self._forget_if_idle(partition)

    def _on_consumer_ack(self, event: ConsumerAck) -> None:
        partition = self._subscribed(event.stream, event.subscription)
        if partition is not None:
            cursors.on_ack(self.outbox, partition, event)

    def _subscribed(self, stream: int, subscription: int) -> Partition | None:
        """The partition that a subscription is for."""
        partition = self.outbox.streams.get(stream, {}).get(subscription)
        return self.partitions.get(partition) if partition is not None else None

    def _on_consumer_credit(self, event: ConsumerCredit) -> None:
        outbox = self.outbox
        before = outbox.credits.get(event.stream, 0)
        outbox.credits[event.stream] = before + event.size_bytes
        if before <= 0:
            for partition in dict.fromkeys(outbox.streams.get(event.stream, {}).values()):
                known = self.partitions.get(partition)
                if known is not None:
                    delivery.pump_all(outbox, known)

    def _on_consumer_ping(self, event: ConsumerPing) -> None:
        """Nothing is read for it: the member that has the right to deliver knows that no other has it."""
        if event.session_ms:
            session_ms = min(max(event.session_ms, 1), self.outbox.config.session_ms_max)
            self.outbox.consumers_heard[event.stream] = (self.outbox.now.mono_us, 2 * 1000 * session_ms)
        unserved = []
        subscriptions = self.outbox.streams.get(event.stream, {})
        for subscription, partition in list(subscriptions.items()):
            known = self.partitions.get(partition)
            head = None if known is None else subscribing.head_with(known, event.stream, subscription)
            if known is None or head is None:
                del subscriptions[subscription]  # its segment has ended, or it was revoked: the consumer was told
            elif not subscribing.is_served(self.outbox, known, head):
                unserved.append(subscription)
        self.outbox.emit(Deliver(event.stream, 0, Pong(event.number, tuple(unserved))))

    def _on_consumer_gone(self, event: ConsumerGone) -> None:
        for partition in dict.fromkeys(self.outbox.streams.pop(event.stream, {}).values()):
            known = self.partitions.get(partition)
            if known is not None:
                subscribing.leave(self.outbox, known, event.stream, None)
                self._forget_if_idle(known)
        self.outbox.credits.pop(event.stream, None)
        self.outbox.consumers_heard.pop(event.stream, None)

    def _on_log_read(self, event: LogRead) -> None:
        kind, partition_id, no, who, from_index = self.outbox.reads.pop(event.serial)
        partition = self.partitions.get(partition_id)
        if partition is None:
            return
        if event.is_damaged:
            repair.begin(self.outbox, partition, no)
        if kind == "range":  # `from_index` is the request
            ranges.on_log_read(self.outbox, partition, event.serial, from_index, event.batches)
        elif kind == "repair":
            repair.on_log_read(self.outbox, partition, no, event.batches)
        elif kind.startswith("copy"):
            assert isinstance(who, MemberId)
            copying.on_log_read(self.outbox, partition, no, who, from_index, event.batches, kind)
        else:
            assert isinstance(who, str)
            delivery.on_log_read(self.outbox, partition, event.serial, who, event.batches)

    # ---- timers -----------------------------------------------------------------------------------------

    def _on_timer(self, timer: Timer) -> None:
        if timer.kind == "heartbeat":
            links.beat(self.outbox, self.partitions)
        elif timer.kind == "resume":
            assert isinstance(timer.detail, str)
            links.on_resume_over(self.outbox, self.partitions, timer.detail)
        else:
            assert timer.partition is not None
            partition = self.partitions.get(timer.partition)
            if partition is not None:
                dispatch.TIMERS[timer.kind](self.outbox, partition, timer.detail)
                self._forget_if_idle(partition)


_HANDLERS: dict[type, Callable[[BrokerCore, Any], None]] = {
    Tick: BrokerCore._on_tick,
    Persisted: BrokerCore._on_persisted,
    LinkUp: BrokerCore._on_link_up,
    LinkDown: BrokerCore._on_link_down,
    Received: BrokerCore._on_received,
    LogRead: BrokerCore._on_log_read,
    ChainRead: BrokerCore._on_chain_read,
    ChainWritten: BrokerCore._on_chain_written,
    CertificateRead: BrokerCore._on_certificate_read,
    CertificateSeen: BrokerCore._on_certificate_seen,
    CursorRead: BrokerCore._on_cursor_read,
    CursorWritten: BrokerCore._on_cursor_written,
    DirectoryChanged: BrokerCore._on_directory,
    DiskRoom: BrokerCore._on_disk_room,
    CompareChains: BrokerCore._on_compare_chains,
    CoordinatorRebuilt: BrokerCore._on_rebuilt,
    OwnRecordSeen: BrokerCore._on_own_record,
    WritesRefused: BrokerCore._on_writes_refused,
    SurveyPartition: BrokerCore._on_survey,
    ReadRange: BrokerCore._on_read_range,
    CarryOut: BrokerCore._on_carry_out,
    StagedFetched: BrokerCore._on_staged_fetched,
    WriterRead: BrokerCore._on_writer_read,
    Append: BrokerCore._on_append,
    ResolveProducer: BrokerCore._on_resolve_producer,
    ResolveConsumer: BrokerCore._on_resolve_consumer,
    DescribeGroup: BrokerCore._on_describe_group,
    OperateGroup: BrokerCore._on_operate_group,
    CreatePartition: BrokerCore._on_create,
    DropPartitionData: BrokerCore._on_drop,
    DropDeleted: BrokerCore._on_drop_deleted,
    PlanSwitch: BrokerCore._on_plan_switch,
    DeclareGap: BrokerCore._on_declare_gap,
    ListLogs: BrokerCore._on_list_logs,
    ListCursors: BrokerCore._on_list_cursors,
    ListLed: BrokerCore._on_list_led,
    Trim: BrokerCore._on_trim,
    PassGroup: BrokerCore._on_pass_group,
    ForgetGroup: BrokerCore._on_forget_group,
    FoundDamage: BrokerCore._on_found_damage,
    SwitchAwayFrom: BrokerCore._on_switch_away,
    Heal: BrokerCore._on_heal,
    MoveHead: BrokerCore._on_move_head,
    Release: BrokerCore._on_release,
    AskCopies: BrokerCore._on_ask_copies,
    ConsumerJoin: BrokerCore._on_join,
    ConsumerLeave: BrokerCore._on_leave,
    ConsumerAck: BrokerCore._on_consumer_ack,
    ConsumerCredit: BrokerCore._on_consumer_credit,
    ConsumerPing: BrokerCore._on_consumer_ping,
    ConsumerGone: BrokerCore._on_consumer_gone,
}
