"""Clients outside the brokers' network: they are sent only external addresses, and continue when a broker dies.

The brokers' network is 127.0.0.x, where the local cluster puts them. Each broker has a second port on 127.0.2.x.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from seriatim import Client, _client
from seriatim_api.errors import TlsHandshakeError, UnavailableError
from seriatim_local import LocalCluster
from seriatim_local import cluster as local_cluster
from seriatim_local import tls as local_tls
from seriatim_local.layout.plan import BrokerPlan, ClusterPlan
from seriatim_local.layout.programs import SeriatimPrograms

from .traffic import tls_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

MESSAGES = 3_000
DEADLINE_S = 30.0


def outer(broker: BrokerPlan) -> str:
    """The address of a broker's second port."""
    return f"127.0.2.{broker.listen.host.rpartition('.')[2]}:{broker.listen.port}"


@dataclass(frozen=True)
class TwoNetworks(SeriatimPrograms):
    """Brokers with a second port. Its address is in a file, as the operator gives it."""

    def broker(self, plan: ClusterPlan, broker: BrokerPlan, data: Path) -> Sequence[str]:
        """The command line."""
        file = data.parent / f"{broker.name}.external"
        words = [*super().broker(plan, broker, data), "--set", f"external_listen={outer(broker)}"]
        return [*words, "--set", f"external_advertise_file={file}"]

    def tell(self, broker: BrokerPlan, data: Path) -> None:
        """Write the address into the broker's file."""
        (data.parent / f"{broker.name}.external").write_text(outer(broker))


@pytest.fixture
def dialed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses to which this process opened a channel."""
    found: list[str] = []
    real = grpc.aio.insecure_channel

    def open_channel(target: str, *words: Any, **options: Any) -> grpc.aio.Channel:
        found.append(target)
        return real(target, *words, **options)

    monkeypatch.setattr(grpc.aio, "insecure_channel", open_channel)
    return found


async def test_a_client_outside_outlives_a_broker_and_never_dials_an_inner_address(
    tmp_path: Path, dialed: list[str]
) -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    programs = TwoNetworks()
    async with LocalCluster(tmp_path, groups=2, members=2, proxy=False, name="two", programs=programs) as cluster:
        brokers = cluster.plan.brokers
        bootstrap = [outer(broker) for broker in brokers[:1]]
        coordinator = str(cluster.plan.coordinator)  # the local cluster talks to it itself, to certify the death
        dialed.clear()
        async with Client.connect(bootstrap) as client:
            admin = client.admin()
            topic = await admin.create_topic("outside", 4)
            assert len(topic.partition_ids) == 4
            # Nothing is advertised outside: the client waits, because an inner address would be of no use to it.
            async with client.producer("outside") as producer:
                delivery = await producer.send(b"first", partition=0)
                first = asyncio.ensure_future(delivery)
                done, _ = await asyncio.wait([first], timeout=1.5)
                assert not done
                assert {address for address in dialed if address != coordinator} == set(bootstrap)
                for broker in brokers:
                    programs.tell(broker, cluster.data_directory(broker.name))
                await asyncio.wait_for(first, DEADLINE_S)
                for number in range(MESSAGES):
                    await producer.send(b"%d" % number, partition=number % 4)
                    if number == MESSAGES // 2:
                        chain = (await admin.describe_topic("outside")).chains[0]
                        await cluster.kill(chain.segments[-1].members[0])
            values: list[int] = []
            async with await client.consumer("outside", "readers") as consumer, asyncio.timeout(DEADLINE_S):
                while len(values) < MESSAGES:
                    for message in await consumer.fetch(500):
                        if message.value != b"first":
                            values.append(int(message.value))
                        await consumer.ack(message)
            for partition in range(4):
                mine = [value for value in values if value % 4 == partition]
                assert mine == sorted(mine), "order within a partition"
            assert sorted(values) == list(range(MESSAGES))
            told = {broker.name: broker.external_address for broker in (await admin.describe_cluster()).brokers}
            assert told == {broker.name: outer(broker) for broker in brokers}
        outside = [address for address in dialed if address.startswith("127.0.2.")]
        inner = {str(broker.listen) for broker in brokers}
        assert not inner & set(dialed), "a client outside dialed an inner address"
        assert len(set(outside)) >= 3, "it produced and consumed at several brokers"
    structlog.reset_defaults()


async def test_tls_over_the_outer_port_needs_a_certificate_that_names_the_outer_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate names the outer hosts of broker group g0, as the operator does, and not those of g1."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    monkeypatch.setattr(_client, "TOPIC_DEADLINE_S", 2.0)
    programs = TwoNetworks()
    cluster = LocalCluster(tmp_path, groups=2, members=2, proxy=False, name="outer", programs=programs, tls=True)

    def with_outer(directory: Path, hosts: Iterable[str]) -> local_tls.LocalTls:
        named = [broker for broker in cluster.plan.brokers if broker.group == "g0"]
        return local_tls.make(directory, [*hosts, *(outer(broker).rpartition(":")[0] for broker in named)])

    monkeypatch.setattr(local_cluster, "make_certificates", with_outer)
    async with cluster:
        groups = {broker.name: broker.group for broker in cluster.plan.brokers}
        named = [broker for broker in cluster.plan.brokers if broker.group == "g0"]
        unnamed = next(broker for broker in cluster.plan.brokers if broker.group == "g1")
        for broker in named:
            programs.tell(broker, cluster.data_directory(broker.name))
        tls = tls_of(cluster)
        async with Client.connect([outer(broker) for broker in named], tls=tls) as client, asyncio.timeout(DEADLINE_S):
            admin = client.admin()
            await admin.create_topic("outside", 4)
            chains = (await admin.describe_topic("outside")).chains
            partition = next(chain.partition for chain in chains if groups[chain.segments[-1].members[0]] == "g0")
            async with client.producer("outside") as producer:
                sent = await (await producer.send(b"over TLS", partition=partition))
            async with client.consumer("outside", "readers", partitions=[partition]) as consumer:
                (message,) = await consumer.fetch(1, DEADLINE_S)
            assert (message.value, message.place) == (b"over TLS", str(sent))

        # The port is there and the authority is right, but the certificate is not for this host.
        host = outer(unnamed).rpartition(":")[0]
        async with Client.connect(outer(unnamed), tls=tls) as client:
            with pytest.raises(TlsHandshakeError) as raised:
                await client.producer("outside")
        text = raised.value.message
        assert outer(unnamed) in text
        assert "for other names" in text
        assert host not in text.partition("for other names")[2], "the names that it has are reported, and this is none"
        assert "\n" not in text
        # Without the CA, or with plain text, there is no answer either.
        stranger = local_tls.make(tmp_path / "stranger", ["127.0.0.1"]).client
        assert tls is not None
        for other in (None, type(tls)(stranger.ca, tls.cert, tls.key)):
            async with Client.connect(outer(named[0]), tls=other) as client:
                with pytest.raises(UnavailableError):
                    await client.producer("outside")
    structlog.reset_defaults()
