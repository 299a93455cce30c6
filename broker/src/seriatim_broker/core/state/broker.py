"""What all parts of one broker's core share: its identity, the time, and state that belongs to no single partition."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from seriatim_api.batch import Checksum
from seriatim_api.errors import RunOverError
from seriatim_api.ids import MemberId, PartitionId

from ..values.chain import Chain
from ..values.config import BrokerConfig
from ..values.effects import Connect, Send
from ..values.events import Moment
from ..values.kinds import ReadKind, TimerKind
from ..values.messages import Heartbeat, Message
from ..values.states import State
from .coordinator import CoordinatorState
from .directory import BrokerDirectory
from .links import Link, LinkTable
from .outbox import Outbox
from .streams import ConsumerStreams
from .switching import SwitchAttempt
from .timers import Timer, TimerQueue

_T = TypeVar("_T")

COUNTS_US: Final = 60_000_000
"""What a sender has in memory counts for this long, unless it says so again. It looks at least every 30 s. So what a
consumer group or a segment had that left this broker does not count for ever."""

Read = tuple[ReadKind, PartitionId, int, MemberId | str | None, int]
"""A read of the disk under way: kind, partition, segment, the member or consumer group that needs it, first index.

A read for a range has None in place of the member, and the number of the request in place of the index."""


@dataclass(slots=True, eq=False)
class OwnDisk(State):
    """What a broker knows of its own disk."""

    hangs: bool = False  # as the log said last
    full_since_us: int | None = None  # since when the reserve is reached
    # (partition, segment) -> messages that are kept
    quarantined: dict[tuple[PartitionId, int], int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class BrokerState(State):
    """Shared by all parts of one `BrokerCore`."""

    config: BrokerConfig
    member: MemberId
    member_run: int
    nonce: bytes
    checksum: Checksum
    now: Moment = field(default_factory=lambda: Moment(0, 0))
    started_us: int = 0
    suspect_before_run: int = 0  # writes that earlier ones did not flush may be gone
    ended_by: RunOverError | None = None  # why this member run must end; once it is set, steps do nothing
    serial: int = 0
    out: Outbox = field(default_factory=Outbox)
    timers: TimerQueue = field(default_factory=TimerQueue)
    links: LinkTable = field(default_factory=LinkTable)
    directory: BrokerDirectory = field(default_factory=BrokerDirectory)
    coordinator: CoordinatorState = field(default_factory=CoordinatorState)
    streams: ConsumerStreams = field(default_factory=ConsumerStreams)
    disk: OwnDisk = field(default_factory=OwnDisk)
    # names and members that many partitions share
    shared: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    # These are here and not in the partitions, because most partitions never need them:
    # switch attempts of this broker, oldest first
    switch_attempts: dict[PartitionId, tuple[SwitchAttempt, ...]] = field(default_factory=dict)
    reads: dict[int, Read] = field(default_factory=dict)  # serial -> the read of the disk
    # request -> the member asked, how many segments
    copies_asked: dict[int, tuple[MemberId, int]] = field(default_factory=dict)
    # what senders of dead letters and delayed messages have of bodies in memory, by partition and ledger: bytes, and
    # until when it counts
    forwarding_bytes: dict[tuple[PartitionId, str], tuple[int, int]] = field(default_factory=dict)
    has_delayed: bool = False  # a log here has delayed batches, perhaps all of them fired
    moves_from_us: int = 0  # more delayed messages are moved from then on
    clock_ahead_ms: int = 0  # how far the wall clock was ahead of the monotonic one at the last heartbeat
    carried_bytes: int = 0  # of staged batches in memory, for publications under way
    producer_bytes: int = 0  # of the producer tables of segments that are not sealed here, in memory
    # of each, and when it was counted, in us
    producer_bytes_of: dict[PartitionId, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert len(self.nonce) == 12

    # ---- memory ----

    def count_producers(self, partition: PartitionId, size_bytes: int) -> None:
        """Note what the producer table of a partition's open segment takes in memory; 0: it is gone."""
        known, _ = self.producer_bytes_of.pop(partition, (0, 0))
        self.producer_bytes += size_bytes - known
        if size_bytes:
            self.producer_bytes_of[partition] = size_bytes, self.now.mono_us

    def count_forwarding(self, place: tuple[PartitionId, str], size_bytes: int) -> None:
        """Note what a sender of dead letters or delayed messages has of bodies in memory; 0: nothing."""
        if size_bytes:
            self.forwarding_bytes[place] = size_bytes, self.now.mono_us + COUNTS_US
        else:
            self.forwarding_bytes.pop(place, None)

    def has_forwarding_room(self, size_bytes: int) -> bool:
        """Whether that much more may be read, as far as the memory of all these senders goes."""
        now_us, known = self.now.mono_us, self.forwarding_bytes
        for place in [place for place, (_, until_us) in known.items() if until_us <= now_us]:
            del known[place]
        return sum(used for used, _ in known.values()) + size_bytes <= self.config.forwarding_bytes_max

    # ---- ids and time ----

    def new_serial(self) -> int:
        """A number that this member run did not use before."""
        self.serial += 1
        return self.serial

    def new_id(self) -> bytes:
        """16 bytes that no other member run and no other call has: the run's random nonce and a counter."""
        return self.nonce + self.new_serial().to_bytes(4, "big")

    def wake(self, at_us: int, kind: TimerKind, partition: PartitionId | None = None, detail: str | int = 0) -> None:
        """Have the handler of that kind of timer called at that monotonic time."""
        heapq.heappush(self.timers.heap, Timer(at_us, self.new_serial(), partition, kind, detail))

    def poll(self, after_us: int, kind: TimerKind, partition: PartitionId, detail: str | int = 0) -> None:
        """As `wake`, after a time, unless the handler is called for the same thing at that time or earlier anyway."""
        at_us = self.now.mono_us + after_us
        key = (kind, partition, detail)
        if self.timers.polls.get(key, at_us + 1) > at_us:
            self.timers.polls[key] = at_us
            self.wake(at_us, kind, partition, detail)

    def go_on_next_step(self, kind: TimerKind, partition: PartitionId, detail: str | int = 0) -> None:
        """Call the handler again in the next step, for the next part of much work: other events come between.

        Not `poll(0, ...)`: a timer that is due at the time of this step is handled in this step.
        """
        self.poll(1, kind, partition, detail)

    def end_member_run(self, why: str) -> None:
        """End this member run: this step returns only `EndMemberRun`, later ones nothing. The first reason counts."""
        # Rule `own-death` (I13): a member run that reads its own death certificate ends. Without it:
        #   1. A certificate is written for As, which is alive. Every other broker cuts its link to As.
        #   2. As keeps running. No broker believes it, and each one that it asks refuses it.
        #   3. Its slot stays empty, because no new member run begins.
        #
        # Rule `later-run` (TWO): a member run that sees a later member run of its disk ends. Without it:
        #   1. A copy of a broker's directory is started. It raises the member run, and registers it.
        #   2. The first process continues: two processes answer as the same member, and each has half of the batches.
        if self.ended_by is None:
            text = (
                f"{why}. Messages that were acknowledged as replicated are on other members too. Remedy: if this disk "
                "still has its slot, start the broker again: it continues as a new member run. If another disk has the "
                "slot, remove this disk"
            )
            self.ended_by = RunOverError(text, member=str(self.member), run=self.member_run)

    # ---- messages to other brokers ----

    def send(self, member: MemberId, message: Message) -> None:
        """Send to exactly this member; if it is not linked, connect to its broker and send nothing."""
        # Rule `incarnation` (I14): a broker with another disk is another member, which does not get the message.
        # Without it:
        #   1. Am's disk is replaced by an empty one. A switcher asks "Am" for its tail, and it answers 0.
        #   2. The switcher seals at 0. All messages of the segment are lost (I1).
        if self.is_linked(member):
            self.out.emit(Send(member.broker, message))
        else:
            self.connect(member.broker)

    def send_broker(self, name: str, message: Message) -> None:
        """Send to the broker of that name, whatever disk it has; it may be this broker itself.

        If no link to it is up, connect and send nothing.
        """
        link = self.links.by_broker.get(name)
        if name == self.member.broker or (link is not None and link.up):
            self.out.emit(Send(name, message))
        else:
            self.connect(name)

    def connect(self, name: str) -> None:
        """Open a link to that broker, and keep it open from now on."""
        if name == self.member.broker:
            return
        if name not in self.links.by_broker:
            self.links.by_broker[name] = link = Link(name)
            link.wanted_us = self.now.mono_us
            self.out.emit(Connect(name))

    def beat(self, name: str) -> None:
        """Send a heartbeat now if the last one is older than `heartbeat_us / 2`: deliveries may wait for its answer."""
        self._beat_if_older(name, self.config.heartbeat_us // 2)

    def beat_with_answer(self, name: str) -> None:
        """Send the next heartbeat with an answer that leaves now, if half of its period has passed."""
        self._beat_if_older(name, self.beat_period_us(name) // 2)

    def _beat_if_older(self, name: str, age_us: int) -> None:
        link = self.links.by_broker.get(name)
        now = self.now.mono_us
        if link is not None and link.up and now - link.beat_us >= age_us:
            link.beat_us = now
            self.out.emit(Send(name, Heartbeat(now)))

    def beat_period_us(self, name: str) -> int:
        """The time between two heartbeats to that broker."""
        return self.config.heartbeat_us if self.links.watched.get(name) else self.config.slow_heartbeat_us

    def beat_pause_us(self) -> int:
        """The time until the next look at heartbeats: short if a broker is watched."""
        return self.config.heartbeat_us if any(self.links.watched.values()) else self.config.slow_heartbeat_us // 2

    def beat_soon(self) -> None:
        """Look at heartbeats within `heartbeat_us`, because a link came up, or a broker is watched from now on."""
        soon_us = self.now.mono_us + self.config.heartbeat_us
        if self.links.beat_due_us > soon_us:
            self.set_beat(soon_us)

    def set_beat(self, at_us: int) -> None:
        """Look at heartbeats at that time, and not at the time that was set before."""
        self.links.beat_due_us = at_us
        self.wake(at_us, TimerKind.HEARTBEAT)

    def watch_peers(self, partition: PartitionId, chain: Chain) -> None:
        """Exchange heartbeats often with the members of the open segment, and with the sharers of a serving right."""
        wanted = chain.parts.peers(self.member)
        for name in self.links.watched_by.pop(partition, ()):
            if name not in wanted:
                self.links.watched[name].pop(partition, None)
        if wanted:
            self.links.watched_by[partition] = self.share(wanted)
        for name in wanted:
            watching = self.links.watched.setdefault(name, {})
            self.connect(name)
            link = self.links.by_broker.get(name)
            if not watching and link is not None:
                link.watched_us = self.now.mono_us
            watching[partition] = None
            self.beat(name)
        if wanted:
            self.beat_soon()
        if self.member in chain.open_segment.members:
            for group in chain.send_chain:
                for member in self.directory.broker_groups.get(group, ()):
                    self.connect(member.broker)

    def is_linked(self, member: MemberId) -> bool:
        """Whether the link to exactly this member is up; always true for this member itself."""
        if member == self.member:
            return True
        link = self.links.by_broker.get(member.broker)
        return link is not None and link.up and link.member == member

    def is_gone(self, member: MemberId) -> bool:
        """Whether the member can surely not be reached now.

        Either another disk is linked in its place, or the link is down, and its broker refuses connections or was not
        heard for `resume_us` (200 ms).
        """
        link = self.links.by_broker.get(member.broker)
        if member == self.member or link is None:
            return False
        if link.up:
            return link.member != member
        return link.refused or self.now.mono_us - max(link.heard_us, link.wanted_us) > self.config.resume_us

    def is_link_dismissed(self, link: Link) -> bool:
        """Whether the member run at the other end of the link, now or last, is dismissed."""
        return link.member is not None and self.directory.is_dismissed(link.member, link.member_run)

    # ---- steps ----

    def may_reach(self, name: str) -> bool:
        """Whether acknowledgements may go to that broker: not if its member run was dismissed."""
        link = self.links.by_broker.get(name)
        return link is None or not self.is_link_dismissed(link)

    def share(self, names: tuple[_T, ...]) -> tuple[_T, ...]:
        """One tuple for all parts that keep an equal one, to save memory."""
        return self.shared.setdefault(names, names)
