"""Eligibility: a member that holds a whole sealed segment is given its control records, and then listed to serve it.

This is the server's part; the member asks from `copying`. While it is joining, control records of all groups wait for
it as for those that are listed already.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..peers import disks, right, updates
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.chain import SegmentState, add_eligible
from ..values.events import WriteOutcome
from ..values.kinds import WriteOwner
from ..values.messages import CursorSync, CursorSynced, EligibleRequest
from ..values.states import drop, put
from . import progress


def on_eligible_request(broker: BrokerState, partition: Partition, sender: MemberId, message: EligibleRequest) -> None:
    """Give a whole member the control records; when they are durable there, list it."""
    no = message.segment_no
    held = partition.rights.get(no)
    segment = partition.chain.segment(no) if partition.chain is not None else None
    if held is None or segment is None or segment.state is not SegmentState.SEALED or sender in segment.eligible:
        if partition.chain is not None:
            updates.tell_member(broker, partition, sender)
        return
    if disks.is_hung(broker, sender):
        return  # control records would wait for its disk; it asks again
    if not held.confirmed:
        right.seek(broker, partition, no)
        return
    serial = broker.new_serial()
    held.joining = put(held.joining, sender, serial)
    cursors = tuple(cursor for cursor in partition.cursors.values() if cursor.segment_no == no)
    broker.send(sender, CursorSync(partition.id, no, segment.server_epoch, serial, cursors))


def on_cursor_synced(broker: BrokerState, partition: Partition, sender: MemberId, message: CursorSynced) -> None:
    """A joining member has the control records: list it."""
    no = message.segment_no
    held = partition.rights.get(no)
    chain = partition.chain
    if held is None or chain is None or held.joining.get(sender) != message.serial:
        return
    segment = chain.segment(no)
    if segment is not None and segment.server_epoch != message.server_epoch:
        return
    if segment is None or sender in segment.eligible:
        held.joining = drop(held.joining, sender)
    elif not partition.is_writing(WriteOwner.RIGHT, no) and not partition.write_wait_us(broker):
        held.listing = (*held.listing, sender)
        partition.write_chain(broker, WriteOwner.RIGHT, add_eligible(chain, no, sender), no)


def on_link_lost(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A member that was about to become eligible must ask again, unless it may be listed already."""
    for no, held in partition.rights.items():
        if member in held.joining and member not in held.listing and not partition.is_writing(WriteOwner.RIGHT, no):
            held.joining = drop(held.joining, member)
            progress.expect_no_more(broker, partition, no, member)


def on_written(broker: BrokerState, partition: Partition, no: int, outcome: WriteOutcome) -> None:
    """A change of the right was lost or is not known: members that were joining and are gone must ask again."""
    held = partition.rights.get(no)
    if held is None or outcome is WriteOutcome.DONE:
        return
    gone = [member for member in held.joining if not broker.is_linked(member) and member not in held.listing]
    for member in gone:
        held.joining = drop(held.joining, member)
        progress.expect_no_more(broker, partition, no, member)
