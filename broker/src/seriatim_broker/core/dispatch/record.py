"""The chain record at the coordinator: it was read, or a transaction on it ended.

If another transaction came first, or the outcome is not known, this broker reads the record before it does anything
else.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.ids import MemberId

from ..consumers.groups import eligibility, record_changes
from ..consumers.ranges import range_reads
from ..control import retention
from ..copies import copying, gaps, settle
from ..peers import lost_decisions, right, updates
from ..peers.candidates import note_failure
from ..state.broker import BrokerState
from ..state.partition import NO_FLOOR, Floor, Partition
from ..switching import routes, switch, tries
from ..values.chain import Chain
from ..values.effects import Resolved
from ..values.events import ChainRead, ChainWritten, WriteOutcome
from ..values.kinds import TimerKind, WriteOwner
from ..values.messages import ChainChanges, ChainUpdate
from ..values.segments import Changes
from ..values.states import NOTHING
from .reconciliation import learn

AMENDMENTS = (WriteOwner.RIGHT, WriteOwner.COPY, WriteOwner.LEAVE)
"""Whose transactions change only sealed segments, and end in a pause of those."""


def on_chain_read(broker: BrokerState, partition: Partition, event: ChainRead) -> None:
    """The coordinator answered a read, or did not. A record that has lost decisions counts as no answer."""
    chain, revision, failed = event.chain, event.revision, event.failed
    if not failed:
        why = lost_decisions.problem(broker, partition, chain)
        if why:
            _tell_of_loss(broker, partition, chain)
            lost_decisions.begin(broker, partition.id, why, (partition.read_floor or NO_FLOOR).open_no)
            failed = True
        else:
            lost_decisions.end(broker, partition.id)
        # A switch has prepared a segment here, and there is no record: the answer is older, or the record is lost.
        # Without it: 1. A consumer comes to the end of segment 2, and is sent to this member, which is about to learn
        # that it is the master of segment 3. 2. The coordinator comes back empty. 3. This member reads that there is
        # no such partition, notifies the consumer, and the consumer ends. Segment 1 is prepared before there is a
        # record.
        is_prepared = any(segment_no > 1 for segment_no, _ in partition.preparations)
        failed = failed or (chain is None and is_prepared)
    floor, partition.read_floor = partition.read_floor or NO_FLOOR, None
    if chain is None and not failed and floor.asked_again:
        partition.read_chain(broker)
        return
    # A member reported a record, and there is none, nor a tombstone: the record is lost. Without it: 1. The coordinator
    # is restored from a copy that is older than the topic. 2. This member has nothing of it, and reads that there is no
    # such partition. 3. It says so to clients, which give the topic up although its messages are on the disks.
    failed = failed or (chain is None and partition.awaited.epoch > 0)
    if failed:
        _read_later(broker, partition)
    else:
        if partition.awaits_newer(chain):
            _read_later(broker, partition)  # the answer is older than a record that a member reported
        else:
            partition.read_pause_us = 0
        if chain is not None:
            if partition.read_epoch is None:
                partition.read_epoch = chain.epoch
            _learn_and_tell(broker, partition, chain, revision)
            if partition.chain is not None and partition.chain.epoch == chain.epoch:
                partition.revision = revision  # the same record may have been written again, after a restore
        else:
            _on_no_partition(broker, partition)
    switch.on_chain_read(broker, partition, chain, revision, failed)
    record_changes.on_chain_read(broker, partition, failed)
    gaps.on_chain_read(broker, partition, failed)
    range_reads.on_chain_read(broker, partition, failed)
    if partition.probe_wanted is not None:
        wanted, partition.probe_wanted = partition.probe_wanted, None
        if partition.chain is not None:
            routes.probe_master(broker, partition, wanted)
    routes.answer_waiters(broker, partition)
    if not failed:
        partition.amend_soon(broker)


def amend(broker: BrokerState, partition: Partition) -> None:
    """Change all sealed segments that wait for it, if this may be done now (rule `amends-together`).

    What else is called when something begins to wait calls only its own part.
    """
    right.take_wanted(broker, partition)
    eligibility.list_joined(broker, partition)
    copying.list_whole(broker, partition)


def _learn_and_tell(broker: BrokerState, partition: Partition, chain: Chain, revision: int) -> None:
    """Take up a record that was read. If this broker wrote it, notify the other members, as after an answer.

    Rule `read-is-told` (I7, I13): a transaction whose answer was lost is told to the members when a read shows that it
    was carried out. Without it:
      1. A switcher opens segment 2 on B, and the answer is lost. It reads the record, and is the only one that knows.
      2. B's master refuses batches until it has read the record itself. An outage of the coordinator delays that.
      3. The switcher restarts, and an older copy of the coordinator comes back. In it segment 1 is open.
      4. A broker that does not know of the loss opens segment 2 again, on C. The number is used twice.
    """
    before = partition.chain
    is_own = (before is None or chain.epoch > before.epoch) and partition.may_have_written(broker, chain)
    unanswered = broker.coordinator.unanswered.get(partition.id)
    if unanswered is not None and unanswered.epoch <= chain.epoch:
        del broker.coordinator.unanswered[partition.id]  # it is carried out, or can no longer be
    learn(broker, partition, chain, revision)
    if is_own and partition.chain is not before:
        _announce(broker, partition, before)


def _tell_of_loss(broker: BrokerState, partition: Partition, older: Chain | None) -> None:
    """Report the record that this disk has to the members that a switch from the older record would fence.

    Rule `witness-tells` (I7). Without it:
      1. Segment 4 is open on B, and no other broker has heard of it yet.
      2. An older copy of the coordinator is restored. In it segment 3 is open.
      3. B notices that, and reports it to administrators.
      4. A switcher asks the members of segment 3. They know nothing of segment 4, so it opens segment 4 again on C.
    """
    if partition.decided is None or older is None or partition.id in broker.coordinator.behind:
        return
    for member in older.open_segment.members:
        if member != broker.member and broker.is_linked(member):
            updates.tell(broker, partition, member.broker)


def _read_later(broker: BrokerState, partition: Partition) -> None:
    """Read the record again after a pause, if something waits for it. The pause doubles from 50 ms to 1 s."""
    if not partition.needs_chain:
        return
    config = broker.config
    partition.read_pause_us = min(max(2 * partition.read_pause_us, config.retry_us), config.retry_us_max)
    spread_us = partition.id * 7919 % partition.read_pause_us  # so that thousands of partitions do not read at once
    broker.poll(partition.read_pause_us + spread_us, TimerKind.READ, partition.id)


def _on_no_partition(broker: BrokerState, partition: Partition) -> None:
    """There is no record, so no partition: refuse everything that waits for it."""
    for waiter in partition.waiters:
        error = errors.UnknownTopicError(f"there is no {partition.name}")
        broker.out.emit(Resolved(waiter.request, None, error))
    partition.waiters = ()
    partition.wanted_rights = NOTHING
    for held in partition.rights.values():
        held.joining = NOTHING
    range_reads.on_no_partition(broker, partition)
    partition.copies = NOTHING
    record_changes.on_no_partition(broker, partition)


def _note_trim(broker: BrokerState, partition: Partition, before: Chain, chain: Chain) -> None:
    oldest = next((segment for segment in chain.segments if not segment.is_stub), chain.open_segment)
    messages, size_bytes = retention.dropped(before, chain)
    broker.out.note(
        "trimmed",
        partition.id,
        segment=oldest.no,
        start=oldest.start,
        segments=len(chain.segments),
        messages=messages,
        bytes=size_bytes,
    )


def on_chain_written(broker: BrokerState, partition: Partition, event: ChainWritten) -> None:
    """A transaction on the chain record ended.

    Rule `unknown-outcome` (I5): after a time-out a switcher reads the chain first. Without it:
      1. The switcher's transaction seals segment 1 at 0, and gets no answer. The coordinator has not applied it.
      2. The switcher believes that it has won, and notifies the members. They truncate segment 1 to 0.
      3. Another switcher's transaction seals segment 1 at 1. No disk has the message at index 0.
    """
    if event.serial not in partition.writes:
        return  # the partition was dropped meanwhile
    outcome, revision = event.outcome, event.revision
    owner, detail, chain = partition.end_write(broker, event.serial, event.outcome)
    partition.note_write(broker, outcome)
    if owner in AMENDMENTS:
        partition.note_amendment(broker, outcome)
    before = partition.chain
    if outcome is WriteOutcome.DONE:
        if partition.read_epoch is None:
            partition.read_epoch = chain.epoch - 1  # the transaction compared the record with this chain epoch
        if owner is WriteOwner.SWITCH:
            _note_switch(broker, partition, chain)
        learn(broker, partition, chain, revision)
        _announce(broker, partition, before)
    else:
        partition.read_chain(broker)
    if owner is WriteOwner.SWITCH:
        switch.on_written(broker, partition, outcome)
    elif owner is WriteOwner.TRIM and outcome is WriteOutcome.DONE and before is not None:
        _note_trim(broker, partition, before, chain)
    elif owner is WriteOwner.SETTLE:
        settle.on_written(broker, partition, detail, outcome)
    elif owner is WriteOwner.GAP:
        gaps.on_written(broker, partition, detail, outcome)
    partition.amend_soon(broker)


def on_writes_taken(broker: BrokerState, partition: Partition) -> None:
    """The coordinator takes writes again: continue everything that waited for that."""
    broker.coordinator.refused.pop(partition.id, None)
    tries.hurry(broker, partition)
    record_changes.on_writes_taken(broker, partition)
    partition.amend_soon(broker)


def _note_switch(broker: BrokerState, partition: Partition, chain: Chain) -> None:
    """Note the switch in the log, and pass over the broker group that failed for `flapping_us` (5 s) or longer."""
    running = partition.switch
    old = chain.segments[-2] if len(chain.segments) > 1 else None
    if running is None or old is None:
        return
    if not running.is_planned:
        note_failure(broker, old.broker_group)
    broker.out.note(
        "switched",
        partition.id,
        kind=running.kind.value,
        reason=running.reason,
        segment=chain.open_segment.no,
        group=chain.open_segment.broker_group,
        old_state=old.state.value,
        took_us=broker.now.mono_us - running.started_us,
    )


def _announce(broker: BrokerState, partition: Partition, before: Chain | None) -> None:
    """Report the new record to the members of the last two segments, and of all segments that changed or left."""
    chain = partition.chain
    assert chain is not None
    told: dict[MemberId, None] = {}
    changes = chain.changes_since(before)
    gone = [segment for no in changes.gone if before is not None and (segment := before.segment(no)) is not None]
    for segment in (*chain.segments[-2:], *changes.changed, *gone):
        told.update(dict.fromkeys((*segment.members, *segment.eligible)))
    for member in told:
        if member != broker.member and broker.is_linked(member):
            updates.tell_member(broker, partition, member)


# ---- what other members say ------------------------------------------------------------------------------


def on_update(broker: BrokerState, partition: Partition, sender: MemberId, message: ChainUpdate) -> None:
    """A member reported a whole record: take it up; if it is older than the known one, send the member the newer
    one.

    Rule `reported-is-read` (GONE): a member that has nothing of a partition reads the coordinator first. Without it:
      1. A topic is deleted. This member has dropped its data.
      2. Another member, which has not heard of it yet, reports the chain record.
      3. This member begins its logs again, copies the messages, and keeps them until its next start.
    """
    lost_decisions.hear(broker, partition, message.chain, sender.broker)
    if partition.decided is None and not (partition.logs or partition.preparations):
        partition.awaited = partition.awaited.or_above(Floor.of(message.chain))
        partition.read_chain(broker)
        return
    if partition.chain is not None and partition.chain.epoch > message.chain.epoch:
        updates.tell_member(broker, partition, sender)
    learn(broker, partition, message.chain, message.revision)


def on_changes(broker: BrokerState, partition: Partition, sender: MemberId, message: ChainChanges) -> None:
    """A member reported what changed since chain epoch `since`: take it up, or read the coordinator.

    Rule `changes-of-any-record` (CORE, I7): changes are applied only to the chain record that they continue. Without
    it:
      1. This broker was cut off, and knows the record of chain epoch 5. A member reports what changed from 8 to 9.
      2. This broker applies that to its record. The changes from 5 to 8 are missing.
      3. It follows a record that no transaction wrote: it may serve, or open, what another member has.

    Rule `changes-end-a-right` (SERVER): a server that cannot apply changes of the chain record gives up its right.
    Without it:
      1. Another member has taken the right over. It sends this server the changes.
      2. This server cannot apply them, and reads the coordinator. Meanwhile it answers a heartbeat.
      3. So the new server believes that this server knows the newer record, and answers its heartbeats again.
      4. Both deliver.
    """
    known, told = partition.chain, message.chain
    lost_decisions.hear(broker, partition, told, sender.broker)
    if known is not None and known.epoch > told.epoch:
        updates.tell_member(broker, partition, sender)
        return
    if known is not None and known.epoch >= message.since:
        segments = known.parts.with_changes(Changes(tuple(told.segments), message.gone))
        if segments.digest == message.digest:
            learn(broker, partition, replace(told, segments=segments), message.revision)
            return
        broker.out.note("chain_differs", partition.id, known_epoch=known.epoch, epoch=told.epoch)
    right.give_up(partition, told)
    partition.awaited = partition.awaited.or_above(Floor.of(told))
    partition.read_chain(broker)
