"""Carries streams to brokers: over TCP if the broker has a port for that and it can be reached, otherwise over gRPC.

A link (`append.AppendLink`, `consume.ConsumeLink`) has frames to send and takes frames. It does not know how they
travel. What is promised does not depend on it either: a link may end at any time, and its users then open another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from seriatim_api.v1 import broker_pb2

from seriatim._transport.grpc_carriage import GrpcCarriage
from seriatim._transport.stream_ports import StreamPort, StreamPorts
from seriatim._transport.tcp_carriage import PortFailedError, TcpCarriage

if TYPE_CHECKING:
    from seriatim._transport.channels import Channels, StreamPurpose

TCP_DEADLINE_S: Final = 0.5
"""Seconds for a stream to begin over TCP, besides two round trips. Half of the time of an opening is then left for
gRPC."""


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


class _TcpFirst:
    """Carries one stream over TCP, or over gRPC if the port cannot be used although the broker answers.

    Both are tried in one opening. Without it: 1. A firewall lets nothing through to the port. 2. The client takes the
    master for dead, and complains to another broker. 3. That broker believes it, and a healthy broker group loses the
    open segment; and so for each partition of each client.
    """

    def __init__(self, channels: Channels, ports: StreamPorts, port: StreamPort, purpose: StreamPurpose) -> None:
        self._channels = channels
        self._ports = ports
        self._port = port
        self._purpose = purpose
        self._chosen: Carriage = TcpCarriage(channels, port)
        self._has_timed_out = False

    async def open(self, hello: broker_pb2.ClientHello | broker_pb2.ConsumerHello) -> None:
        """See `Carriage`."""
        if await self._open_over_tcp(hello):
            return
        self._chosen.close()
        # Is it the port, or the broker? It is asked again, over gRPC. It may also have restarted with another port.
        self._ports.forget(self._port)
        asked = await self._ports.find(self._port.address, self._purpose)
        if asked is not None:
            if not self._has_timed_out:
                self._chosen = TcpCarriage(self._channels, asked)
                self._port = asked
                if await self._open_over_tcp(hello):
                    return
                self._chosen.close()
            self._ports.failed(asked)
        self._chosen = GrpcCarriage(self._channels, self._port.address, self._purpose)
        await self._chosen.open(hello)

    @property
    def round_trip_us(self) -> int:
        """See `Carriage`."""
        return self._chosen.round_trip_us

    async def _open_over_tcp(self, hello: broker_pb2.ClientHello | broker_pb2.ConsumerHello) -> bool:
        """Whether the stream has begun."""
        try:
            way_s = 2 * self._channels.round_trips.round_trip_s(self._port.address)
            async with asyncio.timeout(TCP_DEADLINE_S + way_s):
                await self._chosen.open(hello)
        except PortFailedError:
            return False
        except TimeoutError:
            self._has_timed_out = True
            return False
        self._ports.works(self._port)
        return True

    async def read(self) -> bytes:
        """See `Carriage`."""
        return await self._chosen.read()

    async def carry(self, stream: CarriedStream) -> None:
        """See `Carriage`."""
        await self._chosen.carry(stream)

    def wake(self) -> None:
        """See `Carriage`."""
        self._chosen.wake()

    def close(self) -> None:
        """See `Carriage`."""
        self._chosen.close()

    def give_up(self) -> None:
        """See `Carriage`."""
        self._chosen.give_up()


class Carriages:
    """Opens carriages.

    Args:
        channels: The gRPC connections.
    """

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._ports = StreamPorts(channels)

    def learn(self, answer: broker_pb2.GetTopicResponse) -> None:
        """Take over what a broker says about where the others take streams."""
        self._ports.learn(answer)

    async def choose(self, address: str, purpose: StreamPurpose) -> Carriage:
        """The carriage for a stream to a broker. It is not open.

        Raises:
            SeriatimError: The broker does not answer, or this client is closed.
        """
        port = await self._ports.find(address, purpose)
        if port is None:
            return GrpcCarriage(self._channels, address, purpose)
        return _TcpFirst(self._channels, self._ports, port, purpose)

    async def has_port(self, address: str, purpose: StreamPurpose) -> bool:
        """Whether streams to a broker go over TCP. The answer is kept for the streams that are opened later.

        Raises:
            SeriatimError: The broker does not answer, or this client is closed.
        """
        return await self._ports.find(address, purpose) is not None
