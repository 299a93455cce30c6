"""The core of a broker process: all its partitions, its links, its timers; one method that changes state.

`step(event, now)` takes what happened and returns what is to be done, in order. There is no I/O here, no clock and no
chance: the same code runs in production under asyncio and in the simulator on virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from seriatim_api import errors
from seriatim_api.batch import Checksum
from seriatim_api.ids import MemberId, PartitionId

from . import copying, groups, right, settle, switch, tables
from .config import BrokerConfig
from .effects import AppendRefused, Disconnect, Effect, Resolved, Send
from .events import (
    Append,
    CertificateRead,
    CertificateSeen,
    ChainRead,
    ChainWritten,
    ConsumerAck,
    ConsumerCredit,
    ConsumerGone,
    ConsumerJoin,
    ConsumerLeave,
    CreatePartition,
    CursorRead,
    CursorWritten,
    DescribeGroup,
    DirectoryChanged,
    DropPartitionData,
    Event,
    Heal,
    LinkDown,
    LinkUp,
    LogRead,
    Moment,
    Persisted,
    PlanSwitch,
    Received,
    ResolveConsumer,
    ResolveProducer,
    StartPosition,
    SwitchAwayFrom,
    Tick,
)
from .log import DropPartition, RecoveredPartition
from .messages import (
    ChainUpdate,
    CopyAnswer,
    CopyRequest,
    CursorSync,
    CursorSynced,
    EligibleRequest,
    FenceAnswer,
    FenceRequest,
    HealRequest,
    Heartbeat,
    HeartbeatAnswer,
    Message,
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
    TableAnswer,
    TableRequest,
    TailStored,
    TakeOver,
)
from .outbox import LogDurable, Outbox, Stored, Timer
from .partition import Partition
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
        suspect: The machine went down since the last run, without a clean shutdown.
    """

    __slots__ = ("early", "outbox", "partitions", "ready")

    def __init__(
        self,
        config: BrokerConfig,
        member: MemberId,
        run: int,
        nonce: bytes,
        checksum: Checksum,
        recovered: Iterable[RecoveredPartition] = (),
        suspect: bool = False,
    ) -> None:
        self.outbox = Outbox(config, member, run, nonce, checksum, suspect)
        self.partitions: dict[PartitionId, Partition] = {}
        self.ready = False
        self.early: list[Event] = []  # what came before the start was durable
        for found in recovered:
            self._partition(found.partition).recover(found, suspect)

    def start(self, now: Moment) -> list[Effect]:
        """Fence and void what earlier runs left open; nothing is answered until that is durable."""
        self.outbox.now = now
        self.outbox.started_us = now.mono_us
        for partition in self.partitions.values():
            partition.fence_at_start(self.outbox)
        self.outbox.when_stored(PartitionId(0), "start", 0)
        return self._finish()

    def _started(self) -> None:
        self.ready = True
        outbox = self.outbox
        outbox.wake(outbox.now.mono_us, "heartbeat")
        for partition in self.partitions.values():
            partition.read_chain(outbox)
            if any(log.record.sealed_len is None and not log.record.lost for log in partition.logs.values()):
                partition.note_fenced(outbox)
        early, self.early = self.early, []
        for event in early:
            self._handle(event)

    def next_wake_us(self) -> int | None:
        """When a `Tick` is due: monotonic microseconds, or None."""
        return self.outbox.timers[0].at_us if self.outbox.timers else None

    def step(self, event: Event, now: Moment) -> list[Effect]:
        """Advance by one event and say what must be done, in this order. The only method that changes state."""
        assert now.mono_us >= self.outbox.now.mono_us, "the monotonic clock went back"
        self.outbox.now = now
        if self.ready or isinstance(event, Persisted):
            self._handle(event)
        elif not isinstance(event, Tick):
            self.early.append(event)
        if self.ready:
            while (timer := self.outbox.due()) is not None:
                self._on_timer(timer)
        return self._finish()

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
        """A partition that this broker only was asked about leaves nothing behind."""
        if partition.is_idle:
            self.partitions.pop(partition.id, None)

    def _on_tick(self, event: Tick) -> None:
        pass  # the timers are looked at after every event

    def _on_persisted(self, event: Persisted) -> None:
        for mark in self.outbox.persisted(event.token):
            self._on_mark(mark)

    def _on_mark(self, mark: LogDurable | Stored) -> None:
        if isinstance(mark, Stored) and mark.kind == "start":
            self._started()
            return
        partition = self.partitions.get(mark.partition)
        if partition is None:
            return
        if isinstance(mark, LogDurable):
            partition.on_log_durable(self.outbox, mark)
        elif mark.kind == "settle":
            settle.on_fenced(self.outbox, partition, mark.segment_no)
        elif mark.kind == "copy":
            copying.on_stored(self.outbox, partition, mark.segment_no)
        else:
            assert mark.kind == "cursor"
            groups.on_synced(self.outbox, partition, self.outbox.member, mark.segment_no, None, mark.serial)

    # ---- links ------------------------------------------------------------------------------------------

    def _on_link_up(self, event: LinkUp) -> None:
        outbox = self.outbox
        outbox.connect(event.broker)
        link = outbox.links[event.broker]
        if link.up:
            self._lose_link(event.broker, refused=False)
        restarted = link.member is not None and (link.member, link.run) != (event.member, event.run)
        link.up = True
        link.refused = False
        link.member = event.member
        link.run = event.run
        link.session = event.session
        link.heard_us = outbox.now.mono_us
        link.refused_by = frozenset()
        for partition in list(self.partitions.values()):
            partition.on_link_up(outbox, event.member)
        if restarted:
            self._peer_dead(event.broker)  # a member that restarted, or has another disk, always means a switch

    def _on_link_down(self, event: LinkDown) -> None:
        link = self.outbox.links.get(event.broker)
        if link is None or (link.up and event.session not in (0, link.session)):
            return
        self._lose_link(event.broker, event.refused)

    def _lose_link(self, broker: str, refused: bool) -> None:
        outbox = self.outbox
        link = outbox.links[broker]
        was_up, link.up = link.up, False
        news = refused and not link.refused
        link.refused = refused
        if was_up:
            link.wanted_us = outbox.now.mono_us
            outbox.wake(outbox.now.mono_us + outbox.config.resume_us + 1, "resume", detail=broker)
            assert link.member is not None
            for partition in list(self.partitions.values()):
                partition.on_link_lost(outbox, link.member)
        if news:
            self._peer_dead(broker)

    def _peer_dead(self, broker: str) -> None:
        """Refused, silent, or not back in time: whatever needs this broker moves on."""
        for partition in list(self.outbox.watched.get(broker, ())):
            known = self.partitions.get(partition)
            if known is not None:
                known.on_peer_dead(self.outbox, broker)

    def _on_resume_over(self, broker: str) -> None:
        link = self.outbox.links.get(broker)
        if (
            link is not None
            and not link.up
            and self.outbox.now.mono_us >= link.wanted_us + self.outbox.config.resume_us
        ):
            self._peer_dead(broker)

    def _on_received(self, event: Received) -> None:
        link = self.outbox.links.get(event.broker)
        if link is None or not link.up or link.session != event.session:
            return
        link.heard_us = self.outbox.now.mono_us
        assert link.member is not None
        self._on_message(link.member, event.message)

    def _beat(self) -> None:
        """Heartbeats: often to those that share a segment, seldom to the rest; and who has been silent for too long."""
        outbox = self.outbox
        config = outbox.config
        now = outbox.now.mono_us
        due_us = outbox.beat_due_us
        asleep = bool(due_us) and now - due_us > config.silence_us // 2
        outbox.beat_due_us = now + config.heartbeat_us
        outbox.wake(outbox.beat_due_us, "heartbeat")
        for broker, link in list(outbox.links.items()):
            if not link.up:
                continue
            if asleep:
                link.heard_us = now  # it was this process that slept
            watched = bool(outbox.watched.get(broker))
            if now - link.heard_us > (config.silence_us if watched else 4 * config.slow_heartbeat_us):
                outbox.emit(Disconnect(broker, link.session))
                self._lose_link(broker, refused=False)
                self._peer_dead(broker)
            elif watched or now - link.beat_us >= config.slow_heartbeat_us:
                link.beat_us = now
                outbox.emit(Send(broker, Heartbeat(now)))

    # ---- messages ---------------------------------------------------------------------------------------

    def _on_message(self, sender: MemberId, message: Message) -> None:
        if isinstance(message, Heartbeat):
            refused = right.refused_to(self.outbox, sender.broker)
            self.outbox.emit(Send(sender.broker, HeartbeatAnswer(message.sent_us, refused)))
            return
        if isinstance(message, HeartbeatAnswer):
            link = self.outbox.links[sender.broker]
            link.answered_us = max(link.answered_us, message.sent_us)
            link.refused_by = frozenset(message.refused)
            right.forget_told(self.outbox, sender.broker, link.session, message.sent_us)
            return
        if isinstance(message, ChainUpdate):
            known = self.partitions.get(message.chain.partition)
            if known is None and self.outbox.member not in message.chain.open_segment.members:
                return
            partition = self._partition(message.chain.partition)
            if partition.chain is not None and partition.chain.epoch > message.chain.epoch:
                self.outbox.send(sender, ChainUpdate(partition.chain, partition.revision))  # older: told the newer
            partition.learn(self.outbox, message.chain, message.revision)
            return
        partition = self._partition(message.partition)
        _MESSAGES[type(message)](self.outbox, partition, sender, message)
        self._forget_if_idle(partition)

    # ---- coordinator ------------------------------------------------------------------------------------

    def _on_chain_read(self, event: ChainRead) -> None:
        partition = self._partition(event.partition)
        partition.on_chain_read(self.outbox, event.chain, event.revision, event.failed)
        self._forget_if_idle(partition)

    def _on_chain_written(self, event: ChainWritten) -> None:
        partition = self.partitions.get(event.partition)
        if partition is None or event.serial not in partition.writes:
            return  # dropped meanwhile
        partition.on_chain_written(self.outbox, event.serial, event.outcome, event.revision)
        self._forget_if_idle(partition)

    def _on_certificate_read(self, event: CertificateRead) -> None:
        if event.exists:
            self.outbox.ended[event.run.member] = max(self.outbox.ended.get(event.run.member, 0), event.run.run)
        partition = self.partitions.get(event.partition)
        if partition is not None and partition.switch is not None:
            partition.switch.on_certificate(self.outbox, partition, event.exists)

    def _on_certificate_seen(self, event: CertificateSeen) -> None:
        outbox = self.outbox
        member = event.run.member
        outbox.ended[member] = max(outbox.ended.get(member, 0), event.run.run)
        link = outbox.links.get(member.broker)
        if link is not None and not link.up and link.member == member and link.run <= event.run.run:
            link.refused = True
            self._peer_dead(member.broker)
        for partition in list(self.partitions.values()):
            right.on_certificate(outbox, partition, member)
            if partition.switch is not None:
                partition.switch.hurry(outbox, partition)

    def _on_cursor_read(self, event: CursorRead) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            groups.on_cursor_read(self.outbox, partition, event.group, event.record, event.revision, event.failed)
            self._forget_if_idle(partition)

    def _on_cursor_written(self, event: CursorWritten) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            groups.on_cursor_written(self.outbox, partition, event.group, event.serial, event.outcome, event.revision)
            self._forget_if_idle(partition)

    def _on_directory(self, event: DirectoryChanged) -> None:
        outbox = self.outbox
        outbox.groups = dict(event.groups)
        outbox.runs = dict(event.runs)
        for partition in list(self.partitions.values()):
            if partition.chain is not None:
                outbox.watch_peers(partition.id, partition.chain)
            if partition.switch is not None:
                partition.switch.hurry(outbox, partition)

    # ---- clients ----------------------------------------------------------------------------------------

    def _on_append(self, event: Append) -> None:
        partition = self.partitions.get(event.partition)
        if partition is None:
            error = errors.NotServingError("this broker is not the master of the open segment")
            self.outbox.emit(AppendRefused(event.request, error, None))
            return
        partition.on_append(self.outbox, event)

    def _on_resolve_producer(self, event: ResolveProducer) -> None:
        partition = self._partition(event.partition)
        partition.resolve(self.outbox, event.request, event.failed_segment, event.deadline_us)
        if event.silent_segment is not None:
            partition.probe_master(self.outbox, event.silent_segment)

    def _on_resolve_consumer(self, event: ResolveConsumer) -> None:
        partition = self._partition(event.partition)
        groups.resolve(
            self.outbox, partition, event.request, event.group, event.failed_server_epoch, event.start,
            event.deadline_us,
        )  # fmt: skip

    def _on_describe_group(self, event: DescribeGroup) -> None:
        partition = self._partition(event.partition)
        deadline_us = self.outbox.now.mono_us + self.outbox.config.fence_timeout_us
        groups.resolve(
            self.outbox, partition, event.request, event.group, None, StartPosition.EARLIEST, deadline_us,
            describe=True,
        )  # fmt: skip

    def _on_create(self, event: CreatePartition) -> None:
        partition = self._partition(event.partition)
        if partition.chain is not None or partition.switch is not None:
            busy = errors.UnavailableError("the partition is being made", retry_after_ms=100)
            known = partition.chain is not None
            self.outbox.emit(Resolved(event.request, partition.route(), None if known else busy))
            return
        running = switch.Switch(switch.Kind.GENESIS, "created", 0, event.request)
        running.genesis = switch.Genesis(event.topic, event.number, event.flush, event.send_chain)
        partition.switch = running
        running.begin(self.outbox, partition)
        self._forget_if_idle(partition)

    def _on_drop(self, event: DropPartitionData) -> None:
        partition = self.partitions.pop(event.partition, None)
        if partition is not None:
            groups.on_no_partition(self.outbox, partition)
            self.outbox.forget_peers(event.partition)
            self.outbox.write(DropPartition(event.partition))

    def _on_plan_switch(self, event: PlanSwitch) -> None:
        partition = self._partition(event.partition)
        if partition.switch is not None:
            error = errors.UnavailableError("another switch of this partition is under way", retry_after_ms=100)
            self.outbox.emit(Resolved(event.request, partition.route(), error))
            return
        partition.switch = switch.Switch(switch.Kind.PLANNED, "planned", 0, event.request)
        partition.switch.begin(self.outbox, partition)

    def _on_switch_away(self, event: SwitchAwayFrom) -> None:
        self._partition(event.partition).begin_switch(self.outbox, "group lost", event.segment_no)

    def _on_heal(self, event: Heal) -> None:
        partition = self._partition(event.partition)
        if event.member == self.outbox.member:
            copying.heal(self.outbox, partition, event.segment_no, event.replaces)
        else:
            self.outbox.send(event.member, HealRequest(event.partition, event.segment_no, event.replaces))
            self._forget_if_idle(partition)

    # ---- consumers --------------------------------------------------------------------------------------

    def _on_join(self, event: ConsumerJoin) -> None:
        self.outbox.streams.setdefault(event.stream, {})[event.subscription] = event.partition
        groups.join(self.outbox, self._partition(event.partition), event)

    def _on_leave(self, event: ConsumerLeave) -> None:
        partition = self._subscribed(event.stream, event.subscription)
        self.outbox.streams.get(event.stream, {}).pop(event.subscription, None)
        if partition is not None:
            groups.leave(self.outbox, partition, event.stream, event.subscription)
            self._forget_if_idle(partition)

    def _on_consumer_ack(self, event: ConsumerAck) -> None:
        partition = self._subscribed(event.stream, event.subscription)
        if partition is not None:
            groups.on_ack(self.outbox, partition, event)

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
                for head in list(known.groups.values()) if known is not None else ():
                    if known is not None:
                        groups.pump_group(outbox, known, head)

    def _on_consumer_gone(self, event: ConsumerGone) -> None:
        for partition in dict.fromkeys(self.outbox.streams.pop(event.stream, {}).values()):
            known = self.partitions.get(partition)
            if known is not None:
                groups.leave(self.outbox, known, event.stream, None)
                self._forget_if_idle(known)
        self.outbox.credits.pop(event.stream, None)

    def _on_log_read(self, event: LogRead) -> None:
        kind, partition_id, no, who, from_index = self.outbox.reads.pop(event.serial)
        partition = self.partitions.get(partition_id)
        if partition is None:
            return
        if kind.startswith("copy"):
            assert isinstance(who, MemberId)
            with_table = kind == "copy with table"
            copying.on_log_read(self.outbox, partition, no, who, from_index, event.batches, with_table)
        else:
            assert isinstance(who, str)
            groups.on_log_read(self.outbox, partition, event.serial, who, event.batches)

    # ---- timers -----------------------------------------------------------------------------------------

    def _on_timer(self, timer: Timer) -> None:
        if timer.kind == "heartbeat":
            self._beat()
        elif timer.kind == "resume":
            assert isinstance(timer.detail, str)
            self._on_resume_over(timer.detail)
        else:
            assert timer.partition is not None
            partition = self.partitions.get(timer.partition)
            if partition is not None:
                _TIMERS[timer.kind](self.outbox, partition, timer.detail)
                self._forget_if_idle(partition)


