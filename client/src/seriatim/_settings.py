"""How producers send and consumers read: every setting with its default and its limits.

The same names stand twice: as a checked value, which users get to see, and as the keyword arguments of
`Client.producer` and `Client.consumer`, for type checkers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypedDict

from seriatim_api.errors import BadRequestError

from seriatim._partitioner import Partitioner, partition_of_key
from seriatim._records import AckLevel

Compression = Literal["lz4", "zstd"]
Start = Literal["earliest", "latest"]
Target = Start | int | datetime
"""A place in a topic: its first message, its end, an offset (of one partition), or the first message appended at a time
or later. A datetime has a time zone."""

BATCH_SIZE_BYTES_MAX: Final = 512 << 10
CREDIT_BYTES_MIN: Final = 1 << 16
SESSION_MS_MIN: Final = 2000
"""Some heartbeats must fit in, and a question to another broker."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer sends; each has the default of `Client.producer`."""

    ack_level: AckLevel = AckLevel.REPLICATED_FLUSHED
    """When a send counts as done. Only the replicated levels carry the promise."""
    linger_ms: float = 5.0
    """How long a batch may wait to grow while another is on its way. With none on its way it goes at once."""
    batch_size_bytes: int = 256 << 10
    """Payload at which a batch goes without waiting; at most 512 KiB. A larger message has a batch of its own."""
    compression: Compression | None = None
    """Of bodies: None, "lz4" or "zstd"."""
    window_batches: int = 16
    """Batches on their way for each partition."""
    buffer_size_bytes: int = 32 << 20
    """Messages taken and not settled; over it `send` waits."""
    delivery_timeout_ms: int = 120_000
    """Until a message that nobody acknowledges is given up, as failed or unknown."""
    reply_timeout_ms: int = 1000
    """Silence of a master before another broker is told."""
    partitioner: Partitioner = partition_of_key
    """Which partition a key goes to."""

    def __post_init__(self) -> None:
        if not 0 < self.batch_size_bytes <= BATCH_SIZE_BYTES_MAX:
            raise BadRequestError(f"batch_size_bytes is from 1 to {BATCH_SIZE_BYTES_MAX}")
        if self.compression not in (None, "lz4", "zstd"):
            raise BadRequestError(f"there is no compression {self.compression!r}: lz4, zstd or None")
        if min(self.window_batches, self.buffer_size_bytes, self.delivery_timeout_ms, self.reply_timeout_ms) <= 0:
            raise BadRequestError("windows, buffers and timeouts are above 0")


class ProducerOptions(TypedDict, total=False):
    """See `ProducerSettings`."""

    ack_level: AckLevel
    linger_ms: float
    batch_size_bytes: int
    compression: Compression | None
    window_batches: int
    buffer_size_bytes: int
    delivery_timeout_ms: int
    reply_timeout_ms: int
    partitioner: Partitioner


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer reads; each has the default of `Client.consumer`."""

    start: Target = "earliest"
    """Where a group that was never here begins: "earliest", "latest", a datetime with a time zone, or (of a consumer of
    one partition) an offset. A time is looked up once, when the group is made."""
    credit_bytes: int = 4 << 20
    """Bytes that each broker may send before the application has taken them; more while it takes them fast."""
    credit_bytes_max: int | None = None
    """The most that this grows to: what the application takes in 30 ms, up to this. None: four times `credit_bytes`."""
    ack_interval_ms: int = 5
    """Acknowledgements within this time go as one."""
    session_ms: int = 5000
    """Deliveries of a server that answered no heartbeat for so long are dropped, and come again. A standby takes over
    from a consumer that sends no heartbeat for twice as long. A program that blocks the event loop for longer than the
    session gets what it had not taken yet once more, flagged or with a higher attempt."""

    def __post_init__(self) -> None:
        if not isinstance(self.start, int | datetime) and self.start not in ("earliest", "latest"):
            raise BadRequestError(f"a group starts at earliest, latest, an offset or a time, not {self.start!r}")
        if self.credit_bytes < CREDIT_BYTES_MIN:
            raise BadRequestError("credit_bytes is at least 64 KiB")
        if self.credit_bytes_max is not None and self.credit_bytes_max < self.credit_bytes:
            raise BadRequestError("credit_bytes_max is at least credit_bytes; equal to it, the credit does not grow")
        if self.session_ms < SESSION_MS_MIN:
            raise BadRequestError(f"session_ms is at least {SESSION_MS_MIN}")

    @property
    def credit_range_bytes(self) -> tuple[int, int]:
        """The least and the most that each broker may send before the application has taken it."""
        most = 4 * self.credit_bytes if self.credit_bytes_max is None else self.credit_bytes_max
        return self.credit_bytes, most


class ConsumerOptions(TypedDict, total=False):
    """See `ConsumerSettings`."""

    start: Target
    credit_bytes: int
    credit_bytes_max: int | None
    ack_interval_ms: int
    session_ms: int
