"""Numbers that several servicers share, each with its reason."""

from __future__ import annotations

from typing import Final

from seriatim_api.dialing import DIAL_OPTIONS

PROTOCOL: Final = 1
"""The protocol version of clients and peers that this build speaks, the only one so far."""

MESSAGE_SIZE_BYTES_MAX: Final = 32 << 20
"""Largest gRPC message taken: a tail of a partition's credit, or a frame of a client, with room to spare."""

STREAM_BYTES_MAX: Final = 8 << 20
"""Bytes of batches sent and not answered, on one stream: a stream's share of the memory budget."""

PARTITION_BYTES_MAX: Final = 4 << 20
"""The same on one partition of it, so that one stuck partition holds up no other."""

IN_FLIGHT_BYTES_MAX: Final = 64 << 20
"""The same over all streams of the broker."""

BATCH_BYTES_MAX: Final = 1 << 20
"""Largest body of a batch, unless the topic allows less."""

STREAM_COUNT_MAX: Final = 4096
"""Append and consume streams of one broker together."""

RETRY_AFTER_MS: Final = 20
"""Advice to a producer that is over its credits: about the time in which a disk's queue shrinks noticeably."""

DELIVERY_FRAME_BYTES: Final = 1 << 20
"""A frame of deliveries is closed when it holds this much."""

CHANNEL_OPTIONS: Final = (
    *DIAL_OPTIONS,
    ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # How long an attempt may take, whatever its name says; below some hundred milliseconds a busy machine answers
    # none in time, and the attempts themselves keep it busy.
    ("grpc.min_reconnect_backoff_ms", 4_000),
    ("grpc.max_reconnect_backoff_ms", 200),
    # Else a channel that was used once goes on connecting, five times a second, to a broker that is gone for good. The
    # first call after a pause pays for a connection: some 20 ms. Links are calls that never end, and not concerned.
    ("grpc.client_idle_timeout_ms", 30_000),
)

SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # two brokers on one port is a mistake, not a way to share load
)
