"""The plan of a local cluster: its processes and their addresses. It follows from a few numbers.

This module does no I/O: other modules bind ports, start processes and keep the plan in a file. Each broker has its own
address, so that logs, routes and captures show which broker it is. The addresses are on the loopback interface, with
the coordinator on 127.0.0.1, unless the cluster runs on a network of its own.

The ports of one address, counted from the cluster's base port:

    +0        for clients: with the proxy, the proxy listens here and forwards to +1; without it, the broker does
    +1        with the proxy: the broker's process listens here
    +2        the broker's admin port (health, metrics), never behind the proxy
    +3        for the other members of a real etcd
    +4        the broker's port of links over TCP
    +5        for streams of clients over TCP: with the proxy, the proxy listens here and forwards to +6
    +6        with the proxy: the broker listens here for these streams
    +10 + i   with the proxy: broker number i of the cluster connects here, so that each directed pair can be cut
    +50 + i   with the proxy: the same for links over TCP
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from seriatim_api.errors import BadRequestError, IllegalNameError
from seriatim_api.ids import NAME_RULE, is_legal_name

COORDINATOR: Final = "coordinator"
"""The coordinator's name as an end of a link and as a victim."""

CLIENTS: Final = "clients"
"""All clients together, as an end of a link. The proxy cannot cut off a single client."""

MEMBER_COUNT_MAX: Final = 80
"""Limit for the brokers of a local cluster."""

PROXY_MEMBER_COUNT_MAX: Final = 40
"""The same with the proxy: each broker needs two of the `PORT_COUNT` ports of each other broker."""

PORT_COUNT: Final = 100
"""Ports that a cluster takes on each of its addresses, from its base port on."""

_LISTEN, _ADMIN, _ETCD_PEERS, _LINK_LISTEN, _STREAMS, _STREAM_LISTEN, _PAIRS = 1, 2, 3, 4, 5, 6, 10
_LINK_PAIRS = _PAIRS + PROXY_MEMBER_COUNT_MAX


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host and a port at which a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address of the text that `str` made."""
        host, _, port = text.rpartition(":")
        return cls(host, int(port))


@dataclass(frozen=True, slots=True)
class Hosts:
    """The IPv4 addresses of the processes.

    Attributes:
        coordinator: The coordinator's address.
        brokers: The brokers' addresses, in the order of the brokers. There may be more addresses than brokers.
    """

    coordinator: str
    brokers: tuple[str, ...]


LOOPBACK: Final = Hosts("127.0.0.1", tuple(f"127.0.0.{2 + number}" for number in range(MEMBER_COUNT_MAX)))
"""Loopback addresses, for a cluster on one machine."""


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One broker process: its place in the cluster and its addresses.

    Attributes:
        name: `<group>-<slot>`.
        group: The name of its broker group.
        slot: Its number in the broker group, from 0.
        number: Its number in the cluster, from 0.
        advertised: The address that clients use and that routes name.
        listen: The address that the process binds. Without a proxy it is `advertised`.
        admin: The address of health and metrics.
        coordinator: The address at which this broker reaches the coordinator.
        peers: The addresses at which this broker reaches each other broker, by name.
        link_listen: The address that the process binds for links over TCP.
        link_peers: The addresses at which this broker reaches each other broker's `link_listen`, by name.
        stream_listen: The address that the process binds for streams of clients over TCP.
        streams: The address at which clients reach it. Without a proxy it is `stream_listen`.
    """

    name: str
    group: str
    slot: int
    number: int
    advertised: Address
    listen: Address
    admin: Address
    coordinator: Address
    peers: tuple[tuple[str, Address], ...]
    link_listen: Address
    link_peers: tuple[tuple[str, Address], ...]
    stream_listen: Address
    streams: Address


