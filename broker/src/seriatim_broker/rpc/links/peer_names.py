"""Checks that a dialing peer is the broker that it says it is: its certificate must name that broker's host.

Every client of the cluster has a certificate of the same authority, and none of them may take part in replication. A
broker has one certificate and shows it on both sides. So the acceptor checks the same as a dialer. A dialer compares
the certificate with the name that it dials, and the acceptor compares it with the address that the dialing broker
registered. Without TLS there is nothing to check.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from seriatim_api.errors import PreconditionError

LOADED_DEADLINE_S: Final = 0.5
"""Time for the first read of the members. It is less than the dialer waits for a hello: a refusal would make the dialer
wait longer. And it is more than the read takes."""


class PeerNames:
    """Checks dialing peers.

    Args:
        addresses_of: Each `host:port` at which others reach a broker; empty if none is known (yet).
        loaded: Set when the registered members were read. Peers dial a starting broker before that.
    """

    def __init__(self, addresses_of: Callable[[str], Iterable[str]], loaded: asyncio.Event) -> None:
        self._addresses_of = addresses_of
        self._loaded = loaded

    async def check(self, broker: str, context: Any) -> None:
        """Refuse a call of gRPC from a process that is not `broker`.

        Raises:
            PreconditionError: The certificate is for other names, or the broker's address is not known.
        """
        shown = context.auth_context()
        await self.check_names(
            broker, [name.decode() for kind in ("peer_dns", "peer_ip") for name in shown.get(kind, ())]
        )

    async def check_names(self, broker: str, names: Sequence[str]) -> None:
        """Refuse a connection from a process that is not `broker`, by the hosts in the certificate that it has shown.

        Raises:
            PreconditionError: The certificate is for other hosts, or the broker's address is not known.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._loaded.wait(), LOADED_DEADLINE_S)
        hosts = {address.rpartition(":")[0].strip("[]") for address in self._addresses_of(broker)}
        if not hosts:
            raise PreconditionError(f"{broker} has not registered where it is reached; it may dial again soon")
        if not any(covers(name, host) for name in names for host in hosts):
            raise PreconditionError(
                f"the certificate shown by {broker} is for {', '.join(names) or 'no host'}, and {broker} is reached at "
                f"{', '.join(sorted(hosts))}. Remedy: issue brokers' certificates for the hosts that they advertise"
            )


def covers(name: str, host: str) -> bool:
    """Whether a name in a certificate is that of a host. `*` is one label, the first."""
    address = _as_ip(host)
    if address is not None:
        return address == _as_ip(name)
    name, host = name.lower().rstrip("."), host.lower().rstrip(".")
    if not name.startswith("*."):
        return name == host
    label, _, rest = host.partition(".")
    return bool(label) and rest == name[2:]


def _as_ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
