"""What all parts of one broker's core share: who it is, the time, and the state that is of no single partition."""

from __future__ import annotations

from typing import Any, TypeVar

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
from .outbox import Mark, Outbox
from .streams import ConsumerStreams
from .switching import Attempt
from .timers import Timer, TimerQueue

_T = TypeVar("_T")

Read = tuple[ReadKind, PartitionId, int, MemberId | str | None, int]
"""Who asked the disk: kind, partition, segment, for whom, from which index."""


class OwnDisk(State):
    """What a broker knows of its own disk."""

    __slots__ = ("full_since_us", "hangs", "quarantined")

    def __init__(self) -> None:
        self.hangs = False  # as the operator was told last
        self.full_since_us: int | None = None  # since when its reserve is reached
        self.quarantined: dict[tuple[PartitionId, int], int] = {}  # (partition, segment) -> messages that are kept


class BrokerState(State):
    """Shared by all parts of one `BrokerCore`."""

    __slots__ = (
        "attempts",
        "carried_bytes",
        "checksum",
        "config",
        "coordinator",
        "copies_asked",
        "directory",
        "disk",
        "ended_by",
        "links",
        "member",
        "nonce",
        "now",
        "out",
        "reads",
        "run",
        "serial",
        "shared",
        "started_us",
        "streams",
        "suspect_before_run",
        "timers",
    )

    def __init__(self, config: BrokerConfig, member: MemberId, run: int, nonce: bytes, checksum: Checksum) -> None:
        assert len(nonce) == 12
        self.config = config
        self.member = member
        self.run = run
        self.nonce = nonce
        self.checksum = checksum
        self.now = Moment(0, 0)
        self.started_us = 0
        self.suspect_before_run = 0  # what earlier runs wrote without a flush may be gone
        self.ended_by: RunOverError | None = None  # why this run must end; no step does anything once it is set
        self.serial = 0
        self.out = Outbox()
        self.timers = TimerQueue()
        self.links = LinkTable()
        self.directory = BrokerDirectory()
        self.coordinator = CoordinatorState()
        self.streams = ConsumerStreams()
        self.disk = OwnDisk()
        self.shared: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # names and members that many partitions have alike
        # Kept here and not in the partitions, of which most never need them:
        self.attempts: dict[PartitionId, tuple[Attempt, ...]] = {}  # to open the next segment, oldest first
        self.reads: dict[int, Read] = {}  # serial -> who asked the disk
        self.copies_asked: dict[int, tuple[MemberId, int]] = {}  # request -> who was asked, for how many segments
        self.carried_bytes = 0  # of staged batches in memory, for publications that are carried out

    # ---- ids and time ----

    def new_serial(self) -> int:
        """A number that this run did not use before."""
        self.serial += 1
        return self.serial

    def new_id(self) -> bytes:
        """16 bytes that no other run and no other call has: the run's random nonce and a counter."""
        return self.nonce + self.new_serial().to_bytes(4, "big")

    def wake(self, at_us: int, kind: TimerKind, partition: PartitionId | None = None, detail: str | int = 0) -> None:
        """Have the handler of that kind of timer called at that time."""
        self.timers.push(Timer(at_us, self.new_serial(), partition, kind, detail))

    def poll(self, after_us: int, kind: TimerKind, partition: PartitionId, detail: str | int = 0) -> None:
        """As `wake`, after a time; asked for many times, the handler is still called once."""
        at_us = self.now.mono_us + after_us
        if not self.timers.is_polled_earlier((kind, partition, detail), at_us):
            self.wake(at_us, kind, partition, detail)

    def end_run(self, why: str) -> None:
        """Have this run ended: `step` returns `EndRun` and no other effect from now on. The first reason counts."""
        if self.ended_by is None:
            text = (
                f"{why}. What was acknowledged as replicated is on other members too. Remedy: if this disk still has "
                "its slot, start the broker again: it goes on as a new run. If another disk has it, remove this one"
            )
            self.ended_by = RunOverError(text, member=str(self.member), run=self.run)

    # ---- messages to other brokers ----

    def send(self, member: MemberId, message: Message) -> None:
        """Send to a member; a broker that has another disk by now is not it, and does not get it."""
        if self.is_linked(member):
            self.out.emit(Send(member.broker, message))
        else:
            self.connect(member.broker)

    def send_broker(self, name: str, message: Message) -> None:
        """Send to the disk that holds that slot now; it may be this broker's own."""
        link = self.links.get(name)
        if name == self.member.broker or (link is not None and link.up):
            self.out.emit(Send(name, message))
        else:
            self.connect(name)

    def connect(self, name: str) -> None:
        """Keep a link to that broker from now on."""
        if name == self.member.broker:
            return
        if name not in self.links.by_broker:
            self.links.by_broker[name] = link = Link(name)
            link.wanted_us = self.now.mono_us
            self.out.emit(Connect(name))

    def beat(self, name: str) -> None:
        """Send a heartbeat ahead of time, if the last one is not fresh: deliveries may wait for its answer."""
        link = self.links.get(name)
        now = self.now.mono_us
        if link is not None and link.up and now - link.beat_us >= self.config.heartbeat_us // 2:
            link.beat_us = now
            self.out.emit(Send(name, Heartbeat(now)))

    def watch_peers(self, partition: PartitionId, chain: Chain) -> None:
        """Hear those often that a partition needs: members of its open segment, and sharers of a serving right."""
        wanted = chain.parts.peers(self.member)
        for name in self.links.watched_by.pop(partition, ()):
            if name not in wanted:
                self.links.watched[name].pop(partition, None)
        if wanted:
            self.links.watched_by[partition] = self.share(wanted)
        for name in wanted:
            self.links.watched.setdefault(name, {})[partition] = None
            self.connect(name)
            self.beat(name)
        if self.member in chain.open_segment.members:
            for group in chain.send_chain:
                for member in self.directory.groups.get(group, ()):
                    self.connect(member.broker)

    def is_linked(self, member: MemberId) -> bool:
        """Whether there is a connection to exactly this member that is not known to be silent."""
        if member == self.member:
            return True
        link = self.links.get(member.broker)
        return link is not None and link.up and link.member == member

    def is_gone(self, member: MemberId) -> bool:
        """Whether the member is surely not to be reached now: refused, silent for `resume_us`, or another disk."""
        link = self.links.get(member.broker)
        if member == self.member or link is None:
            return False
        if link.up:
            return link.member != member
        return link.refused or self.now.mono_us - max(link.heard_us, link.wanted_us) > self.config.resume_us

    def is_link_dismissed(self, link: Link) -> bool:
        """Whether the run that the link leads to, or led to last, is dismissed."""
        return link.member is not None and self.directory.is_dismissed(link.member, link.run)

    # ---- steps ----

    def persisted(self, token: int) -> list[Mark]:
        """Let go of what waited for this token, except acknowledgements to runs that were dismissed."""

        def may_reach(name: str) -> bool:
            link = self.links.get(name)
            return link is None or not self.is_link_dismissed(link)

        return self.out.persisted(token, self.now.mono_us, may_reach)

    def share(self, names: tuple[_T, ...]) -> tuple[_T, ...]:
        """The one tuple for all parts that keep an equal one."""
        return self.shared.setdefault(names, names)
