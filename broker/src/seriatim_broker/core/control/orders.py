"""What the controller asks for in one partition: this broker does it, or passes it on to the member that can."""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..copies import copying
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.events import Heal, MoveOpenSegment, Release
from ..values.messages import HealRequest, MoveRequest, ReleaseRequest
from . import drain


def on_heal(broker: BrokerState, partition: Partition, event: Heal) -> None:
    """The controller asks a member to make a copy of a segment."""
    if event.member == broker.member:
        copying.heal(broker, partition, event.segment_no, event.replaces)
    else:
        broker.send(event.member, HealRequest(event.partition, event.segment_no, event.replaces))


def on_heal_request(broker: BrokerState, partition: Partition, sender: MemberId, message: HealRequest) -> None:
    """Another broker passes on that this member is to make a copy."""
    if partition.chain is None:
        partition.read_chain(broker)  # the controller asks again
    copying.heal(broker, partition, message.segment_no, message.replaces)


def on_move(broker: BrokerState, partition: Partition, event: MoveOpenSegment) -> None:
    """The controller asks the master to move the open segment to another broker group."""
    if event.master == broker.member:
        drain.move_open_segment(broker, partition, event.segment_no)
    else:
        broker.send(event.master, MoveRequest(event.partition, event.segment_no))


def on_move_request(broker: BrokerState, partition: Partition, sender: MemberId, message: MoveRequest) -> None:
    """Another broker passes on that this master is to move the open segment."""
    drain.move_open_segment(broker, partition, message.segment_no)


def on_release(broker: BrokerState, partition: Partition, event: Release) -> None:
    """The controller asks a server to have copies leave the record."""
    if event.by == broker.member:
        drain.release(broker, partition, event.segment_nos, event.leaving)
    else:
        broker.send(event.by, ReleaseRequest(event.partition, event.segment_nos, event.leaving))


def on_release_request(broker: BrokerState, partition: Partition, sender: MemberId, message: ReleaseRequest) -> None:
    """Another broker passes on that this server is to have copies leave the record."""
    drain.release(broker, partition, message.segment_nos, message.leaving)
