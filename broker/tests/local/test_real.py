"""The local cluster with the real broker and coordinator: command lines, readiness, passports and certificates fit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import RunId
from seriatim_api.v1 import records_pb2
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.etcd import EtcdConfig, EtcdCoordinator
from seriatim_broker.adapters.passport import read_passport
from seriatim_broker.local import LocalCluster
from seriatim_broker.local.certificates import certificate_key

DEADLINE_S = 20.0


async def test_a_killed_broker_is_certified_by_its_passport_and_comes_back_in_its_next_run(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, groups=1) as cluster:
        before = (await cluster.status()).brokers[0]
        assert (before.run, before.state, before.ready) == (1, "running", True)
        passport = read_passport(cluster.data_directory("g0-0"), crc32c)
        assert passport is not None
        await cluster.kill("g0-0")
        coordinator = EtcdCoordinator(EtcdConfig((str(cluster.plan.coordinator),)))
        try:
            async with asyncio.timeout(DEADLINE_S):
                while (await cluster.status()).certificates_pending:  # noqa: ASYNC110 - other processes signal nothing
                    await asyncio.sleep(0.02)
            found = await coordinator.get(certificate_key("local", RunId(passport.member, 1)))
        finally:
            await coordinator.close()
        assert found is not None
        certificate = records_pb2.DeathCertificate.FromString(found.value)
        assert (certificate.member.incarnation, certificate.run) == (passport.incarnation, 1)
        await cluster.start_again("g0-0")
        await cluster.wait_ready()
        after = (await cluster.status()).brokers[0]
        assert (after.run, after.ready) == (2, True)


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
