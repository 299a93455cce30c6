"""The options that all of our gRPC channels and servers have, in clients, brokers and operators.

The time for an attempt to connect, and the time until the next one, differ. They are in the modules that open channels.

*Silence.* A firewall or a NAT may forget a connection: its packets vanish, and neither side is notified. gRPC would use
it for ever. So each channel sends a ping of HTTP/2 when nothing came for `PING_AFTER_MS`, also without a call. If no
answer comes for `PONG_WITHIN_MS`, it ends the connection, and the next call dials. The kernel does the same when sent
bytes are not confirmed for `PONG_WITHIN_MS`, because gRPC then sets TCP_USER_TIMEOUT.
"""

from __future__ import annotations

from typing import Final

PING_AFTER_MS: Final = 6_000
PONG_WITHIN_MS: Final = 5_000
"""A silent connection ends within both times together: 11 s. gRPC's own threads answer pings, so an event loop that
stands still ends no connection."""

DIAL_OPTIONS: Final = (
    # Each channel has its own connections and back-off. So a new channel tries at once, whatever other channels saw.
    ("grpc.use_local_subchannel_pool", 1),
    # A pod that comes back has another IP address under its old name. By default gRPC looks a name up at most every
    # 30 s, and dials the old IP address until then.
    ("grpc.dns_min_time_between_resolutions_ms", 200),
    ("grpc.enable_http_proxy", 0),
)

PING_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", PING_AFTER_MS),
    ("grpc.keepalive_timeout_ms", PONG_WITHIN_MS),  # sets TCP_USER_TIMEOUT
    ("grpc.http2.ping_timeout_ms", PONG_WITHIN_MS),  # 1 min by default, whatever the option above says
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # no limit
)
"""For channels to brokers."""

PINGED_OPTIONS: Final = (
    # gRPC's defaults would end a connection that pings more often than every 5 min, or without a call every 2 h.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_AFTER_MS // 3),
)
"""For servers that such channels reach."""
