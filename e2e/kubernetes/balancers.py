"""A provider of load balancers for the cluster: it does what MetalLB does, as far as these cases need it.

It gives each Service of type LoadBalancer an address of its own from a pool, and writes it into the Service's status.
kube-proxy then leads what comes to the address to the pods. No interface has the address: who wants to reach it needs a
route to a node.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Network
from typing import Final

from e2e.kubernetes.place import Manifest, Place
from tools.kubernetes.errors import ClusterError

POOL: Final = IPv4Network("203.0.113.0/24")
"""TEST-NET-3 (RFC 5737), which no network should have."""

LOOK_S: Final = 0.5


def addresses_of(services: Sequence[Manifest]) -> dict[str, str]:
    """By name of a Service of type LoadBalancer, the address that its status has."""
    found: dict[str, str] = {}
    for service in services:
        entries = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
        if service["spec"]["type"] == "LoadBalancer" and entries:
            found[service["metadata"]["name"]] = entries[0]["ip"]
    return found


def to_give(services: Sequence[Manifest], given: Mapping[str, str]) -> dict[str, str]:
    """The addresses for Services that wait for one. No other Service has them or had them before.

    Args:
        services: All Services of the namespace.
        given: The addresses that were given before, by name of a Service.
    """
    has = addresses_of(services)
    free = (str(address) for address in POOL.hosts() if str(address) not in {*has.values(), *given.values()})
    waiting = [item["metadata"]["name"] for item in services if item["spec"]["type"] == "LoadBalancer"]
    return {name: next(free) for name in sorted(waiting) if name not in has}


@asynccontextmanager
async def balancers(place: Place) -> AsyncIterator[None]:
    """Give addresses to the Services of a namespace for as long as the block lasts."""
    task = asyncio.create_task(_provide(place), name="provider of load balancers")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _provide(place: Place) -> None:
    given: dict[str, str] = {}
    while True:
        with suppress(ClusterError):  # a Service may have gone meanwhile
            for name, address in to_give(await place.list("services"), given).items():
                status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
                what = ("patch", f"services/{name}", "--subresource=status", "--type=merge")
                await place.kubectl(*what, f"--patch={json.dumps(status)}")
                given[name] = address
        await asyncio.sleep(LOOK_S)
