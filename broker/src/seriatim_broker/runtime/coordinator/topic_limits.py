"""What brokers look up of topics at each request, and know without a question: their partitions, and their limits.

The limits are by partition: of delays, of sizes as far as they are below what this broker takes, and whether only
exclusive producers may send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from seriatim_api.delay_limits import DelayLimits, delay_limits_of
from seriatim_api.v1 import records_pb2

from ...core.values.delays import KnownDelayLimits
from ...core.values.sizes import SizeLimits


class _Limits(NamedTuple):
    sizes: SizeLimits | None = None
    delays: DelayLimits = DelayLimits()
    is_exclusive: bool = False


_DEFAULTS: Final = _Limits()


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
        self._by_partition: dict[int, _Limits] = {}
        self._partitions: dict[str, tuple[int, ...]] = {}  # of topics with other limits than most
        self._kept: dict[str, tuple[int, tuple[int, ...]]] = {}  # `retention_bytes` of topics, and their partitions
        self._kept_of: dict[int, int] = {}  # the same of partitions that were asked for
        self._ready: dict[str, tuple[int, ...]] = {}  # partition ids of all topics that are ready

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The ids of a topic's partitions; none if it is not known that there is such a topic."""
        return self._ready.get(topic, ()) if self.is_current() else ()

    def of(self, partition: int) -> SizeLimits | None:
        """The limits of sizes of a partition's topic; None if it has no lower ones than this broker."""
        return self._by_partition.get(partition, _DEFAULTS).sizes

    def delays(self, partition: int) -> KnownDelayLimits:
        """The limits of delays of a partition's topic."""
        delays = self._by_partition.get(partition, _DEFAULTS).delays
        kept = self._kept_of.get(partition)
        if (
            kept is None
        ):  # only partitions that get delayed messages are asked for: an entry for each would cost 90 bytes
            found = (size for size, partitions in self._kept.values() if partition in partitions)
            kept = self._kept_of[partition] = next(found, 0)
        return KnownDelayLimits(delays, self.is_current(), kept)

    def is_exclusive(self, partition: int) -> bool:
        """Whether a partition's topic takes messages of exclusive producers only."""
        return self._by_partition.get(partition, _DEFAULTS).is_exclusive

    def of_settings(self, settings: records_pb2.TopicSettings) -> SizeLimits | None:
        """The limits of sizes that these settings say; None if they are not lower than this broker's."""
        most = self._batch_bytes_max
        limits = SizeLimits(settings.batch_size_bytes_max or most, settings.message_size_bytes_max or most)
        return limits if min(limits) < most else None

    def change(self, topic: str, record: records_pb2.TopicRecord | None) -> None:
        """A topic was made, changed or deleted (None)."""
        for partition in self._partitions.pop(topic, ()):
            del self._by_partition[partition]
        self._ready.pop(topic, None)
        self._kept.pop(topic, None)
        self._kept_of.clear()
        if record is None:
            return
        if record.state == records_pb2.TOPIC_STATE_READY:
            self._ready[topic] = tuple(record.partition_ids)
        settings = record.settings
        partitions = (*record.partition_ids, *record.growing_partition_ids)
        if settings.retention_bytes:
            self._kept[topic] = settings.retention_bytes, partitions
        limits = _Limits(self.of_settings(settings), delay_limits_of(settings), settings.exclusive_only)
        if limits != _DEFAULTS:
            self._partitions[topic] = partitions
            self._by_partition.update(dict.fromkeys(partitions, limits))
