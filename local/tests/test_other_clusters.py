"""`cluster status` names a cluster that `seriatim cluster` did not start here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from seriatim_api.errors import PreconditionError
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, records_pb2
from seriatim_local.commands import cluster as command

SILENT = "127.0.0.1:1"


class Admin(broker_pb2_grpc.AdminServicer):
    """A broker that knows two members of its cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    async def DescribeCluster(self, _request: Any, _context: Any) -> broker_pb2.DescribeClusterResponse:  # noqa: N802
        brokers = [
            broker_pb2.BrokerDescription(
                record=records_pb2.MemberRecord(group="g0", slot=slot, run=3, address=f"127.0.0.1:740{slot}"),
                live=slot == 0,
            )
            for slot in (1, 0)
        ]
        return broker_pb2.DescribeClusterResponse(cluster=self._cluster, brokers=brokers)


@asynccontextmanager
async def answering(cluster: str) -> AsyncIterator[str]:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    broker_pb2_grpc.add_AdminServicer_to_server(Admin(cluster), server)  # type: ignore[no-untyped-call]
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def status(directory: Path, *addresses: str) -> Result:
    root = SimpleNamespace(bootstrap=addresses)
    return await asyncio.to_thread(CliRunner().invoke, command, ["status", "--dir", str(directory)], obj=root)


async def test_a_standalone_cluster_is_shown_with_its_brokers(tmp_path: Path) -> None:
    async with answering("standalone") as address:
        done = await status(tmp_path, SILENT, address)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0] == f"seriatim standalone answers at {address}"
    assert [line.split() for line in lines[2:4]] == [
        ["g0-0", "3", "yes", "127.0.0.1:7400"],
        ["g0-1", "3", "no", "127.0.0.1:7401"],
    ]
    assert lines[4].startswith(f"No cluster runs in {tmp_path}. It is one process")


async def test_another_cluster_is_shown_by_its_name(tmp_path: Path) -> None:
    async with answering("orders") as address:
        done = await status(tmp_path, address)
    assert "cluster orders answers at" in done.output
    assert "name that one with --dir" in done.output, "`seriatim cluster` can kill what it started elsewhere"


async def test_a_program_gets_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim_local.commands._wants_json", lambda: True)
    async with answering("standalone") as address:
        done = await status(tmp_path, address)
    found = json.loads(done.output)
    assert (found["standalone"], found["cluster"], found["address"]) == (True, "standalone", address)
    assert [broker["name"] for broker in found["brokers"]] == ["g0-0", "g0-1"]


@pytest.mark.parametrize("addresses", [(), (SILENT,)])
async def test_where_nothing_answers_no_cluster_runs(tmp_path: Path, addresses: tuple[str, ...]) -> None:
    done = await status(tmp_path, *addresses)
    assert isinstance(done.exception, PreconditionError)
    assert "no cluster runs" in str(done.exception)
