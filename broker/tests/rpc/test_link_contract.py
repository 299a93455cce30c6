"""The cases of `link_contract` over gRPC, without and with TLS, and over the simulator's network, in real time."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import grpc
import pytest
import trustme
from seriatim_api.tls import TlsFiles, TlsSource
from seriatim_broker.rpc.limits import SERVER_OPTIONS
from seriatim_broker.rpc.peer import GrpcDialer, PeerServicer
from seriatim_broker.rpc.transport import PLAIN, TlsTransport
from seriatim_broker.testing.memory_network import MemoryNetwork
from seriatim_broker.testing.virtual_time import LoopTimers
from seriatim_broker.tls import server_credentials

from .certificates import write
from .link_contract import CASES, Peer, Peers, identity

globals().update(CASES)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class GrpcPeers:
    """A server for each broker; in plain text, or with one certificate for all."""

    def __init__(self, files: TlsFiles | None = None) -> None:
        self._source = TlsSource(files) if files is not None else None
        self._transport = TlsTransport(self._source) if self._source is not None else PLAIN
        self._addresses = {name: f"127.0.0.1:{_free_port()}" for name in ("a", "b")}
        self._servers: dict[Peer, grpc.aio.Server] = {}

    def address(self, name: str) -> str:
        return self._addresses[name]

    async def start(self, name: str, run: int) -> Peer:
        who = identity(name, run)
        peer = Peer(who, GrpcDialer(who, self._transport), self._addresses.get)
        server = self._servers[peer] = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((PeerServicer(who, peer.links.carry_accepted).handler(),))
        if self._source is None:
            server.add_insecure_port(self._addresses[name])
        else:
            server.add_secure_port(self._addresses[name], server_credentials(self._source, "required"))
        await server.start()
        return peer

    async def stop(self, peer: Peer) -> None:
        await peer.links.close()
        await self._servers.pop(peer).stop(None)

    async def close(self) -> None:
        for peer in list(self._servers):
            await self.stop(peer)


class MemoryPeers:
    """One network in memory."""

    def __init__(self) -> None:
        chance = Random(1)
        self._network = MemoryNetwork(LoopTimers(), lambda: chance.randint(100, 2_000), chance)
        self._running: list[Peer] = []

    def address(self, name: str) -> str:
        return name

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


@pytest.fixture(params=["grpc", "tls", "memory"])
async def peers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Peers]:
    """A network on which nobody is yet."""
    made: GrpcPeers | MemoryPeers
    if request.param == "memory":
        made = MemoryPeers()
    else:
        made = GrpcPeers(write(tmp_path, trustme.CA(), "127.0.0.1") if request.param == "tls" else None)
    yield made
    await made.close()
