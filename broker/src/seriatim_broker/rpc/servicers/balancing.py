"""Balance, for humans and other brokers: any broker answers, and the controller plans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from seriatim_api.ids import PartitionId
from seriatim_api.v1 import operations_pb2, operations_pb2_grpc

from ...core.control.balance import BrokerGroupShare, Move, OpenSegment
from ...core.values.chain import Chain
from ...runtime.controller.controller import Controller
from ...runtime.driver.traffic import Measured
from ..calls.outbound import BrokerCalls, operator_epoch
from ..calls.services import Services, controller_elsewhere, guard_of_call, remaining_s, typed_errors


class BalancingServicer(operations_pb2_grpc.BalancingServicer):
    """Serves `seriatim.v1.Balancing`."""

    def __init__(self, services: Services, controller: Controller, calls: BrokerCalls) -> None:
        self._services = services
        self._controller = controller
        self._calls = calls

    @typed_errors
    async def Balance(  # noqa: N802 - the contract's names
        self, request: operations_pb2.BalanceRequest, context: Any
    ) -> operations_pb2.BalanceResponse:
        """The loads, and the moves that would even them out. With `run`, the controller begins to make these moves."""
        if request.run:
            await guard_of_call(self._services, context)()
        if not self._controller.election.is_controller:
            answer: operations_pb2.BalanceResponse = await self._calls.balancing(
                await controller_elsewhere(self._services, context), "Balance", request, remaining_s(context) * 0.95,
                operator_epoch(context),
            )  # fmt: skip
            return answer
        look = await self._controller.balancer.ask(run=request.run)
        return operations_pb2.BalanceResponse(
            before=_loads(look.open_segments, look.shares),
            after=_loads(look.after, look.shares),
            moves=[_move(move, look.chains[move.open_segment.partition]) for move in look.moves],
            reason=look.reason,
        )

    @typed_errors
    async def MeasureTraffic(  # noqa: N802
        self, _request: operations_pb2.MeasureTrafficRequest, _context: Any
    ) -> operations_pb2.MeasureTrafficResponse:
        """What this broker took from producers lately."""
        measured = self._services.traffic.measure()
        return operations_pb2.MeasureTrafficResponse(
            seconds=measured.seconds,
            partitions=[
                operations_pb2.PartitionTraffic(partition_id=partition, batches=batches, bytes=size)
                for partition, (batches, size) in measured.partitions.items()
            ],
        )


async def measure_traffic(calls: BrokerCalls, broker: str, deadline_s: float) -> Measured:
    """Ask another broker what it took from producers lately."""
    request = operations_pb2.MeasureTrafficRequest()
    told: operations_pb2.MeasureTrafficResponse = await calls.balancing(broker, "MeasureTraffic", request, deadline_s)
    return Measured(told.seconds, {PartitionId(row.partition_id): (row.batches, row.bytes) for row in told.partitions})


def _loads(open_segments: Iterable[OpenSegment], shares: Iterable[BrokerGroupShare]) -> list[operations_pb2.BrokerLoad]:
    """One row for each broker that takes part."""
    rows = {
        broker: operations_pb2.BrokerLoad(broker=broker, group=share.name)
        for share in shares
        for broker in share.brokers
    }
    for open_segment in open_segments:
        row = rows.get(open_segment.master)
        if row is not None:
            row.heads_as_master += 1
            row.bytes_per_s += open_segment.load
    return list(rows.values())


def _move(move: Move, chain: Chain) -> operations_pb2.HeadMove:
    open_segment = move.open_segment
    return operations_pb2.HeadMove(
        partition_id=open_segment.partition,
        topic=chain.topic,
        partition=chain.number,
        from_group=open_segment.broker_group,
        from_master=open_segment.master,
        to_group=move.to_broker_group,
        to_master=move.to_master,
        bytes_per_s=open_segment.load,
    )
