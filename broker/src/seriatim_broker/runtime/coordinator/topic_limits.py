"""The size limits of topics, by partition, as far as they are below what this broker takes anyway."""

from __future__ import annotations

from collections.abc import Callable

from seriatim_api.v1 import records_pb2

from ...core.values.sizes import SizeLimits


class TopicLimits:
    """Filled by `TopicChanges`, which follows the topics. So a change counts here within the time of a watch.

    Args:
        batch_bytes_max: The largest body that this broker takes of any topic.

    Attributes:
        is_current: Whether the topics are followed, and the coordinator has answered within the last seconds.
    """

    def __init__(self, batch_bytes_max: int) -> None:
        self.is_current: Callable[[], bool] = lambda: False
        self._batch_bytes_max = batch_bytes_max
        self._by_partition: dict[int, SizeLimits] = {}
        self._partitions: dict[str, tuple[int, ...]] = {}

    def of(self, partition: int) -> SizeLimits | None:
        """The limits of a partition's topic; None if it has no lower ones than this broker."""
        return self._by_partition.get(partition)

    def of_settings(self, settings: records_pb2.TopicSettings) -> SizeLimits | None:
        """The limits that these settings say; None if they are not lower than this broker's."""
        most = self._batch_bytes_max
        limits = SizeLimits(settings.batch_size_bytes_max or most, settings.message_size_bytes_max or most)
        return limits if min(limits) < most else None

    def change(self, topic: str, record: records_pb2.TopicRecord | None) -> None:
        """A topic was made, changed or deleted (None)."""
        for partition in self._partitions.pop(topic, ()):
            del self._by_partition[partition]
        limits = self.of_settings(record.settings) if record is not None else None
        if record is not None and limits is not None:
            partitions = (*record.partition_ids, *record.growing_partition_ids)
            self._partitions[topic] = partitions
            self._by_partition.update(dict.fromkeys(partitions, limits))
