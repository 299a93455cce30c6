"""The times, events and effects of the consumer's core. `consumer` decides with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .producer_types import ReplyError


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Times of one subscription."""

    join_timeout_ms: int = 2000
    """The time for the answer to a join, besides the way. After it the consumer complains about the server. After each
    complaint that was unfounded it is twice as long, up to `join_timeout_ms_max`."""
    join_timeout_ms_max: int = 16_000
    ack_interval_ms: int = 5
    """The consumer sends the acknowledgements of this time together."""
    session_ms: int = 5000
    """The greatest age of the newest answered heartbeat while a grant counts. Longer than any pause of a healthy
    network."""
    backoff_ms_min: int = 5
    backoff_ms_max: int = 200


@dataclass(frozen=True, slots=True)
class Place:
    """The consumer group's cursor segment, and the address and server epoch of its server."""

    segment: int
    address: str
    server_epoch: int
    confirmed: bool = False
    """The answer to a complaint: other brokers have heard this server since the complaint arrived."""


# ---- events ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resolved:
    """The answer to `Resolve`; None if no broker gave one."""

    place: Place | None


@dataclass(frozen=True, slots=True)
class Connected:
    """A consume stream to `address` is up. A question and its answer are on it for `round_trip_us`."""

    address: str
    stream: int
    round_trip_us: int = 0


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream has ended, or (with `stream` None) could not be opened."""

    address: str
    stream: int | None


@dataclass(frozen=True, slots=True)
class Joined:
    """The server's answer to a join: this consumer is active from `index` on, or a standby."""

    subscription: int
    active: bool
    segment: int
    index: int
    token: int
    group_epoch: int
    server_epoch: int
    paused: bool = False
    begun_by: Literal["rewind", "skip"] | None = None
    grant_ms: int = 0
    at_most_once: bool = False


@dataclass(frozen=True, slots=True)
class YieldAsked:
    """The server asks this consumer to yield the partition to another one. `is_over`: it need not any more."""

    subscription: int
    number: int
    is_over: bool


@dataclass(frozen=True, slots=True)
class Yield:
    """The application gets nothing from `index` on, until the server says that it need not yield."""

    number: int
    index: int


@dataclass(frozen=True, slots=True)
class Grown:
    """The topic has more partitions, and this consumer reads all of them: this many."""

    partitions: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The consumer group was paused, or resumed."""

    subscription: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """The server has answered the stream's heartbeat that was sent at `sent_at_us`, after all its earlier events."""

    stream: int
    sent_at_us: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """Batches, as (base index, message count), in the order of the frame."""

    subscription: int
    segment: int
    batches: tuple[tuple[int, int], ...]
    from_index: int
    maybe_repeated_below: int
    delivery_attempt: int
    server_epoch: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """The messages [from_index, to_index) are not delivered, because they come earlier in the order."""

    subscription: int
    segment: int
    from_index: int
    to_index: int


@dataclass(frozen=True, slots=True)
class GapDeclared:
    """The segment is a declared gap from `from_index` up to `to_index`; 0: up to its end."""

    subscription: int
    segment: int
    from_index: int
    reason: str
    to_index: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """Retention dropped the messages from an offset, perhaps in an earlier segment, up to `to_index` of this one."""

    subscription: int
    from_offset: int
    segment: int
    to_index: int
    messages: int


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """All of the segment is acknowledged, and the consumer group has crossed into the next one."""

    subscription: int
    segment: int
    sealed_len: int
    next_segment: int
    next_address: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The server refused the join, or ended the subscription."""

    subscription: int
    error: ReplyError
    address: str = ""


@dataclass(frozen=True, slots=True)
class AckConfirmed:
    """Every eligible member has the acknowledgement of all messages below `index`."""

    subscription: int
    segment: int
    index: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The application acknowledges all messages below `index` that it got under `grant`."""

    grant: int
    segment: int
    index: int


@dataclass(frozen=True, slots=True)
class Granted:
    """Grants that came together, as columns: tokens, how many messages each has, and the offsets of all messages."""

    subscription: int
    tokens: Sequence[int]
    counts: Sequence[int]
    offsets: Sequence[int]
    server_epoch: int


@dataclass(frozen=True, slots=True)
class AcksConfirmed:
    """All requests with acknowledgements up to `number` are durable on every eligible member."""

    subscription: int
    number: int


@dataclass(frozen=True, slots=True)
class TokensVoid:
    """The server says that these grants do not count."""

    subscription: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """The application failed on the next message of a grant. `delay_ms` None: as the consumer group's policy says."""

    token: int
    offset: int
    delay_ms: int | None
    reason: str
    is_last: bool


@dataclass(frozen=True, slots=True)
class Hold:
    """The application needs a grant for this long from now. `is_manual`: it is extended only when the application asks.

    `hold_ms` None: the deadline stays as it is.
    """

    token: int
    hold_ms: int | None
    is_manual: bool


@dataclass(frozen=True, slots=True)
class Release:
    """The application does not work on grants: others may have their messages now. This is no failure of it.

    `is_unseen`: it got none of their messages.
    """

    tokens: tuple[int, ...]
    is_unseen: bool


