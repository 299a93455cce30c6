"""What a server process says before it imports its libraries: how gRPC's core behaves, and what is left out."""

from __future__ import annotations

import os

from seriatim_api.imports import left_out


def prepare_process() -> None:
    """To be called before anything of the broker is imported. What the environment says already is left as it is."""
    _prepare_grpc()
    with left_out("rich"):  # structlog would draw tracebacks with it: a fifth of a start's processor time, and 4 MB
        import structlog  # noqa: F401 - it is imported here so that nobody imports it with rich


def _prepare_grpc() -> None:
    """Poll in one thread, and write nothing but errors.

    gRPC's event engine reads a socket in a pool of threads and hands over to the thread that wakes the event loop; the
    older way, still in the same build, does both in one thread. A message that is alone on its way crosses four
    streams: with the event engine off, the round trip of a stream was measured at 125 us instead of 225, the latency of
    a replicated message was a tenth lower, and throughput the same. A build of gRPC that does not know the experiments
    any more says so on stderr and goes on.

    Of failed TLS handshakes gRPC writes a line each, among ours and not in JSON: whoever scans ports would fill the
    log. `GRPC_VERBOSITY=INFO` brings them back: they are the only place that says why a client was not accepted.
    """
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
