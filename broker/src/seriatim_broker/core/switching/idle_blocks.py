"""Idle blocks between members: written when they are made, sent ahead, asked for by a member that lacks one.

A table names its idle blocks. So a switch carries names, and the content travels beforehand: the master of the open
segment offers its blocks to the members of the next group, and they ask for what they lack, one at a time. A member
that is asked to prepare and still lacks a block gets it from the member whose table it is, and says how much is
missing. Each block that arrives is kept, for this try and for the next one.

A preparation is written only when all blocks that it names are: a block that is missing is not empty (I9).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from seriatim_api.ids import MemberId

from ..peers import versions
from ..state.broker import BrokerState
from ..state.switching import Asked, Awaiting, Offer
from ..values.kinds import PrepareRefusal, TimerKind
from ..values.log import DropBlock, PutBlock
from ..values.messages import (
    FORM_IDLE_BLOCKS,
    FORM_PARTS,
    BlockAnswer,
    BlockOffer,
    BlockRequest,
    PrepareAnswer,
    PrepareRequest,
)
from ..values.producers import IdleBlock, Table
from ..values.states import drop, put

if TYPE_CHECKING:
    from ..state.partition import Partition


# ---- what is here ---------------------------------------------------------------------------------------


def table_bytes_max(broker: BrokerState, member: MemberId | None = None) -> int:
    """How large a table may be for a member to take it; without one, for every broker that is linked."""
    config = broker.config
    if member is not None:
        takes_parts = versions.reads(broker, member, FORM_PARTS)
    else:
        takes_parts = versions.all_linked_read(broker, FORM_PARTS)
    return config.table_bytes_max if takes_parts else config.spelled_out_bytes_max


def _find(partition: Partition, block: bytes) -> IdleBlock | None:
    known = partition.blocks.get(block)
    if known is not None:
        return known
    tables = [log.table for log in partition.logs.values() if log.table is not None and log.table.blocks]
    return next((found for table in tables for found in table.blocks if found.id == block), None)


def _keep(broker: BrokerState, partition: Partition, block: IdleBlock) -> None:
    if block.id not in partition.blocks:
        partition.blocks = put(partition.blocks, block.id, block)
        broker.out.write(PutBlock(partition.id, block.id, block.data))


def missing(broker: BrokerState, partition: Partition, table: Table) -> tuple[bytes, ...]:
    """Which blocks of a table are not here; those that are only in memory are written."""
    lacking: list[bytes] = []
    for name in table.blocks:
        found = _find(partition, name.id)
        if found is None:
            lacking.append(name.id)
        else:
            _keep(broker, partition, found)
    return tuple(lacking)


# ---- now and then: write, drop, offer -------------------------------------------------------------------


def look_soon(broker: BrokerState, partition: Partition) -> None:
    """Blocks were made, or a record was learned: there may be some to write, to offer, or to drop."""
    broker.poll(broker.config.block_pause_us, TimerKind.BLOCKS, partition.id)


def on_timer(broker: BrokerState, partition: Partition) -> None:
    """Write blocks that were made, drop what nothing names, offer what there is to the next group, and go on asking."""
    tables = [log.table for log in partition.logs.values() if log.table is not None]
    for table in tables:
        for block in table.blocks:
            _keep(broker, partition, block)
    _collect(broker, partition)
    log = partition.open_log()
    if log is not None and log.active and log.unbroken and log.live_table.blocks:
        _offer(broker, partition, log.no, tuple(block.id for block in log.live_table.blocks))
        broker.poll(broker.config.block_offer_us, TimerKind.BLOCKS, partition.id)
    _ask(broker, partition)


def _collect(broker: BrokerState, partition: Partition) -> None:
    """Drop the blocks that nothing names."""
    decided = partition.chain.open_segment.no if partition.chain is not None else 0
    partition.awaiting = tuple(wait for wait in partition.awaiting if wait.request.segment_no > decided)
    if partition.offer is not None and partition.offer.segment_no < decided:
        partition.offer = None
    if not partition.blocks:
        return
    named: set[bytes] = set(partition.offer.blocks) if partition.offer is not None else set()
    named.update(_found_at_start(broker, partition))
    tables = [preparation.table for preparation in partition.preparations.values()]
    tables += [wait.request.table for wait in partition.awaiting]
    for log in partition.logs.values():
        if log.opened_with is not None:
            tables.append(log.opened_with.table)
        if log.table is not None:
            named.update(block.id for block in log.table.blocks)
    named.update(name.id for table in tables for name in table.blocks)
    for block in [block for block in partition.blocks if block not in named]:
        partition.blocks = drop(partition.blocks, block)
        broker.out.write(DropBlock(partition.id, block))


def _found_at_start(broker: BrokerState, partition: Partition) -> tuple[bytes, ...]:
    """What this member had been given before it restarted, until it is offered anew, or nobody does so for long.

    Without it: (1) all brokers restart; (2) the members of the next group drop the blocks that they were given, for
    what they were offered is not on their disks; (3) one of the open segment answers the fence, and all of them are got
    anew in the middle of the switch.
    """
    if partition.blocks_found:
        left_us = broker.started_us + broker.config.block_keep_us - broker.now.mono_us
        if partition.offer is not None or left_us <= 0:
            partition.blocks_found = ()
        else:
            broker.poll(left_us, TimerKind.BLOCKS, partition.id)
    return partition.blocks_found


def _offer(broker: BrokerState, partition: Partition, no: int, blocks: tuple[bytes, ...]) -> None:
    chain = partition.chain
    assert chain is not None
    following = [group for group in chain.send_chain if group != chain.open_segment.group]
    for member in broker.directory.groups.get(following[0], ()) if following else ():
        if broker.is_linked(member) and versions.reads(broker, member, FORM_IDLE_BLOCKS):
            broker.send(member, BlockOffer(partition.id, no, blocks))


def on_offer(broker: BrokerState, partition: Partition, sender: MemberId, message: BlockOffer) -> None:
    """The master of the open segment says what a switch would name."""
    known = partition.offer
    decided = partition.chain.open_segment.no if partition.chain is not None else 0
    if message.segment_no < max(decided, known.segment_no if known is not None else 0):
        return
    partition.offer = Offer(sender, message.segment_no, message.blocks)
    look_soon(broker, partition)


# ---- getting what is missing ----------------------------------------------------------------------------


def wait_for(broker: BrokerState, partition: Partition, sender: MemberId, request: PrepareRequest) -> bool:
    """Whether a preparation has to wait for blocks of its table; if so, they are asked for, and the sender is told."""
    lacking = missing(broker, partition, request.table)
    if not lacking:
        return False
    waits = [wait for wait in partition.awaiting if wait.request.attempt != request.attempt]
    partition.awaiting = (*waits[-7:], Awaiting(sender, request))
    sizes = {name.id: IdleBlock.size_bytes(name.producer_count) for name in request.table.blocks}
    answer = PrepareAnswer(partition.id, request.segment_no, request.attempt, broker.run, PrepareRefusal.NONE)
    broker.send(sender, _with_missing(answer, sum(sizes[block] for block in lacking)))
    _ask(broker, partition)
    return True


def _with_missing(answer: PrepareAnswer, missing_bytes: int) -> PrepareAnswer:
    return PrepareAnswer(answer.partition, answer.segment_no, answer.attempt, answer.run, answer.refusal, missing_bytes)


def _ask(broker: BrokerState, partition: Partition) -> None:
    """Ask for the next few blocks: first what a preparation waits for, then what was offered."""
    config, asked = broker.config, partition.asked
    if asked is not None and broker.now.mono_us < asked.at_us + config.block_timeout_us:
        return
    partition.asked = None
    for wait in partition.awaiting:
        source = wait.request.source
        if source is not None and broker.is_linked(source):
            _ask_of(broker, partition, source, missing(broker, partition, wait.request.table), config.blocks_asked_max)
        elif source is not None:
            broker.connect(source.broker)
    offer = partition.offer
    if offer is not None and broker.is_linked(offer.member):
        _ask_of(broker, partition, offer.member, tuple(b for b in offer.blocks if _find(partition, b) is None), 1)


def _ask_of(
    broker: BrokerState, partition: Partition, member: MemberId, blocks: tuple[bytes, ...], count_max: int
) -> None:
    if partition.asked is None and blocks:
        partition.asked = Asked(member, blocks[:count_max], broker.now.mono_us)
        broker.send(member, BlockRequest(partition.id, blocks[:count_max]))
        broker.poll(broker.config.block_timeout_us, TimerKind.BLOCKS, partition.id)


def on_request(broker: BrokerState, partition: Partition, sender: MemberId, message: BlockRequest) -> None:
    """Give what is here."""
    found = [_find(partition, block) for block in message.blocks[: broker.config.blocks_asked_max]]
    broker.send(sender, BlockAnswer(partition.id, tuple(block.data for block in found if block is not None)))


def on_answer(
    broker: BrokerState,
    partition: Partition,
    sender: MemberId,
    message: BlockAnswer,
    prepare: Callable[[BrokerState, Partition, MemberId, PrepareRequest], None],
) -> None:
    """Keep what was asked for, go on with the preparations that have all they name, and ask for the rest."""
    asked = partition.asked
    if asked is None or asked.member != sender:
        return
    partition.asked = None
    got = 0
    for content in message.contents:
        block = IdleBlock(content)
        if block.id in asked.blocks:
            got += 1
            _keep(broker, partition, block)
    if not got and partition.offer is not None and partition.offer.member == sender:
        partition.offer = None  # it has none of them any more: another offer will come
    waits, partition.awaiting = partition.awaiting, ()
    for wait in waits:
        if not got and wait.request.source == sender:
            _refuse(broker, partition, wait)
        else:
            # What still lacks a block waits again, and asks. What it replaces was dropped when it came first; meanwhile
            # the switcher may have asked for something else.
            prepare(broker, partition, wait.sender, dataclasses.replace(wait.request, replaces=()))
    look_soon(broker, partition)


def _refuse(broker: BrokerState, partition: Partition, wait: Awaiting) -> None:
    """Whose table it is does not have its blocks any more: it has restarted. The switcher has to fence it anew."""
    request = wait.request
    refusal = PrepareRefusal.BLOCKS_MISSING
    broker.send(wait.sender, PrepareAnswer(partition.id, request.segment_no, request.attempt, broker.run, refusal))
