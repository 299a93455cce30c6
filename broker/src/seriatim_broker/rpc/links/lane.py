"""One connection of a link between two brokers: control, or replication.

A lane begins with frames that are awaited (the hellos). Then `begin` gives each later frame to a function, in the turn
of the event loop in which it arrives, without a task.

Messages leave in the turn in which they are sent. The first one leaves at once. Those that follow it in this turn leave
together at its end. So a single message waits for nothing, and many messages make few frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import structlog
from seriatim_api.errors import BadRequestError
from seriatim_api.wire.frame_reader import HELLO_SIZE_BYTES_MAX
from seriatim_api.wire.framed_connection import FramedConnection
from seriatim_api.wire.frames import FrameError

from ...core.values.messages import Heartbeat, HeartbeatAnswer, Message
from ..calls.limits import MESSAGE_SIZE_BYTES_MAX
from . import peer_frames

CONTROL_HELLO: Final = 1
"""The hello of the control connection: from the dialer, as the answer, and once more from the dialer to confirm."""

DATA_HELLO: Final = 2
"""The same, of the replication connection."""

REFUSAL: Final = 3
"""In place of an answer: why there is none, as a text. The connection ends."""

MESSAGES: Final = 4
"""A `PeerFrame` on the control connection, a `ReplicateFrame` on the replication connection."""

MESSAGES_AT_ONCE: Final = 256
"""Messages that are encoded before heartbeats have their turn: a few milliseconds."""

URGENT: Final = (Heartbeat, HeartbeatAnswer)
"""They overtake the other control messages, because what they say does not depend on any of them. They can overtake
only frames that wait outside the connection."""

_log = structlog.get_logger(__name__)


class Lane(FramedConnection):
    """One connection of a link."""

    def __init__(self) -> None:
        super().__init__()
        self._peer = ""
        self._take: Callable[[memoryview], None] = _nothing_taken
        self._failed: Callable[[BaseException], None] = lambda _error: None
        self._ended: Callable[[str], None] = lambda _reason: None
        self._encode: Callable[[Sequence[Message]], Iterator[Sequence[bytes | memoryview]]] = lambda _messages: iter(())
        self._queue: deque[tuple[Message, int]] = deque()
        self._urgent: list[tuple[Message, int]] = []
        self._frames: Iterator[Sequence[bytes | memoryview]] | None = None  # of the messages that leave now
        self._frames_bytes = 0  # of these messages
        self.queued_bytes = 0

    # ---- hellos ----

    def refuse(self, reason: str) -> None:
        """Say why no link is made, if there is a connection. Close it afterwards."""
        if self._transport is not None and not self.has_ended:
            self.write(REFUSAL, reason.encode()[:HELLO_SIZE_BYTES_MAX])

    def shown_names(self) -> list[str]:
        """The hosts in the certificate that the other side has shown: names and IP addresses."""
        certificate: dict[str, Any] = self.info("peercert") or {}
        names = certificate.get("subjectAltName", ())
        return [value for kind, value in names if kind in ("DNS", "IP Address")]

    # ---- messages ----

    def begin(
        self,
        encode: Callable[[Sequence[Message]], Iterator[Sequence[bytes | memoryview]]],
        take: Callable[[memoryview], None],
        ended: Callable[[str], None],
        failed: Callable[[BaseException], None],
        peer: str,
    ) -> None:
        """Carry messages from now on.

        Args:
            encode: Makes the contents of frames, each in pieces.
            take: Called with the content of each frame that arrives.
            ended: Called with the reason when the connection ends.
            failed: Called with an error of `take` or `encode`, which is a bug.
            peer: The name of the broker at the other end, for the log.
        """
        self._encode, self._take, self._ended, self._failed = encode, take, ended, failed
        self._peer = peer
        self.begin_frames(MESSAGE_SIZE_BYTES_MAX)

    def send(self, message: Message, size_bytes: int) -> None:
        """Send a message, at once or at the end of this turn of the event loop, or when there is room."""
        self.queued_bytes += size_bytes
        if isinstance(message, URGENT):
            self._urgent.append((message, size_bytes))
        else:
            self._queue.append((message, size_bytes))
        if not self._turn_is_open:
            self.wake()
            self._pump()

    def pump(self) -> None:
        """See `FramedConnection`."""
        while not self.is_full:
            if self._urgent:  # a large message has many frames, and heartbeats go between them
                urgent, self._urgent = self._urgent, []
                for frame in self._encode([message for message, _ in urgent]):
                    self.write(MESSAGES, *frame)
                self.queued_bytes -= sum(size_bytes for _, size_bytes in urgent)
            elif self._frames is not None:
                content = next(self._frames, None)
                if content is not None:
                    self.write(MESSAGES, *content)
                else:
                    self._frames = None
                    self.queued_bytes -= self._frames_bytes
            elif self._queue:
                self._frames = self._encode(self._next_messages())
            else:
                return

    def _next_messages(self) -> list[Message]:
        """As many of the messages that wait as are encoded at once."""
        messages: list[Message] = []
        taken_bytes = 0
        while self._queue and len(messages) < MESSAGES_AT_ONCE and taken_bytes < peer_frames.FRAME_SIZE_BYTES:
            message, size_bytes = self._queue.popleft()
            messages.append(message)
            taken_bytes += size_bytes
        self._frames_bytes = taken_bytes
        return messages

    def frame_arrived(self, kind: int, content: memoryview) -> None:
        """See `FramedConnection`."""
        if kind != MESSAGES:
            raise FrameError(f"a frame of kind {kind} does not come after the hellos")
        try:
            self._take(content)
        except BadRequestError as exc:
            raise FrameError(str(exc)) from exc

    def garbage_arrived(self, error: FrameError) -> None:
        """See `FramedConnection`."""
        _log.error("peer_sent_garbage", peer=self._peer, error=str(error))
        self.abort(str(error))

    def failed(self, error: Exception) -> None:
        """See `FramedConnection`."""
        self._failed(error)

    def ended(self, reason: str) -> None:
        """See `FramedConnection`."""
        self._queue.clear()
        self._urgent.clear()
        self._frames = None
        self._ended(reason)


def _nothing_taken(_content: memoryview) -> None:
    raise AssertionError("no frame is taken before `begin`")
