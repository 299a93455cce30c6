"""What a link needs of a carriage, and a carriage of a link.

A link (`append.AppendLink`, `consume.ConsumeLink`) has frames to send and takes frames. It does not know how they
travel. What is promised does not depend on it either: a link may end at any time, and its users then open another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from seriatim_api.v1 import broker_pb2


class CarriedStream(Protocol):
    """A link, as its carriage sees it."""

    @property
    def is_finishing(self) -> bool:
        """Whether the client ends the stream when nothing waits to be sent."""

    def next_frame(self) -> Sequence[bytes | memoryview] | None:
        """The next frame to send, in pieces; None if nothing waits."""

    def take(self, frame: bytes | memoryview) -> None:
        """Take a frame from the broker. It is valid until this returns.

        Raises:
            FrameError: The frame cannot be read.
            DecodeError: A message in it cannot be read.
        """


class Carriage(Protocol):
    """One stream on its way. The link that opened it closes it."""

    @property
    def round_trip_us(self) -> int:
        """How long the broker's answer to the hello took, in µs. The stream is open."""

    async def open(self, hello: broker_pb2.ClientHello | broker_pb2.ConsumerHello) -> None:
        """Connect, and begin the stream.

        Raises:
            SeriatimError: There is no connection, or the broker refuses the stream.
        """

    async def read(self) -> bytes:
        """Await one frame. Use it only before `carry`.

        Raises:
            SeriatimError: The stream has ended.
        """

    async def carry(self, stream: CarriedStream) -> None:
        """Carry frames both ways. Returns when the broker has ended the stream after the client finished it.

        Raises:
            SeriatimError: The stream has ended: what the broker said, or `UnavailableError`.
            FrameError: The broker sent what cannot be read.
            DecodeError: The same.
        """

    def wake(self) -> None:
        """The link has frames to send, or is finishing."""

    def close(self) -> None:
        """End the stream. The carriage is not used any more."""

    def give_up(self) -> None:
        """End the stream and its connection, because the broker may be gone."""
