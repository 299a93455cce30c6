"""The chain record at the coordinator: what was read of it, and how transactions on it ended.

Whoever lost a transaction, or does not know how it ended, reads before it does anything else.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.ids import MemberId

from . import behind, copying, eligibility, gaps, ranges, retention, right, routes, settle, updates
from .candidates import note_failure
from .chain import Chain
from .effects import Resolved
from .events import WriteOutcome
from .groups import serving
from .learning import learn
from .messages import ChainChanges, ChainUpdate
from .outbox import Outbox
from .partition import NO_FLOOR, Floor, Partition
from .segments import Changes
from .state import NOTHING


def on_chain_read(
    outbox: Outbox, partition: Partition, chain: Chain | None, revision: int, failed: bool, deleted: bool
) -> None:
    """The coordinator answered, or did not. What it has lost is not taken up: that counts as no answer."""
    if not failed:
        why = behind.problem(outbox, partition, chain, deleted)
        if why:
            _tell_of_loss(outbox, partition, chain)
            behind.begin(outbox, partition.id, why, (partition.read_floor or NO_FLOOR).open_no)
            failed = True
        else:
            behind.end(outbox, partition.id)
    partition.read_floor = None
    if failed:
        _read_later(outbox, partition)
    else:
        if partition.awaits_newer(chain):
            _read_later(outbox, partition)  # the answer is older than what a member has told
        else:
            partition.read_pause_us = 0
        if chain is not None:
            if partition.read_epoch is None:
                partition.read_epoch = chain.epoch
            learn(outbox, partition, chain, revision)
            if partition.chain is not None and partition.chain.epoch == chain.epoch:
                partition.revision = revision  # it may have been decided once more, after an older copy was restored
        else:
            _on_no_partition(outbox, partition)
    if partition.switch is not None:
        partition.switch.on_chain_read(outbox, partition, chain, revision, failed)
    serving.on_chain_read(outbox, partition, failed)
    gaps.on_chain_read(outbox, partition, failed)
    ranges.look_again(outbox, partition)
    if partition.probe_wanted is not None:
        wanted, partition.probe_wanted = partition.probe_wanted, None
        if partition.chain is not None:
            routes.probe_master(outbox, partition, wanted)
    routes.answer_waiters(outbox, partition)


def _tell_of_loss(outbox: Outbox, partition: Partition, older: Chain | None) -> None:
    """Tell what is known here to those whom a switch from the older record would fence.

    Rule `witness-tells` (I7). Without it: (1) segment 4 is open on B, and no other broker has heard of it yet; (2) an
    older copy of the coordinator is restored, in which segment 3 is open; (3) B sees it, and says so to people; (4) a
    switcher asks the members of segment 3, which know of nothing, and opens segment 4 again on C.
    """
    if partition.decided is None or older is None or partition.id in outbox.behind:
        return
    for member in older.open_segment.members:
        if member != outbox.member and outbox.is_linked(member):
            updates.tell(outbox, partition, member.broker)


def _read_later(outbox: Outbox, partition: Partition) -> None:
    """Ask again, less and less often, if anybody needs to know."""
    if not partition.needs_chain:
        return
    config = outbox.config
    partition.read_pause_us = min(max(2 * partition.read_pause_us, config.retry_us), config.retry_us_max)
    spread_us = partition.id * 7919 % partition.read_pause_us  # so that thousands of partitions do not ask at once
    outbox.poll(partition.read_pause_us + spread_us, "read", partition.id)


def _on_no_partition(outbox: Outbox, partition: Partition) -> None:
    """There is no record: whoever waits for something of the partition waits in vain."""
    for waiter in partition.waiters:
        error = errors.UnknownTopicError(f"there is no partition {partition.id}")
        outbox.emit(Resolved(waiter.request, None, error))
    partition.waiters = ()
    ranges.fail_all(outbox, partition, errors.UnknownTopicError(f"there is no partition {partition.id}"))
    partition.copies = NOTHING
    serving.on_no_partition(outbox, partition)


def _note_trim(outbox: Outbox, partition: Partition, before: Chain, chain: Chain) -> None:
    oldest = next((segment for segment in chain.segments if not segment.is_stub), chain.open_segment)
    messages, size_bytes = retention.dropped(before, chain)
    outbox.note(
        "trimmed",
        partition.id,
        segment=oldest.no,
        start=oldest.start,
        segments=len(chain.segments),
        messages=messages,
        bytes=size_bytes,
    )


def on_chain_written(outbox: Outbox, partition: Partition, serial: int, outcome: WriteOutcome, revision: int) -> None:
    """A transaction ended. Whoever lost, or does not know, reads before it does anything else."""
    owner, detail, chain = partition.end_write(serial)
    partition.note_write(outbox, outcome)
    before = partition.chain
    if outcome is WriteOutcome.DONE:
        if partition.read_epoch is None:
            partition.read_epoch = chain.epoch - 1  # the transaction compared with that one
        if owner == "switch":
            _note_switch(outbox, partition, chain)
        learn(outbox, partition, chain, revision)
        _announce(outbox, partition, before)
    else:
        partition.read_chain(outbox)
    if owner == "switch" and partition.switch is not None:
        partition.switch.on_written(outbox, partition, outcome)
    elif owner == "trim" and outcome is WriteOutcome.DONE and before is not None:
        _note_trim(outbox, partition, before, chain)
    elif owner == "settle":
        settle.on_written(outbox, partition, detail, outcome)
    elif owner == "right":
        eligibility.on_written(outbox, partition, detail, outcome)
    elif owner == "copy":
        copying.on_written(outbox, partition, detail, outcome)
    elif owner == "gap":
        gaps.on_written(outbox, partition, detail, outcome)


def on_writes_taken(outbox: Outbox, partition: Partition) -> None:
    """The coordinator takes writes again: what waited for that goes on."""
    outbox.refused.pop(partition.id, None)
    if partition.switch is not None:
        partition.switch.hurry(outbox, partition)
    serving.on_writes_taken(outbox, partition)


def _note_switch(outbox: Outbox, partition: Partition, chain: Chain) -> None:
    """Tell the operator, and pass over a group that failed for a while."""
    running = partition.switch
    old = chain.segments[-2] if len(chain.segments) > 1 else None
    if running is None or old is None:
        return
    if not running.is_planned:
        note_failure(outbox, old.group)
    outbox.note(
        "switched",
        partition.id,
        kind=running.kind.value,
        reason=running.reason,
        segment=chain.open_segment.no,
        group=chain.open_segment.group,
        old_state=old.state.value,
        took_us=outbox.now.mono_us - running.started_us,
    )


def _announce(outbox: Outbox, partition: Partition, before: Chain | None) -> None:
    """Tell the members concerned what the chain says now: of the last two segments, and of what changed or went."""
    chain = partition.chain
    assert chain is not None
    told: dict[MemberId, None] = {}
    changes = chain.changes_since(before)
    gone = [segment for no in changes.gone if before is not None and (segment := before.segment(no)) is not None]
    for segment in (*chain.segments[-2:], *changes.changed, *gone):
        told.update(dict.fromkeys((*segment.members, *segment.eligible)))
    for member in told:
        if member != outbox.member and outbox.is_linked(member):
            updates.tell_member(outbox, partition, member)


# ---- what other members say ------------------------------------------------------------------------------


def on_update(outbox: Outbox, partition: Partition, sender: MemberId, message: ChainUpdate) -> None:
    """A whole record; one that is older than the known one is answered with the newer."""
    behind.hear(outbox, partition, message.chain, sender.broker)
    if partition.chain is not None and partition.chain.epoch > message.chain.epoch:
        updates.tell_member(outbox, partition, sender)
    learn(outbox, partition, message.chain, message.revision)


def on_changes(outbox: Outbox, partition: Partition, sender: MemberId, message: ChainChanges) -> None:
    """What changed: taken up if the record of `since` or a later one is known here, else the coordinator is read."""
    known, told = partition.chain, message.chain
    behind.hear(outbox, partition, told, sender.broker)
    if known is not None and known.epoch > told.epoch:
        updates.tell_member(outbox, partition, sender)
        return
    if known is not None and known.epoch >= message.since:
        segments = known.parts.with_changes(Changes(tuple(told.segments), message.gone))
        if segments.digest == message.digest:
            learn(outbox, partition, replace(told, segments=segments), message.revision)
            return
        outbox.note("chain_differs", partition.id, known_epoch=known.epoch, epoch=told.epoch)
    right.give_up(partition, told)
    partition.awaited = partition.awaited.or_above(Floor.of(told))
    partition.read_chain(outbox)
