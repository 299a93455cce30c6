"""What a switch opens: it asks one broker group after another to prepare, then one transaction seals and opens."""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..peers import candidates, lost_decisions
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Content, Switch, SwitchKind, SwitchPhase
from ..values.chain import Opening, create, open_over, seal_and_open
from ..values.kinds import SwitchReason, WriteOwner
from ..values.messages import PrepareRequest
from . import lengths, switch_attempts, tries


def other_broker_groups(broker: BrokerState, switch: Switch) -> list[str]:
    """The broker groups that may be asked, best first, without the one that has the open segment."""
    assert switch.chain is not None
    return [
        group for group in candidates.in_order(broker, switch.chain) if group != switch.chain.open_segment.broker_group
    ]


def choose_broker_groups(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """It is decided what is sealed: put the broker groups in order, and ask the first one to prepare."""
    assert switch.chain is not None
    switch.opening.broker_groups_left = candidates.in_order(broker, switch.chain)
    if switch.kind is SwitchKind.PLANNED:  # the broker group that has rehearsed comes first
        others = [group for group in other_broker_groups(broker, switch) if group != switch.opening.broker_group]
        switch.opening.broker_groups_left = [switch.opening.broker_group, *others]
    prepare_next(broker, partition, switch)


def prepare_next(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """Ask all members of the next broker group to prepare; if no broker group is left, pause the switch."""
    while switch.opening.broker_groups_left:
        switch.opening.broker_group = switch.opening.broker_groups_left.pop(0)
        usable = candidates.usable_members(broker, switch.opening.broker_group)
        if not usable:
            continue
        turn = _turn(partition, switch, usable)
        switch.opening.members = broker.share((*usable[turn:], *usable[:turn]))
        switch.opening.switch_attempt, switch.opening.switch_attempt_is_new = switch_attempts.begin(
            broker, partition, _content(broker, switch)
        )
        switch.opening.prepared = {}
        switch.enter(SwitchPhase.PREPARING)
        tries.set_deadline(broker, partition, switch, prepare_timeout_us(broker, switch))
        for member in switch.opening.members:
            ask_prepare(broker, partition, switch, member)
        return
    tries.pause(broker, partition, switch)


def prepare_timeout_us(broker: BrokerState, switch: Switch) -> int:
    """How long the members of a broker group may take, in microseconds.

    The time doubles with each try, and grows with the bytes of table and tail. Without it, a table that takes a little
    longer than the timeout would end every try, and the partition would stay closed.
    """
    tail = lengths.uncertain_tail(switch)
    size_bytes = switch.sealing.table.size_bytes + sum(batch.size_bytes for batch in (tail.batches if tail else ()))
    return (broker.config.prepare_timeout_us << switch.tries) + broker.config.transfer_us(size_bytes)


def _turn(partition: Partition, switch: Switch, usable: tuple[MemberId, ...]) -> int:
    """The index of the next master in `usable`: the one that was asked for, else the members take turns."""
    names = [member.broker for member in usable]
    if (
        switch.kind is SwitchKind.PLANNED
        and switch.opening.broker_group == switch.target_broker_group
        and switch.target_master in names
    ):
        return names.index(switch.target_master)
    return (partition.id + switch.segment_no) % len(usable)


def _content(broker: BrokerState, switch: Switch) -> Content:
    """What the members of the next broker group are asked to prepare."""
    flush = switch.genesis.flush if switch.genesis is not None else switch.chain is not None and switch.chain.flush
    # Rule `table` (I2): the producer table as of the sealed length goes along. Without it:
    #   1. P sent a and b. a is lost with Am, and P resends both.
    #   2. b arrives first at the new master. Its table is empty, so it takes any first sequence.
    #   3. P resends a. The order is b, a.
    #
    # Rule `mark-inherited` (I13): a table that started incomplete stays marked, until it is merged. Without it:
    #   1. Segment 3 is incomplete, and has not heard of P. Segment 4 opens from it, unmarked.
    #   2. P's next batch has sequence 57. The master of segment 4 refuses it as a gap, for ever.
    return Content(
        switch.segment_no + 1,
        switch.opening.broker_group,
        switch.opening.members,
        flush,
        not switch.sealing.table_complete,
        switch.sealing.table,
        lengths.uncertain_tail(switch),
        # Rule `limit-in-the-record` (TABLE): all members of a segment have one limit, from its record. Without it:
        #   1. Am remembers 100,000 producers. As has another setting, remembers 1,000, and forgets P.
        #   2. Am dies. The next segment opens with the table of As.
        #   3. P resends its first batch, and it is stored twice (I9).
        broker.config.producers_max,
    )


def ask_prepare(broker: BrokerState, partition: Partition, switch: Switch, member: MemberId) -> None:
    """Ask one member to prepare, and name this broker's switch attempts that it may forget."""
    content = _content(broker, switch)
    broker.send(
        member,
        PrepareRequest(
            partition.id,
            content.segment_no,
            switch.opening.switch_attempt,
            content.members,
            content.flush,
            content.incomplete_table,
            content.table,
            content.tail,
            switch_attempts.replaced_by(broker, partition, switch.opening.switch_attempt, content.segment_no),
            switch.sealing.source,
            content.producers_max,
        ),
    )


def contradict(broker: BrokerState, partition: Partition, switch: Switch, sender: MemberId) -> None:
    """A member refuses to prepare, because it has the segment that is to be opened, or a record that has it.

    Either there is a newer chain record, or the coordinator lost decisions. A read that begins now shows which it is.
    """
    # Rule `older-believed` (I7): no other broker group is tried, and a second contradiction proves the loss.
    # Without it:
    #   1. Segment 2 is open on B. The coordinator is restored as it was while segment 1 was open.
    #   2. The switcher asks B to prepare segment 2. B refuses, because it has segment 2.
    #   3. The switcher opens segment 2 on C: the number is used twice.
    no = switch.segment_no + 1
    if switch.contradicted:
        why = f"{sender.broker} holds segment {no} of {partition.name}, which its record does not have"
        lost_decisions.begin(broker, partition.id, why, no)
        tries.wait_for_writes(broker, partition, switch)
    elif partition.reading:
        tries.pause(broker, partition, switch)  # the read under way began before the refusal, so it proves nothing
    else:
        switch.contradicted = True
        tries.begin(broker, partition, switch)


def write(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """Send the transaction that seals the old segment and opens the next one."""
    # Rule `behind-ends-switch` (I7): not if the coordinator is known to have lost decisions. Without it:
    #   1. The coordinator is restored. A switcher reads the older copy, and fences.
    #   2. A member tells it that the segment was sealed long ago. So it reads again, and learns of the loss.
    #   3. The answers that it waits for arrive all the same. It opens the lost number again on another broker group.
    if broker.coordinator.behind:
        refused(broker, partition, switch)
        return
    if partition.is_told_of_later(switch.segment_no):  # it was reported while the switch waited for its answers
        tries.pause(broker, partition, switch)
        return
    opening = Opening(
        switch.opening.switch_attempt,
        switch.opening.broker_group,
        switch.opening.members,
        switch.opening.prepared[switch.opening.members[0]],
        not switch.sealing.table_complete,
        candidates.send_chain(broker, switch.chain, switch.opening.broker_group) if switch.chain is not None else (),
        broker.config.producers_max,
    )
    floor_ms = lengths.append_floor_ms(partition, switch)
    # Rule `ends-behind-its-messages` (I1): a segment ends at its newest append time at the earliest. Without it:
    #   1. The clock of a broker is three days behind. It switches a partition, and seals segment 1 at that time.
    #   2. Its clock is corrected. The topic keeps messages for three days.
    #   3. The next scan drops all of segment 1, also messages that were acknowledged a minute ago.
    now_ms = max(broker.now.wall_ms, floor_ms)
    switch.enter(SwitchPhase.WRITING)
    if switch.genesis is not None:
        g = switch.genesis
        chain = create(partition.id, g.topic, g.number, g.flush, g.send_chain, opening, now_ms, g.width)
        partition.revision = 0
        switch_attempts.sent(broker, partition, switch.opening.switch_attempt)
        partition.write_chain(broker, WriteOwner.SWITCH, chain)
        return
    switch_attempts.sent(broker, partition, switch.opening.switch_attempt)
    switch.chain = partition.chain
    assert switch.chain is not None
    old = switch.chain.open_segment
    assert old.no == switch.segment_no
    if switch.sealing.source is None:
        # Rule `certificate` (I7), with `sealing.on_certificate`: the transaction compares the death certificate.
        chain = open_over(switch.chain, opening, now_ms, floor_ms)
        partition.write_chain(broker, WriteOwner.SWITCH, chain, certificate=switch.sealing.certificate)
        return
    chain = seal_and_open(switch.chain, lengths.seal(switch, old), opening, now_ms, floor_ms)
    partition.write_chain(broker, WriteOwner.SWITCH, chain)


def refused(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """The coordinator refuses the transaction: wait until it takes writes again."""
    if switch.kind is SwitchKind.PLANNED:  # the master is fenced already, so there is no way back
        tries.become_failover(broker, partition, switch, SwitchReason.PLAN_REFUSED)
    else:
        tries.wait_for_writes(broker, partition, switch)
