"""Idle blocks between members: the content of idle producers travels before a switch, and a switch carries only names.

A producer table names its idle blocks. The master of the open segment offers its blocks to the members of the next
broker group every `block_offer_us` (5 s), and they ask for those that they lack, one at a time. If a member still lacks
blocks when it is asked to prepare, it gets them from the member that answered the fence, and tells the switcher how
many bytes are missing. A member keeps each block that arrives, for this try and for the next one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from seriatim_api.ids import MemberId

from ..state.broker import BrokerState
from ..state.switching import Asked, Awaiting, Offer
from ..values.kinds import PrepareRefusal, TimerKind
from ..values.log import DropBlock, PutBlock
from ..values.messages import BlockAnswer, BlockOffer, BlockRequest, PrepareAnswer, PrepareRequest
from ..values.producers import IdleBlock, Table
from ..values.states import drop, put

if TYPE_CHECKING:
    from ..state.partition import Partition


# ---- what is here ---------------------------------------------------------------------------------------


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
    """The blocks of a table that this member lacks; blocks that it has in memory only are written to the disk."""
    lacking: list[bytes] = []
    for name in table.blocks:
        found = _find(partition, name.id)
        if found is None:
            lacking.append(name.id)
        else:
            _keep(broker, partition, found)
    return tuple(lacking)


# ---- on a timer: write, drop, offer ---------------------------------------------------------------------


def look_soon(broker: BrokerState, partition: Partition) -> None:
    """Look after `block_pause_us` whether blocks have to be written, offered or dropped.

    Called when blocks were made, or when a chain record was learned.
    """
    broker.poll(broker.config.block_pause_us, TimerKind.BLOCKS, partition.id)


def on_timer(broker: BrokerState, partition: Partition) -> None:
    """Write new blocks, drop blocks that nothing names, offer the rest to the next broker group, and keep asking."""
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
    """Drop the blocks that no table, preparation or offer names."""
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
    """The blocks that the disk had at the start: kept until the next offer, at most `block_keep_us` (10 minutes).

    Without this:
      1. All brokers restart. An offer is not kept on the disk, so nothing names the blocks of the next members.
      2. The members of the next broker group drop the blocks that they were given.
      3. A switch begins, and they have to get all these blocks again in the middle of it.
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
    following = [group for group in chain.send_chain if group != chain.open_segment.broker_group]
    for member in broker.directory.broker_groups.get(following[0], ()) if following else ():
        if broker.is_linked(member):
            broker.send(member, BlockOffer(partition.id, no, blocks))


def on_offer(broker: BrokerState, partition: Partition, sender: MemberId, message: BlockOffer) -> None:
    """The master of the open segment names the blocks of its table: note them, and ask for those that are missing."""
    known = partition.offer
    decided = partition.chain.open_segment.no if partition.chain is not None else 0
    if message.segment_no < max(decided, known.segment_no if known is not None else 0):
        return
    partition.offer = Offer(sender, message.segment_no, message.blocks)
    look_soon(broker, partition)


# ---- getting what is missing ----------------------------------------------------------------------------


def wait_for(broker: BrokerState, partition: Partition, sender: MemberId, request: PrepareRequest) -> bool:
    """Whether a preparation has to wait for blocks of its table.

    If so, this member asks for them, and tells the switcher how many bytes are missing.
    """
    # Rule `block-missing` (I9): a preparation is written only with all blocks that it names. Without it:
    #   1. A table names block k. Bm, a member of the next segment, lacks k. It prepares all the same.
    #   2. Bm becomes master, and does not know the producers of k.
    #   3. A producer of k resends its last batch. Bm stores it again.
    lacking = missing(broker, partition, request.table)
    if not lacking:
        return False
    waits = [wait for wait in partition.awaiting if wait.request.switch_attempt != request.switch_attempt]
    partition.awaiting = (*waits[-7:], Awaiting(sender, request))
    sizes = {name.id: name.size_bytes for name in request.table.blocks}
    answer = PrepareAnswer(
        partition.id, request.segment_no, request.switch_attempt, broker.member_run, PrepareRefusal.NONE
    )
    broker.send(sender, _with_missing(answer, sum(sizes[block] for block in lacking)))
    _ask(broker, partition)
    return True


def _with_missing(answer: PrepareAnswer, missing_bytes: int) -> PrepareAnswer:
    return PrepareAnswer(
        answer.partition, answer.segment_no, answer.switch_attempt, answer.member_run, answer.refusal, missing_bytes
    )


def _ask(broker: BrokerState, partition: Partition) -> None:
    """Ask for the next blocks: up to `blocks_asked_max` for a preparation that waits, else one that was offered."""
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
    """Send those of the requested blocks that this member has."""
    found = [_find(partition, block) for block in message.blocks[: broker.config.blocks_asked_max]]
    broker.send(sender, BlockAnswer(partition.id, tuple(block.data for block in found if block is not None)))


def on_answer(
    broker: BrokerState,
    partition: Partition,
    sender: MemberId,
    message: BlockAnswer,
    prepare: Callable[[BrokerState, Partition, MemberId, PrepareRequest], None],
) -> None:
    """Keep the blocks that were asked for, carry out the preparations that now have all blocks, and ask for the rest.

    Args:
        broker: This broker.
        partition: The partition of the blocks.
        sender: The member that answers. An answer of another member than the one that was asked is ignored.
        message: The content of the blocks. If it has no block, the sender has none of them any more.
        prepare: Carries out a preparation again (`preparing.on_prepare`).
    """
    asked = partition.asked
    if asked is None or asked.member != sender:
        return
    blocks = [IdleBlock(content) for content in message.contents]
    wanted = [block for block in blocks if block.id in asked.blocks]
    if blocks and not wanted:
        return  # the late answer to an earlier request; it does not say that the sender lacks what is asked for now
    partition.asked = None
    for block in wanted:
        _keep(broker, partition, block)
    if not wanted and partition.offer is not None and partition.offer.member == sender:
        partition.offer = None  # the sender has none of them any more; it will send another offer
    waits, partition.awaiting = partition.awaiting, ()
    for wait in waits:
        if not wanted and wait.request.source == sender:
            _refuse(broker, partition, wait)
        else:
            # A preparation that still lacks a block waits again. The attempts that it replaces were dropped when the
            # request arrived. They must not be dropped again now: the switcher may have prepared others since.
            prepare(broker, partition, wait.sender, dataclasses.replace(wait.request, replaces=()))
    look_soon(broker, partition)


def _refuse(broker: BrokerState, partition: Partition, wait: Awaiting) -> None:
    """Refuse the preparation: the member that answered the fence has restarted, and has lost blocks of its table.

    The switcher must fence that member again.
    """
    request = wait.request
    refusal = PrepareRefusal.BLOCKS_MISSING
    broker.send(
        wait.sender, PrepareAnswer(partition.id, request.segment_no, request.switch_attempt, broker.member_run, refusal)
    )