def _heal_request(outbox: Outbox, partition: Partition, sender: MemberId, message: HealRequest) -> None:
    if partition.chain is None:
        partition.read_chain(outbox)  # the controller asks again
    copying.heal(outbox, partition, message.segment_no, message.replaces)


def _cursor_synced(outbox: Outbox, partition: Partition, sender: MemberId, message: CursorSynced) -> None:
    groups.on_synced(outbox, partition, sender, message.segment_no, message.server_epoch, message.serial)
    right.on_cursor_synced(outbox, partition, sender, message)


def _take_over(outbox: Outbox, partition: Partition, sender: MemberId, message: TakeOver) -> None:
    if partition.chain is None:
        partition.read_chain(outbox)
    right.take_over(outbox, partition, message.segment_no, message.server_epoch)


def _on_switch_message(method: str) -> Callable[[Outbox, Partition, MemberId, Any], None]:
    def deliver(outbox: Outbox, partition: Partition, sender: MemberId, message: Any) -> None:
        if partition.switch is not None:
            getattr(partition.switch, method)(outbox, partition, sender, message)

    return deliver


def _quiesced(outbox: Outbox, partition: Partition, sender: MemberId, message: QuiesceAnswer) -> None:
    if partition.switch is not None:
        partition.switch.on_quiesced(outbox, partition, message)


