"""What the controller asks for one partition: done here, or passed on to the member that can do it."""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..copies import copying
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.events import Heal, MoveHead, Release
from ..values.messages import HealRequest, MoveRequest, ReleaseRequest
from . import leaving


def on_heal(broker: BrokerState, partition: Partition, event: Heal) -> None:
    """A member is to complete a segment."""
    if event.member == broker.member:
        copying.heal(broker, partition, event.segment_no, event.replaces)
    else:
        broker.send(event.member, HealRequest(event.partition, event.segment_no, event.replaces))


def on_heal_request(broker: BrokerState, partition: Partition, sender: MemberId, message: HealRequest) -> None:
    """The same, passed on."""
    if partition.chain is None:
        partition.read_chain(broker)  # the controller asks again
    copying.heal(broker, partition, message.segment_no, message.replaces)


def on_move(broker: BrokerState, partition: Partition, event: MoveHead) -> None:
    """The open segment is to leave its broker group."""
    if event.master == broker.member:
        leaving.move_head(broker, partition, event.segment_no)
    else:
        broker.send(event.master, MoveRequest(event.partition, event.segment_no))


def on_move_request(broker: BrokerState, partition: Partition, sender: MemberId, message: MoveRequest) -> None:
    """The same, passed on."""
    leaving.move_head(broker, partition, message.segment_no)


def on_release(broker: BrokerState, partition: Partition, event: Release) -> None:
    """Copies are to leave members."""
    if event.by == broker.member:
        leaving.release(broker, partition, event.segment_nos, event.leaving)
    else:
        broker.send(event.by, ReleaseRequest(event.partition, event.segment_nos, event.leaving))


def on_release_request(broker: BrokerState, partition: Partition, sender: MemberId, message: ReleaseRequest) -> None:
    """The same, passed on."""
    leaving.release(broker, partition, message.segment_nos, message.leaving)
