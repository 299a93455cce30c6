"""Settings of consumer groups, and keys of consumer groups that wait, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast

from seriatim_api.errors import BadRequestError, CorruptionError
from seriatim_api.key_names import key_of_name, name_to_text
from seriatim_api.retry import AT_MOST_ONCE_HAS_NO_RETRY, SHARED_PARKS_NO_KEY, check_retry
from seriatim_api.v1 import broker_pb2, records_pb2

from seriatim._values.arguments import takes_options
from seriatim._values.conversion import value_of

GroupMode = Literal["exclusive", "key_ordered", "shared", "broadcast"]
BackOff = Literal["fixed", "exponential", "list"]
Exhausted = Literal["block", "park_key", "dead_letter"]
Spread = Literal["even", "none"]
KeyState = Literal["delayed", "parked", "forwarding"]

MODES: Final[dict[str, records_pb2.ConsumerMode.ValueType]] = {
    "exclusive": records_pb2.CONSUMER_MODE_EXCLUSIVE,
    "key_ordered": records_pb2.CONSUMER_MODE_KEY_ORDERED,
    "shared": records_pb2.CONSUMER_MODE_SHARED,
    "broadcast": records_pb2.CONSUMER_MODE_BROADCAST,
}
STARTS: Final = {
    "earliest": broker_pb2.START_POSITION_EARLIEST,
    "latest": broker_pb2.START_POSITION_LATEST,
}
_MODE_NAMES: Final = {number: name for name, number in MODES.items()}
_BACK_OFFS: Final[dict[str, int]] = {
    "fixed": records_pb2.BACK_OFF_FIXED,
    "exponential": records_pb2.BACK_OFF_EXPONENTIAL,
    "list": records_pb2.BACK_OFF_LIST,
}
_BACK_OFF_NAMES: Final = {number: name for name, number in _BACK_OFFS.items()}
_EXHAUSTED: Final[dict[str, int]] = {
    "block": records_pb2.EXHAUSTED_BLOCK,
    "park_key": records_pb2.EXHAUSTED_PARK_KEY,
    "dead_letter": records_pb2.EXHAUSTED_DEAD_LETTER,
}
_EXHAUSTED_NAMES: Final = {number: name for name, number in _EXHAUSTED.items()}
_SPREADS: Final[dict[str, int]] = {"even": records_pb2.SPREAD_EVEN, "none": records_pb2.SPREAD_NONE}
_STATES: Final[dict[str, int]] = {
    "delayed": broker_pb2.KEY_STATE_DELAYED,
    "parked": broker_pb2.KEY_STATE_PARKED,
    "forwarding": broker_pb2.KEY_STATE_FORWARDING,
}
_STATE_NAMES: Final = {number: name for name, number in _STATES.items()}


@takes_options("a retry policy")
@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What happens to a message on which a consumer fails. Only for groups that are key_ordered or shared.

    Attributes:
        attempts_max: How many attempts a message has, 1 to 1,000; 0: there is no limit. Then only a handler that raises
            `GiveUp` makes an attempt the last one.
        back_off: How the delay grows with the attempts.
        delays_ms: In ms, each 1 ms to 7 days. `fixed`: the delay. `exponential`: the first delay and the longest one;
            each is twice the one before. `list`: 1 to 32 delays, of which the last one is used again.
        jitter_percent: A delay is longer or shorter by up to this part of it, 0 to 100.
        exhausted: What is done after the last attempt. `block`: the message is tried for ever, at the last delay.
            `park_key`: its key waits until an administrator releases it; only in groups that are key_ordered.
            `dead_letter`: it goes to the dead-letter topic.
        dead_letter_topic: Only with `dead_letter`: the topic. Empty: `<topic>.<group>.dead`.
        grant_ms: How long a consumer has for the messages of a grant if it does not extend it, 1 s to 24 h. The
            consumers of this package extend their grants while a handler runs.

    Raises:
        BadRequestError: There is no setting of that name, or a value is out of its range. The text names the range.
        IllegalNameError: A topic cannot have the name of the dead-letter topic.
    """

    attempts_max: int = 0
    back_off: BackOff = "exponential"
    delays_ms: tuple[int, ...] = (1_000, 300_000)
    jitter_percent: int = 20
    exhausted: Exhausted = "block"
    dead_letter_topic: str = ""
    grant_ms: int = 30_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "delays_ms", tuple(self.delays_ms))
        check_retry(
            attempts_max=self.attempts_max,
            back_off=self.back_off,
            delays_ms=self.delays_ms,
            jitter_percent=self.jitter_percent,
            exhausted=self.exhausted,
            dead_letter_topic=self.dead_letter_topic,
            grant_ms=self.grant_ms,
        )


