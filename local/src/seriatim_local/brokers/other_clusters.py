"""Brokers that `seriatim cluster` did not start here: those of `seriatim standalone`, or of another machine.

`seriatim cluster status` names them if no cluster runs in its directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc

ASK_DEADLINE_S: Final = 2.0
STANDALONE: Final = "standalone"
"""The name of the cluster that `seriatim standalone` runs."""


@dataclass(frozen=True, slots=True)
class OtherBroker:
    """A broker, as its cluster knows it.

    Attributes:
        name: Its name.
        run: Its member run.
        live: Whether the broker that was asked hears from it.
        address: Its `host:port`.
    """

    name: str
    run: int
    live: bool
    address: str


@dataclass(frozen=True, slots=True)
class OtherCluster:
    """A cluster that answers.

    Attributes:
        cluster: Its name.
        address: The `host:port` that answered.
        brokers: All its brokers.
    """

    cluster: str
    address: str
    brokers: tuple[OtherBroker, ...]

    @property
    def is_standalone(self) -> bool:
        """Whether it is the one process of `seriatim standalone`."""
        return self.cluster == STANDALONE


async def ask(addresses: Sequence[str]) -> OtherCluster | None:
    """Ask these brokers, in plain text, which cluster they are. The first answer counts; None if there is none."""
    for address in addresses:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = broker_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            try:
                answer = await stub.DescribeCluster(broker_pb2.DescribeClusterRequest(), timeout=ASK_DEADLINE_S)
            except grpc.aio.AioRpcError:
                continue
        found = sorted(answer.brokers, key=lambda broker: (broker.record.group, broker.record.slot))
        return OtherCluster(
            answer.cluster,
            address,
            tuple(
                OtherBroker(f"{each.record.group}-{each.record.slot}", each.record.run, each.live, each.record.address)
                for each in found
            ),
        )
    return None


def find(addresses: Sequence[str]) -> OtherCluster | None:
    """Call `ask` from a program without an event loop."""
    return asyncio.run(ask(addresses))
