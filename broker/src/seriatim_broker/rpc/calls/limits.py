"""Limits that several servicers share, each with its reason."""

from __future__ import annotations

from typing import Final

from seriatim_api.network.grpc_options import DIAL_OPTIONS, PING_OPTIONS, PINGED_OPTIONS

MESSAGE_SIZE_BYTES_MAX: Final = 32 << 20
"""Largest frame or gRPC message that is accepted: a tail of a partition's credit, or a frame of a client, with room to
spare."""

STREAM_BYTES_MAX: Final = 34 << 20
"""Bytes of batches sent and not answered, on one stream: a stream's share of the memory. Clients that are near use at
most 8 MiB of it. Those that are far have most of it on the way, and not in this broker's memory."""

PARTITION_BYTES_MAX: Final = 17 << 20
"""Bytes of batches sent and not answered, on one partition of a stream. One stuck partition holds up no other. It is
what 16 batches of 1 MiB take; clients that are near use at most 7 MiB of it. It is below what may be unflushed
(`unflushed_bytes_max`, 18 MiB), so a producer that uses all of it is not refused."""

IN_FLIGHT_BYTES_MAX: Final = 64 << 20
"""Bytes of batches that came and are not answered, on all streams of the broker together."""

BATCH_BYTES_MAX: Final = 1 << 20
"""Largest body of a batch, unless the topic allows less."""

STREAM_COUNT_MAX: Final = 4096
"""Append, consume and range streams of one broker together."""

WARM_SHARE: Final = 2
"""A broker takes a warm stream only while it has less than half of its streams. Without it, warm streams take the
places of producers that need a stream now, and a producer that is refused complains of a healthy master."""

RETRY_AFTER_MS: Final = 20
"""The wait that a producer over its credit is asked for. In about this time the queue of a disk gets shorter."""

DELIVERY_FRAME_BYTES: Final = 1 << 20
"""A frame of deliveries is closed when it has this many bytes."""

CHANNEL_OPTIONS: Final = (
    *DIAL_OPTIONS,
    *PING_OPTIONS,
    ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # In spite of its name this option limits how long an attempt to connect may take. Below some hundred milliseconds a
    # busy machine answers none in time, and the attempts themselves keep it busy.
    ("grpc.min_reconnect_backoff_ms", 4_000),
    ("grpc.max_reconnect_backoff_ms", 200),
    # Without it, a channel that was used once keeps connecting, five times a second, to a broker that is gone for
    # good. The first call after a pause pays some 20 ms for a connection.
    ("grpc.client_idle_timeout_ms", 30_000),
)

SERVER_OPTIONS: Final = (
    *PINGED_OPTIONS,
    ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # two brokers on one port are a mistake, not a way to share load
)