@takes_options("a consumer group")
@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a consumer group is served, the same on all partitions of its topic.

    Attributes:
        mode: How its consumers share the messages of a partition. `exclusive`: one consumer gets all, in order.
            `key_ordered`: all consumers share them, in order within each key. `shared`: all consumers share them, in no
            order. `broadcast`: each consumer gets all.
        retry: The retry policy; None: the brokers' default, or in another mode none.
        at_most_once: Messages are acknowledged when they are granted. A failure loses them, and nothing comes twice.
            Such a group has no retry: of `retry`, only `grant_ms` counts, and all else has its default.
        spread: Only if exclusive. `even`: the partitions of the topic are spread over the consumers. `none`: a consumer
            reads each partition to which it came first, until it leaves.

    Raises:
        BadRequestError: There is no such mode, the mode has no retry policy or no spread, or at-most-once delivery
            comes with retries.
    """

    mode: GroupMode = "exclusive"
    retry: RetryPolicy | None = None
    at_most_once: bool = False
    spread: Spread = "even"

    def __post_init__(self) -> None:
        check_mode(self.mode)
        if self.retry is not None and self.mode not in ("key_ordered", "shared"):
            raise BadRequestError(
                f"a group that is {self.mode} has no retry policy: its consumer stops at a message that it cannot "
                "handle; choose the mode key_ordered or shared"
            )
        check_delivery(self.retry, self.at_most_once)
        check_parking(self.mode, self.retry)
        check_spread(self.spread)
        if self.spread == "none" and self.mode != "exclusive":
            raise BadRequestError(
                f"a group that is {self.mode} has no spread: each of its consumers gets messages of all partitions; "
                "only groups that are exclusive have one"
            )


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A key of a consumer group that waits, as it was when it was listed.

    Attributes:
        partition: The partition's number in the topic.
        name: The name of the key among brokers.
        key: The key; None: the message has no key, or the key is longer than 1,024 bytes.
        state: `delayed`: it waits for its next attempt. `parked`: it waits for an administrator. `forwarding`: its
            first message is on its way to the dead-letter topic.
        attempts: How many attempts on its first message have failed.
        turn: How often an administrator released it.
        first_offset: The offset of its first message; 0: the server has not read it yet.
        messages: How many messages wait under the key, as far as the server has read.
        ready_at_ms: When its next attempt may begin, in ms since 1970; 0: now, or it waits for an administrator.
        error: The last error.
        group_epoch: The group epoch in which it waits. A rewind or another mode begins the next one.
    """

    partition: int
    name: bytes
    key: bytes | None
    state: KeyState
    attempts: int
    turn: int
    first_offset: int
    messages: int
    ready_at_ms: int
    error: str
    group_epoch: int

    @property
    def shown(self) -> str:
        """The key as text that commands take back: percent-encoded. A message without a key is named by its offset."""
        return name_to_text(self.name)


@dataclass(frozen=True, slots=True)
class KeyResult:
    """What an operation did to one key.

    Attributes:
        key: The key as it was listed.
        was_done: An earlier request did it, or the key does not wait any more.
        error: Why nothing was changed; None if there was no error.
        error_number: The error's number in the error catalogue; None if there was no error.
    """

    key: GroupKey
    was_done: bool
    error: str | None = None
    error_number: int | None = None


