"""What a world needs of a cluster: brokers with their processes, the network between them, and the coordinator.

There are two implementations: `cores` (bare cores) and `whole` (complete brokers). Clients, consumers, administrators,
faults and the judge know only what is here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import CursorRecord, Event
from seriatim_broker.testing.memory_disk import MemoryDisk

WALL_MS_START = 1_700_000_000_000
"""What the wall clocks of brokers show when a run begins."""

COORDINATOR_TIMEOUT_US = 120_000
"""How long a bare core waits for an answer of the coordinator."""

Look = Callable[[PartitionId, Callable[[], None]], None]
"""Looks whether the topic of a partition is there, and calls the second argument if it is gone."""


def checksum(seed: int, data: bytes) -> int:
    """A cheap replacement for CRC-32C: the simulation only needs that different bytes differ."""
    return zlib.crc32(data, seed)


class Watched(Protocol):
    """A broker's core, at which administrators may look."""

    @property
    def core(self) -> BrokerCore:
        """The core itself."""

    def commit_of(self, partition: PartitionId, segment_no: int) -> int:
        """The commit of a segment, as far as this broker knows it."""


class Process(Protocol):
    """One run of a broker."""

    name: str
    alive: bool
    frozen: bool

    @property
    def member(self) -> MemberId:
        """Which disk it runs on."""

    @property
    def run(self) -> int:
        """The run that it is; 0 until it has begun one."""

    @property
    def broker(self) -> Broker:
        """Where it runs."""

    @property
    def is_serving(self) -> bool:
        """Whether clients find it."""

    @property
    def watched(self) -> Watched | None:
        """Its core, once it has one."""

    def to_mono(self, time_us: int) -> int:
        """A virtual time on this process's monotonic clock."""

    def jump_wall(self, by_ms: int) -> None:
        """The wall clock is set."""

    def look_for_room(self) -> None:
        """Look whether the disk is full."""

    def deliver(self, event: Event) -> None:
        """Hand an event to the core."""

    def freeze(self) -> None:
        """Do nothing until `thaw`."""

    def thaw(self) -> None:
        """Continue, with all that has come meanwhile."""

    def leave_network(self, *, silent: bool) -> None:
        """All its connections to brokers end. With `silent` (its machine went down) the other ends are not notified."""

    def end(self) -> None:
        """The process is no more."""


class CoreProcess(Process, Protocol):
    """A process that is a bare core: the world does for it what the runtime does otherwise."""

    core: BrokerCore

    @property
    def wall_ms(self) -> int:
        """What its wall clock shows."""


class Broker(Protocol):
    """A slot of a broker group: its name, its disk, and the process that runs on it, if any.

    Attributes:
        refuses: While no process is there, a connection to it is refused, not just lost.
        given_up: The directory that was deleted under its process.
    """

    name: str
    group: str
    disk: MemoryDisk
    refuses: bool
    slow_until_us: int
    slow_reads_until_us: int
    hung_until_us: int
    full_since_us: int
    full_until_us: int
    given_up: MemoryDisk | None

    @property
    def member(self) -> MemberId:
        """Whose disk it is."""

    @property
    def run(self) -> int:
        """The last run that began."""

    @property
    def suspect_before_run(self) -> int:
        """Below this run its memory may have been lost."""

    @property
    def process(self) -> Process | None:
        """The run that continues now."""

    @property
    def real_disk(self) -> MemoryDisk:
        """The disk at which the judge looks."""

    def start(self) -> object:
        """Start the next run on this disk."""

    def start_again(self) -> None:
        """The supervisor starts it, if no process is there."""

    def give_up(self) -> None:
        """The directory is deleted under the process that runs on it, which continues and notices nothing."""

    def ended_badly(self, *, machine: bool) -> None:
        """A fault ended the run, or (with `machine`) the machine."""

    def replace_disk(self) -> None:
        """The slot gets an empty disk: another member."""


class Network(Protocol):
    """The network between brokers, as the world and its faults see it."""

    def latency_us(self) -> int:
        """How long something takes from one process to another."""

    def cut(self, source: str, target: str) -> None:
        """Let nothing from `source` arrive at `target` until `heal`."""

    def heal(self, source: str, target: str) -> None:
        """Undo one `cut`."""

    def heal_all(self) -> None:
        """Undo all cuts."""

    def is_cut(self, source: str, target: str) -> bool:
        """Whether the direction from `source` to `target` is cut now."""

    def break_link(self, first: str, second: str) -> bool:
        """End the link between two brokers; return whether there was one."""

    def stall_lane(self, source: str, target: str, lane: int) -> bool:
        """Let nothing more through on one lane of the open link; return whether there was one."""


class Records(Protocol):
    """The records in the coordinator."""

    def chain(self, partition: PartitionId) -> tuple[Chain | None, int]:
        """The chain of a partition and the revision that wrote it; (None, 0) if the partition has no chain."""

    def cursor(self, partition: PartitionId, group: str) -> tuple[CursorRecord | None, int]:
        """A group's cursor and its revision."""

    def snapshot(self) -> Any:
        """A copy of all records."""


class Coordinator(Protocol):
    """The coordinator, as the world and its faults see it.

    Attributes:
        isolated: For each broker that cannot reach it, the number of faults that cut the broker off.
        is_faulty: Whether answers are lost or late.
        is_refusing: Whether it reads and refuses to write; with `keeps_next` it keeps the next write all the same.
    """

    is_down: bool
    isolated: dict[str, int]
    is_faulty: bool
    is_refusing: bool
    keeps_next: bool

    @property
    def records(self) -> Records:
        """What it has."""

    def certify(self, run: RunId) -> None:
        """Write a death certificate, if the run is not certified yet."""

    def certify_falsely(self, run: RunId, own_us: int) -> None:
        """Write a certificate of a run that lives, which the run itself reads only after `own_us`."""


class Cluster(Protocol):
    """A cluster, whatever its brokers are made of.

    Attributes:
        linked_us: After this time a broker that started again is linked to the others.
        event_count_max: How many events are too many for one run.
    """

    linked_us: int
    event_count_max: int

    @property
    def brokers(self) -> Mapping[str, Broker]:
        """All slots, by name."""

    @property
    def network(self) -> Network:
        """What connects the brokers."""

    @property
    def coordinator(self) -> Coordinator:
        """What they share."""

    @property
    def look(self) -> Look | None:
        """How clients look whether their topic is there, if topics are deleted."""

    def running(self) -> AbstractContextManager[None]:
        """Surrounds a run."""

    def first_brokers(self) -> Iterator[Broker]:
        """The brokers that are there from the beginning."""

    def create(self) -> None:
        """Make the partitions."""

    def control(self) -> None:
        """From now on, have the segments of lost disks copied."""

    def others_dismiss(self, run: RunId) -> bool:
        """Whether all other brokers have read the certificate of a run."""

    def tell_false_certificates(self) -> None:
        """Each broker that has not read one of the false certificates reads it now."""

    @property
    def is_busy(self) -> bool:
        """Whether something continues that the end of the run waits for."""

    def missing(self) -> list[str]:
        """The reasons why the cluster is not as it should be at the end."""

    def finish(self) -> None:
        """Everything has drained: the last checks."""
