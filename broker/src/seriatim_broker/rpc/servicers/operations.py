"""Calls of administrators and the operator about broker groups: translated here, carried out in the runtime.

Any broker answers. The controller follows what is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from seriatim_api.errors import BadRequestError
from seriatim_api.ids import check_name
from seriatim_api.v1 import operations_pb2, operations_pb2_grpc, records_pb2

from ...runtime.controller.broker_groups import BrokerGroups, BrokerGroupView
from ...runtime.coordinator.records import member_from_record
from ...runtime.duties.restart_gate import RestartGate
from ..calls.services import Services, guard_of_call, remaining_s, typed_errors

_INTENTS = frozenset(
    {
        records_pb2.BROKER_GROUP_INTENT_ACTIVE,
        records_pb2.BROKER_GROUP_INTENT_CORDONED,
        records_pb2.BROKER_GROUP_INTENT_DRAINING,
    }
)

GATE_S_MAX = 5.0
"""After this time the gate answers UNKNOWN, whatever the caller's deadline is."""


@dataclass(slots=True, eq=False)
class OperationsServicer(operations_pb2_grpc.OperationsServicer):
    """Serves `seriatim.v1.Operations`."""

    _services: Services
    _groups: BrokerGroups
    _gate: RestartGate
    _known: Callable[[int], operations_pb2.TellKnownResponse]

    @typed_errors
    async def TellKnown(  # noqa: N802
        self, request: operations_pb2.TellKnownRequest, context: Any
    ) -> operations_pb2.TellKnownResponse:
        """What this broker knows. It does not ask the coordinator."""
        return self._known(request.after_partition_id)

    @typed_errors
    async def ListBrokerGroups(  # noqa: N802 - the contract's names
        self, request: operations_pb2.ListBrokerGroupsRequest, context: Any
    ) -> operations_pb2.ListBrokerGroupsResponse:
        """The broker groups with their intents, and with counts of what they hold."""
        await guard_of_call(self._services, context)()
        views = await self._groups.views(with_counts=request.with_counts)
        return operations_pb2.ListBrokerGroupsResponse(groups=map(self._describe, views))

    @typed_errors
    async def SetBrokerGroup(  # noqa: N802
        self, request: operations_pb2.SetBrokerGroupRequest, context: Any
    ) -> operations_pb2.BrokerGroupDescription:
        """Write the intent or the weight of a broker group."""
        check_name(request.group, "broker group")
        if request.intent and request.intent not in _INTENTS:
            raise BadRequestError(f"this version does not know the intent {request.intent} for a broker group")
        view = await self._groups.set(
            request.group,
            request.intent or None,
            request.weight if request.HasField("weight") else None,
            guard_of_call(self._services, context),
        )
        return self._describe(view)

    @typed_errors
    async def RemoveBrokerGroup(  # noqa: N802
        self, request: operations_pb2.RemoveBrokerGroupRequest, context: Any
    ) -> operations_pb2.RemoveBrokerGroupResponse:
        """Remove a broker group that is drained and does not run."""
        check_name(request.group, "broker group")
        await self._groups.remove(request.group, guard_of_call(self._services, context))
        return operations_pb2.RemoveBrokerGroupResponse()

    @typed_errors
    async def RemoveMember(  # noqa: N802
        self, request: operations_pb2.RemoveMemberRequest, context: Any
    ) -> operations_pb2.RemoveMemberResponse:
        """Remove a broker that is certified dead and whose disk no segment needs."""
        check_name(request.broker, "broker")
        await self._groups.remove_member(request.broker, guard_of_call(self._services, context))
        return operations_pb2.RemoveMemberResponse()

    @typed_errors
    async def CheckRestart(  # noqa: N802
        self, request: operations_pb2.CheckRestartRequest, context: Any
    ) -> operations_pb2.CheckRestartResponse:
        """Whether a broker may be stopped now."""
        await guard_of_call(self._services, context)()
        answer = await self._gate.check(request.broker, min(GATE_S_MAX, remaining_s(context) * 0.8))
        response = operations_pb2.CheckRestartResponse(
            verdict=operations_pb2.RestartVerdict.ValueType(answer.verdict),
            text=answer.text,
            segments_checked=answer.segment_count,
        )
        if answer.finding is not None:
            response.partition_id = answer.finding.need.partition
            response.segment = answer.finding.need.segment_no
            response.epoch = answer.finding.need.epoch
            response.index = answer.finding.index
        return response

    def _describe(self, view: BrokerGroupView) -> operations_pb2.BrokerGroupDescription:
        directory = self._services.directory
        described = operations_pb2.BrokerGroupDescription(record=view.record)
        for record in view.members:
            broker = record.member.broker
            run = directory.member_run_of(broker)
            is_same = run is not None and (run.member, run.run) == (member_from_record(record.member), record.run)
            described.members.add(
                record=record,
                live=is_same and directory.is_live(broker),
                certified=is_same and run in directory.certified,
                disk_state=self._services.disk_state(member_from_record(record.member)),
                unlinked=directory.unlinked(broker) if is_same else (),
            )
        if view.count is not None:
            described.heads = view.count.open_segments
            described.segments = view.count.segments
            described.waits_for = view.count.waits_for
        return described
