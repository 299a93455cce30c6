"""How every connection of ours is dialled, whoever opens it: options of a gRPC channel that are the same for all.

How long an attempt may take, and how soon the next one follows, depends on who waits: those stay with their users.
"""

from __future__ import annotations

from typing import Final

DIAL_OPTIONS: Final = (
    # Each channel has connections and backoff of its own: a fresh channel tries at once, whatever others saw.
    ("grpc.use_local_subchannel_pool", 1),
    # A pod that comes back has another address under its old name. gRPC asks for a name at most every 30 s unless it
    # is told otherwise, and dials the address of the dead until then.
    ("grpc.dns_min_time_between_resolutions_ms", 200),
    ("grpc.enable_http_proxy", 0),
)
