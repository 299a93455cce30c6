"""Disks that hang or are full: how members notice it, and what follows.

**Hung.** A process can answer heartbeats while its disk completes no write. So each answer to a heartbeat says for how
long the disk has completed no write although one waits. Above `disk_hang_us` (2 s) the member counts as silent wherever
its disk is needed:

    open segments     every other member begins a switch, as if the member were dead
    switches          the member's broker group is not complete, and no segment is opened on the member
    serving rights    the member does not stay eligible; if it is the server, an eligible member takes over

The link stays up. When the disk completes writes again, the member's next answer says 0, and its broker group is
complete.

**Full.** A part of each disk, the reserve, is kept free of new messages, because a write that finds no room ends the
process. The answers also say whether the reserve is reached. If the disk of the master or of its slave is full, the
master moves the open segment to a broker group with room. It does so by a planned switch, which loses and repeats
nothing, and accepts messages meanwhile. It refuses appends if no broker group has room, or if the move takes longer
than `disk_full_grace_us` (5 s).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from seriatim_api.ids import MemberId, PartitionId

from ..state.broker import BrokerState
from ..state.links import Link
from ..values.messages import HeartbeatAnswer

Refused = tuple[tuple[PartitionId, int], ...]

NO_PARTITION = PartitionId(0)
"""The partition of a note that is about a broker."""


def stall_us(broker: BrokerState) -> int:
    """For how long this member's disk has completed no write although one waits; 0 if none waits."""
    since_us = broker.out.write_waits_since_us
    return broker.now.mono_us - since_us if since_us is not None else 0


def is_hung(broker: BrokerState, member: MemberId) -> bool:
    """Whether the member's disk hangs, as far as this broker knows."""
    # Rule `hang-unnoticed` (I13): a member whose disk hangs counts as silent. Without it:
    #   1. The slave's disk completes no write any more. Its process answers heartbeats.
    #   2. The commit waits for the slave, and no broker begins a switch.
    #   3. The partition acknowledges nothing until an administrator looks.
    if member == broker.member:
        return stall_us(broker) > broker.config.disk_hang_us
    link = broker.links.by_broker.get(member.broker)
    return link is not None and link.member == member and link.disk_stall_us > broker.config.disk_hang_us


def look_at_own(broker: BrokerState, asleep: bool) -> None:
    """Write one log line when this member's disk begins to hang, and one when it completes writes again.

    Args:
        broker: This broker.
        asleep: This process did not run for some time. A write that became durable meanwhile is reported only now, so
            that time says nothing about the disk.
    """
    if asleep and broker.out.write_waits_since_us is not None:
        broker.out.write_waits_since_us = broker.now.mono_us
    hangs = is_hung(broker, broker.member)
    if hangs and not broker.disk.hangs:
        broker.out.note("disk_hangs", NO_PARTITION, broker=broker.member.broker, stalled_ms=stall_us(broker) // 1000)
    elif broker.disk.hangs and not hangs:
        broker.out.note("disk_goes_on", NO_PARTITION, broker=broker.member.broker)
    broker.disk.hangs = hangs


def answer(broker: BrokerState, sent_us: int, refused: Refused, data_count: int) -> HeartbeatAnswer:
    """The answer to a heartbeat, with the state of this member's disk and of the link's lanes (`lanes`)."""
    return HeartbeatAnswer(sent_us, refused, stall_us(broker), broker.disk.full_since_us is not None, data_count)


def full_for_us(broker: BrokerState, member: MemberId) -> int | None:
    """For how many microseconds the reserve of the member's disk has been reached; None if the disk has room."""
    # Rule `full-slave` (FULL): the slave's disk counts as well as the master's own. Without it:
    #   1. The slave's disk reaches its reserve. The master's disk has room, so the master keeps accepting.
    #   2. The slave writes every batch, until a write finds no room and ends the slave's process.
    link = broker.links.by_broker.get(member.broker)
    since_us = None
    if member == broker.member:
        since_us = broker.disk.full_since_us
    elif link is not None and link.member == member:
        since_us = link.disk_full_since_us
    return broker.now.mono_us - since_us if since_us is not None else None


def full_member(broker: BrokerState, members: Iterable[MemberId]) -> MemberId | None:
    """The first of these members whose disk is full; None if none is."""
    return next((member for member in members if full_for_us(broker, member) is not None), None)


def on_answer(broker: BrokerState, link: Link, message: HeartbeatAnswer, began_to_hang: Callable[[], None]) -> None:
    """Note what another member says of its disk; call `began_to_hang` when its stall passes `disk_hang_us`."""
    before = link.disk_stall_us
    link.disk_stall_us = message.disk_stall_us
    if message.disk_is_full != (link.disk_full_since_us is not None):
        broker.out.note("peer_disk_room", NO_PARTITION, peer=link.broker, is_full=message.disk_is_full)
        link.disk_full_since_us = broker.now.mono_us if message.disk_is_full else None
    limit_us = broker.config.disk_hang_us
    if before <= limit_us < link.disk_stall_us:
        broker.out.note("peer_disk_hangs", NO_PARTITION, peer=link.broker, stalled_ms=link.disk_stall_us // 1000)
        began_to_hang()
