"""The chain record at the coordinator: what was read of it, and how transactions on it ended.

Whoever lost a transaction, or does not know how it ended, reads before it does anything else.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.ids import MemberId

from ..consumers import eligibility, ranges, serving
from ..control import retention
from ..copies import copying, gaps, settle
from ..peers import behind, right, updates
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
from .learning import learn


def on_chain_read(broker: BrokerState, partition: Partition, event: ChainRead) -> None:
    """The coordinator answered, or did not. What it has lost is not taken up: that counts as no answer."""
    chain, revision, failed, deleted = event.chain, event.revision, event.failed, event.deleted
    if not failed:
        why = behind.problem(broker, partition, chain, deleted)
        if why:
            _tell_of_loss(broker, partition, chain)
            behind.begin(broker, partition.id, why, (partition.read_floor or NO_FLOOR).open_no)
            failed = True
        else:
            behind.end(broker, partition.id)
    partition.read_floor = None
    if failed:
        _read_later(broker, partition)
    else:
        if partition.awaits_newer(chain):
            _read_later(broker, partition)  # the answer is older than what a member has told
        else:
            partition.read_pause_us = 0
        if chain is not None:
            if partition.read_epoch is None:
                partition.read_epoch = chain.epoch
            learn(broker, partition, chain, revision)
            if partition.chain is not None and partition.chain.epoch == chain.epoch:
                partition.revision = revision  # it may have been decided once more, after an older copy was restored
        else:
            _on_no_partition(broker, partition)
    switch.on_chain_read(broker, partition, chain, revision, failed)
    serving.on_chain_read(broker, partition, failed)
    gaps.on_chain_read(broker, partition, failed)
    ranges.look_again(broker, partition)
    if partition.probe_wanted is not None:
        wanted, partition.probe_wanted = partition.probe_wanted, None
        if partition.chain is not None:
            routes.probe_master(broker, partition, wanted)
    routes.answer_waiters(broker, partition)


def _tell_of_loss(broker: BrokerState, partition: Partition, older: Chain | None) -> None:
    """Tell what is known here to those whom a switch from the older record would fence.

    Rule `witness-tells` (I7). Without it: (1) segment 4 is open on B, and no other broker has heard of it yet; (2) an
    older copy of the coordinator is restored, in which segment 3 is open; (3) B sees it, and says so to people; (4) a
    switcher asks the members of segment 3, which know of nothing, and opens segment 4 again on C.
    """
    if partition.decided is None or older is None or partition.id in broker.coordinator.behind:
        return
    for member in older.open_segment.members:
        if member != broker.member and broker.is_linked(member):
            updates.tell(broker, partition, member.broker)


def _read_later(broker: BrokerState, partition: Partition) -> None:
    """Ask again, less and less often, if anybody needs to know."""
    if not partition.needs_chain:
        return
    config = broker.config
    partition.read_pause_us = min(max(2 * partition.read_pause_us, config.retry_us), config.retry_us_max)
    spread_us = partition.id * 7919 % partition.read_pause_us  # so that thousands of partitions do not ask at once
    broker.poll(partition.read_pause_us + spread_us, TimerKind.READ, partition.id)


def _on_no_partition(broker: BrokerState, partition: Partition) -> None:
    """There is no record: whoever waits for something of the partition waits in vain."""
    for waiter in partition.waiters:
        error = errors.UnknownTopicError(f"there is no partition {partition.id}")
        broker.out.emit(Resolved(waiter.request, None, error))
    partition.waiters = ()
    ranges.fail_all(broker, partition, errors.UnknownTopicError(f"there is no partition {partition.id}"))
    partition.copies = NOTHING
    serving.on_no_partition(broker, partition)


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
    """A transaction ended. Whoever lost, or does not know, reads before it does anything else."""
    if event.serial not in partition.writes:
        return  # dropped meanwhile
    outcome, revision = event.outcome, event.revision
    owner, detail, chain = partition.end_write(event.serial)
    partition.note_write(broker, outcome)
    before = partition.chain
    if outcome is WriteOutcome.DONE:
        if partition.read_epoch is None:
            partition.read_epoch = chain.epoch - 1  # the transaction compared with that one
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
    elif owner is WriteOwner.RIGHT:
        eligibility.on_written(broker, partition, detail, outcome)
    elif owner is WriteOwner.COPY:
        copying.on_written(broker, partition, detail, outcome)
    elif owner is WriteOwner.GAP:
        gaps.on_written(broker, partition, detail, outcome)


def on_writes_taken(broker: BrokerState, partition: Partition) -> None:
    """The coordinator takes writes again: what waited for that goes on."""
    broker.coordinator.refused.pop(partition.id, None)
    tries.hurry(broker, partition)
    serving.on_writes_taken(broker, partition)


def _note_switch(broker: BrokerState, partition: Partition, chain: Chain) -> None:
    """Tell the operator, and pass over a group that failed for a while."""
    running = partition.switch
    old = chain.segments[-2] if len(chain.segments) > 1 else None
    if running is None or old is None:
        return
    if not running.is_planned:
        note_failure(broker, old.group)
    broker.out.note(
        "switched",
        partition.id,
        kind=running.kind.value,
        reason=running.reason,
        segment=chain.open_segment.no,
        group=chain.open_segment.group,
        old_state=old.state.value,
        took_us=broker.now.mono_us - running.started_us,
    )


def _announce(broker: BrokerState, partition: Partition, before: Chain | None) -> None:
    """Tell the members concerned what the chain says now: of the last two segments, and of what changed or went."""
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
    """A whole record; one that is older than the known one is answered with the newer."""
    behind.hear(broker, partition, message.chain, sender.broker)
    if partition.chain is not None and partition.chain.epoch > message.chain.epoch:
        updates.tell_member(broker, partition, sender)
    learn(broker, partition, message.chain, message.revision)


def on_changes(broker: BrokerState, partition: Partition, sender: MemberId, message: ChainChanges) -> None:
    """What changed: taken up if the record of `since` or a later one is known here, else the coordinator is read."""
    known, told = partition.chain, message.chain
    behind.hear(broker, partition, told, sender.broker)
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
