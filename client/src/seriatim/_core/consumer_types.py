"""The words of the consumer's core: its times, its events and its effects. What they mean is told in `consumer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .producer_types import ReplyError


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Times of one subscription."""

    join_timeout_ms: int = 2000
    """From a join until its answer; after that the server is complained of."""
    ack_interval_ms: int = 5
    """Acknowledgements that come within this time go as one."""
    session_ms: int = 5000
    """How old the newest answered heartbeat may be while a grant counts. Longer than any pause of a healthy network."""
    backoff_ms_min: int = 5
    backoff_ms_max: int = 200


@dataclass(frozen=True, slots=True)
class Place:
    """Who serves the group's head segment."""

    segment: int
    address: str
    server_epoch: int


# ---- events ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resolved:
    """The answer to `Resolve`, or None if nobody gave one."""

    place: Place | None


@dataclass(frozen=True, slots=True)
class Connected:
    """A consume stream to `address` is up."""

    address: str
    stream: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream is over, or (None) could not be opened."""

    address: str
    stream: int | None


@dataclass(frozen=True, slots=True)
class Joined:
    """Active from `index` on, or standing by."""

    subscription: int
    active: bool
    segment: int
    index: int
    token: int
    group_epoch: int
    server_epoch: int
    answers_pings: bool = False
    paused: bool = False
    begun_by: Literal["rewind", "skip"] | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """The group was paused, or resumed."""

    subscription: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """The server has answered the heartbeat of the stream that was sent at `sent_at_us`, behind all it had said."""

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
    attempt: int
    server_epoch: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """[from_index, to_index) stands earlier in the order already."""

    subscription: int
    segment: int
    from_index: int
    to_index: int


@dataclass(frozen=True, slots=True)
class GapDeclared:
    """From `from_index` on, the rest of the segment is gone."""

    subscription: int
    segment: int
    from_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """Retention dropped what lies between an offset, perhaps of an earlier segment, and `to_index` of this one."""

    subscription: int
    from_offset: int
    segment: int
    to_index: int
    messages: int


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """All of the segment is acknowledged, and the group stands in the next one."""

    subscription: int
    segment: int
    sealed_len: int
    next_segment: int
    next_address: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The join was refused, or the subscription was taken away."""

    subscription: int
    error: ReplyError
    address: str = ""


@dataclass(frozen=True, slots=True)
class AckConfirmed:
    """All below `index` is acknowledged on every eligible copy."""

    subscription: int
    segment: int
    index: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The application is done with all below `index` that it got under `grant`."""

    grant: int
    segment: int
    index: int


@dataclass(frozen=True, slots=True)
class Timer:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The application goes."""


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
)


# ---- effects --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask a broker who serves; with `failed_server_epoch`, complain about that server."""

    failed_server_epoch: int | None
    avoid_address: str | None


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Have a consume stream to `address`."""

    address: str


@dataclass(frozen=True, slots=True)
class SendJoin:
    """Join the partition there."""

    stream: int
    subscription: int
    was_active: bool


@dataclass(frozen=True, slots=True)
class SendLeave:
    """Leave it."""

    stream: int
    subscription: int


@dataclass(frozen=True, slots=True)
class SendAck:
    """Acknowledge all up to and including `offset`."""

    stream: int
    subscription: int
    token: int
    offset: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the batches of this event to the application, from `from_index` on."""

    grant: int
    segment: int
    from_index: int
    maybe_repeated_below: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """A grant begins (`active`), or there is none for now. What was handed out and not taken yet is void."""

    grant: int
    active: bool
    segment: int
    index: int


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """The group was moved to (segment, index), in another epoch; or paused or resumed, in the same one."""

    what: Literal["rewind", "skip", "pause", "resume", "moved"]
    group_epoch: int
    segment: int
    index: int


@dataclass(frozen=True, slots=True)
class Passed:
    """A skip to be noted."""

    segment: int
    from_index: int
    to_index: int


@dataclass(frozen=True, slots=True)
class GapFound:
    """A gap to be told.

    `end_offset`: the first offset behind it; 0: it goes on to the end of the segment. `messages`: at most so many are
    missing; 0: it is not known."""

    segment: int
    from_index: int
    reason: str
    end_offset: int = 0
    messages: int = 0


@dataclass(frozen=True, slots=True)
class AckedDurably:
    """All below `index` is acknowledged for good."""

    segment: int
    index: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The subscription is over; `error` is None after Leave."""

    error: ReplyError | None


Effect = (
    Resolve
    | OpenStream
    | SendJoin
    | SendLeave
    | SendAck
    | Deliver
    | Assigned
    | GroupChanged
    | Passed
    | GapFound
    | AckedDurably
    | Ended
)
