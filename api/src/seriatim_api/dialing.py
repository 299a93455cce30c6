"""The options that all of our gRPC channels have, in clients and in brokers.

The time for an attempt to connect, and the time until the next one, differ. They are in the modules that open channels.
"""

from __future__ import annotations

from typing import Final

DIAL_OPTIONS: Final = (
    # Each channel has its own connections and back-off. So a new channel tries at once, whatever other channels saw.
    ("grpc.use_local_subchannel_pool", 1),
    # A pod that comes back has another IP address under its old name. By default gRPC looks a name up at most every
    # 30 s, and dials the old IP address until then.
    ("grpc.dns_min_time_between_resolutions_ms", 200),
    ("grpc.enable_http_proxy", 0),
)
