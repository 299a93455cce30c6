"""What administrators heard of keys that wait: J2.

J2  a key that was said to be parked is given out only after an administrator released it or passed over its first
    message; what was said to be passed over is not given out; a key that was said to be released is not parked as
    before. Who asks for one key is notified of no other
"""

from __future__ import annotations

from seriatim_api.ids import PartitionId, format_offset
from seriatim_broker.core.values.keyed import KeyGrant, SeenKey

from .excuses import Excuse
from .seen import Seen

_On = tuple[str, PartitionId]


class Parked:
    """Compares each grant with what administrators asked and heard."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._asked: set[tuple[_On, SeenKey]] = set()
        self._names: set[tuple[_On, bytes]] = set()  # of keys that an administrator wanted to change
        self._skips: set[tuple[_On, int]] = set()  # offsets that an administrator wanted to pass over
        self._parked: dict[tuple[_On, int, int], SeenKey] = {}  # by group epoch and first offset
        self._skipped: set[tuple[_On, int, int]] = set()
        self._acted: dict[tuple[_On, int, SeenKey], int] = {}  # -> when an administrator was notified of it

    def person_asks(self, group: str, partition: PartitionId, key: SeenKey, *, is_skip: bool) -> None:
        """An administrator asks a broker to release a key, or to pass over its first message."""
        self._asked.add(((group, partition), key))
        self._names.add(((group, partition), key.name))
        if is_skip:
            self._skips.add(((group, partition), key.first_offset))

    def acted(self, group: str, partition: PartitionId, group_epoch: int, key: SeenKey, now_us: int) -> None:
        """A broker says that it released the key, or passed over its first message."""
        self._acted[(group, partition), group_epoch, key] = now_us

    def said_parked(self, group: str, partition: PartitionId, group_epoch: int, key: SeenKey, asked_us: int) -> None:
        """A broker says that a key is parked, to an administrator who asked at that time."""
        was_released = self._acted.get(((group, partition), group_epoch, key), asked_us) < asked_us
        if was_released and self._seen.waits_for_rebuild:
            self._seen.excuse(Excuse.OLDER_CURSOR)
            return
        if was_released:
            self._seen.fail("J2", f"{key} of {group} is said to be parked, and was said to be released")
        self._parked[(group, partition), group_epoch, key.first_offset] = key

    def listed(self, group: str, wanted: bytes | None, names: list[bytes]) -> None:
        """A broker says which keys wait. If an administrator asked for one key, it names no other one."""
        if wanted is not None:
            self._seen.states.add("a key was asked for by name")
        others = [name for name in names if wanted not in (None, name)]
        if others:
            self._seen.fail("J2", f"an administrator asked for key {wanted!r} of {group}, and is notified of {others}")

    def was_skipped(self, group: str, partition: PartitionId, group_epoch: int, offset: int) -> None:
        """A broker says that a message was passed over."""
        self._skipped.add(((group, partition), group_epoch, offset))

    def was_asked_for(self, group: str, partition: PartitionId, name: bytes) -> bool:
        """Whether an administrator wanted to release that key, or to pass over its first message: its attempts count
        from zero."""
        return ((group, partition), name) in self._names

    def may_be_skipped(self, group: str, partition: PartitionId, offset: int) -> bool:
        """Whether an administrator wanted to pass over that message."""
        return ((group, partition), offset) in self._skips

    def granted(
        self, what: str, group: str, partition: PartitionId, group_epoch: int, run: KeyGrant, *, may_be_older: bool
    ) -> None:
        """A server puts a grant on a consumer's stream."""
        on = (group, partition)
        for offset in run.offsets:
            key = self._parked.get((on, group_epoch, offset))
            is_parked = key is not None and (on, key) not in self._asked
            is_skipped = (on, group_epoch, offset) in self._skipped
            if (is_parked or is_skipped) and may_be_older:
                self._seen.excuse(Excuse.OLDER_CURSOR)
            elif is_skipped:
                self._seen.fail("J2", f"{what}, and {format_offset(offset)} was said to be passed over")
            elif is_parked:
                self._seen.fail("J2", f"{what}, and {key} was said to be parked")