@dataclass(frozen=True, slots=True)
class Demanded:
    """The application asks for this many messages from now on, in grants of at most `run_max` messages (0: any)."""

    messages: int
    run_max: int = 0


@dataclass(frozen=True, slots=True)
class Timer:
    """Time has passed, and nothing else happened."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The application closes the consumer."""


Event = (
    Resolved
    | Connected
    | Disconnected
    | Joined
    | Paused
    | Answered
    | Delivered
    | Skipped
    | GapDeclared
    | Dropped
    | SegmentEnded
    | Refused
    | AckConfirmed
    | Acknowledge
    | Timer
    | Leave
    | Granted
    | AcksConfirmed
    | TokensVoid
    | Fail
    | Hold
    | Release
    | Demanded
    | YieldAsked
    | Yield
    | Grown
)


# ---- effects --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask a broker which broker is the server. With `failed_server_epoch`, complain about that server."""

    failed_server_epoch: int | None
    avoid_address: str | None


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Open a consume stream to `address`."""

    address: str


@dataclass(frozen=True, slots=True)
class SendJoin:
    """Send a join of the partition on this stream."""

    stream: int
    subscription: int
    was_active: bool
    was_standby: bool = False


@dataclass(frozen=True, slots=True)
class SendLeave:
    """Send the end of the subscription on this stream."""

    stream: int
    subscription: int


@dataclass(frozen=True, slots=True)
class SendAck:
    """Send an acknowledgement of all messages up to and including `offset`."""

    stream: int
    subscription: int
    token: int
    offset: int


@dataclass(frozen=True, slots=True)
class SendYielded:
    """Tell the server that the application gets nothing from `offset` on."""

    stream: int
    subscription: int
    token: int
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class SendSpreadOver:
    """Tell the server that this consumer reads this many partitions, which are all of the topic."""

    stream: int
    subscription: int
    partitions: int


@dataclass(frozen=True, slots=True)
class AskedToYield:
    """Give the application no more messages of the partition, and answer with `Yield`. At most once: give it all."""

    number: int


@dataclass(frozen=True, slots=True)
class YieldEnded:
    """Give the application messages of the partition again."""


@dataclass(frozen=True, slots=True)
class SendAcks:
    """Acknowledge single messages, each under the token of its grant, and report the grants that were begun."""

    stream: int
    subscription: int
    number: int
    tokens: tuple[int, ...]
    offsets: tuple[int, ...]
    started: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendNack:
    """Give a grant back, because the application failed on its next message."""

    stream: int
    subscription: int
    failure: Fail


@dataclass(frozen=True, slots=True)
class SendExtend:
    """Move the deadlines of grants to `grant_ms` from now. 0: give them back.

    `is_unseen`: the application got none of the messages that are given back.
    """

    stream: int
    subscription: int
    tokens: tuple[int, ...]
    grant_ms: int
    is_unseen: bool = False


@dataclass(frozen=True, slots=True)
class SendDemand:
    """Ask for this many messages, in grants of at most `run_max` messages (0: any)."""

    stream: int
    subscription: int
    messages: int
    run_max: int


@dataclass(frozen=True, slots=True)
class TakeGrants:
    """The application gets these grants, which are all that came."""

    tokens: Sequence[int]
    counts: Sequence[int]
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class GrantsEnded:
    """These grants do not count any more. What waits of them must not be given to the application."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give the batches of this event to the application, from `from_index` on."""

    grant: int
    segment: int
    from_index: int
    maybe_repeated_below: int
    delivery_attempt: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """A grant begins (`active`), or there is none now. Batches of the earlier grant that wait in the inbox are void."""

    grant: int
    active: bool
    segment: int
    index: int


@dataclass(frozen=True, slots=True)
class ConsumerGroupChanged:
    """The consumer group was moved to (segment, index), in a new group epoch. Or it was paused or resumed."""

    what: Literal["rewind", "skip", "pause", "resume", "moved"]
    group_epoch: int
    segment: int
    index: int


@dataclass(frozen=True, slots=True)
class Passed:
    """The server skipped repeats. A history records it."""

    segment: int
    from_index: int
    to_index: int


@dataclass(frozen=True, slots=True)
class GapFound:
    """A gap, for the application.

    `end_offset`: the first offset after it; 0: it ends with the segment. `messages`: the most messages that can be
    missing; 0: not known.
    """

    segment: int
    from_index: int
    reason: str
    end_offset: int = 0
    messages: int = 0


@dataclass(frozen=True, slots=True)
class AckedDurably:
    """The acknowledgement of all messages below `index` is durable."""

    segment: int
    index: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The subscription has ended. `error` is None after `Leave`."""

    error: ReplyError | None


Effect = (
    Resolve
    | OpenStream
    | SendJoin
    | SendLeave
    | SendAck
    | Deliver
    | Assigned
    | ConsumerGroupChanged
    | Passed
    | GapFound
    | AckedDurably
    | Ended
    | SendAcks
    | SendNack
    | SendExtend
    | SendDemand
    | TakeGrants
    | GrantsEnded
    | SendYielded
    | SendSpreadOver
    | AskedToYield
    | YieldEnded
)
