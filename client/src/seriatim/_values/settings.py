"""How producers send and consumers read: every setting with its default and its limits.

Each name is here twice: in a dataclass that checks the values, and in a `TypedDict` with the keyword arguments of
`Client.producer` and `Client.consumer`, for type checkers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypedDict

from seriatim_api.batch import DELIVERY_TIMEOUT_MS_MAX
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import check_name

from seriatim._values.arguments import check_callback, check_number, check_text, check_whole, takes_options
from seriatim._values.partitioner import Partitioner, partition_of_key
from seriatim._values.records import AckLevel

Compression = Literal["lz4", "zstd"]
Start = Literal["earliest", "latest"]
Target = Start | int | datetime
"""A place in a topic: its first message, its end, an offset (in one partition), or the first message with an append
time at or after a datetime. The datetime has a time zone."""

BATCH_SIZE_BYTES: Final = 256 << 10
BATCH_SIZE_BYTES_MAX: Final = 512 << 10
CREDIT_BYTES_MIN: Final = 1 << 16
IN_FLIGHT_MAX: Final = 100_000
OWNER_SESSION_MS_MIN: Final = 500
OWNER_SESSION_MS_MAX: Final = 60_000
SESSION_MS_MIN: Final = 2000
"""The least session: some heartbeats (one every 500 ms) and a question to another broker must fit into it."""


class Credit(NamedTuple):
    """How many bytes a broker may send before the application has taken them: see `_core.credit`."""

    least_bytes: int
    most_bytes: int
    is_fixed: bool


@takes_options("a producer")
@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer sends. The defaults are those of `Client.producer`.

    Raises:
        BadRequestError: A setting is over its limit; the text names it.
    """

    ack_level: AckLevel = AckLevel.REPLICATED_FLUSHED
    """When the broker answers a send. Only the two replicated levels carry the promise."""
    linger_ms: float = 5.0
    """How long a batch may wait for more messages while another batch is on its way, in ms. If none is on its way, a
    batch is sent at once."""
    batch_size_bytes: int | None = None
    """Payload at which a batch is sent without a wait, in bytes; at most 512 KiB. A larger message gets its own
    batch. None: 256 KiB, and over a distance up to 15/16 of the topic's largest batch (956 KiB)."""
    compression: Compression | None = None
    """The compression of batch bodies: None, "lz4" or "zstd"."""
    window_batches: int = 16
    """How many batches of one partition may be on their way at once."""
    buffer_size_bytes: int = 32 << 20
    """Bytes of messages that may be taken and not settled. Above it `send` waits."""
    delivery_timeout_ms: int = 120_000
    """After this time without an acknowledgement the producer gives a message up, as failed or unknown, in ms. It
    counts from the return of `send`, whatever waits in front of the message."""
    reply_timeout_ms: int = 1000
    """If a master owes a reply for this time, in ms, while the client itself ran, the producer complains to another
    broker."""
    partitioner: Partitioner = partition_of_key
    """The function that chooses the partition of a key."""
    owner: str | None = None
    """A name in the topic that one program at a time has. The producer begins when this program is the owner, and ends
    with a `ProducerFencedError` when another one is. None: the producer has no owner."""
    acquire_timeout_s: float | None = None
    """With `owner`: how long to wait for the name, in seconds. None: without a limit."""
    take_over: bool = False
    """With `owner`: whether to take the name away from the program that has it."""
    session_ms: int = 2000
    """With `owner`: if brokers hear nothing of this program for this time, in ms, another one may become the owner; 500
    to 60,000."""

    def __post_init__(self) -> None:
        if not isinstance(self.ack_level, AckLevel):
            known = ", ".join(f"AckLevel.{level.name}" for level in AckLevel)
            raise BadRequestError(f"ack_level is one of {known}, not {self.ack_level!r}")
        check_number("linger_ms", self.linger_ms, 0, "milliseconds")
        if self.batch_size_bytes is not None:
            check_whole("batch_size_bytes", self.batch_size_bytes, 1, BATCH_SIZE_BYTES_MAX)
        check_whole("window_batches", self.window_batches, 1)
        check_whole("buffer_size_bytes", self.buffer_size_bytes, 1)
        check_whole("delivery_timeout_ms", self.delivery_timeout_ms, 1, DELIVERY_TIMEOUT_MS_MAX)
        check_whole("reply_timeout_ms", self.reply_timeout_ms, 1)
        if not callable(self.partitioner):
            raise BadRequestError(
                f"partitioner is a function of a key and the number of partitions, not {self.partitioner!r}"
            )
        check_callback("partitioner", self.partitioner)
        check_text("owner", self.owner, "for a producer without an owner")
        if self.owner is not None:
            check_name(self.owner, "owner")
        elif self.take_over or self.acquire_timeout_s is not None:
            raise BadRequestError("take_over and acquire_timeout_s are options of a producer with an owner")
        if self.acquire_timeout_s is not None:
            check_number("acquire_timeout_s", self.acquire_timeout_s, 0, "seconds")
        check_whole("session_ms", self.session_ms, OWNER_SESSION_MS_MIN, OWNER_SESSION_MS_MAX)
        if self.compression not in (None, "lz4", "zstd"):
            raise BadRequestError(f"there is no compression {self.compression!r}: lz4, zstd or None")

    @property
    def full_batch_bytes(self) -> int:
        """Payload of a full batch to a broker that is near."""
        return BATCH_SIZE_BYTES if self.batch_size_bytes is None else self.batch_size_bytes


