"""Brokers' links over real sockets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import grpc
from seriatim_api.tls import TlsFiles, TlsSource
from seriatim_api.tls_contexts import TlsContexts
from seriatim_broker.core.values.messages import FORMS
from seriatim_broker.interfaces.link import LINK_SCHEME, Dialer
from seriatim_broker.rpc.limits import SERVER_OPTIONS
from seriatim_broker.rpc.link import LinkDialer, LinkListener
from seriatim_broker.rpc.peer import GrpcDialer, PeerServicer
from seriatim_broker.rpc.transport import PLAIN, TlsTransport
from seriatim_broker.tls import server_credentials
from seriatim_local.plan import Address, Link
from seriatim_local.proxy import Proxy

from tools.ports import free_port

from .link_contract import Peer, identity


def address_of(text: str) -> Address:
    """The same as host and port."""
    host, port = text.split(":")
    return Address(host, int(port))


class GrpcPeers:
    """A server for each broker, behind a proxy; in plain text, or with one certificate for all."""

    def __init__(self, files: TlsFiles | None = None) -> None:
        self._source = TlsSource(files) if files is not None else None
        self._transport = TlsTransport(self._source) if self._source is not None else PLAIN
        self._addresses = {name: f"127.0.0.1:{free_port()}" for name in ("a", "b")}
        self._served = {name: f"127.0.0.1:{free_port()}" for name in ("a", "b")}
        links = [
            Link(source, target, address_of(self._addresses[target]), address_of(self._served[target]))
            for source, target in (("a", "b"), ("b", "a"))
        ]
        self._proxy = Proxy(links)
        self._proxy.start()
        self._servers: dict[Peer, grpc.aio.Server] = {}

    def address(self, name: str) -> str:
        return self._addresses[name]

    def resolve(self, name: str) -> str | None:
        """As a directory has it."""
        return self.address(name) if name in self._addresses else None

    async def start(
        self,
        name: str,
        run: int,
        cluster: str = "c1",
        forms: int = FORMS,
        dialer: Dialer | None = None,
        resolve: Callable[[str], str | None] | None = None,
    ) -> Peer:
        who = replace(identity(name, run, cluster), forms=forms)
        peer = Peer(who, dialer or GrpcDialer(who, self._transport), resolve or self.resolve)
        server = self._servers[peer] = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((PeerServicer(who, peer.links.carry_accepted).handler(),))
        if self._source is None:
            server.add_insecure_port(self._served[name])
        else:
            server.add_secure_port(self._served[name], server_credentials(self._source, "required"))
        await server.start()
        return peer

    async def stop(self, peer: Peer) -> None:
        await peer.links.close()
        await self._servers.pop(peer).stop(None)

    async def close(self) -> None:
        for peer in list(self._servers):
            await self.stop(peer)
        self._proxy.close()

    def stall(self, source: str, target: str, lane: int) -> None:
        """A link is two connections; which of them is which lane is not known here."""
        assert self._proxy.connection_count == 2
        assert self._proxy.stall((source, target), lane)


class TcpPeers(GrpcPeers):
    """The same, over TCP."""

    def __init__(self, files: TlsFiles | None = None) -> None:
        super().__init__(files)
        self._tls = TlsContexts(self._source) if self._source is not None else None
        self._listeners: dict[Peer, LinkListener] = {}

    def address(self, name: str) -> str:
        return LINK_SCHEME + self._addresses[name]

    async def start(
        self,
        name: str,
        run: int,
        cluster: str = "c1",
        forms: int = FORMS,
        dialer: Dialer | None = None,
        resolve: Callable[[str], str | None] | None = None,
    ) -> Peer:
        who = replace(identity(name, run, cluster), forms=forms)
        peer = Peer(who, dialer or LinkDialer(who, self._tls), resolve or self.resolve)
        listener = self._listeners[peer] = LinkListener(who, peer.links.carry_accepted, None, self._tls)
        await listener.start(self._served[name])
        return peer

    async def stop(self, peer: Peer) -> None:
        await peer.links.close()
        await self._listeners.pop(peer).close()

    async def close(self) -> None:
        for peer in list(self._listeners):
            await self.stop(peer)
        await super().close()
