"""Settings that a server process makes before it imports its libraries: for gRPC's core, and an import to leave out."""

from __future__ import annotations

import os

from seriatim_api.imports import left_out


def prepare_process() -> None:
    """Call it before you import any other module of the broker. It changes no variable that the environment has."""
    _prepare_grpc()
    with left_out("rich"):  # structlog would use rich for tracebacks: a fifth of a start's processor time, and 4 MB
        import structlog  # noqa: F401 - imported here, so that no later import of structlog loads rich


def _prepare_grpc() -> None:
    """Have gRPC poll in one thread, and log nothing.

    gRPC's event engine reads sockets in a pool of threads, and hands over to the thread that wakes the event loop. The
    older way, still in the same build, does both in one thread. With the event engine off, the round trip of a stream
    was measured at 125 us instead of 225 us. While all streams went over gRPC, and a single message crossed four of
    them, the latency of a replicated message was a tenth lower, and throughput was the same. If a later build of gRPC
    does not know these experiments, it says so on stderr and continues.

    gRPC writes a line for each failed TLS handshake and for a port that is taken, between our lines and not as JSON. A
    scan of ports would fill the log with them. `GRPC_VERBOSITY=INFO` brings these lines back: only they say why a
    client was not accepted.
    """
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
