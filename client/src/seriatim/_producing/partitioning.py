"""Chooses the partition of a message: the one that is named, or its key's, or each in turn (`_values.partitioner`)."""

from __future__ import annotations

from collections.abc import Sequence

from seriatim_api.errors import PartitionOutOfRangeError

from seriatim._producing.checks import check_partition
from seriatim._producing.partition import PartitionSender
from seriatim._values.partitioner import Partitioner


class Partitioning:
    """Chooses among the partitions of one producer.

    Args:
        topic: The topic's name, for errors.
        partitions: The partitions, by number.
        partitioner: Chooses the partition of a key.
        batch_size_bytes: The size of a full batch. After one, messages without a key go to the next partition.
        first: The partition at which messages without a key begin.
    """

    def __init__(
        self,
        topic: str,
        partitions: Sequence[PartitionSender],
        partitioner: Partitioner,
        batch_size_bytes: int,
        first: int,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._partitioner = partitioner
        self._batch_size_bytes = batch_size_bytes
        self._turn = first
        self._batch_count = partitions[first].batch_count

    def of_one(self, key: bytes | None, partition: int | None) -> PartitionSender:
        """The partition of one message.

        Raises:
            PartitionOutOfRangeError: The topic has fewer partitions.
            IllegalMessageError: `partition` is not an integer.
        """
        if partition is not None:
            return self.numbered(partition)
        if key is not None:
            return self.numbered(self._partitioner(key, len(self._partitions)))
        current = self._partitions[self._turn]
        if current.batch_count != self._batch_count or current.pending.payload_bytes >= self._batch_size_bytes:
            current = self._next_turn()  # its batch has left, or is full
        return current

    def of_many(
        self, keys: Sequence[bytes | None] | None, partition: int | None, count: int
    ) -> list[tuple[PartitionSender, Sequence[int]]]:
        """The partitions of a call's messages, each with its messages' positions. Those without keys stay together."""
        if partition is not None:
            return [(self.numbered(partition), range(count))]
        if keys is None:
            target = self.of_one(None, None)
            self._next_turn()
            return [(target, range(count))]
        if len(self._partitions) == 1:
            return [(self._partitions[0], range(count))]
        partitioner, partition_count = self._partitioner, len(self._partitions)
        groups: dict[int, list[int]] = {}
        keyless = self.of_one(None, None).number
        for position, key in enumerate(keys):
            number = keyless if key is None else partitioner(key, partition_count)
            group = groups.get(number)
            if group is None:
                groups[number] = [position]
            else:
                group.append(position)
        return [(self.numbered(number), positions) for number, positions in groups.items()]

    def _next_turn(self) -> PartitionSender:
        self._turn = (self._turn + 1) % len(self._partitions)
        current = self._partitions[self._turn]
        self._batch_count = current.batch_count
        return current

    def numbered(self, partition: int) -> PartitionSender:
        """The partition with that number.

        Raises:
            PartitionOutOfRangeError: The topic has fewer partitions.
            IllegalMessageError: `partition` is not an integer.
        """
        partition = check_partition(partition)
        if not 0 <= partition < len(self._partitions):
            raise PartitionOutOfRangeError(
                f"{self._topic} has partitions 0 to {len(self._partitions) - 1}, not {partition}",
                partition=partition,
                partition_count=len(self._partitions),
            )
        return self._partitions[partition]
