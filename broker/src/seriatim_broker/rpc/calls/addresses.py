"""The addresses of brokers in answers to clients. They depend on the port over which a client asked.

A broker has a port for clients in the brokers' own network, and may have a second one for clients outside. Each port
has servicers of its own, which share everything else of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from seriatim_api.v1 import broker_pb2, common_pb2

from ...core.values.chain import Chain
from ...core.values.effects import RouteInfo
from ...runtime.membership.directory import Directory


@dataclass(slots=True, eq=False)
class Addresses:
    """What clients of one port learn about where brokers are.

    An answer has only addresses of the port over which it was asked for. If it had others:

    1. A client outside asks for a route. The master has no external address (yet).
    2. It is sent the master's address in the brokers' network, and dials it.
    3. It waits for a timeout again and again; or, in its own network, another process has this address, and it sends
       its messages there.

    So an address that is not known is left out or empty. Then the client asks again, and waits.

    Args:
        directory: Has the registered brokers.
        address_of: `directory.client_address` or `directory.external_address`.
        stream_port_of: `directory.stream_port`; None: these clients reach no port for streams over TCP.
    """

    _directory: Directory
    _address_of: Callable[[str], str]
    _stream_port_of: Callable[[str], int] | None = None

    def of(self, broker: str) -> str:
        """The address of a broker; empty if there is no such broker, or if it has no address for these clients."""
        return self._address_of(broker) if broker else ""

    def known(self, brokers: Iterable[str]) -> list[str]:
        """The addresses of those of the brokers that have one, in order."""
        return [address for address in map(self.of, brokers) if address]

    def all(self) -> list[broker_pb2.BrokerAddress]:
        """All admitted brokers that have an address, by name."""
        return [
            broker_pb2.BrokerAddress(
                broker=name,
                address=address,
                group=record.group,
                stream_port=self._stream_port_of(name) if self._stream_port_of is not None else 0,
            )
            for name, record in sorted(self._directory.members.items())
            if record.admitted and (address := self.of(name))
        ]

    def route(self, info: RouteInfo) -> common_pb2.Route:
        """A route. Its `master_address` is empty if the master has no address for these clients."""
        return common_pb2.Route(
            partition_id=info.partition,
            epoch=info.epoch,
            segment=info.segment_no,
            master_broker=info.master,
            master_address=self.of(info.master),
            next_addresses=self.known(self._directory.first_of(group) for group in info.next_broker_groups),
        )

    def readdressed(self, route: common_pb2.Route) -> common_pb2.Route:
        """A route that another broker gave, with the master's address for these clients, and without next addresses."""
        told = common_pb2.Route()
        told.CopyFrom(route)
        told.master_address = self.of(route.master_broker)
        del told.next_addresses[:]
        return told

    def route_of(self, chain: Chain) -> common_pb2.Route:
        """The route by a chain record."""
        segment = chain.open_segment
        nexts = tuple(group for group in chain.send_chain if group != segment.broker_group)
        return self.route(RouteInfo(chain.partition, chain.epoch, segment.no, segment.master.broker, nexts))
