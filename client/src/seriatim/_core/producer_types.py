"""The limits, events and effects of the producer's core. `producer` decides with them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from seriatim_api.errors import CATALOGUE


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Limits and times of one producer. The broker's credit may make the window smaller."""

    window_batches_max: int = 16
    """The most send attempts of the current producer run without an answer."""
    window_bytes_max: int = 17 << 20
    """The most bytes of these send attempts. One batch may always be in flight."""
    queue_batches_max: int = 4096
    """The most batches that are not settled. The caller stops before that."""
    delivery_timeout_ms: int = 120_000
    """The time after which the producer gives a batch up, from when the application gave its oldest message."""
    reply_timeout_ms: int = 1000
    """If the master owes a reply for this time, the producer complains."""
    epoch: int = 0
    """The epoch of the owner of a name, which is the producer epoch of all batches; 0: the producer has no owner."""
    backoff_ms_min: int = 5
    backoff_ms_max: int = 200


@dataclass(frozen=True, slots=True)
class Route:
    """The master that accepts messages of the partition, as of chain epoch `epoch`."""

    epoch: int
    segment: int
    master_broker: str
    master_address: str
    next_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyError:
    """An error of the catalogue, from a reply."""

    number: int
    message: str = ""
    retry_after_ms: int = 0

    @property
    def outcome_known(self) -> bool:
        """Whether it proves that the send attempt was not stored. A number that is unknown here proves nothing."""
        kind = CATALOGUE.get(self.number)
        return kind is not None and kind.outcome_known

    @property
    def retriable(self) -> bool:
        """Whether the broker may take the same batch later."""
        kind = CATALOGUE.get(self.number)
        return kind is not None and kind.retriable


class Outcome(enum.Enum):
    """The end of a batch for the application."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


# ---- events ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A new batch, after all earlier ones. The caller chooses `batch_id`.

    `waited_us` is the time since the application gave the batch's oldest message. It counts for the delivery timeout.
    """

    batch_id: int
    message_count: int
    size_bytes: int
    waited_us: int = 0


@dataclass(frozen=True, slots=True)
class Connected:
    """An append stream to `address` is up, with the broker's credit for one producer and partition.

    `stream` is a number that the caller never gives to another stream.
    """

    address: str
    stream: int
    window_batches: int
    window_bytes: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream has ended, so no reply comes on it any more. With `stream` None: it could not be opened."""

    address: str
    stream: int | None


@dataclass(frozen=True, slots=True)
class Replied:
    """The answer to one send attempt. `error` is None for `ok`.

    `offset_is_final`: as far as the broker knows, no earlier send attempt is in front of this place. `due_time_ms`: if
    the batch is delayed, when it is due; 0: it was due at once; None: the broker does not say it.
    """

    producer_epoch: int
    base_sequence: int
    producer_run: int
    offset: int = 0
    append_time_ms: int = 0
    error: ReplyError | None = None
    route: Route | None = None
    offset_is_final: bool = False
    due_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """The answer to `Resolve`; None if no broker gave one."""

    route: Route | None


@dataclass(frozen=True, slots=True)
class RouteKnown:
    """A route that the client learned in another way."""

    route: Route


@dataclass(frozen=True, slots=True)
class Timer:
    """Time has passed, and nothing else happened."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Settle everything now, and send nothing more. The application closes, or (with `error`) the topic was deleted."""

    error: ReplyError | None = None


Event = Enqueue | Connected | Disconnected | Replied | Resolved | RouteKnown | Timer | Abandon


# ---- effects --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Open an append stream to `address`. The caller answers with `Connected` (at once if it is up) or `Disconnected`
    later.
    """

    address: str


@dataclass(frozen=True, slots=True)
class Send:
    """One send attempt of a batch. The caller sends those on one stream in the given order."""

    stream: int
    batch_id: int
    message_count: int
    producer_epoch: int
    base_sequence: int
    producer_run: int
    starts_run: bool
    route_epoch: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask a broker for the route to the partition's master. The caller always answers with `Resolved`.

    With `failed_segment` it is a complaint. It goes to another broker than the one at `avoid_address`, if there is one.
    """

    failed_segment: int | None
    known_epoch: int
    avoid_address: str | None


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of a batch for the application. It comes once for each batch.

    If it is `ok`, `offset` and `append_time_ms` are those of its first message. `offset_is_final`: readers find it at
    this offset. If that is false, they may find it at an earlier one (if the ack level keeps it at all). `due_time_ms`:
    as in `Replied`.
    """

    batch_id: int
    outcome: Outcome
    offset: int = 0
    append_time_ms: int = 0
    error: ReplyError | None = None
    offset_is_final: bool = False
    due_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The producer has ended, because it was fenced or abandoned. It sends nothing more.

    Batches that are enqueued from now on are settled as failed, with this error.
    """

    error: ReplyError


Effect = OpenStream | Send | Resolve | Settled | Ended
