"""The chain record at the coordinator: what was read of it, and how transactions on it ended.

Whoever lost a transaction, or does not know how it ended, reads before it does anything else.
"""

from __future__ import annotations

from seriatim_api import errors
from seriatim_api.ids import MemberId

from . import copying, eligibility, gaps, routes, settle
from .candidates import note_failure
from .chain import Chain
from .effects import Resolved
from .events import WriteOutcome
from .groups import serving
from .learning import learn
from .messages import ChainUpdate
from .outbox import Outbox
from .partition import Partition
from .state import NOTHING


def on_chain_read(outbox: Outbox, partition: Partition, chain: Chain | None, revision: int, failed: bool) -> None:
    """The coordinator answered, or did not."""
    partition.reading = False
    if failed:
        _read_later(outbox, partition)
    else:
        partition.read_pause_us = 0
        if chain is not None:
            learn(outbox, partition, chain, revision)
        else:
            _on_no_partition(outbox, partition)
    if partition.switch is not None:
        partition.switch.on_chain_read(outbox, partition, chain, revision, failed)
    serving.on_chain_read(outbox, partition, failed)
    gaps.on_chain_read(outbox, partition, failed)
    if partition.probe_wanted is not None:
        wanted, partition.probe_wanted = partition.probe_wanted, None
        if partition.chain is not None:
            routes.probe_master(outbox, partition, wanted)
    routes.answer_waiters(outbox, partition)


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
    partition.copies = NOTHING
    serving.on_no_partition(outbox, partition)


def on_chain_written(outbox: Outbox, partition: Partition, serial: int, outcome: WriteOutcome, revision: int) -> None:
    """A transaction ended. Whoever lost, or does not know, reads before it does anything else."""
    owner, detail, chain = partition.end_write(serial)
    if outcome is WriteOutcome.DONE:
        if owner == "switch":
            _note_switch(outbox, partition, chain)
        before = partition.chain
        learn(outbox, partition, chain, revision)
        _announce(outbox, before, chain, revision)
    else:
        partition.read_chain(outbox)
    if owner == "switch" and partition.switch is not None:
        partition.switch.on_written(outbox, partition, outcome)
    elif owner == "settle":
        settle.on_written(outbox, partition, detail, outcome)
    elif owner == "right":
        eligibility.on_written(outbox, partition, detail, outcome)
    elif owner == "copy":
        copying.on_written(outbox, partition, detail, outcome)
    elif owner == "gap":
        gaps.on_written(outbox, partition, detail, outcome)


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


def _announce(outbox: Outbox, before: Chain | None, chain: Chain, revision: int) -> None:
    """Tell the members concerned what the chain says now: of the last two segments, and of those that changed."""
    told: dict[MemberId, None] = {}
    for segment in chain.segments:
        old = before.segment(segment.no) if before is not None else None
        if segment.no >= chain.open_segment.no - 1 or segment != old:
            told.update(dict.fromkeys((*segment.members, *segment.eligible)))
    for member in told:
        if member != outbox.member and outbox.is_linked(member):
            outbox.send(member, ChainUpdate(chain, revision))
