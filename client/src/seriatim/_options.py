"""The keyword arguments of `Client.producer` and `Client.consumer`, for type checkers: the settings' fields."""

from __future__ import annotations

from typing import TypedDict

from seriatim._batch import Compression
from seriatim._consumer import Start
from seriatim._partitioner import Partitioner
from seriatim._records import AckLevel


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


class ConsumerOptions(TypedDict, total=False):
    """See `ConsumerSettings`."""

    start: Start
    credit_bytes: int
    ack_interval_ms: int
