"""Dead letters, and what became of those that were replayed, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seriatim._values.headers import pairs_of


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message on which a consumer group failed, as it is in the dead-letter topic.

    Attributes:
        topic: The dead-letter topic.
        partition: The number of its partition.
        offset: Its offset in the dead-letter topic.
        key: The key of the message; None if it has none.
        value: Its value; `b""` if it is null.
        timestamp_ms: The timestamp of the message.
        headers: Its headers, without those that a dead letter has in addition. A repeated name has its last value, and
            a null value is `b""`. `header_list` has all of them.
        tag: Its tag; None if it has none.
        origin_topic: The topic of the message.
        origin_partition: The number of its partition there.
        origin_offset: Its offset there.
        group: The consumer group that failed on it.
        attempts: How many attempts failed.
        reason: The last error.
        failed_at_ms: When the last attempt failed, in ms since 1970, by the broker's clock.
        maybe_repeated: The topic may have the same dead letter a second time.
        history: Earlier dead letters of the same message, which were replayed, oldest first.
        value_is_null: Whether the message has no value.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    timestamp_ms: int
    headers: Mapping[str, bytes]
    tag: str | None
    origin_topic: str
    origin_partition: int
    origin_offset: int
    group: str
    attempts: int
    reason: str
    failed_at_ms: int
    maybe_repeated: bool
    history: tuple[Mapping[str, object], ...]
    value_is_null: bool = False

    @property
    def header_list(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers of the message in their order, repeated names included. None: the value is null."""
        return pairs_of(self.headers)

    @property
    def key_line(self) -> tuple[str, str, int, bytes | None]:
        """What keeps its order when it is replayed: consumer group, topic, partition and key."""
        return self.group, self.origin_topic, self.origin_partition, self.key


@dataclass(frozen=True, slots=True)
class ReplayedDeadLetter:
    """A dead letter that was replayed.

    Attributes:
        partition: The number of its partition in the dead-letter topic.
        offset: Its offset there.
        copy_topic: The topic with the copy.
        copy_partition: The number of its partition there.
        copy_offset: The offset of the copy; 0: an earlier call had made it, at a place that is not known any more.
    """

    partition: int
    offset: int
    copy_topic: str
    copy_partition: int
    copy_offset: int
