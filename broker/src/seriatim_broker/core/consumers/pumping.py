"""Pumping: messages may be delivered that could not be before, so each consumer group of a partition goes on."""

from __future__ import annotations

from ..state.broker import BrokerState
from ..state.consumers import ConsumerGroup
from ..state.partition import Partition
from ..values.log import Batch
from . import delivery, granting, yielding


def pump(broker: BrokerState, partition: Partition, segment_no: int) -> None:
    """The commit, the right or something else changed in a segment: deliver more of it if possible."""
    for consumer_group in list(partition.consumer_groups.values()):
        if consumer_group.segment_no == segment_no:
            pump_consumer_group(broker, partition, consumer_group)


def pump_all(broker: BrokerState, partition: Partition) -> None:
    """A consumer gave credit: deliver more to each consumer group of the partition if possible."""
    for consumer_group in list(partition.consumer_groups.values()):
        pump_consumer_group(broker, partition, consumer_group)


def pump_consumer_group(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    """Deliver what was held back, and read more."""
    if consumer_group.keyed is not None:
        granting.go_on(broker, partition, consumer_group)
    else:
        delivery.deliver_held_back(broker, partition, consumer_group)
        delivery.pump_consumer_group(broker, partition, consumer_group)
        yielding.go_on(broker, partition, consumer_group)


def on_log_read(
    broker: BrokerState, partition: Partition, serial: int, group: str, batches: tuple[Batch, ...] | None
) -> None:
    """Batches were read for an exclusive consumer group: deliver them, and go on."""
    delivery.on_log_read(broker, partition, serial, group, batches)
    consumer_group = partition.consumer_groups.get(group)
    if consumer_group is not None:
        yielding.go_on(broker, partition, consumer_group)
