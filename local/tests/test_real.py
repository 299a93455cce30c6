"""The local cluster with the real broker and coordinator: command lines, readiness, identity, certificates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from seriatim_api.errors import BadRequestError, UnknownTopicError
from seriatim_api.ids import RunId
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, records_pb2
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.etcd import EtcdConfig, EtcdCoordinator
from seriatim_broker.adapters.identity_file import read_identity_file
from seriatim_local import LocalCluster
from seriatim_local.control import ControlServer, find_running, request
from seriatim_local.death_certificates import certificate_key

DEADLINE_S = 20.0


async def test_a_killed_broker_is_certified_by_its_identity_file_and_comes_back_in_its_next_run(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, groups=1) as cluster:
        before = (await cluster.status()).brokers[0]
        assert (before.run, before.state, before.ready) == (1, "running", True)
        identity_file = read_identity_file(cluster.data_directory("g0-0"), crc32c)
        assert identity_file is not None
        await cluster.kill("g0-0")
        coordinator = EtcdCoordinator(EtcdConfig((str(cluster.plan.coordinator),)))
        try:
            async with asyncio.timeout(DEADLINE_S):
                while (await cluster.status()).certificates_pending:  # noqa: ASYNC110 - other processes signal nothing
                    await asyncio.sleep(0.02)
            found = await coordinator.get(certificate_key("local", RunId(identity_file.member, 1)))
        finally:
            await coordinator.close()
        assert found is not None
        certificate = records_pb2.DeathCertificate.FromString(found.value)
        assert (certificate.member.incarnation, certificate.run) == (identity_file.incarnation, 1)
        await cluster.start_again("g0-0")
        await cluster.wait_ready()
        after = (await cluster.status()).brokers[0]
        assert (after.run, after.ready) == (2, True)


@pytest.mark.slow
async def test_a_group_is_added_drained_and_removed(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, groups=2) as cluster:
        assert await cluster.add_group() == "g2"
        await cluster.wait_ready()
        assert len(cluster.bootstrap) == 6
        with pytest.raises(BadRequestError, match="there is no broker group 'g7'"):
            await cluster.remove_group("g7")
        await cluster.drain_group("g0")
        records = await cluster.remove_group("g0")
        assert [record.victim for record in records] == ["g0-0", "g0-1"]
        assert not any(cluster.data_directory("g0-0").iterdir())
        await cluster.start_again("g0")  # as new members, in a group of that name
        await cluster.wait_ready()
        runs = {broker.name: broker.run for broker in (await cluster.status()).brokers}
        assert runs == dict.fromkeys(cluster.broker_names, 1)


@pytest.mark.slow
async def test_a_fault_is_aimed_at_who_is_in_charge_of_a_partition(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path, groups=2, tls=True) as cluster,
        ControlServer(cluster, down=asyncio.Event().set).serve(),
    ):
        state = find_running(tmp_path)

        async def ask(command: str, **arguments: object) -> list[str]:
            found = await asyncio.to_thread(request, state, command, arguments, deadline_s=DEADLINE_S)
            return [record["victim"] for record in found]

        tls = cluster.tls
        assert tls is not None
        assert tls.client.cert is not None
        assert tls.client.key is not None
        credentials = grpc.ssl_channel_credentials(
            tls.ca.read_bytes(), tls.client.key.read_bytes(), tls.client.cert.read_bytes()
        )
        async with grpc.aio.secure_channel(cluster.bootstrap[0], credentials) as channel:
            admin = broker_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            await admin.CreateTopic(broker_pb2.CreateTopicRequest(name="orders", partition_count=1))
        group, (master, slave) = await cluster.open_members("orders", 0)
        await cluster.cut("clients", "brokers")  # who is in charge is asked past the proxy
        assert await ask("freeze", groups_of=["orders/0"]) == [f"{group}-0", f"{group}-1"]
        assert await ask("thaw", victims=["brokers"]) == [f"{group}-0", f"{group}-1"], "the others were not frozen"
        async with asyncio.timeout(DEADLINE_S):
            while not (await cluster.status()).brokers[0].ready:  # noqa: ASYNC110 - other processes signal nothing
                await asyncio.sleep(0.02)
        group, (master, slave) = await cluster.open_members("orders", 0)
        assert await ask("kill", masters_of=["orders/0"], signal="KILL") == [master]
        assert cluster.pid(slave) is not None
        with pytest.raises(UnknownTopicError):
            await ask("kill", masters_of=["payments/0"], signal="KILL")
        with pytest.raises(BadRequestError, match="TOPIC/PARTITION"):
            await ask("kill", masters_of=["orders"], signal="KILL")