def check_mode(mode: str) -> None:
    """Refuse a mode that is not known.

    Raises:
        BadRequestError: There is no such mode.
    """
    if mode not in MODES:
        raise BadRequestError(f"there is no mode {mode!r} of consumer groups: it is {', '.join(MODES)}")


def check_delivery(retry: RetryPolicy | None, at_most_once: bool | None) -> None:
    """Refuse retries for a group with at-most-once delivery.

    Raises:
        BadRequestError: The policy says more than how long a grant lasts.
    """
    if at_most_once and retry is not None and retry != RetryPolicy(grant_ms=retry.grant_ms):
        raise BadRequestError(AT_MOST_ONCE_HAS_NO_RETRY)


def check_parking(mode: str | None, retry: RetryPolicy | None) -> None:
    """Refuse to park keys in a group that is shared.

    Raises:
        BadRequestError: A message without a key would be parked as one.
    """
    if mode == "shared" and retry is not None and retry.exhausted == "park_key":
        raise BadRequestError(SHARED_PARKS_NO_KEY)


def check_spread(spread: str) -> None:
    """Refuse a spread that is not known.

    Raises:
        BadRequestError: There is no such spread.
    """
    if spread not in _SPREADS:
        raise BadRequestError(f"there is no spread {spread!r} of consumer groups: it is {' or '.join(_SPREADS)}")


def settings_to_proto(
    mode: str | None, retry: RetryPolicy | None, at_most_once: bool | None, spread: str | None = None
) -> records_pb2.GroupSettings:
    """Settings in the form in which brokers read them. What is None is not specified."""
    written = records_pb2.GroupSettings(at_most_once=bool(at_most_once))
    if mode is not None:
        written.mode = cast("Any", MODES[mode])
    if spread is not None:
        written.spread = cast("Any", _SPREADS[spread])
    if retry is not None:
        numbers = {"back_off": _BACK_OFFS[retry.back_off], "exhausted": _EXHAUSTED[retry.exhausted]}
        written.retry.CopyFrom(records_pb2.RetryPolicy(**asdict(retry) | numbers))
    return written


def settings_of(written: records_pb2.GroupSettings) -> GroupSettings | None:
    """The settings that a broker reported; None if it reported a mode of a later version."""
    mode = _MODE_NAMES.get(written.mode)
    if mode is None:
        return None
    retry = None
    if written.HasField("retry") and mode in ("key_ordered", "shared"):
        policy = written.retry
        try:
            retry = value_of(
                RetryPolicy,
                policy,
                back_off=_BACK_OFF_NAMES.get(policy.back_off, ""),
                exhausted=_EXHAUSTED_NAMES.get(policy.exhausted, ""),
            )
        except BadRequestError:
            return None  # a later version has wider limits
    if retry is not None and written.at_most_once:
        retry = RetryPolicy(grant_ms=retry.grant_ms)  # nothing else of it counts
    spread: Spread = "none" if written.spread == records_pb2.SPREAD_NONE and mode == "exclusive" else "even"
    return GroupSettings(cast("Any", mode), retry, written.at_most_once, spread)


def state_to_number(state: str) -> int:
    """The number of a state of keys.

    Raises:
        BadRequestError: There is no such state.
    """
    if state not in _STATES:
        raise BadRequestError(f"there is no state {state!r} of a key: it is {', '.join(_STATES)}")
    return _STATES[state]


def key_of(partition: int, written: broker_pb2.GroupKey) -> GroupKey:
    """A key that a broker reported.

    Raises:
        CorruptionError: The broker does not report in which epoch of the group the key waits.
    """
    if not written.group_epoch:
        raise CorruptionError(f"a broker does not send the group epoch of key {name_to_text(written.name)}")
    return value_of(
        GroupKey,
        written,
        partition=partition,
        key=key_of_name(written.name),
        state=_STATE_NAMES.get(written.state, "delayed"),
    )
