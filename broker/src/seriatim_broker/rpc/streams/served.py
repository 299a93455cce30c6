"""Streams of clients: what their carriages (`over_tcp`, `over_grpc`) need of them, and the limit of their number.

A stream (`producing.AppendStream`, `consuming.ConsumeStream`) takes frames and has frames to send. It does not know how
they travel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import structlog
from seriatim_api.errors import NotServingError, SeriatimError, TooManyStreamsError

from ..calls.limits import WARM_SHARE
from ..calls.services import Services

_log = structlog.get_logger(__name__)


class ServedStream(Protocol):
    """One stream of a client."""

    drains: bool
    """Whether a client that has finished still waits for frames, as long as the stream `owes` them."""

    frame_size_bytes_max: int
    """The largest frame that it takes."""

    @property
    def owes(self) -> bool:
        """Whether answers are still to come."""

    @property
    def waiting_count(self) -> int:
        """Answers and events that wait for `next_frame`."""

    def take(self, frame: bytes | memoryview) -> Iterator[None]:
        """Take a frame. It is taken when the iterator ends. Between two steps of it, other work has its turn.

        The frame stays valid until then.

        Raises:
            SeriatimError: The client must not send this. The stream ends.
        """

    def next_frame(self) -> Sequence[bytes | memoryview] | None:
        """The next frame to send, in pieces; None if nothing waits."""

    def end(self) -> None:
        """The stream has ended."""


@contextmanager
def counted(services: Services, *, is_warm: bool = False) -> Iterator[None]:
    """A stream counts while it is open. For warm ones the limit is lower; see `WARM_SHARE`.

    Raises:
        NotServingError: The broker is stopping.
        TooManyStreamsError: It has as many streams as it may have.
    """
    if services.is_stopping:
        raise NotServingError("this broker is stopping: ask another one")
    limit = services.stream_count_max // (WARM_SHARE if is_warm else 1)
    if services.stream_count >= limit:
        raise TooManyStreamsError(f"this broker has {limit} streams already, its limit", retry_after_ms=1000)
    services.stream_count += 1
    try:
        yield
    finally:
        services.stream_count -= 1


def log_refusal(what: str, peer: str, error: SeriatimError) -> None:
    """Log that a stream was refused. That this broker takes no more streams is ordinary, and its clients try again."""
    is_ordinary = isinstance(error, (NotServingError, TooManyStreamsError))
    (_log.debug if is_ordinary else _log.warning)(f"{what}_stream_refused", peer=peer, error=str(error))
