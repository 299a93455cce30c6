"""What a broker knows of its links to the other brokers, and which partitions need them."""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim_api.ids import MemberId, PartitionId

from ..values.states import State


@dataclass(slots=True, eq=False)
class Link(State):
    """What is known of the link to one other broker."""

    broker: str
    up: bool = False
    refused: bool = False  # the last try to connect found no process that listens
    member: MemberId | None = None
    member_run: int = 0
    session: int = 0
    forms: int = 0  # forms that the other broker reads
    heard_us: int = 0  # on any lane
    control_heard_us: int = 0
    data_count: int = 0  # `DATA` messages received on this link
    data_told: int = 0  # how many the other end received, as its newest answer said
    data_proved_us: int = 0  # when that number grew last
    probed_us: int | None = None  # when a `LaneProbe` was sent, if the number has not grown since
    answered_us: int = -(1 << 60)  # when the newest answered heartbeat was sent
    round_trip_us: int = 0  # of that heartbeat and its answer
    refused_by: frozenset[tuple[PartitionId, int]] = field(default_factory=frozenset)
    wanted_us: int = 0
    watched_us: int = 0  # since when this broker shares an open segment or a serving right with the other one
    beat_us: int = -(1 << 60)
    cut_us: int = -(1 << 60)  # when it was cut because the member run at the other end was dismissed
    disk_stall_us: int = 0  # of the other end's disk, as its newest answer said; see `disks`
    disk_full_since_us: int | None = None


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

    def forget_peers(self, partition: PartitionId) -> None:
        """The partition is gone: it needs no link any more."""
        for broker in self.watched_by.pop(partition, ()):
            self.watched[broker].pop(partition, None)
