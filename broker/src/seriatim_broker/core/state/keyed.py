"""The dispatcher of a consumer group in which order counts within a key.

Keys with messages are *ready* (in the order in which they became so), *delayed* (by the time at which they become
ready), or *granted*: their first messages are with a consumer, as a *run* under a token. A key is in at most one of
these. A key that is parked or forwarded is in none.

Most keys have exactly one message, which is ready or granted, and no record. Such a key is a *single*: an entry in a
dict and not an object of its own, because objects cost more time and memory than all the rest. `weigh` makes a `Key` of
a single, and a `Grant` of its grant, as soon as anything else happens to it: a second message, a failure, an end of the
grant without an acknowledgement.

What is durable of it, the passed indexes and the records of keys, is written by `keyed_rows`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from seriatim_api.dead_letters import DeadLetterOrigin
from seriatim_api.ids import INDEX_MAX, MemberId, make_offset, split_offset
from seriatim_api.key_names import offset_of_name

from ..values.events import ConsumerAcks, ConsumerExtend, ConsumerNack
from ..values.keyed import DeadLetterRow, KeyCounts, KeyPhase, first_number
from ..values.ledger_rows import CHUNK_OFFSETS, CarriedGrant
from ..values.log import Batch, HandOverState
from ..values.producers import WINDOW_BATCHES
from ..values.states import State
from .dispatcher import Consumer
from .window import Window

RUN_MESSAGES_MAX: Final = 256
RUN_BYTES_MAX: Final = 64 << 10
FORWARDS_MAX: Final = WINDOW_BATCHES
"""At most so many dead letters of a consumer group and partition have a number or are read. Others wait for them."""

STALE_ENTRIES_MAX: Final = 10_000
"""So many entries of a heap that do not count any more are kept, and as many as count."""


_HOLDS_WINDOW, _WAITS, _HAS_MANY, _IS_GRANTED = 1, 2, 3, 4
"""Why a key is set aside: it holds the floor far behind, it waits for a time or for the forwarder, it has many
messages, or a consumer works on it while another one is idle."""

ASIDE_AT_ONCE_MAX: Final = 20_000
"""No more keys are set aside in a step that has set so many messages aside. One key has at most `live_messages_max`,
which are 100,000."""

RECORD_BYTES: Final = 256
"""About the bytes of a record of a key, or of its list, without the name. A key that is delayed has one, a key with a
list two."""


class RoomLimits(NamedTuple):
    """How much of a consumer group is in memory and in lists at most; see `BrokerConfig` for each."""

    live_messages: int
    window_indexes: int
    aside_messages: int
    waiting_keys: int
    waiting_bytes: int


class Key(State):
    """One key that has messages or a record.

    Attributes:
        name: Its name.
        live: Indexes of its messages in the cursor segment that are read and not passed, ascending.
        aside: Offsets that were set aside, older than `live`; () as long as there were none.
        aside_first: The number of the first of them, counted from the first one that the list ever had.
        first: The offset of its first message, as its record says, until that is read; 0: it is known otherwise.
        phase: None: the key has no record.
        turn: How often a person released it.
        attempts: How many attempts on its first message have failed.
        ready_at_ms: When the next attempt may begin, by the wall clock. If it is forwarded: when the last one failed.
        delay_ms: How long the next attempt waits from the failure on; 0: not known.
        sequence: The number that the forwarder gave the first message; 0: none.
        error: The last error.
        token: Of the run that is granted; 0: none is.
        given_below: A consumer was given its messages below this offset, and it is not said by `attempts`; 0: none was.
        ready_us: When it becomes ready, by the monotonic clock; 0: it does not wait for a time. See `wait_until`.
        is_delayed: It has an entry in `delayed` for that time.
        is_queued: It is among the ready keys.
    """

    __slots__ = (
        "aside",
        "aside_first",
        "attempts",
        "delay_ms",
        "error",
        "first",
        "given_below",
        "is_delayed",
        "is_queued",
        "live",
        "name",
        "phase",
        "ready_at_ms",
        "ready_us",
        "sequence",
        "token",
        "turn",
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.live: list[int] = []
        self.aside: deque[int] | tuple[()] = ()
        self.aside_first = 0
        self.first = 0
        self.phase: KeyPhase | None = None
        self.turn = 0
        self.attempts = 0
        self.ready_at_ms = 0
        self.delay_ms = 0
        self.sequence = 0
        self.error = ""
        self.token = 0
        self.given_below = 0
        self.ready_us = 0
        self.is_delayed = False
        self.is_queued = False

    @property
    def is_held(self) -> bool:
        """Whether a person or the forwarder must act before its messages are given out."""
        return self.phase in (KeyPhase.PARKED, KeyPhase.FORWARDING)

    @property
    def aside_end(self) -> int:
        """The number behind the last offset of its list."""
        return self.aside_first + len(self.aside)

    def note_given(self, offset: int) -> None:
        """A consumer was given its messages up to this one, and may have worked on them: they come again flagged."""
        self.given_below = max(self.given_below, offset + 1)


@dataclass(slots=True, eq=False)
class Grant(State):
    """A grant: messages of one key that one consumer works on, in order, under one token.

    The grant of a single is no object of its own: see `Frame`.

    Attributes:
        token: The token.
        key: The key.
        consumer: The consumer.
        offsets: Of its messages.
        is_aside: They are from the key's list.
        done: How many of them are acknowledged.
        is_started: The consumer has begun to work on the next message.
        is_given: It was delivered.
        is_passed: Its messages are acknowledged already: the grant only keeps the key from other consumers.
        deadline_us: When it ends.
    """

    token: int
    key: Key
    consumer: Consumer
    offsets: tuple[int, ...]
    is_aside: bool = field(kw_only=True)
    deadline_us: int = field(kw_only=True)
    done: int = 0
    is_started: bool = False
    is_given: bool = False
    is_passed: bool = False

    @property
    def left(self) -> int:
        """How many of its messages are not acknowledged."""
        return len(self.offsets) - self.done


class Frame(State):
    """What was granted to one consumer at once: read, delivered and given a deadline together.

    Its tokens follow one another. Each is the grant of a single, or a `Grant`.

    Attributes:
        consumer: The consumer.
        first_token: The first token.
        deadline_us: When the grants of singles end.
        names: The name of the single of each token; empty: the token has a `Grant`.
        indexes: The index of the single of each token.
        runs: The grants of it, in the order of their tokens, and those that were singles before it was given.
        single_count: How many singles are granted by it, and not acknowledged.
        is_given: It was delivered.
        counts: The number of messages of each token; None: one each.
        attempts: The attempt of the first message of each token; None: the first one each.
        offsets: Of its messages. Empty when it was given.
    """

    __slots__ = (
        "attempts",
        "consumer",
        "counts",
        "deadline_us",
        "first_token",
        "indexes",
        "is_given",
        "names",
        "offsets",
        "runs",
        "single_count",
    )

    def __init__(self, consumer: Consumer, first_token: int, deadline_us: int) -> None:
        self.consumer = consumer
        self.first_token = first_token
        self.deadline_us = deadline_us
        self.names: list[bytes] = []
        self.indexes: list[int] = []
        self.runs: list[Grant] = []
        self.single_count = 0
        self.is_given = False
        self.counts: list[int] | None = None
        self.attempts: list[int] | None = None
        self.offsets: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class HandingOver(State):
    """The state of the keys on its way to the server of the next segment.

    Attributes:
        handover: What is handed over.
        oldest: The oldest offset in it.
        to: The server to which it was sent.
        asked_us: When it was sent last.
        is_kept: Every member that must keep it has it.
        sent: The revisions of the cursor and of the chain that the transaction of the cursor compares, as long as it
            may be carried out; (0, 0): none is under way.
        is_unknown: A try of it had no answer. So a later try that is refused does not say that it is not carried out.
    """

    handover: HandOverState
    oldest: int
    to: MemberId | None = None
    asked_us: int = 0
    is_kept: bool = False
    sent: tuple[int, int] = (0, 0)
    is_unknown: bool = False


@dataclass(slots=True, eq=False)
class UnreadRows(State):
    """Rows of keys that are read into the dispatcher step by step.

    Attributes:
        rows: The rows, those of lists before those of keys.
        at: How many of them were read.
        chunks: Chunks of lists whose key was not read yet.
        grants: Grants that go on when all is read.
    """

    rows: tuple[tuple[bytes, bytes], ...]
    at: int = 0
    chunks: dict[bytes, dict[int, list[int]]] = field(default_factory=dict)
    grants: tuple[CarriedGrant, ...] = ()


@dataclass(slots=True, eq=False)
class Unsent(State):
    """What was read and is not given yet. In an at-most-once group it is acknowledged.

    Attributes:
        serial: Of the control record with the acknowledgements.
        frame: What is given, and to whom.
        body: Its messages.
        is_durable: Every eligible member has the control record; or nothing is acknowledged, and it waits only until
            this member may deliver.
    """

    serial: int
    frame: Frame
    body: bytes
    is_durable: bool = False


@dataclass(slots=True, eq=False)
class Fetch(State):
    """Messages that were granted and are not on this disk, and are fetched from members that have their segments.

    Attributes:
        offsets: Of all messages of the read, in their order.
        missing: Offsets that are not found yet, in that order.
        bytes_max: So many bytes of the first messages are given.
        batches: The batches that were found.
        asked: The member that was asked last, and the offset.
        asked_us: When.
        tries: How many members did not give any of the messages.
        origin: If a dead letter is made of the message: what it says; None: the message is delivered.
    """

    offsets: tuple[int, ...]
    missing: list[int]
    bytes_max: int = 0
    batches: list[Batch] = field(default_factory=list)
    asked: tuple[MemberId, int] | None = None
    asked_us: int = 0
    tries: int = 0
    origin: DeadLetterOrigin | None = None


@dataclass(slots=True, eq=False)
class Forward(State):
    """The first message of a key on its way to the dead-letter topic.

    Attributes:
        name: The key's name.
        number: The number that the forwarder gave it; 0: none yet.
        offset: Its offset; 0: not known before its key was read.
        row: The dead letter, once it is made.
        reading: The serial of the read of the message; 0: none is under way.
        written: The serial of the control record that has the number.
        from_us: Its read is tried again from then on.
        tries: How many reads have failed.
    """

    name: bytes
    number: int = 0
    offset: int = 0
    row: DeadLetterRow | None = None
    reading: int = 0
    written: int = 0
    from_us: int = 0
    tries: int = 0


@dataclass(slots=True, eq=False)
class KeyedDispatcher(State):
    """Which keys have messages, and which consumer works on which.

    Attributes:
        segment_no: The cursor segment.
        window: Which of its indexes are passed.
        keys: The keys that have messages or a record, by name, but not the singles.
        singles: The singles, by name: the index of the message if it is ready, else the negative token of its grant.
        granted: The frames of the grants of singles, by token.
        frames: The frames with grants of singles, by their first token.
        frame_deadlines: A heap of (deadline, first token) of frames. An entry counts only if the frame is in `frames`.
        ready: Names of ready keys, in the order in which they became so.
        delayed: A heap of (ready at, number, name). An entry counts only if the key still becomes ready at that time.
            Each key has at most one that counts.
        delayed_count: How many keys have one.
        doing: Runs by token.
        deadlines: A heap of (deadline, token). An entry counts only if the run still has that deadline.
        read_index: All below was read.
        live_count: How many messages are live.
        aside_count: How many offsets are in lists.
        list_count: How many keys have lists.
        waiting_bytes: About how many bytes the rows of the keys that are delayed or have lists take.
        phase_counts: By phase: how many keys that no consumer works on are in it. So a description looks at no key.
        first_asides: A heap of (first offset of a list, name). An entry counts only if it is still the first.
        lost_epoch: Of the chain record by which lists were compared with lost segments.
        lost_lists: Names of keys whose lists begin in a lost segment, and that were not looked at since then.
        changed: Names of keys whose records changed since the last control record.
        chunks: Chunks of their lists that changed, by name.
        reading: The serial of the read of keys that is under way; 0: none.
        rows: The read of messages that is under way for each consumer: serial -> what was granted to it.
        average_bytes: How many bytes a message of the last frame had. Before the first one: of the batches that were
            read; 0: none was.
        is_full: The lists are full, so no more keys are set aside.
        is_full_noted: This was noted.
        looks_from_us: Before that time no key is looked for that may be set aside, because none was found.
        turn: Counts rounds, so that each consumer is the first one in turn.
        is_sated: When keys were granted last, more were ready than all consumers had room for.
        numbers: How many entries `delayed` has had.
        is_begun: Every eligible member knows that this server goes on from what was handed over.
        frozen: While the state is handed over, or is not begun: what consumers sent meanwhile; None: neither.
        frozen_rows: How many rows that has.
        handover: What is handed over to the next segment.
        rests_until_us: While it is frozen: when it is given up. Else: no hand-over begins before.
        absent: Consumers with grants that were handed over, and that have not joined here, by name.
        unreadable: Offsets of messages whose bodies no reader can take apart, as far as this server knows.
        fetches: Messages that are fetched from other members, by the serial of their read.
        unsent: What was read, and waits until it may be given, oldest first. In an at-most-once group it is
            acknowledged, and waits until that is durable.
        forwards: Keys whose first message goes to the dead-letter topic, in the order in which they came to it.
        next_number: The forwarder's next number, if it is of this term; 1: it has given none in this group epoch.
        is_number_new: No control record has `next_number` yet.
        unread: Rows of keys that are not read yet; None: all are. Until then it is frozen.
        handed: The rows that were handed over, until the first control record has them; None: it has.
        is_common: Every eligible member has a control record of this dispatcher.
        sending: The serial of the dead letters that were sent and not answered; 0: none.
        sent: Their keys and numbers.
        send_from_us: More are sent from then on.
        send_pause_us: How long the last refusal made it wait.
        refusal: Why the dead-letter topic takes nothing; empty: it takes dead letters, as far as is known.
    """

    segment_no: int
    window: Window
    keys: dict[bytes, Key] = field(default_factory=dict)
    singles: dict[bytes, int] = field(default_factory=dict)
    granted: dict[int, Frame] = field(default_factory=dict)
    frames: dict[int, Frame] = field(default_factory=dict)
    frame_deadlines: list[tuple[int, int]] = field(default_factory=list)
    ready: deque[bytes] = field(default_factory=deque)
    delayed: list[tuple[int, int, bytes]] = field(default_factory=list)
    delayed_count: int = 0
    doing: dict[int, Grant] = field(default_factory=dict)
    deadlines: list[tuple[int, int]] = field(default_factory=list)
    read_index: int = field(init=False)
    live_count: int = 0
    aside_count: int = 0
    list_count: int = 0
    waiting_bytes: int = 0
    phase_counts: list[int] = field(default_factory=lambda: [0] * (max(KeyPhase) + 1))
    looks_from_us: int = 0
    first_asides: list[tuple[int, bytes]] = field(default_factory=list)
    lost_epoch: int = 0
    lost_lists: list[bytes] = field(default_factory=list)
    changed: dict[bytes, None] = field(default_factory=dict)
    chunks: dict[bytes, dict[int, None]] = field(default_factory=dict)
    reading: int = 0
    rows: dict[int, Frame] = field(default_factory=dict)
    average_bytes: int = 0
    is_full: bool = False
    is_full_noted: bool = False
    turn: int = 0
    is_sated: bool = False
    is_begun: bool = True
    frozen: list[ConsumerAcks | ConsumerNack | ConsumerExtend] | None = None
    frozen_rows: int = 0
    handover: HandingOver | None = None
    rests_until_us: int = 0
    unreadable: dict[int, None] = field(default_factory=dict)
    absent: dict[str, Consumer] = field(default_factory=dict)
    fetches: dict[int, Fetch] = field(default_factory=dict)
    numbers: int = 0
    unsent: list[Unsent] = field(default_factory=list)
    forwards: dict[bytes, Forward] = field(default_factory=dict)
    next_number: int = 1
    is_number_new: bool = False
    unread: UnreadRows | None = None
    handed: tuple[tuple[bytes, bytes], ...] | None = None
    is_common: bool = False
    sending: int = 0
    sent: tuple[tuple[bytes, int], ...] = ()
    send_from_us: int = 0
    send_pause_us: int = 0
    refusal: str = ""

    def __post_init__(self) -> None:
        self.read_index = self.window.floor

    # ---- messages come -------------------------------------------------------------------------------

    def take_in(self, name: bytes, index: int, offset: int) -> None:
        """A message was read: it waits behind those of its key."""
        key = self.weigh(name)
        if key is None:
            self.singles[name] = index
            self.ready.append(name)
            self.live_count += 1
            return
        if key.aside or key.phase is KeyPhase.PARKED:  # only the list keeps the order of the key
            self._append_aside(key, (offset,))
            self.window.pass_over(index)
            return
        key.live.append(index)
        key.first = 0
        self.live_count += 1
        if not key.token and not key.is_queued:
            self.queue(key)

    # ---- singles -------------------------------------------------------------------------------------

    @property
    def has_keys(self) -> bool:
        """Whether any key has messages or a record."""
        return bool(self.keys or self.singles)

    @property
    def grant_count(self) -> int:
        """How many grants are under way."""
        return len(self.doing) + len(self.granted)

    @property
    def in_flight(self) -> int:
        """How many messages are granted and not acknowledged."""
        return sum(run.left for run in self.doing.values()) + len(self.granted)

    def weigh(self, name: bytes) -> Key | None:
        """The key of that name, as an object of its own from now on; None if it has no messages and no record."""
        key = self.keys.get(name)
        if key is not None:
            return key
        place = self.singles.pop(name, None)
        if place is None:
            return None
        key = self.keys[name] = Key(name)
        if place >= 0:
            key.live.append(place)
            key.is_queued = True  # its name is among the ready ones
            return key
        token = key.token = -place
        frame = self.granted.pop(token)
        at = token - frame.first_token
        index = frame.indexes[at]
        key.live.append(index)
        offsets = (make_offset(self.segment_no, index),)
        run = Grant(token, key, frame.consumer, offsets, is_aside=False, deadline_us=frame.deadline_us)
        run.is_given = frame.is_given
        self.doing[token] = run
        self.set_deadline(run, frame.deadline_us)
        if not frame.is_given:
            frame.runs.append(run)
        self.leave_frame(frame, 1)
        return key

    def grants_of(self, consumers: Sequence[Consumer]) -> list[Grant]:
        """The grants of these consumers, as objects of their own from now on."""
        for token, frame in list(self.granted.items()):
            if frame.consumer in consumers:
                self.weigh(frame.names[token - frame.first_token])
        return [run for run in self.doing.values() if run.consumer in consumers]

    def grant_of(self, token: int) -> Grant | None:
        """The grant with that token, as an object of its own from now on."""
        frame = self.granted.get(token)
        if frame is not None:
            self.weigh(frame.names[token - frame.first_token])
        return self.doing.get(token)

    def leave_frame(self, frame: Frame, count: int) -> None:
        """So many grants of singles of a frame are over, or objects of their own."""
        frame.single_count -= count
        if not frame.single_count:
            self.frames.pop(frame.first_token, None)

    def pass_singles(self, consumer: Consumer, indexes: Sequence[int]) -> None:
        """Granted singles are acknowledged. The caller took them out of `granted`, `singles` and their frames."""
        self.window.pass_over_all(indexes)
        self.live_count -= len(indexes)
        consumer.in_flight -= len(indexes)

    def queue(self, key: Key) -> None:
        """The key is ready, delayed, or held; it goes behind all others of the same kind."""
        if key.token or key.is_queued or key.is_held or not (key.live or key.aside):
            return
        if not key.ready_us:
            key.is_queued = True
            self.ready.append(key.name)
        elif not key.is_delayed:
            self._delay(key)

    def _delay(self, key: Key) -> None:
        """The key has one entry among the delayed keys, however many messages wait behind its first one.

        Rule `one-entry-a-key` (J1): the messages behind a key that waits cost nothing but their place. Without it:
          1. Consumers fail on a message of each of 1,000 keys, which are tried again in five minutes.
          2. 100,000 messages of these keys come, and each makes an entry. So 100,000 keys seem to wait, and reading
             stops.
          3. The messages of all other keys are not read until the delays are over.

        Without the limit of entries: 1. A person releases 100,000 keys a minute that fail again for a day. 2. The
        entries of all these delays are kept for a day.
        """
        key.is_delayed = True
        self.delayed_count += 1
        self.waiting_bytes += len(key.name) + RECORD_BYTES
        self.numbers += 1
        heapq.heappush(self.delayed, (key.ready_us, self.numbers, key.name))
        if len(self.delayed) > 2 * self.delayed_count + STALE_ENTRIES_MAX:
            self.delayed = [entry for entry in self.delayed if self._is_delayed(*entry)]
            heapq.heapify(self.delayed)

    def _is_delayed(self, ready_us: int, _number: int, name: bytes) -> bool:
        key = self.keys.get(name)
        return key is not None and key.is_delayed and key.ready_us == ready_us

    def wait_until(self, key: Key, ready_us: int) -> None:
        """The key becomes ready at that time, when it is queued; 0: at once."""
        if key.is_delayed and key.ready_us != ready_us:
            key.is_delayed = False
            self.delayed_count -= 1
            self.waiting_bytes -= len(key.name) + RECORD_BYTES
        key.ready_us = ready_us

    def wake_delayed(self, now_us: int) -> None:
        """Keys whose delay is over are ready."""
        while self.delayed and self.delayed[0][0] <= now_us:
            ready_us, number, name = heapq.heappop(self.delayed)
            if self._is_delayed(ready_us, number, name):
                key = self.keys[name]
                self.wait_until(key, 0)
                self.queue(key)

    # ---- grants --------------------------------------------------------------------------------------

    def next_ready(self) -> Key | None:
        """The first ready key, which stays where it is; None if there is none. A single is an object from then on."""
        while self.ready:
            key = self.keys.get(self.ready[0])
            if key is None and self.singles.get(self.ready[0], -1) >= 0:
                key = self.weigh(self.ready[0])
            if key is not None and key.is_queued and (key.live or key.aside) and not key.is_held:
                return key
            if key is not None:
                key.is_queued = False
            self.ready.popleft()
        return None

    def take_ready(self) -> None:
        """The first ready key leaves the queue."""
        self.keys[self.ready.popleft()].is_queued = False

    @property
    def has_ready(self) -> bool:
        """Whether a key is ready."""
        while self.ready:
            if self.singles.get(self.ready[0], -1) >= 0:
                return True
            if self.ready[0] in self.keys:
                return self.next_ready() is not None
            self.ready.popleft()  # a single that was granted meanwhile, or is acknowledged
        return False

    def begin_frame(self, frame: Frame) -> None:
        """The grants of singles of a frame end at its deadline."""
        if frame.single_count:
            self.frames[frame.first_token] = frame
            heapq.heappush(self.frame_deadlines, (frame.deadline_us, frame.first_token))
            if len(self.frame_deadlines) > 2 * len(self.frames) + STALE_ENTRIES_MAX:
                self.frame_deadlines = [(frame.deadline_us, token) for token, frame in self.frames.items()]
                heapq.heapify(self.frame_deadlines)

    def cut_frame(self, frame: Frame, count: int) -> None:
        """Only the first messages of a frame, which was not given yet, are given now.

        The grants of the others end, and their keys are ready again, before all others.

        Rule `rest-is-ready` (J1): what a frame had no room for is granted later. Without it:
          1. k:5 and j:6 are granted, both of 2 MiB. The frame has room for k:5.
          2. k:5 is given. j has a grant that no consumer has heard of, and that has no end.
          3. All later messages of j wait for it.
        """
        kept = at = 0
        while at < len(frame.names) and kept < count:
            here = frame.counts[at] if frame.counts is not None and at < len(frame.counts) else 1
            if kept + here > count:
                self._shorten(frame, at, count - kept)
            kept += here
            at += 1
        for place in reversed(range(at, len(frame.names))):
            token = frame.first_token + place
            if self.granted.get(token) is frame:
                self._end_single(frame, place)
            elif token in self.doing:
                run = self.doing[token]
                self.end_run(run)
                self._queue_first(run.key)
        del frame.names[at:], frame.indexes[at:]
        if frame.counts is not None:
            del frame.counts[at:]
        if frame.attempts is not None:
            del frame.attempts[at:]
        frame.runs = [run for run in frame.runs if run.token < frame.first_token + at]
        frame.offsets = frame.offsets[:count]

    def _shorten(self, frame: Frame, at: int, count: int) -> None:
        """A run has only so many messages of those that it was to have."""
        assert frame.counts is not None
        run = self.doing.get(frame.first_token + at)
        if run is not None:
            run.consumer.in_flight -= len(run.offsets) - count
            run.offsets = run.offsets[:count]
        frame.counts[at] = count

    def _end_single(self, frame: Frame, place: int) -> None:
        """The grant of a single that was not given ends, and its key is the first ready one."""
        name, index = frame.names[place], frame.indexes[place]
        del self.granted[frame.first_token + place]
        frame.consumer.in_flight -= 1
        self.leave_frame(frame, 1)
        if index >= self.window.floor:
            self.singles[name] = index
            self.ready.appendleft(name)
        else:  # retention dropped it while it was read
            del self.singles[name]
            self.live_count -= 1

    def _queue_first(self, key: Key) -> None:
        """The key is the first ready one, if it is ready."""
        if key.ready_us or key.is_held or not (key.live or key.aside):
            self.requeue(key)
        elif self.keys.get(key.name) is key and not key.is_queued:
            key.is_queued = True
            self.ready.appendleft(key.name)

    def begin_run(self, run: Grant) -> None:
        """A run is granted."""
        self._count(run.key.phase, -1)
        run.key.token = run.token
        run.consumer.in_flight += run.left
        self.doing[run.token] = run
        self.set_deadline(run, run.deadline_us)

    def set_deadline(self, run: Grant, deadline_us: int) -> None:
        """The run ends at that time."""
        run.deadline_us = deadline_us
        heapq.heappush(self.deadlines, (deadline_us, run.token))
        if len(self.deadlines) > 2 * len(self.doing) + STALE_ENTRIES_MAX:  # most are of grants that are over
            self.deadlines = [(run.deadline_us, run.token) for run in self.doing.values()]
            heapq.heapify(self.deadlines)

    def due_runs(self, now_us: int) -> list[Grant]:
        """The runs whose deadline has passed."""
        while self.frame_deadlines and self.frame_deadlines[0][0] <= now_us:
            _, first_token = heapq.heappop(self.frame_deadlines)
            frame = self.frames.get(first_token)
            if frame is not None:
                for at, name in enumerate(frame.names):
                    if self.granted.get(first_token + at) is frame:
                        self.weigh(name)
        due: dict[int, Grant] = {}  # a run may have the same deadline twice
        while self.deadlines and self.deadlines[0][0] <= now_us:
            deadline_us, token = heapq.heappop(self.deadlines)
            run = self.doing.get(token)
            if run is not None and run.deadline_us == deadline_us:
                due[token] = run
        return list(due.values())

    def acknowledge(self, run: Grant) -> None:
        """The first message of the run that is not acknowledged is done with. The caller ends a run that is done."""
        key = run.key
        if run.is_passed:
            pass
        elif run.is_aside:
            self._pop_aside(key)
        else:
            self.window.pass_over(run.offsets[run.done] & INDEX_MAX)
            self.live_count -= 1
        run.done += 1
        run.is_started = False  # the next message is not begun
        run.consumer.in_flight -= 1
        if key.phase is not None and not run.is_passed:
            self._first_is_done(key)

    def pass_run(self, run: Grant) -> None:
        """The messages of a run are done with before they are given."""
        key = run.key
        if run.is_aside:
            self._pop_aside(key, len(run.offsets))
        else:
            for offset in run.offsets:
                self.window.pass_over(offset & INDEX_MAX)
            del key.live[: len(run.offsets)]
            self.live_count -= len(run.offsets)
        if key.phase is not None:
            self._first_is_done(key)
        run.is_passed = run.is_aside = True  # they are not live any more

    def end_run(self, run: Grant) -> bool:
        """The run is over: what it holds that is not acknowledged comes again, before the key's other messages.

        Rule `gone-has-no-attempts` (J2): an attempt on a message that retention dropped meanwhile counts nowhere.
        Without it:
          1. k:5 is granted, and retention drops it. The consumer fails on it.
          2. The attempt counts for the first message of k, which is k:6 now, or the next one that comes.
          3. k:6 is given as the second attempt, and is parked after one attempt less.

        Returns:
            Whether its first message that was not acknowledged is still there.
        """
        key = run.key
        del self.doing[run.token]
        run.consumer.in_flight -= run.left
        key.token = 0
        self._count(key.phase, 1)
        if run.done and not run.is_aside:
            del key.live[: bisect_right(key.live, run.offsets[run.done - 1] & INDEX_MAX)]
        if key.live and key.live[0] < self.window.floor:  # retention dropped them while they were granted
            gone = bisect_right(key.live, self.window.floor - 1)
            self.live_count -= gone
            del key.live[:gone]
            self._first_is_done(key)
            return False
        return True

    def requeue(self, key: Key) -> None:
        """A key without a run waits again, or is forgotten if nothing is left of it.

        It may be a single from then on, so the caller does not use `key` any more.
        """
        if self.keys.get(key.name) is not key:
            return
        is_heavy = key.token or key.aside or key.phase or key.turn or key.ready_us or key.is_queued or key.given_below
        if len(key.live) == 1 and not is_heavy:
            del self.keys[key.name]
            self.singles[key.name] = key.live[0]
            self.ready.append(key.name)
        elif key.live or key.aside:
            self.queue(key)
        elif key.phase is None:
            self.wait_until(key, 0)
            self.keys.pop(key.name, None)

    def counts(self, acked: int) -> KeyCounts:
        """How many keys wait, by their state, and how many messages from the index `acked` on are passed.

        `acked` is the place of the consumer group that is told beside it, which may be behind the floor. Without it:
          1. The group is at 1:1 on all disks. The dead letter of 1:1 gets a number, and the floor rises to 1:50.
          2. The 49 messages between the two are counted as not acknowledged.
        """
        counts = self.phase_counts
        return KeyCounts(
            counts[KeyPhase.PARKED],
            counts[KeyPhase.RETRY],
            counts[KeyPhase.FORWARDING],
            self.aside_count,
            self.window.passed_from(acked),
        )

    def to_phase(self, key: Key, phase: KeyPhase | None) -> None:
        """The key is in that state; None: it has no record."""
        if not key.token:
            self._count(key.phase, -1)
            self._count(phase, 1)
        key.phase = phase

    def _count(self, phase: KeyPhase | None, change: int) -> None:
        if phase is not None:
            self.phase_counts[phase] += change

    @property
    def oldest_aside(self) -> int:
        """The oldest offset in a list; 0: no list has any."""
        while self.first_asides:
            offset, name = self.first_asides[0]
            key = self.keys.get(name)
            if key is not None and key.aside and key.aside[0] == offset:
                return offset
            heapq.heappop(self.first_asides)
        return 0

    def carry(self, grants: Sequence[CarriedGrant], now_us: int) -> None:
        """Go on with grants that the server of the segment before made. Their consumers are absent until they join."""
        for grant in grants:
            key = self.keys.get(grant.name)
            if key is None and grant.is_passed:
                key = self.keys[grant.name] = Key(grant.name)
            if key is None or (len(key.aside) < grant.message_count and not grant.is_passed):
                continue
            consumer = self.absent.get(grant.consumer)
            if consumer is None:
                consumer = self.absent[grant.consumer] = Consumer.absent(grant.consumer)
            # Those of an at-most-once group are not in the list any more, and which they are does not count.
            offsets = (0,) * grant.message_count if grant.is_passed else tuple(islice(key.aside, grant.message_count))
            deadline_us = now_us + 1_000 * grant.left_ms
            run = Grant(grant.token, key, consumer, offsets, is_aside=True, deadline_us=deadline_us)
            run.is_given, run.is_started, run.is_passed = True, grant.is_started, grant.is_passed
            key.is_queued = False
            self.wait_until(key, 0)  # it was granted, so its delay is over, whatever the clock of this server says
            self.begin_run(run)

    def attach(self, consumer: Consumer, until_us: int) -> None:
        """A consumer has joined: the grants that were handed over for its name are its own.

        A consumer that lost its memory does not know them. So each ends at `until_us` if the consumer says nothing.
        """
        absent = self.absent.pop(consumer.name, None)
        for run in [run for run in self.doing.values() if absent is not None and run.consumer is absent]:
            run.consumer = consumer
            consumer.in_flight += run.left
            self.set_deadline(run, min(run.deadline_us, until_us))

    # ---- records of keys -----------------------------------------------------------------------------

    def note_failure(self, key: Key, error: str, ready_us: int, ready_at_ms: int, delay_ms: int = 0) -> None:
        """An attempt on the first message of the key has failed; the next one begins at that time."""
        self.to_phase(key, KeyPhase.RETRY)
        key.attempts += 1
        key.error = error
        key.ready_at_ms, key.delay_ms = ready_at_ms, delay_ms
        self.wait_until(key, ready_us)
        self.changed[key.name] = None

    def set_aside(self, key: Key) -> None:
        """The live messages of the key go into its list, and their indexes are passed.

        A grant of the key goes on: its messages that are not acknowledged are the first ones of the list.
        """
        run = self.doing.get(key.token)
        if run is not None and not run.is_aside:
            if run.done:
                del key.live[: bisect_right(key.live, run.offsets[run.done - 1] & INDEX_MAX)]
            run.offsets, run.done, run.is_aside = run.offsets[run.done :], 0, True
        if key.live:
            first = make_offset(self.segment_no, 0)
            self._append_aside(key, [first | index for index in key.live])
            self.window.pass_over_all(key.live)
            self.live_count -= len(key.live)
            key.live = []
        if key.phase is None:
            self.to_phase(key, KeyPhase.RETRY)
        self.changed[key.name] = None

    def set_some_aside(self, count: int) -> bool:
        """The live messages of up to `count` keys go into their lists. Returns whether any key had live messages."""
        for name in list(islice(self.singles, count)):
            self.weigh(name)
        chosen = list(islice((key for key in self.keys.values() if key.live), count))
        begun = self.live_count
        for key in chosen:
            self.set_aside(key)
            if begun - self.live_count >= ASIDE_AT_ONCE_MAX:
                break
        self.window.rise()
        return bool(chosen)

    def is_short(self, limits: RoomLimits) -> bool:
        """Whether no more messages may be read: too many are live, or the floor lies too far behind."""
        window = self.read_index - self.window.floor
        return self.live_count >= limits.live_messages or window >= limits.window_indexes

    def is_full_of(self, limits: RoomLimits) -> bool:
        """Whether no more messages may be read because too many keys, or too many messages in lists, wait.

        Then most keys fail, so reading further helps no consumer. The limit bounds what a hand-over has.
        """
        is_full = self._has_enough_lists(limits) or self.delayed_count >= limits.waiting_keys
        return is_full or self.aside_count >= limits.aside_messages

    def has_list_room(self, limits: RoomLimits) -> bool:
        """Whether one more key may have a list."""
        return not self._has_enough_lists(limits) and self.aside_count < limits.aside_messages

    def _has_enough_lists(self, limits: RoomLimits) -> bool:
        return self.list_count >= limits.waiting_keys or self.waiting_bytes >= limits.waiting_bytes

    def make_room(self, limits: RoomLimits, count: int, *, is_consumer_idle: bool) -> bool:
        """Set keys aside until a tenth of the room is free, or the lists are full (`is_full`).

        A key that waits long, or is worked on for long, does not stop the others. Without it:
          1. A handler works on key k for an hour. Meanwhile a million messages of other keys are acknowledged.
          2. The window is full, because k holds the floor. All other keys wait for k.

        Keys that are ready wait for consumers. So they are set aside only if they have many messages.

        Rule `idle-gets-more` (J1): if all live messages are granted, and a consumer is idle, granted keys are set
        aside, the one that holds the floor first. Their grants go on. Without it:
          1. 100 consumers have 1,000 messages each, of keys of their own, and work on them for minutes.
          2. A consumer that has nothing to do joins. All live messages are granted, so no more are read.
          3. It gets nothing until the others acknowledge, although a million messages of other keys wait.
        Half of the lists are left for keys that fail.

        Args:
            limits: The limits.
            count: At most so many keys are set aside now.
            is_consumer_idle: A consumer has room, and no key is ready.

        Returns:
            Whether more could be set aside now.
        """
        if self.is_full and self.aside_count < limits.aside_messages * 9 // 10:
            self.is_full = self.is_full_noted = self.is_full_of(limits)
        window_begin = self.read_index - limits.window_indexes * 9 // 10
        live_wanted = limits.live_messages * 9 // 10
        if self.read_index - self.window.floor < limits.window_indexes:
            window_begin = 0
        if self.live_count < limits.live_messages:
            live_wanted = limits.live_messages
            is_consumer_idle = False
        if is_consumer_idle:
            for token, frame in list(islice(self.granted.items(), count)):
                self.weigh(frame.names[token - frame.first_token])
        for token, frame in list(self.granted.items()) if window_begin else ():
            if frame.indexes[token - frame.first_token] < window_begin:
                self.weigh(frame.names[token - frame.first_token])
        victims = [
            (rank, key)
            for key in self.keys.values()
            if key.live and (rank := self._rank(key, window_begin, limits, is_consumer_idle=is_consumer_idle))
        ]
        begun = self.live_count
        for rank, key in sorted(victims, key=lambda victim: victim[0]):
            if rank[0] > _HOLDS_WINDOW and self.live_count < live_wanted:
                break
            if rank[0] == _IS_GRANTED and (
                self.list_count >= limits.waiting_keys // 2
                or self.waiting_bytes >= limits.waiting_bytes // 2
                or self.aside_count >= limits.aside_messages // 2
            ):
                break
            is_more = not key.aside and self._has_enough_lists(limits)
            if is_more or self.aside_count + len(key.live) > limits.aside_messages:
                self.is_full = True
                break
            if not count or begun - self.live_count >= ASIDE_AT_ONCE_MAX:
                self.window.rise()
                return True
            count -= 1
            self.set_aside(key)
        self.window.rise()
        return False

    def _rank(
        self, key: Key, window_begin: int, limits: RoomLimits, *, is_consumer_idle: bool
    ) -> tuple[int, int] | None:
        """Which keys are set aside first: (kind, order); None: the key stays."""
        run = self.doing.get(key.token)
        first = key.live[0] if run is None or run.is_aside else run.offsets[run.done] & INDEX_MAX
        if first < window_begin and not key.is_queued:
            return _HOLDS_WINDOW, first
        if key.is_held or (key.ready_us and not key.token):
            return _WAITS, -key.ready_us
        if len(key.live) > max(limits.live_messages // 100, 1):
            return _HAS_MANY, -len(key.live)
        if is_consumer_idle and key.token:
            return _IS_GRANTED, first
        return None

    def drop_below(self, start: int, count: int) -> bool:
        """Retention dropped the messages below an index: they are passed, except those that are granted.

        Args:
            start: The first index that is there.
            count: At most so many keys are looked at in this step.

        Returns:
            Whether that is done. If not, some keys still have messages that are gone, and the floor has not moved.
        """
        names = [name for name, index in self.singles.items() if 0 <= index < start]
        for name in names:
            del self.singles[name]  # it stays among the ready ones, where it is passed over
        self.live_count -= len(names)
        end = make_offset(self.segment_no, start)
        below = (key for key in self.keys.values() if self._begins_below(key, end))
        for key in list(islice(below, count)):
            gone = bisect_right(key.live, start - 1)
            self.live_count -= gone
            del key.live[:gone]
            self._first_is_done(key)
            self.requeue(key)
        if any(self._begins_below(key, end) for key in self.keys.values()):
            return False
        # Rule `granted-and-gone` (J2): its attempts end with the drop, too. Without it:
        #   1. k:5 is granted as the second attempt. Retention drops it, and the record of k still has one attempt.
        #   2. This server dies. The next one begins behind k:5, and counts the attempt for k:6.
        for key in [run.key for run in self.doing.values()]:
            if key.phase is not None and not key.aside and 0 < self.first_offset(key) < end:
                self._first_is_done(key)
        self.window.pass_below(start)
        return True

    def _begins_below(self, key: Key, end: int) -> bool:
        """Whether the first message of a key that is not granted is in no list, and below an offset."""
        return not key.token and not key.aside and 0 < self.first_offset(key) < end

    def park(self, key: Key, error: str) -> None:
        """The key waits for a person."""
        self.to_phase(key, KeyPhase.PARKED)
        key.error = error
        key.ready_at_ms = 0
        self.wait_until(key, 0)
        self.set_aside(key)

    # ---- dead letters --------------------------------------------------------------------------------

    def forward(self, key: Key, error: str, failed_at_ms: int) -> None:
        """The first message of the key goes to the dead-letter topic. Until then nothing of the key is given out."""
        assert not key.token
        self.to_phase(key, KeyPhase.FORWARDING)
        key.error = error
        key.ready_at_ms = failed_at_ms
        self.wait_until(key, 0)
        key.sequence = 0
        self.changed[key.name] = None
        self.forwards[key.name] = Forward(key.name)

    @property
    def first_forwards(self) -> list[Forward]:
        """The keys whose turn it is: those with a number, and the next ones. The others wait, and cost nothing.

        Only these get a number, and each place in the order only comes nearer. So all that have one are among them.
        """
        return list(islice(self.forwards.values(), FORWARDS_MAX))

    def give_number(self, forward: Forward, term: int) -> None:
        """The first message of the key gets the next number of the term, and is the first one of the key's list.

        So the record says which message has the number. Without it:
          1. k:5 has number 7, and is live. The server dies.
          2. Retention drops k:5. The next server reads k:9 as the first message of k.
          3. It sends k:9 under number 7. The master has that number, so k:9 is passed without a dead letter.

        Rule `numbers-have-a-term` (J4): each term counts from 1, and has a producer id of its own. Without it:
          1. A, the server of segment 1, has sent number 1. The group crosses to segment 2, where B goes on with 2.
          2. The coordinator is restored as it was before. A believes that the group is in segment 1, and gives the
             numbers 2 to 5 to messages that come again. They are stored.
          3. The coordinator is rebuilt, and B goes on. It gives number 2 to j:9. The master has that number, so j:9 is
             passed without a dead letter.
        """
        key = self.keys[forward.name]
        if key.live:
            self.set_aside(key)
        forward.number = key.sequence = max(self.next_number, first_number(term))
        self.next_number = forward.number + 1
        self.is_number_new = True
        self.changed[key.name] = None

    def release(self, key: Key) -> None:
        """A person lets the key go on, with all its attempts. Its first message was given before (`given-again`).

        Rule `seen-key` (J2): the record stays until the first message is done with, also without attempts and a list,
        because the turn outlives this server, too. Without it:
          1. A consumer fails on k:5, and a person releases k. Then the consumer group has no consumers, so this server
             forgets it. No row says that k was released: its turn is 0 again.
          2. Consumers fail on k:5 until k is parked. The person, who had no answer, repeats the request.
          3. k goes on, though no person has seen that it is parked.
        """
        key.note_given(self.first_offset(key))
        self.forwards.pop(key.name, None)
        self.to_phase(key, KeyPhase.RETRY)
        key.turn += 1
        self._forget_attempts(key)
        self.requeue(key)

    def first_offset(self, key: Key) -> int:
        """The offset of the first message of the key; 0: it has none that is known here."""
        if key.aside:
            return key.aside[0]
        return make_offset(self.segment_no, key.live[0]) if key.live else key.first or offset_of_name(key.name)

    def pass_first(self, key: Key) -> int | None:
        """The first message of the key, which is not granted, is done with without a consumer. Returns its offset."""
        assert not key.token
        if key.aside:
            offset = key.aside[0]
            self.pass_listed(key, 1)
            return offset
        if key.live:
            index = key.live.pop(0)
            offset = make_offset(self.segment_no, index)
            self.window.pass_over(index)
            self.live_count -= 1
        elif offset := self.first_offset(key):  # it is not read yet
            self.window.pass_over(offset & INDEX_MAX)
        else:
            return None
        self._first_is_done(key)
        return offset

    def pass_listed(self, key: Key, count: int) -> None:
        """The first messages of the list of a key, which is not granted, are done with without a consumer."""
        assert not key.token
        self._pop_aside(key, count)
        self._first_is_done(key)

    def _append_aside(self, key: Key, offsets: Sequence[int]) -> None:
        if not isinstance(key.aside, deque):
            key.aside = deque()
        self._touch_chunks(key, key.aside_end, len(offsets))
        key.aside.extend(offsets)
        self.aside_count += len(offsets)
        if len(key.aside) == len(offsets):
            self.note_list(key)
            self._note_first_aside(key.aside[0], key)

    def note_list(self, key: Key) -> None:
        """The key has a list now."""
        self.list_count += 1
        self.waiting_bytes += 2 * (len(key.name) + RECORD_BYTES)

    def _pop_aside(self, key: Key, count: int = 1) -> None:
        """The first messages of the list of a key are done with."""
        assert isinstance(key.aside, deque)
        self._touch_chunks(key, key.aside_first, count)
        for _ in range(count):
            key.aside.popleft()
        key.aside_first += count
        self.aside_count -= count
        if key.aside:
            self._note_first_aside(key.aside[0], key)
        else:
            self.list_count -= 1
            self.waiting_bytes -= 2 * (len(key.name) + RECORD_BYTES)

    def lists_in(self, segments: Set[int]) -> list[bytes]:
        """Names of the keys whose lists begin in one of these segments."""
        return [key.name for key in self.keys.values() if key.aside and split_offset(key.aside[0])[0] in segments]

    def _note_first_aside(self, first: int, key: Key) -> None:
        """The list of the key begins with another message now.

        Without the limit: 1. A key is parked for a week. 2. A million messages of other keys pass through their lists.
        3. All their entries are kept, because the one of the parked key is below them.
        """
        heapq.heappush(self.first_asides, (first, key.name))
        if len(self.first_asides) > 2 * self.list_count + STALE_ENTRIES_MAX:  # most are of messages that are done with
            self.first_asides = [(key.aside[0], key.name) for key in self.keys.values() if key.aside]
            heapq.heapify(self.first_asides)

    def _touch_chunks(self, key: Key, number: int, count: int) -> None:
        """The offsets of the key's list with these numbers come or go."""
        self.changed[key.name] = None
        chunks = self.chunks.setdefault(key.name, {})
        for chunk in range(number // CHUNK_OFFSETS, (number + count - 1) // CHUNK_OFFSETS + 1):
            chunks[chunk] = None

    def _first_is_done(self, key: Key) -> None:
        """The first message of a key is acknowledged, passed over or gone: nothing of it counts for the next one.

        Rule `delay-ends-with-message` (J1, J2): its attempts, its delay and its way to the dead-letter topic end with
        it, in one step. Without it:
          1. A consumer fails on k:5, which should come again in 7 days. Retention drops k:5 some hours later.
          2. k:6 waits for the rest of the 7 days, although no consumer has failed on it. Retention drops k:6 too.
          3. k has no record, because no attempt counts any more. So no list shows the key, and no person releases it.
        """
        if key.is_held:
            # Rule `forward-ends-with-message` (J4): otherwise the next message becomes a dead letter under its number.
            self.forwards.pop(key.name, None)
            self.to_phase(key, KeyPhase.RETRY)
        key.error, key.first = "", 0
        self._forget_attempts(key)
        if key.phase is KeyPhase.RETRY and not key.aside:
            self.to_phase(key, None)

    def _forget_attempts(self, key: Key) -> None:
        """No attempt on the first message counts, so it waits for no time either."""
        key.attempts = key.ready_at_ms = key.delay_ms = key.sequence = 0
        self.wait_until(key, 0)
        self.changed[key.name] = None
