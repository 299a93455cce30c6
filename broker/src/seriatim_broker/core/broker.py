"""The core of a broker process: all its partitions, links and timers. Only one method changes its state.

`step(event, now)` takes an event and returns the effects to carry out, in order. The core does no I/O, reads no clock
and draws no random number. So the same code runs in production under asyncio and in the simulator in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterable

from seriatim_api.batch import Checksum
from seriatim_api.ids import MemberId, PartitionId

from .consumers.cursors import control_records
from .consumers.groups import eligibility
from .consumers.keyed import handoff
from .copies import copying, repair, settle
from .dispatch import coordinator, handlers, partitions, quarantine
from .peers import disks, right
from .state.broker import BrokerState
from .state.outbox import LogDurable, Mark, Stored
from .state.partition import Partitions
from .switching import fencing
from .values.config import BrokerConfig
from .values.effects import Effect, EndMemberRun, Send
from .values.events import Event, Moment, Persisted, Tick
from .values.kinds import StoredFor, TimerKind
from .values.log import RecoveredPartition
from .values.messages import CursorsReplicated, Message
from .values.states import State
from .writing import replication


class BrokerCore(State):
    """The core of one member run of one broker.

    Args:
        config: Times and limits.
        member: This broker and its disk.
        run: The number of this member run, raised durably before this object is made.
        nonce: 12 random bytes of this member run, for ids.
        checksum: CRC-32C.
        recovered: Everything that the disk has, by partition.
        suspect_before_run: The member run that followed the last one that did not end cleanly; 0 if all did. Writes
            of earlier member runs that were not flushed may be missing.
    """

    __slots__ = ("early", "is_behind", "partitions", "ready", "state")

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
        self.state = BrokerState(config, member, run, nonce, checksum)
        self.state.suspect_before_run = suspect_before_run
        self.partitions: Partitions = {}
        self.ready = False
        self.is_behind = False  # the coordinator has lost decisions, and the open segments here are fenced
        self.early: list[Event] = []  # events that came before the start was durable
        for found in recovered:
            partition = partitions.find(self.partitions, found.partition)
            partition.recover(found, suspect_before_run)
            for cursor in found.cursors:  # control records of segments that the consumer group has left can go
                if partition.cursor_in(cursor.segment_no, cursor.consumer_group) is None:
                    control_records.drop_on_disk(self.state, partition, cursor.segment_no, cursor.consumer_group)
            for log in partition.logs.values():
                self.state.has_delayed |= log.has_delayed
                if log.record.quarantined:
                    quarantine.note(self.state, log)

    def start(self, now: Moment) -> list[Effect]:
        """Fence and void what earlier member runs left open. The core answers nothing until that is durable."""
        self.state.now = now
        self.state.started_us = now.mono_us
        for partition in self.partitions.values():
            fencing.fence_at_start(self.state, partition)
            right.refuse_at_start(self.state, partition)
        self.state.out.when_stored(PartitionId(0), StoredFor.START, 0)
        return self._finish()

    def _started(self) -> None:
        self.ready = True
        broker = self.state
        broker.wake(broker.now.mono_us, TimerKind.HEARTBEAT)
        for partition in self.partitions.values():
            partition.read_chain(broker)
            if partition.unsealed_logs():
                fencing.note_fenced(broker, partition)
        early, self.early = self.early, []
        for event in early:
            handlers.EVENTS[type(event)](broker, self.partitions, event)

    @property
    def has_delayed(self) -> bool:
        """Whether a log here has delayed batches; perhaps all of them are fired."""
        return self.state.has_delayed

    @property
    def quarantined(self) -> dict[tuple[PartitionId, int], int]:
        """Quarantined segments, by partition and number, with the number of messages that the disk keeps of each."""
        return self.state.disk.quarantined

    def quarantined_logs(self) -> list[tuple[PartitionId, int, int, int]]:
        """Quarantined segments, in order: partition, segment, the length that the chain decided, the length here."""
        found: list[tuple[PartitionId, int, int, int]] = []
        for partition, no in sorted(self.state.disk.quarantined):
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
        """Whether this broker's disk has reached its reserve."""
        return self.state.disk.full_since_us is not None

    def disk_state(self, member: MemberId) -> str:
        """What is wrong with a member's disk, as far as this broker knows: "hangs", "full", or empty."""
        if disks.is_hung(self.state, member):
            return "hangs"
        return "full" if disks.full_for_us(self.state, member) is not None else ""

    def disk_stall_us(self, mono_us: int) -> int:
        """For how long, at that time, the disk has completed no write although one waits; 0 if none waits."""
        since_us = self.state.out.write_waits_since_us
        return max(0, mono_us - since_us) if since_us is not None else 0

    def next_wake_us(self) -> int | None:
        """When the next `Tick` is due, in monotonic microseconds; None if no timer is set."""
        return self.state.timers.heap[0].at_us if self.state.timers.heap and self.state.ended_by is None else None

    def step(self, event: Event, now: Moment) -> list[Effect]:
        """Advance by one event; returns the effects to carry out, in this order.

        After `EndMemberRun` each step returns nothing, and the process has to end.
        """
        assert now.mono_us >= self.state.now.mono_us, "the monotonic clock went back"
        if self.state.ended_by is not None:
            return []  # this member run is over
        broker = self.state
        broker.now = now
        if isinstance(event, Persisted):
            for mark in broker.out.persisted(event.token, now.mono_us, broker.may_reach):
                self._on_mark(mark)
        elif self.ready:
            handlers.EVENTS[type(event)](broker, self.partitions, event)
        elif not isinstance(event, Tick):
            self.early.append(event)
        while self.ready and (timer := broker.timers.due(now.mono_us)) is not None:
            if timer.partition is None:
                handlers.BROKER_TIMERS[timer.kind](broker, self.partitions, timer.detail)
            elif (partition := self.partitions.get(timer.partition)) is not None:
                handlers.TIMERS[timer.kind](broker, partition, timer.detail)
                partitions.forget_if_idle(broker, self.partitions, partition)
        effects = self._finish()
        if bool(broker.coordinator.behind) != self.is_behind:
            self.is_behind = not self.is_behind
            coordinator.on_behind(broker, self.partitions, self.is_behind)
            effects += self._finish()
        return effects if broker.ended_by is None else [EndMemberRun(broker.ended_by)]

    def _finish(self) -> list[Effect]:
        """End the step: handle marks that are true already and messages to this broker itself; return the effects."""
        done: list[Effect] = []
        while True:
            effects, marks = self.state.out.finish(self.state.now.mono_us)
            local: list[Message] = []
            for effect in effects:
                if isinstance(effect, Send) and effect.broker == self.state.member.broker:
                    local.append(effect.message)
                else:
                    done.append(effect)
            for mark in marks:
                self._on_mark(mark)
            for message in local:
                handlers.MESSAGES[type(message)](self.state, self.partitions, self.state.member, message)
            if not local and not marks:
                return done

    def _on_mark(self, mark: Mark) -> None:
        if isinstance(mark, Stored) and mark.kind is StoredFor.START:
            self._started()
            return
        partition = self.partitions.get(mark.partition)
        if partition is None:
            return
        if isinstance(mark, LogDurable):
            replication.on_log_durable(self.state, partition, mark)
        elif isinstance(mark, CursorsReplicated):
            eligibility.on_cursors_replicated(self.state, partition, self.state.member, mark)
        elif mark.kind is StoredFor.SETTLE:
            settle.on_fenced(self.state, partition, mark.segment_no)
        elif mark.kind is StoredFor.COPY:
            copying.on_stored(self.state, partition, mark.segment_no)
        elif mark.kind is StoredFor.REPAIR:
            repair.on_stored(self.state, partition, mark.segment_no)
        else:
            assert mark.kind is StoredFor.HANDOVER
            handoff.on_stored(self.state, partition, mark.segment_no, mark.serial)
