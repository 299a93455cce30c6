"""Who is in a local cluster, and which address each of them has: decided once, from a handful of numbers.

Pure: binding ports, starting processes and keeping the plan in a file are left to others. Every broker has an address
of its own, so that logs, routes and captures tell them apart: on the loopback interface, where the coordinator lives on
127.0.0.1, unless the cluster runs on a network of its own.

The ports of one address, counted from the cluster's base port:

    +0        where clients connect; with the proxy it forwards to +1, without it the broker listens here itself
    +1        where the process listens when the proxy stands before it
    +2        the broker's admin port (health, metrics); never behind the proxy
    +3        peers of a real etcd
    +10 + i   with the proxy: where member number i of the cluster connects, so that each directed pair can be cut
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from seriatim_api.errors import BadRequestError, IllegalNameError
from seriatim_api.ids import is_legal_name

COORDINATOR: Final = "coordinator"
"""The coordinator's name as an end of a link and as a victim."""

CLIENTS: Final = "clients"
"""All clients together, as an end of a link; they are told apart by nothing."""

MEMBER_COUNT_MAX: Final = 80
"""Brokers of one local cluster: each needs a port of every other one's range of `PORT_COUNT`."""

PORT_COUNT: Final = 100
"""Ports that a cluster takes on each of its addresses, from its base port on."""

_LISTEN, _ADMIN, _ETCD_PEERS, _LINKS = 1, 2, 3, 10


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address that `str` printed."""
        host, _, port = text.rpartition(":")
        return cls(host, int(port))


@dataclass(frozen=True, slots=True)
class Hosts:
    """The IPv4 address of each process's machine.

    Attributes:
        brokers: In their order; more than there are brokers do no harm.
    """

    coordinator: str
    brokers: tuple[str, ...]


LOOPBACK: Final = Hosts("127.0.0.1", tuple(f"127.0.0.{2 + number}" for number in range(MEMBER_COUNT_MAX)))
"""All on one machine."""


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One broker process: its place in the cluster and its addresses.

    Attributes:
        number: Its number in the cluster, from 0.
        advertised: What clients and routes name.
        listen: What the process binds; the same as `advertised` where there is no proxy.
        admin: Health and metrics, plain HTTP.
        coordinator: Where this broker reaches the coordinator.
        peers: Where this broker reaches each other one, by name.
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


@dataclass(frozen=True, slots=True)
class Link:
    """A port of the proxy: what `source` says to `destination` comes in at `listen` and goes out to `target`."""

    source: str
    destination: str
    listen: Address
    target: Address


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The whole cluster."""

    name: str
    base_port: int
    proxy: bool
    coordinator: Address
    coordinator_peers: Address
    brokers: tuple[BrokerPlan, ...]
    links: tuple[Link, ...]

    def broker(self, name: str) -> BrokerPlan:
        """The broker of that name.

        Raises:
            BadRequestError: There is none.
        """
        for broker in self.brokers:
            if broker.name == name:
                return broker
        names = ", ".join(broker.name for broker in self.brokers)
        raise BadRequestError(f"there is no broker {name!r} in this cluster; there are {names}", broker=name)

    @property
    def groups(self) -> tuple[str, ...]:
        """The broker groups, in order."""
        return tuple(dict.fromkeys(broker.group for broker in self.brokers))

    def brokers_of(self, group: str) -> tuple[str, ...]:
        """The brokers of a group, in order.

        Raises:
            BadRequestError: There is no such group.
        """
        found = tuple(broker.name for broker in self.brokers if broker.group == group)
        if not found:
            raise BadRequestError(
                f"there is no broker group {group!r}; there are {', '.join(self.groups)}", group=group
            )
        return found

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Who connects to whom."""
        found = [(CLIENTS, broker.name) for broker in self.brokers]
        for broker in self.brokers:
            found.append((broker.name, COORDINATOR))
            found += [(broker.name, peer) for peer, _ in broker.peers]
        return tuple(found)

    @property
    def bootstrap(self) -> tuple[str, ...]:
        """Where clients begin, `host:port`: any one of them is enough."""
        return tuple(str(broker.advertised) for broker in self.brokers)

    @property
    def listen_addresses(self) -> tuple[Address, ...]:
        """Every address that somebody in this cluster binds."""
        own = [self.coordinator, self.coordinator_peers]
        for broker in self.brokers:
            own += [broker.listen, broker.admin]
        return tuple(sorted({*own, *(link.listen for link in self.links)}))


def make_plan(
    *, name: str, group_count: int, member_count: int, base_port: int, proxy: bool, hosts: Hosts = LOOPBACK
) -> ClusterPlan:
    """Lay out a cluster of `group_count` groups (`g0`, `g1`, ...) with `member_count` members each.

    Raises:
        IllegalNameError: `name` cannot name a cluster.
        BadRequestError: Nothing to start, or more than `MEMBER_COUNT_MAX`, or ports that do not exist.
    """
    if not is_legal_name(name):
        raise IllegalNameError(f"{name!r} cannot name a cluster: letters, digits, '.', '_' and '-'", name=name)
    count = group_count * member_count
    if group_count < 1 or member_count < 1 or count > MEMBER_COUNT_MAX:
        asked = f"{group_count} × {member_count}"
        raise BadRequestError(f"a local cluster has 1 to {MEMBER_COUNT_MAX} brokers, not {asked}")
    if not 1024 <= base_port <= 65535 - PORT_COUNT:
        raise BadRequestError(f"the base port is from 1024 to {65535 - PORT_COUNT}, not {base_port}")
    names = [(f"g{group}-{slot}", f"g{group}", slot) for group in range(group_count) for slot in range(member_count)]
    assert len(hosts.brokers) >= count

    def listens(number: int) -> Address:
        return Address(hosts.brokers[number], base_port + (_LISTEN if proxy else 0))

    def reaches(source: int, host: str, direct: Address) -> Address:
        return Address(host, base_port + _LINKS + source) if proxy else direct

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
    links = [Link(CLIENTS, broker.name, broker.advertised, broker.listen) for broker in brokers]
    for broker in brokers:
        links.append(Link(broker.name, COORDINATOR, broker.coordinator, coordinator))
        links += [Link(broker.name, peer, address, listens[peer]) for peer, address in broker.peers]
    return tuple(links)
