"""Brokers' links over real sockets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from seriatim_api.network.tls import TlsFiles, TlsSource
from seriatim_api.network.tls_contexts import TlsContexts
from seriatim_broker.core.values.messages import FORMS
from seriatim_broker.interfaces.link import Dialer
from seriatim_broker.rpc.links.link import LinkDialer, LinkListener
from seriatim_local.layout.plan import Address, Link
from seriatim_local.links.proxy import Proxy

from tools.ports import free_port

from .link_contract import Peer, identity


def address_of(text: str) -> Address:
    """The same as host and port."""
    host, port = text.split(":")
    return Address(host, int(port))


class TcpPeers:
    """Brokers a and b, each behind a proxy; in plain text, or with one certificate for all."""

    def __init__(self, files: TlsFiles | None = None) -> None:
        self._tls = TlsContexts(TlsSource(files)) if files is not None else None
        self._addresses = {name: f"127.0.0.1:{free_port()}" for name in ("a", "b")}
        self._served = {name: f"127.0.0.1:{free_port()}" for name in ("a", "b")}
        links = [
            Link(source, target, address_of(self._addresses[target]), address_of(self._served[target]))
            for source, target in (("a", "b"), ("b", "a"))
        ]
        self._proxy = Proxy(links)
        self._proxy.start()
        self._listeners: dict[Peer, LinkListener] = {}

    def address(self, name: str) -> str:
        return self._addresses[name]

    def resolve(self, name: str) -> str | None:
        """As a directory has it."""
        return self._addresses.get(name)

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
        self._proxy.close()

    def stall(self, source: str, target: str, lane: int) -> None:
        """A link is two connections; which of them is which lane is not known here."""
        assert self._proxy.connection_count == 2
        assert self._proxy.stall((source, target), lane)
