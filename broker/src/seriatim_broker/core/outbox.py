"""What the parts of the core share while a step runs: the time, the effects, the writes, the timers, the links.

Writes of a step go out as one `Persist`. Whatever must not leave before they are durable is held here until the
matching `Persisted`: effects as they are, and marks that tell a partition how far its log is on the disk.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from seriatim_api.batch import Checksum
from seriatim_api.errors import RunOverError
from seriatim_api.ids import MemberId, PartitionId

from .chain import Chain
from .config import BrokerConfig
from .effects import Connect, Effect, Note, Persist, Send
from .events import Moment
from .log import Write
from .messages import Heartbeat, Message, ReplicateAck
from .placement import GroupSpec
from .state import State

if TYPE_CHECKING:
    from .attempts import Attempt

_T = TypeVar("_T")


class LogDurable(NamedTuple):
    """Held like an effect: the log of a segment, in this generation of its content, is durable up to `tail`."""

    partition: PartitionId
    segment_no: int
    tail: int
    generation: int


class Stored(NamedTuple):
    """Held like an effect: something that a part of a partition waits for is durable."""

    partition: PartitionId
    kind: str
    segment_no: int
    serial: int


class Timer(NamedTuple):
    """When to wake whom. A hint: whoever wakes looks at its own deadlines."""

    at_us: int
    serial: int
    partition: PartitionId | None
    kind: str
    detail: str | int


Read = tuple[str, PartitionId, int, MemberId | str | None, int]
"""Who asked the disk: kind, partition, segment, for whom, from which index."""


class Link(State):
    """What is known of the connection to another broker."""

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
        "probed_us",
        "refused",
        "refused_by",
        "run",
        "session",
        "up",
        "wanted_us",
    )

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.up = False
        self.refused = False  # nobody listened at the last attempt
        self.member: MemberId | None = None
        self.run = 0
        self.session = 0
        self.forms = 0  # what its broker reads beyond 0.2.0
        self.heard_us = 0  # on whichever lane
        self.control_heard_us = 0
        self.data_count = 0  # `DATA` messages received on this link
        self.data_told = 0  # the same of the other end, as its newest answer said
        self.data_proved_us = 0  # when that number was seen to grow
        self.probed_us: int | None = None  # when a `LaneProbe` was sent, if the number did not grow since
        self.answered_us = -(1 << 60)  # when the newest heartbeat that it answered was sent
        self.refused_by: frozenset[tuple[PartitionId, int]] = frozenset()
        self.wanted_us = 0
        self.beat_us = -(1 << 60)
        self.cut_us = -(1 << 60)  # when it was cut because the run at its other end was dismissed
        self.disk_stall_us = 0  # as its newest answer said: see `disks`
        self.disk_full_since_us: int | None = None


class Outbox(State):
    """Shared by all parts of one `BrokerCore`."""

    __slots__ = (
        "attempts",
        "beat_due_us",
        "behind",
        "carried_bytes",
        "checksum",
        "config",
        "consumers_heard",
        "coordinator_refuses",
        "copies_asked",
        "credits",
        "disk_full_since_us",
        "disk_hangs",
        "durable_token",
        "effects",
        "ended",
        "ended_by",
        "flapping",
        "former",
        "forms_of_all",
        "groups",
        "held",
        "holders",
        "links",
        "marks",
        "member",
        "nonce",
        "now",
        "polls",
        "quarantined",
        "reads",
        "refusals",
        "refused",
        "run",
        "runs",
        "serial",
        "shared",
        "specs",
        "started_us",
        "streams",
        "suspect_before_run",
        "timers",
        "token",
        "tokens",
        "watched",
        "watched_by",
        "write_waits_since_us",
        "writes",
    )

    def __init__(self, config: BrokerConfig, member: MemberId, run: int, nonce: bytes, checksum: Checksum) -> None:
        assert len(nonce) == 12
        self.config = config
        self.member = member
        self.run = run
        self.nonce = nonce
        self.checksum = checksum
        self.now = Moment(0, 0)
        self.effects: list[Effect] = []
        self.writes: list[Write] = []
        self.marks: list[Effect | LogDurable | Stored] = []
        self.held: deque[tuple[int, Effect | LogDurable | Stored]] = deque()
        self.token = 0
        self.durable_token = 0
        self.write_waits_since_us: int | None = None  # since when nothing became durable although a write waits
        self.disk_hangs = False  # as the operator was told last
        self.quarantined: dict[tuple[PartitionId, int], int] = {}  # (partition, segment) -> messages that are kept
        self.disk_full_since_us: int | None = None  # since when the reserve of this member's disk is reached
        self.serial = 0
        self.timers: list[Timer] = []
        self.polls: dict[tuple[str, PartitionId, str | int], int] = {}  # what is polled -> when next
        self.links: dict[str, Link] = {}
        self.groups: dict[str, tuple[MemberId, ...]] = {}
        self.specs: dict[str, GroupSpec] = {}  # what is wanted of groups, where somebody said anything
        self.watched: dict[str, dict[PartitionId, None]] = {}  # broker -> partitions that need to hear it
        self.watched_by: dict[PartitionId, tuple[str, ...]] = {}
        # server -> partition -> segment it is refused for -> (session, time) of the newer record it was sent, or (0, 0)
        self.refusals: dict[str, dict[PartitionId, dict[int, tuple[int, int]]]] = {}
        self.shared: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # names and members that many partitions have alike
        self.runs: dict[MemberId, int] = {}  # as last registered
        self.holders: dict[str, MemberId] = {}  # broker -> the disk that its slot has, as last registered
        self.former: dict[MemberId, None] = {}  # held a slot, and were seen to lose it to another disk in this run
        self.ended: dict[MemberId, int] = {}  # newest run whose death certificate was seen
        self.ended_by: RunOverError | None = None  # why this run must end; nothing is done any more once it is set
        # partition -> why its record shows that the coordinator lost decisions, and the segment that must be open
        # again; 0 stands for this broker's own member record
        self.behind: dict[PartitionId, tuple[str, int]] = {}
        self.coordinator_refuses = False  # writes, until it takes them again
        # Kept here and not in the partitions, of which most never need them:
        self.refused: dict[PartitionId, tuple[int, int]] = {}  # -> (last pause after a refused write, until when)
        self.attempts: dict[PartitionId, tuple[Attempt, ...]] = {}  # to open the next segment, oldest first
        self.started_us = 0
        self.forms_of_all = 0  # what every registered broker reads beyond 0.2.0
        self.suspect_before_run = 0  # what earlier runs wrote without a flush may be gone
        self.credits: dict[int, int] = {}  # consumers' stream -> bytes that may still be delivered
        self.consumers_heard: dict[int, tuple[int, int]] = {}  # consumers' stream -> (last heartbeat, silent after it)
        self.streams: dict[int, dict[int, PartitionId]] = {}  # consumers' stream -> subscription -> partition
        self.tokens = 0  # given out in this run
        self.beat_due_us = 0
        self.reads: dict[int, Read] = {}  # serial -> who asked the disk
        self.copies_asked: dict[int, tuple[MemberId, int]] = {}  # request -> who was asked, for how many segments
        self.carried_bytes = 0  # of staged batches in memory, for publications that are carried out
        self.flapping: dict[str, tuple[int, int]] = {}  # group -> (passed over until, for how long)

    # ---- effects ----

    def emit(self, effect: Effect) -> None:
        """Do this now."""
        self.effects.append(effect)

    def send(self, member: MemberId, message: Message) -> None:
        """Send to a member; a broker that has another disk by now is not it, and does not get it."""
        if self.is_linked(member):
            self.effects.append(Send(member.broker, message))
        else:
            self.connect(member.broker)

    def send_broker(self, broker: str, message: Message) -> None:
        """Send to whoever holds that slot now, this broker included."""
        link = self.links.get(broker)
        if broker == self.member.broker or (link is not None and link.up):
            self.effects.append(Send(broker, message))
        else:
            self.connect(broker)

    def connect(self, broker: str) -> None:
        """Keep a link to that broker from now on."""
        if broker == self.member.broker:
            return
        if broker not in self.links:
            self.links[broker] = link = Link(broker)
            link.wanted_us = self.now.mono_us
            self.effects.append(Connect(broker))

    def watch_peers(self, partition: PartitionId, chain: Chain) -> None:
        """Whom this partition needs to hear often: members of its open segment, and sharers of a serving right."""
        wanted = chain.parts.peers(self.member)
        for broker in self.watched_by.pop(partition, ()):
            if broker not in wanted:
                self.watched[broker].pop(partition, None)
        if wanted:
            self.watched_by[partition] = self.share(wanted)
        for broker in wanted:
            self.watched.setdefault(broker, {})[partition] = None
            self.connect(broker)
            self.beat(broker)
        if self.member in chain.open_segment.members:
            for group in chain.send_chain:
                for member in self.groups.get(group, ()):
                    self.connect(member.broker)

    def beat(self, broker: str) -> None:
        """Send a heartbeat ahead of time, if the last one is not fresh: deliveries may wait for its answer."""
        link = self.links.get(broker)
        now = self.now.mono_us
        if link is not None and link.up and now - link.beat_us >= self.config.heartbeat_us // 2:
            link.beat_us = now
            self.effects.append(Send(broker, Heartbeat(now)))

    def forget_peers(self, partition: PartitionId) -> None:
        """The partition is gone."""
        for broker in self.watched_by.pop(partition, ()):
            self.watched[broker].pop(partition, None)

    def note(self, name: str, partition: PartitionId, **fields: object) -> None:
        """Tell the operator."""
        self.effects.append(Note(name, partition, tuple(fields.items())))

    def end_run(self, why: str) -> None:
        """Have this run ended: `step` returns `EndRun` and nothing else from now on. The first reason counts."""
        if self.ended_by is None:
            text = (
                f"{why}. What was acknowledged as replicated is on other members too. Remedy: if this disk still has "
                "its slot, start the broker again: it goes on as a new run. If another disk has it, remove this one"
            )
            self.ended_by = RunOverError(text, member=str(self.member), run=self.run)

    # ---- writes ----

    def write(self, write: Write) -> None:
        """Put this into the step's write."""
        self.writes.append(write)

    def when_durable(self, what: Effect | LogDurable | Stored) -> None:
        """Hold this back until all writes up to the end of this step are durable."""
        self.marks.append(what)

    def when_durable_send(self, member: MemberId, message: Message) -> None:
        """Send to a member once all writes up to the end of this step are durable."""
        self.marks.append(Send(member.broker, message))

    def when_stored(self, partition: PartitionId, kind: str, segment_no: int, serial: int = 0) -> None:
        """Have the part `kind` told when all writes up to the end of this step are durable."""
        self.marks.append(Stored(partition, kind, segment_no, serial))

    def finish(self) -> tuple[list[Effect], list[LogDurable | Stored]]:
        """End a step: its effects, with the write in front, and the marks that are true already."""
        if self.writes:
            self.token += 1
            if self.write_waits_since_us is None:
                self.write_waits_since_us = self.now.mono_us
            self.effects.insert(0, Persist(self.token, tuple(self.writes)))
            self.writes = []
        ready: list[LogDurable | Stored] = []
        for mark in self.marks:
            if self.durable_token >= self.token:
                if isinstance(mark, (LogDurable, Stored)):
                    ready.append(mark)
                else:
                    self.effects.append(mark)
            else:
                self.held.append((self.token, mark))
        self.marks = []
        effects, self.effects = self.effects, []
        return effects, ready

    def persisted(self, token: int) -> list[LogDurable | Stored]:
        """Let go of what waited for this token; returns the marks, newest only for each log."""
        assert token <= self.token
        self.durable_token = max(self.durable_token, token)
        self.write_waits_since_us = self.now.mono_us if self.durable_token < self.token else None
        logs: dict[tuple[PartitionId, int], LogDurable] = {}
        stored: list[LogDurable | Stored] = []
        acks: dict[tuple[str, PartitionId, int], Send] = {}
        while self.held and self.held[0][0] <= token:
            what = self.held.popleft()[1]
            if isinstance(what, LogDurable):
                logs[what.partition, what.segment_no] = what
            elif isinstance(what, Stored):
                stored.append(what)
            elif isinstance(what, Send) and isinstance(what.message, ReplicateAck):
                link = self.links.get(what.broker)
                if link is None or not self.is_link_dismissed(link):
                    acks[what.broker, what.message.partition, what.message.segment_no] = what  # the newest says it all
            else:
                self.effects.append(what)
        self.effects.extend(acks.values())
        return [*logs.values(), *stored]

    # ---- ids and time ----

    def new_serial(self) -> int:
        """A number that this run did not use before."""
        self.serial += 1
        return self.serial

    def new_id(self) -> bytes:
        """16 bytes that no other run and no other call has: the run's random nonce and a counter."""
        return self.nonce + self.new_serial().to_bytes(4, "big")

    def wake(self, at_us: int, kind: str, partition: PartitionId | None = None, detail: str | int = 0) -> None:
        """Have `on_timer(kind)` called at that time."""
        heapq.heappush(self.timers, Timer(at_us, self.new_serial(), partition, kind, detail))

    def poll(self, after_us: int, kind: str, partition: PartitionId, detail: str | int = 0) -> None:
        """Have it looked at again in a while; asked for many times, it is still looked at once."""
        key = (kind, partition, detail)
        at_us = self.now.mono_us + after_us
        if self.polls.get(key, at_us + 1) > at_us:
            self.polls[key] = at_us
            self.wake(at_us, kind, partition, detail)

    def is_consumer_silent(self, stream: int) -> bool:
        """Whether a consumer sent no heartbeat on its stream for twice its session; one that sends none never is."""
        heard_us, silent_after_us = self.consumers_heard.get(stream, (self.now.mono_us, 1))
        return self.now.mono_us >= heard_us + silent_after_us

    def due(self) -> Timer | None:
        """The next timer whose time has come."""
        if not self.timers or self.timers[0].at_us > self.now.mono_us:
            return None
        timer = heapq.heappop(self.timers)
        if timer.partition is not None:
            key = (timer.kind, timer.partition, timer.detail)
            if self.polls.get(key) == timer.at_us:
                del self.polls[key]
        return timer

    # ---- what many partitions have alike ----

    def share(self, names: tuple[_T, ...]) -> tuple[_T, ...]:
        """The one tuple for all who keep an equal one."""
        return self.shared.setdefault(names, names)

    # ---- links ----

    def is_linked(self, member: MemberId) -> bool:
        """Whether a connection to exactly this member stands and is not known to be silent."""
        if member == self.member:
            return True
        link = self.links.get(member.broker)
        return link is not None and link.up and link.member == member

    def is_gone(self, member: MemberId) -> bool:
        """Whether the member is surely not to be reached now: refused, silent for long, or another disk."""
        link = self.links.get(member.broker)
        if member == self.member or link is None:
            return False
        if link.up:
            return link.member != member
        return link.refused or self.now.mono_us - max(link.heard_us, link.wanted_us) > self.config.resume_us

    def is_dismissed(self, member: MemberId, run: int) -> bool:
        """Whether that run may not take part any more, although it may still be connected.

        It is dismissed if a death certificate of it (or of a later run of its disk) was seen, or if its slot was seen
        to go to another disk. A certificate can be false: the process lives on, its disk may be deleted already. A
        message that this process acknowledges would be on one disk only (I12), so nothing that it says is believed.
        """
        return self.ended.get(member, 0) >= run or member in self.former

    def learn_holders(self, found: dict[str, MemberId]) -> None:
        """Note who has which slot now, and which disks have lost theirs.

        A disk that was never seen in the slot is not taken for a former one: this broker may be the one whose view is
        old, because it is cut off from the coordinator, and the disk the one that has just taken the slot.
        """
        for broker, before in self.holders.items():
            if found.get(broker, before) != before:
                self.former[before] = None
        for member in found.values():
            self.former.pop(member, None)
        self.holders = {**self.holders, **found}

    def is_link_dismissed(self, link: Link) -> bool:
        """Whether the run that the link leads to, or led to last, is dismissed."""
        return link.member is not None and self.is_dismissed(link.member, link.run)

    def is_replaced(self, member: MemberId) -> bool:
        """Whether the member's slot was given to another disk: the member will never serve again, and is refused."""
        holders = [other for members in self.groups.values() for other in members if other.broker == member.broker]
        return bool(holders) and member not in holders
