"""A client outside of Kubernetes: it makes a topic, sends messages to it one after another, and reads them back.

    python -m e2e.kubernetes.outsider BOOTSTRAP TOPIC COUNT CA CERTIFICATE KEY

The last line that it prints is a JSON object: how many it read and whether in order, the longest wait for an
acknowledgement, the master at the end, and the addresses to which it was connected.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

from seriatim import Client, Tls, TopicSettings
from seriatim_api.errors import DeadlineExceededError, TlsHandshakeError, TopicExistsError

READ_S: Final = 30.0
CERTIFICATE_S: Final = 120.0
ESTABLISHED: Final = "01"
TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The kernel's connections. gRPC uses sockets of IPv6 for addresses of IPv4, too."""


def connected_to(tables: Sequence[Path] = TABLES) -> set[str]:
    """The other ends of the TCP connections in this network namespace, but for those of the namespace itself."""
    found = set()
    for line in [line for table in tables for line in table.read_text().splitlines()[1:]]:
        _, _, remote, state, *_ = line.split()
        host, _, port = remote.partition(":")
        address = address_of(host)
        if state == ESTABLISHED and not address.is_loopback:
            found.add(f"{address}:{int(port, 16)}")
    return found


def address_of(host: str) -> IPv4Address | IPv6Address:
    """Read an address of the kernel's table: words of four bytes in hexadecimal, each in this processor's order."""
    words = [bytes.fromhex(host[at : at + 8]) for at in range(0, len(host), 8)]
    address = ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
    return getattr(address, "ipv4_mapped", None) or address


async def make_topic(client: Client, topic: str) -> None:
    """Make the topic. If the certificate has just changed, kubelets may not have brought it to all brokers yet."""
    until = time.monotonic() + CERTIFICATE_S
    while True:
        try:
            await client.admin().create_topic(topic, 1, settings=TopicSettings(flush=True))
        except TopicExistsError:
            return
        except (TlsHandshakeError, DeadlineExceededError):
            if time.monotonic() > until:
                raise
        else:
            return


async def main(bootstrap: str, topic: str, count: int, tls: Tls) -> dict[str, object]:
    """Send and read. Return the answer."""
    addresses: set[str] = set()
    longest_s = 0.0
    async with Client.connect(bootstrap.split(","), tls=tls) as client:
        await make_topic(client, topic)
        async with client.producer(topic) as producer:
            for number in range(count):
                begin = time.monotonic()
                await (await producer.send(str(number).encode()))
                longest_s = max(longest_s, time.monotonic() - begin)
                if number % 100 == 0:
                    addresses |= connected_to()
        values: list[int] = []
        async with client.consumer(topic, "outside") as consumer, asyncio.timeout(READ_S):
            while len(values) < count:
                values += [int(message.value) for message in await consumer.fetch()]
                await consumer.ack_all()
                addresses |= connected_to()
        chain = await client.admin().describe_chain(topic, 0)
    return {
        "read": len(values),
        "in_order": values == list(range(count)),
        "longest_s": longest_s,
        "master": chain.segments[-1].members[0],
        "addresses": sorted(addresses),
    }


if __name__ == "__main__":
    _, servers, name, messages, ca, certificate, key = sys.argv
    print(json.dumps(asyncio.run(main(servers, name, int(messages), Tls(ca=ca, cert=certificate, key=key)))))
