"""Broker cores as values: a core that does not count, and a key that is equal for cores that behave alike."""

from __future__ import annotations

import heapq
import zlib
from collections import deque
from collections.abc import Hashable
from typing import Any, cast

from seriatim_api.batch import Checksum
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.timers import Timer
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.effects import Send
from seriatim_broker.core.values.kinds import TimerKind
from seriatim_broker.core.values.log import RecoveredPartition
from seriatim_broker.core.values.states import State

FAR_US = 1 << 50
"""A deadline that never comes."""

LONG_AGO_US = 1_000_000
"""Longer than any duration of `CONFIG`: what is older than this is equally old."""

CONFIG = BrokerConfig(
    retry_us=50_000,
    retry_us_max=50_000,
    flapping_us=0,
    patience_us=0,
    slow_heartbeat_us=200_000,
    second_member_us=0,  # no older copy of a disk is put back here, and a wait would make every trace longer
)

_UNSEEN = frozenset(
    (
        "answered_us",  # heartbeats
        "beat_due_us",
        "beat_us",
        "heard_us",  # a lost link counts from its loss
        "watched_us",
        "control_heard_us",  # whether lanes carry is found out by heartbeats
        "data_count",
        "data_proved_us",
        "data_told",
        "probed_us",
        "checksum",
        "config",
        "durable_token",  # tokens count from it
        "effects",
        "first_answer_us",
        "flapping",
        "nonce",  # of a run
        "now",
        "reason",
        "refusals",  # ended by heartbeats
        "shared",
        "started_us",
        "token",
        "untold_since_us",  # the commit goes alone when the timer is due, in each trace
    )
)
_DURATIONS = frozenset(("pause_us", "read_pause_us"))


class QuietState(BrokerState):
    """No heartbeats, and timers without serials."""

    __slots__ = ()

    def wake(self, at_us: int, kind: TimerKind, partition: PartitionId | None = None, detail: str | int = 0) -> None:
        """Set a timer, once for each time and purpose."""
        if kind == "heartbeat" or at_us >= FAR_US:
            return
        timer = Timer(at_us, zlib.crc32(f"{kind} {detail}".encode()), partition, kind, detail)
        if timer not in self.timers.heap:
            heapq.heappush(self.timers.heap, timer)


class FrozenState(QuietState):
    """For cores whose timers will not fire any more: timers for later are not even written down."""

    __slots__ = ()

    @classmethod
    def freeze_timers(cls, broker: BrokerState) -> None:
        """Make a broker's state one of this kind; all that is due was done at the end of its last step."""
        broker.timers.heap.clear()
        broker.timers.polls.clear()
        broker.__class__ = cls

    def wake(self, at_us: int, kind: TimerKind, partition: PartitionId | None = None, detail: str | int = 0) -> None:
        """Only timers that are due at once, and so fire in this step."""
        if at_us <= self.now.mono_us:
            super().wake(at_us, kind, partition, detail)

    def poll(self, after_us: int, kind: TimerKind, partition: PartitionId, detail: str | int = 0) -> None:
        """As `wake`."""
        if after_us <= 0:
            super().poll(after_us, kind, partition, detail)


class QuietCore(BrokerCore):
    """The core over a `QuietState`; nothing else is changed."""

    __slots__ = ()

    def __init__(
        self,
        member: MemberId,
        run: int,
        nonce: bytes,
        checksum: Checksum,
        recovered: list[RecoveredPartition],
    ) -> None:
        super().__init__(CONFIG, member, run, nonce, checksum, recovered)
        self.state = QuietState(CONFIG, member, run, nonce, checksum)


def core_key(core: BrokerCore) -> Hashable:
    """Equal for two cores of one broker that will do the same, except what the package says is left out."""
    return _key(core, core.state.now.mono_us, core.state.out.durable_token)


def _key(state: State, now_us: int, token: int) -> Hashable:
    parts: list[Any] = [type(state).__name__]
    for name in state._slot_names():  # noqa: SLF001 - a key is made of the slots, as `freeze` makes its own
        if name in _UNSEEN:
            continue
        value = getattr(state, name)
        if name == "heap":
            parts.append(tuple(sorted((t.at_us - now_us, t.serial, t.partition or 0) for t in value)))
        elif name == "polls":
            parts.append(frozenset((key, at_us - now_us) for key, at_us in value.items()))
        elif name == "held":
            parts.append(tuple((at - token, _value(what, now_us, token)) for at, what in value))
        elif name == "waiters":
            parts.append(tuple((w.request, w.past, max(w.asked_us - now_us, -LONG_AGO_US)) for w in value))
        elif name.endswith("_us") and name not in _DURATIONS and value is not None:
            parts.append(max(value - now_us, -LONG_AGO_US))
        else:
            parts.append(_value(value, now_us, token))
    return tuple(parts)


def _value(value: Any, now_us: int, token: int) -> Hashable:
    if isinstance(value, State):
        return _key(value, now_us, token)
    if isinstance(value, Send):
        return (value.broker, value.message)
    if isinstance(value, list | deque):
        return tuple([_value(item, now_us, token) for item in value])
    if isinstance(value, tuple) and value and isinstance(value[0], State):
        return tuple([_value(item, now_us, token) for item in value])
    if isinstance(value, set):
        return frozenset(value)
    if hasattr(value, "items"):
        return frozenset([(key, _value(item, now_us, token)) for key, item in value.items()])
    if hasattr(value, "error"):  # an effect that waits with an error, which is not compared by value
        return repr(value)
    return cast("Hashable", value)


class Numbers:
    """Values by number, numbers by value: equal values have one number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.values)

    def of(self, value: Any, key: Hashable = None) -> int:
        """The number of a value, by its key or by itself."""
        key = value if key is None else key
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = len(self.values)
            self.values.append(value)
        return known
