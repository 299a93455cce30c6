"""What a broker knows of its links to the other brokers, and which partitions need them."""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim_api.ids import MemberId, PartitionId

from ..values.states import State


class Link(State):
    """What is known of the link to one other broker."""

    __slots__ = (
        "answered_us",
        "beat_us",
        "broker",
        "control_heard_us",
        "cut_us",
        "data_count",
        "data_proved_us",
        "data_told",
        "disk_full_since_us",
        "disk_stall_us",
        "forms",
        "heard_us",
        "member",
        "member_run",
        "probed_us",
        "refused",
        "refused_by",
        "round_trip_us",
        "session",
        "up",
        "wanted_us",
        "watched_us",
    )

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.up = False
        self.refused = False  # the last try to connect found no process that listens
        self.member: MemberId | None = None
        self.member_run = 0
        self.session = 0
        self.forms = 0  # forms that the other broker reads
        self.heard_us = 0  # on any lane
        self.control_heard_us = 0
        self.data_count = 0  # `DATA` messages received on this link
        self.data_told = 0  # how many the other end received, as its newest answer said
        self.data_proved_us = 0  # when that number grew last
        self.probed_us: int | None = None  # when a `LaneProbe` was sent, if the number has not grown since
        self.answered_us = -(1 << 60)  # when the newest answered heartbeat was sent
        self.round_trip_us = 0  # of that heartbeat and its answer
        self.refused_by: frozenset[tuple[PartitionId, int]] = frozenset()
        self.wanted_us = 0
        self.watched_us = 0  # since when this broker shares an open segment or a serving right with the other one
        self.beat_us = -(1 << 60)
        self.cut_us = -(1 << 60)  # when it was cut because the member run at the other end was dismissed
        self.disk_stall_us = 0  # of the other end's disk, as its newest answer said; see `disks`
        self.disk_full_since_us: int | None = None


@dataclass(slots=True, eq=False)
class LinkTable(State):
    """The links of a broker, and the partitions that need them."""

    by_broker: dict[str, Link] = field(default_factory=dict)
    beat_due_us: int = 0  # when heartbeats are sent next
    # broker -> partitions that need its heartbeats
    watched: dict[str, dict[PartitionId, None]] = field(default_factory=dict)
    watched_by: dict[PartitionId, tuple[str, ...]] = field(default_factory=dict)
    # server -> partition -> segment for which it is refused -> link session and time at which the newer record was
    # sent to it; (0, 0) if it was not sent yet
    refusals: dict[str, dict[PartitionId, dict[int, tuple[int, int]]]] = field(default_factory=dict)

    def get(self, broker: str) -> Link | None:
        """The link to that broker, if there is one."""
        return self.by_broker.get(broker)

    def forget_peers(self, partition: PartitionId) -> None:
        """The partition is gone: it needs no link any more."""
        for broker in self.watched_by.pop(partition, ()):
            self.watched[broker].pop(partition, None)
