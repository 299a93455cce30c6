"""Eligibility: the server gives a member with a complete sealed segment the control records, and then lists it as
eligible.

This is the server's part. The member asks for it in `copies.copying`. While a member is joining, a control record
counts only when this member has it too, as with the eligible members.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ...peers import disks, right, updates
from ...state.broker import BrokerState
from ...state.consumers import HAS_ALL
from ...state.partition import Partition
from ...values.chain import Chain, add_eligible, may_join, merged
from ...values.kinds import TimerKind, WriteOwner
from ...values.messages import CursorsReplicated, EligibleRequest
from ...values.segment import Segment, SegmentState
from ...values.states import drop, put
from ..cursors import control_records
from ..keyed import handoff
from . import progress


def on_eligible_request(broker: BrokerState, partition: Partition, sender: MemberId, message: EligibleRequest) -> None:
    """A member asks to be listed as eligible: send it the control records. It is listed when it has them on its disk.

    Rule `eligible-at-once` (I9): a member is listed as eligible only when it has the control records. Without it:
      1. The server lists a member that has no control records yet. Then the server dies.
      2. The listed member takes the right. It does not know what was delivered.
      3. It delivers the segment from its beginning, without a flag.
    """
    no = message.segment_no
    held = partition.rights.get(no)
    segment = partition.chain.segment(no) if partition.chain is not None else None
    if held is None or segment is None or segment.state is not SegmentState.SEALED or sender in segment.eligible:
        if partition.chain is not None:
            updates.tell_member(broker, partition, sender)
        return
    if disks.is_hung(broker, sender):
        return  # otherwise all control records would wait for its disk; the member asks again later
    if not held.confirmed:
        right.seek(broker, partition, no)
        return
    if held.joining.get(sender) == HAS_ALL:
        list_joined(broker, partition)
        return
    handoff.send_all(broker, partition, sender, no)
    held.joining = put(
        held.joining, sender, control_records.send_all(broker, partition, sender, no, segment.server_epoch)
    )


def on_cursors_replicated(
    broker: BrokerState, partition: Partition, sender: MemberId, message: CursorsReplicated
) -> None:
    """A member, or this one, has a control record on its disk, which replaces all older ones of the consumer group.

    If the member is joining, and has them all, it is listed as eligible now, with all others that wait for it.
    """
    no = message.segment_no
    for consumer_group in list(partition.consumer_groups.values()):
        served = consumer_group.served
        if (
            served is None
            or message.serial not in served.ledger.replications
            or (served.segment.no, served.server_epoch) != (no, message.server_epoch)
        ):
            continue
        for serial in [serial for serial in served.ledger.replications if serial <= message.serial]:
            served.ledger.replications[serial].waiting.pop(sender, None)
            progress.finish_replication(served, serial)
    firing = partition.firing.get(no)
    if firing is not None and firing.server_epoch == message.server_epoch:
        firing.ledger.confirm(message.serial, sender)
        broker.poll(0, TimerKind.DELAYED, partition.id, no)
    held = partition.rights.get(no)
    chain = partition.chain
    if held is None or chain is None or held.joining.get(sender) != message.serial:
        return
    segment = chain.segment(no)
    if segment is not None and segment.server_epoch != message.server_epoch:
        return
    if segment is None or sender in segment.eligible:
        held.joining = drop(held.joining, sender)
    else:
        held.joining = put(held.joining, sender, HAS_ALL)
        list_joined(broker, partition)


def list_joined(broker: BrokerState, partition: Partition) -> None:
    """List all members of segments of this server that wait for it, in one transaction.

    If it is not done, each asks again, and then nothing needs to be sent to those that are still linked.
    """
    chain = partition.chain
    if chain is None or not partition.may_amend(broker):
        return
    changes: dict[int, Chain] = {}
    for no, held in partition.rights.items():
        segment = chain.segment(no) if held.joining else None
        if segment is None or segment.state is not SegmentState.SEALED or segment.server != broker.member:
            continue
        ready = [member for member, serial in held.joining.items() if serial == HAS_ALL]
        ready = [member for member in ready if _may_be_listed(broker, segment, member)]
        if ready and may_join(changes, no, partition.pace.segments_max):
            held.listing = tuple(dict.fromkeys((*held.listing, *ready)))
            changes[no] = add_eligible(chain, no, *ready)
    if changes:
        partition.write_chain(broker, WriteOwner.RIGHT, merged(chain, changes))


def _may_be_listed(broker: BrokerState, segment: Segment, member: MemberId) -> bool:
    """Whether a member that has all control records is fit at this moment. It may have waited for the transaction."""
    return member not in segment.eligible and broker.is_linked(member) and not disks.is_hung(broker, member)


def on_link_lost(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """The link to a joining member is lost: it must ask again, unless a transaction may have listed it already."""
    for no, held in partition.rights.items():
        if member in held.joining and member not in held.listing:
            held.joining = drop(held.joining, member)
            progress.expect_no_more(partition, no, member)
