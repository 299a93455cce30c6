"""Brokers' links over real sockets."""

from __future__ import annotations

from dataclasses import replace

import grpc
from seriatim_api.tls import TlsFiles, TlsSource
from seriatim_broker.core.messages import FORMS
from seriatim_broker.rpc.limits import SERVER_OPTIONS
from seriatim_broker.rpc.peer import GrpcDialer, PeerServicer
from seriatim_broker.rpc.transport import PLAIN, TlsTransport
from seriatim_broker.tls import server_credentials

from tools.ports import free_port

from .link_contract import Peer, identity


class GrpcPeers:
    """A server for each broker; in plain text, or with one certificate for all."""

    def __init__(self, files: TlsFiles | None = None) -> None:
        self._source = TlsSource(files) if files is not None else None
        self._transport = TlsTransport(self._source) if self._source is not None else PLAIN
        self._addresses = {name: f"127.0.0.1:{free_port()}" for name in ("a", "b")}
        self._servers: dict[Peer, grpc.aio.Server] = {}

    def address(self, name: str) -> str:
        return self._addresses[name]

    async def start(self, name: str, run: int, cluster: str = "c1", forms: int = FORMS) -> Peer:
        who = replace(identity(name, run, cluster), forms=forms)
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
