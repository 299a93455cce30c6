"""The delay ledger: what the server of a segment has done with the delayed messages in it.

It is a control record with rows (`values.delayed`), beside those of the consumer groups, and follows their rules: a
newer server's record replaces an older one's, the first one that a server sends has all rows, and it counts when every
eligible and joining member has it on disk. No cursor at the coordinator belongs to it, and it never crosses.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..consumers.cursors import control_records
from ..consumers.groups import progress
from ..peers import disks, right
from ..state.broker import BrokerState
from ..state.delayed import Firing
from ..state.partition import Partition
from ..values.delayed import DONE, ledger_name, read_delay_rows
from ..values.keyed import SETTINGS_DEFAULT
from ..values.log import CursorState
from ..values.messages import LedgerWanted
from ..values.segment import Segment

GROUP_EPOCH = 1
"""The group epoch of a delay ledger: no administrator moves it."""


def begin(broker: BrokerState, partition: Partition, segment: Segment) -> Firing:
    """Take up what the server before had on this disk, and send it to every eligible member."""
    name = ledger_name(segment.no)
    known = partition.cursor_in(segment.no, name)
    rows = read_delay_rows(partition.ledger_rows.get(name, {}).items())
    firing = Firing.of(segment.no, segment.server_epoch, known.acked if known is not None else 0, rows)
    right_here = partition.rights[segment.no]
    if right_here.blind and name not in right_here.renewed:
        firing.learn(0)
        broker.out.note("cancellations_lost", partition.id, segment=segment.no)
    firing.begun = write(broker, partition, segment, firing)
    for volley in firing.volleys.waiting.values():
        volley.written = firing.begun
    return firing


def write(broker: BrokerState, partition: Partition, segment: Segment, firing: Firing) -> int:
    """Write the control record here, and send it to every other eligible or joining member. Returns its serial."""
    serial = broker.new_serial()
    firing.ledger.acked = firing.passed.floor
    cursor = CursorState(
        segment.no, firing.name, GROUP_EPOCH, firing.ledger.acked, 0, segment.server_epoch,
        settings=SETTINGS_DEFAULT, serial=serial,
    )  # fmt: skip
    control_records.send(broker, partition, segment, firing.ledger, cursor, firing.take_changes(serial))
    return serial


def on_wanted(broker: BrokerState, partition: Partition, sender: MemberId, message: LedgerWanted) -> None:
    """A member lacks a change of the rows: send it all rows."""
    firing = partition.firing.get(message.segment_no)
    segment = partition.chain.segment(message.segment_no) if partition.chain is not None else None
    if firing is not None and segment is not None and firing.server_epoch == message.server_epoch:
        firing.ledger.told.pop(sender, None)
        write(broker, partition, segment, firing)


def is_done(partition: Partition, no: int) -> bool:
    """Whether this disk says that the segment is sealed, and that nothing of it is left to be fired."""
    return DONE in partition.ledger_rows.get(ledger_name(no), {})


def cancelled_count(partition: Partition, no: int) -> int:
    """How many messages of the segment were cancelled, as this disk says."""
    rows = read_delay_rows(partition.ledger_rows.get(ledger_name(no), {}).items())
    return sum(bits.bit_count() for bits in rows.cancelled.values())


def is_common(firing: Firing, serial: int) -> bool:
    """Whether a control record counts: every eligible and joining member has it, or a later one."""
    return serial not in firing.ledger.replications


def expect_only_eligible(broker: BrokerState, partition: Partition, segment: Segment, firing: Firing) -> None:
    """Control records wait no longer for members that are neither eligible nor joining."""
    joining = right.joining(partition, segment.no)
    for replication in firing.ledger.replications.values():
        for member in list(replication.waiting):
            if member != broker.member and member not in segment.eligible and member not in joining:
                del replication.waiting[member]


def finish(partition: Partition, firing: Firing) -> None:
    """Forget the control records that every member has. They count from now on (rule `no-right-confirms-nothing`)."""
    if firing.no not in partition.rights:
        return
    replications = firing.ledger.replications
    for serial in [serial for serial, one in replications.items() if not one.waiting]:
        del replications[serial]


def chase(broker: BrokerState, partition: Partition, firing: Firing) -> None:
    """Start to remove the members that control records wait for, if they are silent or their disks hang."""
    waited_for = firing.ledger.waited_for
    if waited_for.intersection(right.unfit_members(broker, partition, firing.no)):
        right.seek(broker, partition, firing.no)
    if broker.member in waited_for and disks.is_hung(broker, broker.member):
        right.offer(broker, partition, firing.no)
    for member in [member for member in right.joining(partition, firing.no) if disks.is_hung(broker, member)]:
        right.stop_joining(partition, firing.no, member)
        progress.expect_no_more(partition, firing.no, member)