class ProducerOptions(TypedDict, total=False):
    """See `ProducerSettings`."""

    ack_level: AckLevel
    linger_ms: float
    batch_size_bytes: int | None
    compression: Compression | None
    window_batches: int
    buffer_size_bytes: int
    delivery_timeout_ms: int
    reply_timeout_ms: int
    partitioner: Partitioner
    owner: str | None
    acquire_timeout_s: float | None
    take_over: bool
    session_ms: int


@takes_options("a consumer")
@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer reads. The defaults are those of `Client.consumer`.

    Raises:
        BadRequestError: A setting is over its limit; the text names it.
    """

    start: Target | None = None
    """Where a consumer group without a cursor begins: "earliest", "latest", a datetime with a time zone, or an offset
    (only if the consumer reads one partition). A time is looked up once, when the consumer group is made. None:
    "earliest", and in broadcast mode "latest"."""
    credit_bytes: int = 4 << 20
    """Bytes that each broker may send before the application has taken them; at least 64 KiB. The credit grows while
    the application takes them fast. To a broker far away it begins with more, by its round trip."""
    credit_bytes_max: int | None = None
    """The most bytes to which the credit grows. It follows what the application takes in 30 ms and two round trips to
    the broker, up to this. None: four times `credit_bytes`. Over a distance it is more, up to 256 MiB of all brokers
    and consumers of the client together."""
    ack_interval_ms: int = 5
    """The consumer sends the acknowledgements of this time together, in ms."""
    session_ms: int = 5000
    """If a server has answered no heartbeat for this time, in ms, the consumer drops its deliveries, and they come
    again. At least 2,000. If a consumer sends no heartbeat for twice this time, a standby takes over. A program that
    blocks the event loop for longer than the session gets the messages that it had not taken once more: flagged, or
    with a higher delivery attempt."""

    in_flight_max: int = 1_000
    """Only in key-ordered and shared mode: maximum number of messages of a partition that are given to the consumer and
    not acknowledged, 1 to 100,000. The consumer holds their keys, so a slow consumer should hold few."""
    run_max: int = 0
    """Only in key-ordered mode: maximum number of messages of a key that are given at once; 0: up to 256."""

    def __post_init__(self) -> None:
        if not isinstance(self.start, int | datetime) and self.start not in (None, "earliest", "latest"):
            raise BadRequestError(f"a group starts at earliest, latest, an offset or a time, not {self.start!r}")
        check_whole("credit_bytes", self.credit_bytes, CREDIT_BYTES_MIN)
        if self.credit_bytes_max is not None:
            check_whole("credit_bytes_max", self.credit_bytes_max, self.credit_bytes)
        check_whole("ack_interval_ms", self.ack_interval_ms, 0)
        check_whole("session_ms", self.session_ms, SESSION_MS_MIN)
        check_whole("in_flight_max", self.in_flight_max, 1, IN_FLIGHT_MAX)
        check_whole("run_max", self.run_max, 0)

    @property
    def credit(self) -> Credit:
        """The bytes that each broker may send before the application has taken them."""
        if self.credit_bytes_max is None:
            return Credit(self.credit_bytes, 4 * self.credit_bytes, is_fixed=False)
        return Credit(self.credit_bytes, self.credit_bytes_max, is_fixed=True)


class ConsumerOptions(TypedDict, total=False):
    """See `ConsumerSettings`."""

    start: Target | None
    credit_bytes: int
    credit_bytes_max: int | None
    ack_interval_ms: int
    session_ms: int
    in_flight_max: int
    run_max: int
