"""Keys in line: which keys have messages, which are ready, and which wait for a time."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from ...values.keyed import KeyPhase
from ...values.states import State
from .key import RECORD_BYTES, STALE_ENTRIES_MAX, Key


@dataclass(slots=True, eq=False)
class KeysInLine(State):
    """The keys of a consumer group, and the order in which they are granted.

    A name is in `keys` or in `singles`, and never in both. A key that is granted or held is in no queue. A key is in at
    most one queue: it is ready, or delayed.

    Attributes:
        keys: The keys that have messages or a record, by name, but not the singles.
        singles: The singles, by name: the index of the message if it is ready, else the negative token of its grant.
        ready: Names of ready keys, in the order in which they became so. A name counts only if its key is queued, or is
            a single that is ready.
        delayed: A heap of (ready at, number, name). An entry counts only if the key still becomes ready at that time.
            Each key has at most one that counts.
        delayed_count: How many keys have one.
        waiting_bytes: About how many bytes the rows of the keys that are delayed or have lists take.
        numbers: How many entries `delayed` has had.
        phase_counts: By phase: how many keys that no consumer works on are in it. So a description looks at no key.
        changed: Names of keys whose records changed since the last control record.
    """

    keys: dict[bytes, Key] = field(default_factory=dict)
    singles: dict[bytes, int] = field(default_factory=dict)
    ready: deque[bytes] = field(default_factory=deque)
    delayed: list[tuple[int, int, bytes]] = field(default_factory=list)
    delayed_count: int = 0
    waiting_bytes: int = 0
    numbers: int = 0
    phase_counts: list[int] = field(default_factory=lambda: [0] * (max(KeyPhase) + 1))
    changed: dict[bytes, None] = field(default_factory=dict)

    def weigh_ready(self, name: bytes) -> Key:
        """A single that is ready is an object of its own from now on."""
        key = self.keys[name] = Key(name)
        key.live.append(self.singles.pop(name))
        key.is_queued = True  # its name is among the ready ones
        return key

    def queue(self, key: Key) -> None:
        """The key is ready, delayed, or held; it goes after all others of the same kind."""
        if key.token or key.is_queued or key.is_held or not (key.live or key.aside):
            return
        if not key.ready_us:
            key.is_queued = True
            self.ready.append(key.name)
        elif not key.is_delayed:
            self._delay(key)

    def _delay(self, key: Key) -> None:
        """The key has one entry among the delayed keys, however many messages wait behind its first one.

        Rule `one-entry-a-key` (J1): the messages after a key that waits cost nothing but their place. Without it:
          1. Consumers fail on a message of each of 1,000 keys, which are tried again in five minutes.
          2. 100,000 messages of these keys come, and each makes an entry. So 100,000 keys seem to wait, and reading
             stops.
          3. The messages of all other keys are not read until the delays are over.

        Without the limit of entries: 1. An administrator releases 100,000 keys a minute that fail again for a day. 2.
        The entries of all these delays are kept for a day.
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

    def next_ready(self) -> Key | None:
        """The first ready key, which stays where it is; None if there is none. A single is an object from then on."""
        while self.ready:
            key = self.keys.get(self.ready[0])
            if key is None and self.singles.get(self.ready[0], -1) >= 0:
                key = self.weigh_ready(self.ready[0])
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

    def put_first(self, key: Key) -> None:
        """The key is the first ready one, if it is ready."""
        if key.ready_us or key.is_held or not (key.live or key.aside):
            self.requeue(key)
        elif self.keys.get(key.name) is key and not key.is_queued:
            key.is_queued = True
            self.ready.appendleft(key.name)

    def requeue(self, key: Key) -> None:
        """A key without a grant waits again, or is forgotten if nothing is left of it.

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

    def to_phase(self, key: Key, phase: KeyPhase | None) -> None:
        """The key is in that state; None: it has no record."""
        if not key.token:
            self.count(key.phase, -1)
            self.count(phase, 1)
        key.phase = phase

    def count(self, phase: KeyPhase | None, change: int) -> None:
        """This many more keys that no consumer works on are in a phase."""
        if phase is not None:
            self.phase_counts[phase] += change