def _on_partition(method: str) -> Callable[[Outbox, Partition, MemberId, Any], None]:
    def deliver(outbox: Outbox, partition: Partition, sender: MemberId, message: Any) -> None:
        getattr(partition, method)(outbox, sender, message)

    return deliver


_MESSAGES: dict[type, Callable[[Outbox, Partition, MemberId, Any], None]] = {
    FenceRequest: _on_partition("on_fence"),
    FenceAnswer: _on_switch_message("on_fence_answer"),
    PrepareRequest: _on_partition("on_prepare"),
    PrepareAnswer: _on_switch_message("on_prepare_answer"),
    QuiesceRequest: _on_partition("on_quiesce"),
    QuiesceAnswer: _quiesced,
    Replicate: _on_partition("on_replicate"),
    ReplicateAck: _on_partition("on_replicate_ack"),
    ReplicateRefused: _on_partition("on_replicate_refused"),
    ResumeReplica: _on_partition("on_resume"),
    ReplicaTail: _on_partition("on_replica_tail"),
    CopyRequest: copying.on_copy_request,
    CopyAnswer: copying.on_copy_answer,
    StoreTail: _on_partition("on_store_tail"),
    TailStored: settle.on_tail_stored,
    TableRequest: tables.on_request,
    TableAnswer: lambda outbox, partition, sender, message: tables.on_answer(outbox, partition, message),
    CursorSync: groups.on_cursor_sync,
    CursorSynced: _cursor_synced,
    EligibleRequest: right.on_eligible_request,
    TakeOver: _take_over,
    HealRequest: _heal_request,
}


