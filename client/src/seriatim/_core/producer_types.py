"""The words of the producer's core: its limits, its events and its effects. What it makes of them is in `producer`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from seriatim_api.errors import CATALOGUE


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Limits and times of one producer; the broker's credits lower the window further."""

    window_batches_max: int = 16
    """Attempts of the current run without an answer."""
    window_bytes_max: int = 8 << 20
    """Their bytes; one batch may always be in flight."""
    queue_batches_max: int = 4096
    """Batches not settled. The caller holds back before that."""
    delivery_timeout_ms: int = 120_000
    """From Enqueue until the batch is given up."""
    reply_timeout_ms: int = 1000
    """Silence of the master before a complaint."""
    backoff_ms_min: int = 5
    backoff_ms_max: int = 200


@dataclass(frozen=True, slots=True)
class Route:
    """Where the partition accepts messages, as of a chain epoch."""

    epoch: int
    segment: int
    master_broker: str
    master_address: str
    next_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyError:
    """An error of the catalogue as it came in a reply."""

    number: int
    message: str = ""
    retry_after_ms: int = 0

    @property
    def outcome_known(self) -> bool:
        """Whether it proves that the attempt was not stored. Numbers unknown here prove nothing."""
        kind = CATALOGUE.get(self.number)
        return kind is not None and kind.outcome_known

    @property
    def retriable(self) -> bool:
        """Whether the same batch may be taken later."""
        kind = CATALOGUE.get(self.number)
        return kind is not None and kind.retriable


class Outcome(enum.Enum):
    """What became of a batch."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


# ---- events ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A new batch, behind all earlier ones; `batch_id` is the caller's."""

    batch_id: int
    message_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Connected:
    """An append stream to `address` is up, with the broker's credits for one producer and partition.

    `stream` is a number that the caller never gives to another stream.
    """

    address: str
    stream: int
    window_batches: int
    window_bytes: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream is over (no reply of it comes any more), or, with stream None, it could not be opened."""

    address: str
    stream: int | None


@dataclass(frozen=True, slots=True)
class Replied:
    """The answer to one attempt; `error` is None for ok.

    `offset_is_final`: no earlier attempt stands in front of this place, as far as the broker knows.
    """

    producer_epoch: int
    base_sequence: int
    run: int
    offset: int = 0
    append_time_ms: int = 0
    error: ReplyError | None = None
    route: Route | None = None
    offset_is_final: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """The answer to `Resolve`, or None if nobody gave one."""

    route: Route | None


@dataclass(frozen=True, slots=True)
class RouteKnown:
    """A route that was learned in any other way."""

    route: Route


@dataclass(frozen=True, slots=True)
class Timer:
    """Nothing but time has passed."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Settle everything now, and send nothing more: the application closes, or (with `error`) the topic is gone."""

    error: ReplyError | None = None


Event = Enqueue | Connected | Disconnected | Replied | Resolved | RouteKnown | Timer | Abandon


# ---- effects --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Have an append stream to `address`: answer with Connected (at once, if it is up) or Disconnected."""

    address: str


@dataclass(frozen=True, slots=True)
class Send:
    """One attempt of a batch. Those on one stream go out in the order given."""

    stream: int
    batch_id: int
    message_count: int
    producer_epoch: int
    base_sequence: int
    run: int
    starts_run: bool
    route_epoch: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask a broker where the partition's master is; answer with Resolved, always.

    With `failed_segment` it is a complaint, to any broker but the one at `avoid_address`.
    """

    failed_segment: int | None
    known_epoch: int
    avoid_address: str | None


@dataclass(frozen=True, slots=True)
class Settled:
    """The application may be told what became of a batch; once for each.

    `offset` and `append_time_ms` are of its first message, if it is ok. `offset_is_final` says that readers find it at
    that place; if not, they may find it at an earlier one (as far as the batch's ack level keeps it at all).
    """

    batch_id: int
    outcome: Outcome
    offset: int = 0
    append_time_ms: int = 0
    error: ReplyError | None = None
    offset_is_final: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The producer is over, fenced or abandoned: nothing more is sent.

    Batches enqueued from now on are settled as failed with this error.
    """

    error: ReplyError


Effect = OpenStream | Send | Resolve | Settled | Ended
