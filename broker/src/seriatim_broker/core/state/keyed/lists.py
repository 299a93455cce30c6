"""Lists: messages of keys that were set aside, so that the floor of the window does not wait for them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from seriatim_api.ids import split_offset

from ...values.config import BrokerConfig
from ...values.ledger_rows import CHUNK_OFFSETS
from ...values.states import State
from .key import RECORD_BYTES, STALE_ENTRIES_MAX, Key
from .line import KeysInLine


@dataclass(slots=True, eq=False)
class Lists(State):
    """The lists of all keys. Each is in its key (`Key.aside`); here is what they are together, and what changed.

    Attributes:
        line: The keys.
        message_count: How many offsets are in lists.
        key_count: How many keys have lists.
        firsts: A heap of (first offset of a list, name). An entry counts only if it is still the first.
        chunks: Chunks of lists that changed since the last control record, by name.
        lost_epoch: Of the chain record by which lists were compared with lost segments.
        lost: Names of keys whose lists begin in a lost segment, and that were not looked at since then.
        is_full: The lists are full, so no more keys are set aside.
        is_full_noted: This was noted.
        looks_from_us: Before that time no key is looked for that may be set aside, because none was found.
    """

    line: KeysInLine
    message_count: int = 0
    key_count: int = 0
    firsts: list[tuple[int, bytes]] = field(default_factory=list)
    chunks: dict[bytes, dict[int, None]] = field(default_factory=dict)
    lost_epoch: int = 0
    lost: list[bytes] = field(default_factory=list)
    is_full: bool = False
    is_full_noted: bool = False
    looks_from_us: int = 0

    @property
    def oldest(self) -> int:
        """The oldest offset in a list; 0: no list has any."""
        while self.firsts:
            offset, name = self.firsts[0]
            key = self.line.keys.get(name)
            if key is not None and key.aside and key.aside[0] == offset:
                return offset
            heapq.heappop(self.firsts)
        return 0

    def within(self, segments: Set[int]) -> list[bytes]:
        """Names of the keys whose lists begin in one of these segments."""
        return [key.name for key in self.line.keys.values() if key.aside and split_offset(key.aside[0])[0] in segments]

    def has_room(self, config: BrokerConfig) -> bool:
        """Whether one more key may have a list."""
        return not self.has_enough(config) and self.message_count < config.aside_messages_max

    def is_full_of(self, config: BrokerConfig) -> bool:
        """Whether no more messages may be read because too many keys, or too many messages in lists, wait.

        Then most keys fail, so reading further helps no consumer. The limit bounds what a handoff has.
        """
        is_full = max(self.key_count, self.line.delayed_count) >= config.waiting_keys_max
        is_full = is_full or self.line.waiting_bytes >= config.waiting_bytes_max
        return is_full or self.message_count >= config.aside_messages_max

    def has_enough(self, config: BrokerConfig) -> bool:
        """Whether no more keys may have lists."""
        return self.key_count >= config.waiting_keys_max or self.line.waiting_bytes >= config.waiting_bytes_max

    def append(self, key: Key, offsets: Sequence[int]) -> None:
        """These offsets are the last ones of the list of the key."""
        if not isinstance(key.aside, deque):
            key.aside = deque()
        self._touch(key, key.aside_end, len(offsets))
        key.aside.extend(offsets)
        self.message_count += len(offsets)
        if len(key.aside) == len(offsets):
            self.note(key)
            self._note_first(key.aside[0], key)

    def note(self, key: Key) -> None:
        """The key has a list now."""
        self.key_count += 1
        self.line.waiting_bytes += 2 * (len(key.name) + RECORD_BYTES)

    def pop(self, key: Key, count: int = 1) -> None:
        """The first messages of the list of a key are done with."""
        assert isinstance(key.aside, deque)
        self._touch(key, key.aside_first, count)
        for _ in range(count):
            key.aside.popleft()
        key.aside_first += count
        self.message_count -= count
        if key.aside:
            self._note_first(key.aside[0], key)
        else:
            self.key_count -= 1
            self.line.waiting_bytes -= 2 * (len(key.name) + RECORD_BYTES)

    def _note_first(self, first: int, key: Key) -> None:
        """The list of the key begins with another message now.

        Without the limit: 1. A key is parked for a week. 2. A million messages of other keys pass through their lists.
        3. All their entries are kept, because the one of the parked key is below them.
        """
        heapq.heappush(self.firsts, (first, key.name))
        if len(self.firsts) > 2 * self.key_count + STALE_ENTRIES_MAX:  # most are of messages that are done with
            self.firsts = [(key.aside[0], key.name) for key in self.line.keys.values() if key.aside]
            heapq.heapify(self.firsts)

    def _touch(self, key: Key, number: int, count: int) -> None:
        """The offsets of the key's list with these numbers come or go."""
        self.line.changed[key.name] = None
        chunks = self.chunks.setdefault(key.name, {})
        for chunk in range(number // CHUNK_OFFSETS, (number + count - 1) // CHUNK_OFFSETS + 1):
            chunks[chunk] = None
