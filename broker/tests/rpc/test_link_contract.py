"""The cases of `link_contract`: over TCP, without and with TLS, and in memory.

The simulator's network, which is the one in memory, runs in real time here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio
import trustme
from seriatim_broker.testing.memory_network import MemoryNetwork
from seriatim_broker.testing.virtual_time import LoopTimers

from .certificates import write
from .link_contract import CASES, Peer, Peers, identity
from .tcp_peers import TcpPeers

globals().update(CASES)


class MemoryPeers:
    """One network in memory."""

    def __init__(self) -> None:
        chance = Random(1)
        self._network = MemoryNetwork(LoopTimers(), lambda: chance.randint(100, 2_000), chance)
        self._running: list[Peer] = []

    def address(self, name: str) -> str:
        return name

    def stall(self, source: str, target: str, lane: int) -> None:
        assert self._network.stall_lane(source, target, lane)
        assert self._network.stall_lane(target, source, lane)

    async def start(self, name: str, run: int) -> Peer:
        who = identity(name, run)
        peer = Peer(who, self._network.dialer(who), lambda broker: broker)
        self._network.listen(who, peer.links.carry_accepted)
        self._running.append(peer)
        return peer

    async def stop(self, peer: Peer) -> None:
        self._running.remove(peer)
        self._network.ended(peer.identity.member.broker, silent=False)
        await peer.links.close()

    async def close(self) -> None:
        for peer in list(self._running):
            await self.stop(peer)


@pytest_asyncio.fixture(loop_scope="session", params=["tcp", "tcp-tls", "memory"])
async def peers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Peers]:
    """A network without brokers."""
    made: TcpPeers | MemoryPeers
    if request.param == "memory":
        made = MemoryPeers()
    else:
        files = write(tmp_path, trustme.CA(), "127.0.0.1") if request.param.endswith("tls") else None
        made = TcpPeers(files)
    yield made
    await made.close()
