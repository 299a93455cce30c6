"""What a switch opens: one group after another is asked to prepare, then one transaction seals and opens."""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..peers import behind, candidates, versions
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Content, Switch, SwitchKind, SwitchPhase
from ..values.chain import Opening, create, open_over, seal_and_open
from ..values.kinds import SwitchReason, WriteOwner
from ..values.messages import FORM_FOLDED, FORM_IDLE_BLOCKS, PrepareRequest
from . import attempts, lengths, tries


def other_groups(broker: BrokerState, switch: Switch) -> list[str]:
    assert switch.chain is not None
    return [group for group in candidates.in_order(broker, switch.chain) if group != switch.chain.open_segment.group]


def choose_groups(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    assert switch.chain is not None
    switch.opening.groups_left = candidates.in_order(broker, switch.chain)
    if switch.kind is SwitchKind.PLANNED:  # to the group that has rehearsed
        others = [group for group in other_groups(broker, switch) if group != switch.opening.group]
        switch.opening.groups_left = [switch.opening.group, *others]
    prepare_next(broker, partition, switch)


def prepare_next(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """Ask all members of the next group, under an attempt of its own."""
    while switch.opening.groups_left:
        switch.opening.group = switch.opening.groups_left.pop(0)
        usable = candidates.usable_members(broker, switch.opening.group)
        if not usable:
            continue
        if switch.sealing.table.blocks and not all(
            versions.reads(broker, member, FORM_IDLE_BLOCKS) for member in usable
        ):
            for member in usable:  # what a member reads it says when it is linked
                if not broker.is_linked(member):
                    broker.connect(member.broker)
            continue  # a member of an older version would take the blocks' names for nothing
        turn = _turn(partition, switch, usable)
        switch.opening.members = broker.share((*usable[turn:], *usable[:turn]))
        switch.opening.attempt, switch.opening.attempt_is_new = attempts.begin(broker, partition, _content(switch))
        switch.opening.prepared = {}
        switch.enter(SwitchPhase.PREPARING)
        tries.set_deadline(broker, partition, switch, prepare_timeout_us(broker, switch))
        for member in switch.opening.members:
            ask_prepare(broker, partition, switch, member)
        return
    tries.pause(broker, partition, switch)


def prepare_timeout_us(broker: BrokerState, switch: Switch) -> int:
    """How long the members of a group may take: longer for more bytes, and longer with each try.

    Else a table that takes a little longer than the timeout would end every try, and each one begins anew.
    """
    tail = lengths.uncertain_tail(switch)
    size_bytes = switch.sealing.table.size_bytes + sum(batch.size_bytes for batch in (tail.batches if tail else ()))
    return (broker.config.prepare_timeout_us << switch.tries) + broker.config.transfer_us(size_bytes)


def _turn(partition: Partition, switch: Switch, usable: tuple[MemberId, ...]) -> int:
    """Which member is to be the master: the one that was asked for, else they take turns."""
    names = [member.broker for member in usable]
    if (
        switch.kind is SwitchKind.PLANNED
        and switch.opening.group == switch.target_group
        and switch.target_master in names
    ):
        return names.index(switch.target_master)
    return (partition.id + switch.segment_no) % len(usable)


def _content(switch: Switch) -> Content:
    """What the members of the next group are asked to prepare."""
    flush = switch.genesis.flush if switch.genesis is not None else switch.chain is not None and switch.chain.flush
    return Content(
        switch.segment_no + 1,
        switch.opening.group,
        switch.opening.members,
        flush,
        not switch.sealing.table_complete,
        switch.sealing.table,
        lengths.uncertain_tail(switch),
    )


def ask_prepare(broker: BrokerState, partition: Partition, switch: Switch, member: MemberId) -> None:
    content = _content(switch)
    broker.send(
        member,
        PrepareRequest(
            partition.id,
            content.segment_no,
            switch.opening.attempt,
            content.members,
            content.flush,
            content.incomplete_table,
            content.table,
            content.tail,
            attempts.replaced_by(broker, partition, switch.opening.attempt, content.segment_no),
            switch.sealing.source,
        ),
    )


def contradict(broker: BrokerState, partition: Partition, switch: Switch, sender: MemberId) -> None:
    """A member has the segment that is to be opened: then the record has moved on, or the coordinator went back.

    Another group must not be tried: the number would be used twice. A read that begins now shows which it is.
    """
    no = switch.segment_no + 1
    if switch.contradicted:
        why = f"{sender.broker} holds segment {no} of partition {partition.id}, which its record does not have"
        behind.begin(broker, partition.id, why, no)
        tries.wait_for_writes(broker, partition, switch)
    elif partition.reading:
        tries.pause(broker, partition, switch)  # that read began before
    else:
        switch.contradicted = True
        tries.begin(broker, partition, switch)


def write(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """The transaction, unless the coordinator is known to be behind by now.

    Rule `behind-ends-switch` (I7). Without it: (1) a switcher reads the older copy and fences; (2) a member tells
    it that the segment was sealed long ago, so it reads again, and knows that the coordinator went back; (3) the
    answers that it waits for come all the same, and it opens the lost number again on another group.
    """
    if broker.coordinator.behind:
        refused(broker, partition, switch)
        return
    opening = Opening(
        switch.opening.attempt,
        switch.opening.group,
        switch.opening.members,
        switch.opening.prepared[switch.opening.members[0]],
        not switch.sealing.table_complete,
        candidates.send_chain(broker, switch.chain, switch.opening.group) if switch.chain is not None else (),
    )
    floor_ms = lengths.append_floor_ms(partition, switch)
    # `opened_at` is not below the floor for the sake of masters of older versions.
    now_ms = max(broker.now.wall_ms, floor_ms)
    switch.enter(SwitchPhase.WRITING)
    if switch.genesis is not None:
        g = switch.genesis
        chain = create(partition.id, g.topic, g.number, g.flush, g.send_chain, opening, now_ms, g.width)
        partition.revision = 0
        attempts.sent(broker, partition, switch.opening.attempt)
        partition.write_chain(broker, WriteOwner.SWITCH, chain)
        return
    attempts.sent(broker, partition, switch.opening.attempt)
    switch.chain = partition.chain
    assert switch.chain is not None
    old = switch.chain.open_segment
    assert old.no == switch.segment_no
    if switch.sealing.source is None:
        chain = open_over(switch.chain, opening, now_ms, floor_ms)
        partition.write_chain(broker, WriteOwner.SWITCH, chain, certificate=switch.sealing.certificate)
        return
    folds = versions.all_read(broker, FORM_FOLDED)
    chain = seal_and_open(switch.chain, lengths.seal(switch, old), opening, now_ms, floor_ms, folds=folds)
    partition.write_chain(broker, WriteOwner.SWITCH, chain)


def refused(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    if switch.kind is SwitchKind.PLANNED:  # the master is fenced already, so this must come to an end
        tries.become_failover(broker, partition, switch, SwitchReason.PLAN_REFUSED)
    else:
        tries.wait_for_writes(broker, partition, switch)