def _switch_due(outbox: Outbox, partition: Partition, detail: Any) -> None:
    if partition.switch is not None:
        partition.switch.on_timer(outbox, partition)


_TIMERS: dict[str, Callable[[Outbox, Partition, Any], None]] = {
    "switch": _switch_due,
    "follow": lambda outbox, partition, _: partition.resume_followers(outbox),
    "step": lambda outbox, partition, _: partition.on_step_due(outbox),
    "prepared": lambda outbox, partition, _: partition.on_prepared_long_ago(outbox),
    "fenced": lambda outbox, partition, _: partition.on_fenced_too_long(outbox),
    "commit": lambda outbox, partition, _: partition.tell_commit(outbox),
    "read": lambda outbox, partition, _: partition.read_chain(outbox),
    "probe": lambda outbox, partition, segment_no: partition.on_probe_due(outbox, segment_no),
    "waiters": lambda outbox, partition, _: partition.answer_waiters(outbox),
    "quiesce": lambda outbox, partition, _: partition.on_quiesce_deadline(outbox),
    "settle": settle.on_timer,
    "copy": copying.on_timer,
    "pump": groups.retry,
    "sync": groups.on_sync_due,
    "cursor": groups.on_cursor_timer,
    "questions": lambda outbox, partition, _: groups.on_questions_due(outbox, partition),
}

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
    Append: BrokerCore._on_append,
    ResolveProducer: BrokerCore._on_resolve_producer,
    ResolveConsumer: BrokerCore._on_resolve_consumer,
    DescribeGroup: BrokerCore._on_describe_group,
    CreatePartition: BrokerCore._on_create,
    DropPartitionData: BrokerCore._on_drop,
    PlanSwitch: BrokerCore._on_plan_switch,
    SwitchAwayFrom: BrokerCore._on_switch_away,
    Heal: BrokerCore._on_heal,
    ConsumerJoin: BrokerCore._on_join,
    ConsumerLeave: BrokerCore._on_leave,
    ConsumerAck: BrokerCore._on_consumer_ack,
    ConsumerCredit: BrokerCore._on_consumer_credit,
    ConsumerGone: BrokerCore._on_consumer_gone,
}
