"""Where brokers take streams over TCP. A broker names the ports of all; one that was not named is asked, over gRPC.

A port can be out of reach: a firewall or a NetworkPolicy does not have it, or only the port for gRPC is forwarded. A
stream that cannot be opened there is opened over gRPC. If gRPC works and the port does not, twice in a row, streams to
this broker go over gRPC for a time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
from seriatim_api.errors import UnavailableError, UnsupportedVersionError
from seriatim_api.status import from_status
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc

from seriatim._transport.channels import Channels, StreamPurpose

FAILURES_MAX: Final = 2
"""After this many failures in a row a port is avoided. One failure says little: the broker may have ended just then."""

AVOIDED_S: Final = 600.0
"""A port is avoided for this many seconds. A port that lets nothing through costs a stream half a second each time."""

ASK_DEADLINE_S: Final = 0.9
"""Seconds for a broker's answer, with the time to connect, besides a round trip. It answers from memory. A connection
that gives none in this time is not used for new calls: the machine at its other end may be gone."""

PORTS_MAX: Final = 500
"""The most brokers whose ports are kept. Beyond it, the one that was asked first is forgotten."""


@dataclass(slots=True)
class StreamPort:
    """Where one broker takes streams over TCP.

    Attributes:
        address: The broker's address for gRPC, `host:port`.
        port: The port for streams, at the same host.
        broker: The broker's name.
        cluster_id: The id of its cluster.
    """

    address: str
    port: int
    broker: str
    cluster_id: str

    @property
    def host(self) -> str:
        """The host to dial."""
        return self.address.rpartition(":")[0].strip("[]")


class StreamPorts:
    """Asks brokers for their ports.

    Args:
        channels: The gRPC connections.
    """

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._known: dict[str, StreamPort] = {}
        self._failures: dict[str, int] = {}
        self._avoided_until_s: dict[str, float] = {}

    async def find(self, address: str, purpose: StreamPurpose) -> StreamPort | None:
        """The port of the broker at this address; None if streams to it go over gRPC.

        Args:
            address: The broker's address.
            purpose: The kind of the stream. The broker is asked on the connection that the stream has over gRPC.

        Raises:
            SeriatimError: The broker does not answer, or this client is closed.
        """
        self._channels.home.check_open()
        known = self._known.get(address)
        if known is not None:
            return known
        if self._avoided_until_s.get(address, 0.0) > asyncio.get_running_loop().time():
            return None
        try:
            answer = await self._ask(address, purpose)
        except UnsupportedVersionError:  # the hello over gRPC shows which protocols there are
            return None
        if not answer.port:
            return None
        found = StreamPort(address, answer.port, answer.broker, answer.cluster_id)
        if (known := self._known.get(address)) == found:
            return known  # another stream has asked meanwhile
        self._keep(found)
        return found

    def _keep(self, port: StreamPort) -> None:
        self._known[port.address] = port
        if len(self._known) > PORTS_MAX:
            del self._known[next(iter(self._known))]

    async def _ask(self, address: str, purpose: StreamPurpose) -> broker_pb2.GetStreamPortResponse:
        channel, trips = self._channels.get(address, purpose), self._channels.round_trips
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        ask = broker_pb2_grpc.RoutingStub(channel).GetStreamPort  # type: ignore[no-untyped-call]
        try:
            answer: broker_pb2.GetStreamPortResponse = await ask(
                broker_pb2.GetStreamPortRequest(), timeout=ASK_DEADLINE_S + trips.round_trip_s(address)
            )
        except grpc.aio.AioRpcError as exc:
            is_connected = channel.get_state() is grpc.ChannelConnectivity.READY
            if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED and is_connected:
                self._channels.renew(address, purpose, channel)
            reason, _ = self._channels.explain(exc.details())
            error = from_status(exc.code(), f"{address}: {reason}", exc.trailing_metadata())
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            error = UnavailableError(f"{address}: the connection was given up")  # by another stream on it
        else:
            trips.took(address, loop.time() - asked_s)
            return answer
        raise error  # outside of the handler: what is in there refers to the channel

    def learn(self, answer: broker_pb2.GetTopicResponse) -> None:
        """Take over the ports that a broker named, so that the others need not be asked.

        It may name one that a broker had before a restart. Then a stream cannot be opened there, and the broker itself
        is asked.
        """
        now_s = asyncio.get_running_loop().time()
        for broker in answer.brokers:
            is_free = self._avoided_until_s.get(broker.address, 0.0) <= now_s
            if broker.stream_port and answer.cluster_id and is_free and broker.address not in self._known:
                self._keep(StreamPort(broker.address, broker.stream_port, broker.broker, answer.cluster_id))

    def works(self, port: StreamPort) -> None:
        """A stream was opened there."""
        self._failures.pop(port.address, None)

    def forget(self, port: StreamPort) -> None:
        """Ask the broker again before the next stream."""
        if self._known.get(port.address) is port:
            del self._known[port.address]

    def failed(self, port: StreamPort) -> None:
        """The broker answered over gRPC, and a stream could not be opened there.

        It counts once for each answer of the broker, however many streams a client opens at a time.
        """
        address = port.address
        if self._known.get(address) is not port:
            return
        del self._known[address]
        failures = self._failures.pop(address, 0) + 1
        if failures < FAILURES_MAX:
            self._failures[address] = failures
            if len(self._failures) > PORTS_MAX:
                del self._failures[next(iter(self._failures))]
            return
        self._avoided_until_s.pop(address, None)
        self._avoided_until_s[address] = asyncio.get_running_loop().time() + AVOIDED_S
        if len(self._avoided_until_s) > PORTS_MAX:
            del self._avoided_until_s[next(iter(self._avoided_until_s))]


def _is_being_cancelled() -> bool:
    """Whether this task itself is cancelled. The caller must not refer to the task, which keeps the error's frames."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
