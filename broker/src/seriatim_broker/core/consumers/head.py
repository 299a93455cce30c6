"""The state of one consumer group on one partition, as this broker knows it."""

from __future__ import annotations

from ..state.broker import BrokerState
from ..state.consumers import Consumer, GroupHead, GroupPhase
from ..state.partition import Partition
from ..values.effects import Deliver, DeliveryEvent, ReadCursor
from ..values.events import StartPosition
from ..values.states import drop, put


def head_of(broker: BrokerState, partition: Partition, group: str, start: StartPosition) -> GroupHead:
    """The state of a consumer group here. If this broker has none, make it, and read the chain and the cursor."""
    head = partition.groups.get(group)
    if head is None:
        head = GroupHead(group, start)
        partition.groups = put(partition.groups, group, head)
        partition.read_chain(broker)
        read_cursor(broker, partition, head)
    return head


def read_cursor(broker: BrokerState, partition: Partition, head: GroupHead) -> None:
    """Ask the coordinator for the cursor."""
    broker.out.emit(ReadCursor(partition.id, head.group, head.cursor_revision))


def tell(broker: BrokerState, consumer: Consumer, event: DeliveryEvent) -> None:
    """Send something to one subscription."""
    broker.out.emit(Deliver(consumer.stream, consumer.subscription, event))


def forget_if_unused(partition: Partition, head: GroupHead) -> None:
    """Forget a consumer group without consumers, questions and operations, when none of its writes is under way."""
    is_used = head.consumers or head.questions or head.syncs or head.operations or head.passes_alone
    if not is_used and head.phase is not GroupPhase.CROSSING:
        partition.groups = drop(partition.groups, head.group)
        given = head.given
        if given is not None and max((given.below, *(end for end, _ in given.ends))) <= head.acked:
            partition.given = drop(partition.given, head.group)  # all that was given is acknowledged
