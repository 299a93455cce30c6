"""Carries streams to brokers: over TCP if the broker has a port for that and it can be reached, otherwise over gRPC."""

from __future__ import annotations

import asyncio
from typing import Final

from seriatim_api.v1 import broker_pb2

from seriatim._transport.carriage import Carriage, CarriedStream
from seriatim._transport.channels import Channels, StreamPurpose
from seriatim._transport.grpc_carriage import GrpcCarriage
from seriatim._transport.stream_ports import StreamPort, StreamPorts
from seriatim._transport.tcp_carriage import PortFailedError, TcpCarriage

TCP_DEADLINE_S: Final = 0.5
"""Seconds for a stream to begin over TCP, besides two round trips. Half of the time of an opening is then left for
gRPC."""


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
        self.channels = channels
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
            return GrpcCarriage(self.channels, address, purpose)
        return _TcpFirst(self.channels, self._ports, port, purpose)

    async def has_port(self, address: str, purpose: StreamPurpose) -> bool:
        """Whether streams to a broker go over TCP. The answer is kept for the streams that are opened later.

        Raises:
            SeriatimError: The broker does not answer, or this client is closed.
        """
        return await self._ports.find(address, purpose) is not None
