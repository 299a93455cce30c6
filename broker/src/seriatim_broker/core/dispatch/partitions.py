"""The partitions that this broker knows: find, make, forget and delete them."""

from __future__ import annotations

from seriatim_api.ids import PartitionId

from ..state.broker import BrokerState
from ..state.partition import Partition, Partitions
from ..values.events import ChainRead, DropDeleted, DropPartitionData
from ..values.log import DropPartition
from . import deleted_topics


def find(partitions: Partitions, partition: PartitionId) -> Partition:
    """The partition of that id, made if this broker does not know it."""
    known = partitions.get(partition)
    if known is None:
        known = partitions[partition] = Partition(partition)
    return known


def forget_if_idle(broker: BrokerState, partitions: Partitions, partition: Partition) -> None:
    """Forget a partition of which this broker has nothing, and for which nothing waits.

    Rule `behind-until-read` (I13): a partition whose record has lost decisions stays until its record is read again.
    Without it:
      1. This broker learns from a member that the coordinator has lost a segment, and answers the clients that asked.
      2. It forgets the partition, and with it the next read of the record.
      3. The record is rebuilt. This broker never notices, and refuses everything until it is restarted.
    """
    is_needed = (
        partition.logs
        or partition.preparations
        or partition.blocks
        or partition.offer
        or partition.awaiting
        or partition.tail_copies
        or partition.switch
        or partition.waiters
        or partition.consumer_groups
        or partition.copies
        or partition.table_waits
        or partition.gaps
        or partition.range_waits
        or partition.surveys
        or partition.probed is not None
        or partition.probe_wanted is not None
        or partition.reading
        or partition.kept is not None
        or partition.writes
        or partition.id in broker.coordinator.behind
    )
    if not is_needed:
        partitions.pop(partition.id, None)
        broker.switch_attempts.pop(partition.id, None)
        broker.coordinator.refused.pop(partition.id, None)
        broker.coordinator.unanswered.pop(partition.id, None)


def on_drop(broker: BrokerState, partitions: Partitions, event: DropPartitionData | ChainRead) -> None:
    """A partition was deleted: drop what is here of it."""
    _drop(broker, partitions, event.partition)


def on_drop_deleted(broker: BrokerState, partitions: Partitions, event: DropDeleted) -> None:
    """Many partitions are deleted: drop what is here of them."""
    for partition in [partition for partition in partitions if partition in event.deleted]:
        _drop(broker, partitions, partition)


def _drop(broker: BrokerState, partitions: Partitions, deleted: PartitionId) -> None:
    partition = partitions.pop(deleted, None)
    if partition is not None:
        deleted_topics.answer_all(broker, partition)
        broker.links.forget_peers(deleted)
        broker.count_producers(deleted, 0)
        broker.switch_attempts.pop(deleted, None)
        broker.coordinator.refused.pop(deleted, None)
        broker.coordinator.unanswered.pop(deleted, None)
        broker.coordinator.behind.pop(deleted, None)
        # Rule `deleted-kept` (GONE): brokers drop what they store of a deleted topic. Without it: 1. A topic is
        # deleted. 2. Its messages stay on the disks for ever, because no record names them.
        broker.out.write(DropPartition(deleted))
