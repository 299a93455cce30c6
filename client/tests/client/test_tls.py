"""A client with TLS: which brokers it believes, what it says when that fails, and certificates that change under it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from seriatim import Client, Tls, _client
from seriatim._consuming import unserved
from seriatim._transport import silence
from seriatim_api import errors
from seriatim_api.network import tls

from ..fake_broker import connected, running, until


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(_client, "TOPIC_DEADLINE_S", 0.5)


class Authority:
    """A CA, with a server's credentials that follow it, and clients' certificates."""

    def __init__(self) -> None:
        self.ca = trustme.CA()

    def configuration(self, *names: str, believes: bytes | None = None, **validity: datetime) -> Any:
        """Of a server that asks for clients' certificates."""
        issued = self.ca.issue_cert(*(names or ("127.0.0.1",)), **validity)
        pair = (issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes())
        return grpc.ssl_server_certificate_configuration([pair], believes or self.ca.cert_pem.bytes())

    def context(self, *names: str) -> ssl.SSLContext:
        """Of the same server, for streams over TCP."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.verify_mode = ssl.CERT_REQUIRED
        self.ca.configure_trust(made)
        self.ca.issue_cert(*(names or ("127.0.0.1",))).configure_cert(made)
        return made

    def client(self, directory: Path, **validity: datetime) -> Tls:
        """Files of a client; replaces those that are there."""
        directory.mkdir(exist_ok=True)
        issued = self.ca.issue_cert("client@example.org", **validity)
        self.ca.cert_pem.write_to_path(str(directory / "ca.crt"))
        issued.cert_chain_pems[0].write_to_path(str(directory / "tls.crt"))
        issued.private_key_pem.write_to_path(str(directory / "tls.key"))
        return Tls(directory / "ca.crt", directory / "tls.crt", directory / "tls.key")


class Server:
    """What a server shows; may be changed while it runs."""

    def __init__(self, configuration: Any) -> None:
        self.configuration = configuration
        self.credentials = grpc.dynamic_ssl_server_credentials(configuration, lambda: self.configuration, True)


LONG_AGO = {"not_before": datetime(2001, 1, 1, tzinfo=UTC), "not_after": datetime(2002, 1, 1, tzinfo=UTC)}


async def send_and_read(client: Client, values: list[bytes]) -> None:
    async with client.producer("t") as producer, client.consumer("t", "g") as consumer:
        for value in values:
            await producer.send(value, partition=0)
        await producer.flush()
        seen: list[bytes] = []
        while len(seen) < len(values):
            seen += [message.value for message in await consumer.fetch(timeout_s=5.0)]
        await consumer.ack_all()
    assert seen == values


async def test_what_is_sent_arrives(tmp_path: Path, carriage: str) -> None:
    authority = Authority()
    async with running(2, Server(authority.configuration()).credentials, authority.context) as cluster:
        cluster.create_topic("t", 1)
        async with Client.connect(cluster.brokers[0].address, tls=authority.client(tmp_path / "c")) as client:
            await send_and_read(client, [b"%d" % n for n in range(100)])
        assert cluster.brokers[0].has_streams_over_tcp == (carriage == "tcp")


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
@pytest.mark.parametrize("fault", ["another name", "another authority"])
async def test_a_port_for_streams_that_shows_another_certificate_is_not_used(
    tmp_path: Path, carriage: str, fault: str
) -> None:
    authority = Authority()
    shows = Authority().context if fault == "another authority" else lambda: authority.context("orders.example")
    async with running(1, Server(authority.configuration()).credentials, shows) as cluster:
        cluster.create_topic("t", 1)
        async with Client.connect(cluster.brokers[0].address, tls=authority.client(tmp_path / "c")) as client:
            await send_and_read(client, [b"%d" % n for n in range(10)])
        assert not cluster.brokers[0].has_streams_over_tcp


async def test_the_server_name_stands_for_what_is_dialed(tmp_path: Path) -> None:
    authority = Authority()
    mine = authority.client(tmp_path / "c")
    named = Tls(mine.ca, mine.cert, mine.key, server_name="orders.example")
    async with running(1, Server(authority.configuration("orders.example")).credentials) as cluster:
        cluster.create_topic("t", 1)
        async with Client.connect(cluster.brokers[0].address, tls=named) as client:
            await send_and_read(client, [b"x"])
        async with Client.connect(cluster.brokers[0].address, tls=mine) as client:
            with pytest.raises(errors.TlsHandshakeError, match="for other names than the one that was dialed"):
                await client.producer("t")


@pytest.mark.parametrize(
    ("who", "cause"),
    [
        ("without a certificate", "asks for a certificate, and none was shown"),
        ("whose certificate has expired", "does not accept the certificate that was shown"),
        ("of another authority", "not issued by the CA that was given"),
        ("of another authority, who believes the right one", "does not accept the certificate that was shown"),
    ],
)
async def test_who_is_refused_is_told_why(tmp_path: Path, who: str, cause: str) -> None:
    authority, other = Authority(), Authority()
    if who == "whose certificate has expired":
        mine = authority.client(tmp_path / "c", **LONG_AGO)
    else:
        mine = (other if "another" in who else authority).client(tmp_path / "c")
    if who == "without a certificate":
        mine = Tls(mine.ca)
    if "believes" in who:
        authority.ca.cert_pem.write_to_path(str(mine.ca))
    async with running(2, Server(authority.configuration()).credentials) as cluster:
        cluster.create_topic("t", 1)
        addresses = [broker.address for broker in cluster.brokers]
        async with Client.connect(addresses, tls=mine) as client:
            with pytest.raises(errors.TlsHandshakeError, match=cause) as raised:
                await client.producer("t")
    assert raised.value.number == 603
    assert isinstance(raised.value, errors.UnavailableError)


async def test_a_consumer_whose_brokers_changed_their_authority_raises_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "TLS_PATIENCE_S", 0.2)
    monkeypatch.setattr(unserved, "LOOK_S", 0.1)
    old, new = Authority(), Authority()
    server = Server(old.configuration())
    async with running(2, server.credentials) as cluster:
        cluster.create_topic("t", 1)
        addresses = [broker.address for broker in cluster.brokers]
        async with (
            Client.connect(addresses, tls=old.client(tmp_path / "c")) as client,
            client.producer("t") as producer,
            client.consumer("t", "g") as consumer,
        ):

            async def read() -> bytes:
                async for message in consumer:
                    await consumer.ack(message)
                    return message.value
                raise AssertionError("the consumer was closed")

            await (await producer.send(b"a", partition=0))
            async with asyncio.timeout(10):
                assert await read() == b"a"
            server.configuration = new.configuration()
            for broker in cluster.brokers:
                await broker.stop()
                await broker.restart()
            for _ in range(2):
                async with asyncio.timeout(10):
                    with pytest.raises(errors.TlsHandshakeError, match="not issued by the CA that was given"):
                        await read()
            new.client(tmp_path / "c")
            delivery = await producer.send(b"b", partition=0)
            async with asyncio.timeout(10):
                await delivery
                value = b""
                while value != b"b":  # the first one may come again, because its acknowledgement was lost
                    with suppress(errors.TlsHandshakeError):  # until a broker is reached again
                        value = await read()


@pytest.mark.parametrize("usage", ["iteration", "run", "receive"])
async def test_a_keyed_consumer_raises_if_it_would_wait(monkeypatch: pytest.MonkeyPatch, usage: str) -> None:
    monkeypatch.setattr(unserved, "LOOK_S", 0.01)
    async with connected() as (_, client):
        error = errors.TlsHandshakeError("no broker answers")
        monkeypatch.setattr(client._caller, "tls_error", lambda: error)
        async with client.consumer("t", "g", mode="key_ordered") as consumer, asyncio.timeout(10):
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "iteration": lambda: anext(aiter(consumer)),
                "run": lambda: consumer.run(print),
                "receive": consumer.receive,
            }
            for _ in range(2):
                with pytest.raises(errors.TlsHandshakeError):
                    await calls[usage]()


async def test_the_log_says_why_no_stream_to_the_server_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority()
    servers = [Server(authority.configuration()), Server(authority.configuration("orders.example"))]
    async with running(2) as cluster:
        cluster.create_topic("t", 1)
        for broker, server in zip(cluster.brokers, servers, strict=True):
            await broker.stop()
            broker.credentials = server.credentials
            await broker.restart()
        cluster.switch(cluster.partition("t"), cluster.brokers[1])
        addresses = [broker.address for broker in cluster.brokers]
        async with (
            Client.connect(addresses, tls=authority.client(tmp_path / "c")) as client,
            client.consumer("t", "g") as consumer,
        ):
            await until(lambda: "for other names than the one that was dialed" in consumer._subscriptions[0].waits_for)
            assert addresses[1] in consumer._subscriptions[0].waits_for
            assert await consumer.fetch(timeout_s=0) == [], "another broker answers"


async def test_a_broker_whose_certificate_has_expired_is_named(tmp_path: Path) -> None:
    authority = Authority()
    server = Server(authority.configuration(**LONG_AGO))
    async with (
        running(1, server.credentials) as cluster,
        Client.connect(cluster.brokers[0].address, tls=authority.client(tmp_path / "c")) as client,
    ):
        with pytest.raises(errors.TlsHandshakeError, match="certificate has expired"):
            await client.producer("t")


async def test_plain_text_finds_out_about_tls() -> None:
    server = Server(Authority().configuration())
    async with running(1, server.credentials) as cluster, Client.connect(cluster.brokers[0].address) as client:
        with pytest.raises(errors.UnavailableError, match="does the broker ask for TLS"):
            await client.producer("t")


async def test_tls_finds_out_about_plain_text(tmp_path: Path) -> None:
    mine = Authority().client(tmp_path / "c")
    async with running(1) as cluster, Client.connect(cluster.brokers[0].address, tls=mine) as client:
        with pytest.raises(errors.TlsHandshakeError, match="does not speak TLS on this port"):
            await client.producer("t")


async def test_a_call_whose_time_ends_during_the_next_handshake_does_not_hide_that_tls_failed(tmp_path: Path) -> None:
    async with (
        running(1) as cluster,
        Client.connect(cluster.brokers[0].address, tls=Authority().client(tmp_path)) as it,
    ):
        with pytest.raises(errors.TlsHandshakeError):
            await it.producer("t")
        late = grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata())
        address = cluster.brokers[0].address
        assert "does not speak TLS" in str(it._caller._failure(address, late))
        assert isinstance(it._channels.silence.error([address]), errors.TlsHandshakeError)


async def test_nobody_there_is_not_a_matter_of_tls(tmp_path: Path) -> None:
    async with Client.connect("127.0.0.1:1", tls=Authority().client(tmp_path / "c")) as client:
        with pytest.raises(errors.UnavailableError, match="Connection refused") as raised:
            await client.producer("t")
    assert not isinstance(raised.value, errors.TlsHandshakeError)


async def test_files_that_cannot_be_used_are_refused_at_once(tmp_path: Path) -> None:
    mine = Authority().client(tmp_path / "c")
    for wrong, text in (
        (Tls(mine.ca, mine.cert, tmp_path / "nothing"), "nothing cannot be read"),
        (Tls(mine.ca, mine.cert), "come together"),
        (Tls(mine.key), "holds no CA certificate"),
    ):
        with pytest.raises(errors.PreconditionError, match=text):
            await Client.connect("127.0.0.1:1", tls=wrong).__aenter__()


async def test_certificates_change_under_streams_that_stand(tmp_path: Path) -> None:
    old, new = Authority(), Authority()
    both = old.ca.cert_pem.bytes() + new.ca.cert_pem.bytes()
    mine = old.client(tmp_path / "c")
    server = Server(old.configuration(believes=both))
    async with (
        running(2, server.credentials) as cluster,
        Client.connect(cluster.brokers[0].address, tls=mine) as client,
    ):
        first, second = cluster.brokers
        partition = cluster.partition(cluster.create_topic("t", 1).name)
        async with client.producer("t", linger_ms=0) as producer, client.consumer("t", "g") as consumer:

            async def goes_on() -> None:
                for _ in range(10):
                    await (await producer.send(b"x", partition=0))
                seen = 0
                while seen < 10:
                    seen += len(await consumer.fetch(timeout_s=5.0))
                await consumer.ack_all()

            await goes_on()
            connections = set(first.connections)
            server.configuration = new.configuration()  # a new connection needs the new authority
            new.client(tmp_path / "c")
            await client.producer("t")  # a question, with the new certificate
            await goes_on()
            assert first.connections == connections, "what stood, stands"
            cluster.switch(partition, second)
            await goes_on()
            assert second.connections, "new streams, with the new certificate"
            cluster.switch(partition, first)
            await goes_on()
            await first.stop()
            await first.restart()
            await goes_on()
            assert first.connections > connections, "what broke is made again, with the new certificate"
            await until(lambda: not client._channels._retired)
