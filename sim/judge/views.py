"""What the judge knows of one message, and of one consumer group in one partition."""

from __future__ import annotations

from seriatim_api.ids import PartitionId, split_offset
from seriatim_broker.core.values.log import Batch
from seriatim_broker.testing import simulated_bodies


class Fate:
    """What the judge knows of one message."""

    __slots__ = ("acked_us", "final_offset", "level", "offset", "outcome", "partition", "producer", "sent_us")

    def __init__(self, partition: PartitionId, producer: bytes, sent_us: int, level: int) -> None:
        self.partition = partition
        self.producer = producer
        self.sent_us = sent_us
        self.level = level
        self.acked_us: int | None = None
        self.offset: int | None = None
        self.final_offset: int | None = None  # its own, if its receipt says that readers get it there
        self.outcome = ""


class ConsumerGroupView:
    """What a consumer group has seen and acknowledged of one partition, since it began or was rewound or skipped.

    `start` is the offset at which that was, and `group_epoch` the group epoch that began there.
    """

    __slots__ = (
        "acked", "anew", "confirmed", "drained_below", "dropped", "first_at", "firsts", "group_epoch", "seen", "start",
    )  # fmt: skip

    def __init__(self, group_epoch: int = 0, start: int = 0) -> None:
        self.group_epoch = group_epoch
        self.start = start  # an offset
        # segments below this number are settled, and all of them is acknowledged
        self.drained_below = split_offset(start)[0]
        self.confirmed: dict[tuple[int, int], int] = {}  # (group epoch, segment) -> confirmed below this index
        self.firsts: list[tuple[int, int]] = []  # (offset, message)
        self.seen: set[int] = set()
        self.first_at: dict[int, int] = {}  # message -> the offset at which it was first given to the group
        self.anew: set[int] = set()  # messages that it was given twice, because tables are lost
        # segment -> index below which the application acknowledged
        self.acked: dict[int, int] = dict([split_offset(start)]) if start else {}
        self.dropped: list[tuple[int, int]] = []  # between these offsets it was notified of a drop by retention

    def need_not_have(self, offset: int) -> bool:
        """Whether the group was told that a message is gone, or begins after it."""
        return offset < self.start or any(first <= offset < end for first, end in self.dropped)


def messages_of(batch: Batch) -> list[int]:
    """The ids of the messages that the simulation put into a body."""
    return list(simulated_bodies.messages_of(batch))