@dataclass(frozen=True, slots=True)
class Link:
    """A port of the proxy. A connection of `source` to `destination` arrives at `listen` and continues to `target`."""

    source: str
    destination: str
    listen: Address
    target: Address


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All processes of a cluster, with their addresses and links."""

    name: str
    base_port: int
    proxy: bool
    coordinator: Address
    coordinator_peers: Address
    brokers: tuple[BrokerPlan, ...]
    links: tuple[Link, ...]

    def broker(self, name: str) -> BrokerPlan:
        """The broker of this name.

        Raises:
            BadRequestError: There is no broker of this name.
        """
        for broker in self.brokers:
            if broker.name == name:
                return broker
        names = ", ".join(broker.name for broker in self.brokers)
        raise BadRequestError(f"there is no broker {name!r} in this cluster; there are {names}", broker=name)

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the broker groups, in order."""
        return tuple(dict.fromkeys(broker.group for broker in self.brokers))

    def brokers_of(self, group: str) -> tuple[str, ...]:
        """The names of the brokers of a broker group, in order.

        Raises:
            BadRequestError: There is no such broker group.
        """
        found = tuple(broker.name for broker in self.brokers if broker.group == group)
        if not found:
            raise BadRequestError(
                f"there is no broker group {group!r}; there are {', '.join(self.groups)}", group=group
            )
        return found

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All pairs of a process that connects and the process to which it connects."""
        found = [(CLIENTS, broker.name) for broker in self.brokers]
        for broker in self.brokers:
            found.append((broker.name, COORDINATOR))
            found += [(broker.name, peer) for peer, _ in broker.peers]
        return tuple(found)

    @property
    def bootstrap(self) -> tuple[str, ...]:
        """The addresses for clients to connect to, `host:port`. A client needs only one of them."""
        return tuple(str(broker.advertised) for broker in self.brokers)

    @property
    def listen_addresses(self) -> tuple[Address, ...]:
        """All addresses that the processes of this cluster bind."""
        own = [self.coordinator, self.coordinator_peers]
        for broker in self.brokers:
            own += [broker.listen, broker.admin, broker.link_listen, broker.stream_listen]
        return tuple(sorted({*own, *(link.listen for link in self.links)}))


def make_plan(
    *, name: str, group_count: int, member_count: int, base_port: int, proxy: bool, hosts: Hosts = LOOPBACK
) -> ClusterPlan:
    """Plan a cluster of `group_count` broker groups (`g0`, `g1`, ...) with `member_count` members each.

    Args:
        name: The cluster's name.
        group_count: The number of broker groups, at least 1.
        member_count: The number of members in each, at least 1.
        base_port: The first port, from 1024 to 65435.
        proxy: Whether links go through the proxy.
        hosts: The addresses of the processes.

    Raises:
        IllegalNameError: `name` is no legal name of a cluster.
        BadRequestError: There are no brokers, or more than `MEMBER_COUNT_MAX` (80), with the proxy
            `PROXY_MEMBER_COUNT_MAX` (40), or `base_port` is out of range.
    """
    if not is_legal_name(name):
        raise IllegalNameError(f"{name!r} cannot name a cluster: {NAME_RULE}", name=name)
    count = group_count * member_count
    count_max = PROXY_MEMBER_COUNT_MAX if proxy else MEMBER_COUNT_MAX
    if group_count < 1 or member_count < 1 or count > count_max:
        asked = f"{group_count} × {member_count}"
        with_proxy = " with the proxy" if proxy else ""
        raise BadRequestError(f"a local cluster{with_proxy} has 1 to {count_max} brokers, not {asked}")
    if not 1024 <= base_port <= 65535 - PORT_COUNT:
        raise BadRequestError(f"the base port is from 1024 to {65535 - PORT_COUNT}, not {base_port}")
    names = [(f"g{group}-{slot}", f"g{group}", slot) for group in range(group_count) for slot in range(member_count)]
    assert len(hosts.brokers) >= count

    def listens(number: int) -> Address:
        return Address(hosts.brokers[number], base_port + (_LISTEN if proxy else 0))

    def links_at(number: int) -> Address:
        return Address(hosts.brokers[number], base_port + _LINK_LISTEN)

    def reaches(source: int, host: str, direct: Address, pairs: int = _PAIRS) -> Address:
        return Address(host, base_port + pairs + source) if proxy else direct

    coordinator = Address(hosts.coordinator, base_port + _LISTEN)
    brokers = tuple(
        BrokerPlan(
            name=broker,
            group=group,
            slot=slot,
            number=number,
            advertised=Address(hosts.brokers[number], base_port),
            listen=listens(number),
            admin=Address(hosts.brokers[number], base_port + _ADMIN),
            coordinator=reaches(number, coordinator.host, coordinator),
            peers=tuple(
                (names[other][0], reaches(number, hosts.brokers[other], listens(other)))
                for other in range(count)
                if other != number
            ),
            link_listen=links_at(number),
            link_peers=tuple(
                (names[other][0], reaches(number, hosts.brokers[other], links_at(other), _LINK_PAIRS))
                for other in range(count)
                if other != number
            ),
            stream_listen=Address(hosts.brokers[number], base_port + (_STREAM_LISTEN if proxy else _STREAMS)),
            streams=Address(hosts.brokers[number], base_port + _STREAMS),
        )
        for number, (broker, group, slot) in enumerate(names)
    )
    return ClusterPlan(
        name=name,
        base_port=base_port,
        proxy=proxy,
        coordinator=coordinator,
        coordinator_peers=Address(coordinator.host, base_port + _ETCD_PEERS),
        brokers=brokers,
        links=_links(brokers, coordinator) if proxy else (),
    )


def _links(brokers: tuple[BrokerPlan, ...], coordinator: Address) -> tuple[Link, ...]:
    listens = {broker.name: broker.listen for broker in brokers}
    link_listens = {broker.name: broker.link_listen for broker in brokers}
    links = [Link(CLIENTS, broker.name, broker.advertised, broker.listen) for broker in brokers]
    links += [Link(CLIENTS, broker.name, broker.streams, broker.stream_listen) for broker in brokers]
    for broker in brokers:
        links.append(Link(broker.name, COORDINATOR, broker.coordinator, coordinator))
        links += [Link(broker.name, peer, address, listens[peer]) for peer, address in broker.peers]
        links += [Link(broker.name, peer, address, link_listens[peer]) for peer, address in broker.link_peers]
    return tuple(links)
