"""Real brokers: the gate before a restart; an older operator is refused."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from seriatim_api import errors
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, operations_pb2, operations_pb2_grpc, records_pb2

from .cluster import Cluster, running_cluster
from .wire import DEADLINE_S, OPTIONS, Admin, Producer, refusal

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

ACTIVE = records_pb2.BROKER_GROUP_INTENT_ACTIVE
CORDONED = records_pb2.BROKER_GROUP_INTENT_CORDONED


class Operations:
    """Calls of the service, with the epoch of an operator or without an epoch."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.stub: Any = operations_pb2_grpc.OperationsStub(self.channel)  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Operations:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def groups(self) -> dict[str, operations_pb2.BrokerGroupDescription]:
        request = operations_pb2.ListBrokerGroupsRequest(with_counts=True)
        listed = await self.stub.ListBrokerGroups(request, timeout=DEADLINE_S)
        return {group.record.group: group for group in listed.groups}

    async def set(self, group: str, intent: records_pb2.BrokerGroupIntent.ValueType, epoch: int | None = None) -> Any:
        request = operations_pb2.SetBrokerGroupRequest(group=group, intent=intent)
        metadata = () if epoch is None else (("seriatim-operator-epoch", str(epoch)),)
        return await self.stub.SetBrokerGroup(request, timeout=DEADLINE_S, metadata=metadata)

    async def check(self, broker: str) -> operations_pb2.CheckRestartResponse:
        request = operations_pb2.CheckRestartRequest(broker=broker)
        answer: operations_pb2.CheckRestartResponse = await self.stub.CheckRestart(request, timeout=DEADLINE_S)
        return answer


async def until(ask: Callable[[], Awaitable[Any]], condition: Callable[[Any], bool]) -> Any:
    """The first answer of which the condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            answer = await ask()
            if condition(answer):
                return answer
            await asyncio.sleep(0.1)  # between two questions


async def test_the_gate_asks_the_members(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, 2) as cluster,
        Admin(cluster.addresses["g0-0"]) as admin,
        Operations(cluster.addresses["g0-0"]) as operations,
    ):
        partition = (await admin.create("orders")).partition_ids[0]
        route = await admin.route(partition)
        async with Producer(route.master_address) as producer:
            await producer.append(partition, 0, [b"one"], starts=True)
        master = route.master_broker
        own, _, slot = master.partition("-")
        mate, other = f"{own}-{1 - int(slot)}", "g1" if own == "g0" else "g0"
        for broker in (master, mate):
            answer = await until(functools.partial(operations.check, broker), is_safe)
            assert (answer.partition_id, answer.segment, answer.index, answer.segments_checked) == (partition, 1, 1, 1)

        # the other group lost a member: the open segment would have nowhere to go
        await cluster.brokers[f"{other}-1"].end(signal.SIGKILL)
        async with Operations(cluster.addresses[master]) as there:
            await until(
                lambda: there.check(mate),
                lambda answer: answer.verdict == operations_pb2.RESTART_VERDICT_NO_OTHER_GROUP,
            )
            await cluster.brokers[f"{other}-1"].start()
            await cluster.ready(f"{other}-1")
            await until(lambda: there.check(mate), is_safe)

            # the master's mate is gone: the segment moves on, and what is sealed stands on one disk that runs
            await cluster.brokers[mate].end(signal.SIGKILL)
            answer = await until(lambda: there.check(master), lambda answer: not is_safe(answer))
            await until(lambda: admin_chain(cluster, there), lambda chain: len(chain.segments) == 2)
            answer = await until(
                lambda: there.check(master), lambda answer: answer.verdict == operations_pb2.RESTART_VERDICT_PEER_AWAY
            )
            assert (answer.partition_id, answer.segment) == (partition, 1)
        unknown = operations_pb2.CheckRestartRequest(broker="g9-0")
        assert isinstance(await refusal(operations.stub.CheckRestart(unknown)), errors.BadRequestError)


def is_safe(answer: operations_pb2.CheckRestartResponse) -> bool:
    return answer.verdict == operations_pb2.RESTART_VERDICT_SAFE


async def admin_chain(cluster: Cluster, operations: Operations) -> records_pb2.ChainRecord:
    stub: Any = broker_pb2_grpc.AdminStub(operations.channel)  # type: ignore[no-untyped-call]
    chain: records_pb2.ChainRecord = await stub.DescribeChain(
        broker_pb2.DescribeChainRequest(topic="orders", partition=0), timeout=DEADLINE_S
    )
    return chain


async def test_of_two_operators_the_older_changes_nothing(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, 1) as cluster,
        Operations(cluster.addresses["g0-0"]) as one,
        Operations(cluster.addresses["g0-1"]) as other,
    ):
        assert (await one.set("g0", CORDONED, epoch=4)).record.intent == CORDONED
        assert (await other.set("g0", ACTIVE, epoch=5)).record.intent == ACTIVE
        stale = await refusal(one.set("g0", CORDONED, epoch=4))
        assert isinstance(stale, errors.StaleOperatorError)
        assert stale.details == {"epoch": "4", "newest": "5"}
        assert (await other.groups())["g0"].record.intent == ACTIVE
        old, new = (("seriatim-operator-epoch", "4"),), (("seriatim-operator-epoch", "5"),)
        create = broker_pb2.CreateTopicRequest(name="orders", partition_count=1)
        for operations in (one, other):  # one of them passes it on to the controller
            stub: Any = broker_pb2_grpc.AdminStub(operations.channel)  # type: ignore[no-untyped-call]
            calls: list[tuple[Any, Any]] = [
                (stub.CreateTopic, create),
                (stub.DeleteTopic, broker_pb2.DeleteTopicRequest(name="orders")),
                (stub.SwitchPartition, broker_pb2.SwitchPartitionRequest(partition_id=1)),
                (stub.DeclareDead, broker_pb2.DeclareDeadRequest(broker="g0-0", issuer="t", incarnation="gone", run=1)),
                (operations.stub.CheckRestart, operations_pb2.CheckRestartRequest(broker="g0-0")),
            ]
            for call, request in calls:
                refused = await refusal(call(request, timeout=DEADLINE_S, metadata=old))
                assert isinstance(refused, errors.StaleOperatorError), request
            await stub.CreateTopic(create, timeout=DEADLINE_S, metadata=new)
            await stub.DeleteTopic(calls[1][1], timeout=DEADLINE_S, metadata=new)
        await other.set("g0", CORDONED)  # an administrator needs no Lease
        assert isinstance(
            await refusal(one.stub.SetBrokerGroup(operations_pb2.SetBrokerGroupRequest(group="g7"))),
            errors.BadRequestError,
        )
