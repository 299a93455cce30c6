"""Administration: any broker answers, and passes a call on to the broker that must do it.

The controller makes and deletes topics, the servers of its cursor segments describe a consumer group, and the master
runs a planned switch. A call is passed on once at most, so it never circles.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from seriatim_api.batch import FLAG_CONTROL
from seriatim_api.errors import (
    BadRequestError,
    CompactedError,
    CorruptionError,
    NotServingError,
    PartitionOutOfRangeError,
    PreconditionError,
    RunAliveError,
    SeriatimError,
    UnknownTopicError,
)
from seriatim_api.ids import MemberId, PartitionId, RunId, partition_name
from seriatim_api.v1 import broker_pb2, common_pb2, records_pb2

from ...core.values.effects import LogsListed, Resolved
from ...core.values.events import DeclareGap, FoundDamage, ListLogs, PlanSwitch
from ...core.values.segment import SegmentState
from ...interfaces.coordinator import EventKind, Get, KeyValue
from ...runtime.coordinator.pages import WholeChain, read_whole
from ...runtime.coordinator.records import member_from_record
from ...runtime.membership.registration import certify_death, declare_lost_disks
from ..calls.outbound import is_forwarded, operator_epoch
from ..calls.services import abort, answered, guard_of_call, named, remaining_s, typed_errors
from .consumer_group_keys import ConsumerGroupKeys

EVIDENCE_LENGTH_MAX = 1000
"""Characters of the evidence in a death certificate."""

ALIVE_S_MAX = 3.0
"""Time for the question whether a run answers. A frozen process loses its link earlier, because it is silent."""

SCRUB_READ_BYTES = 4 << 20
SCRUB_BYTES_MAX = 256 << 20
SCRUB_LOGS_MAX = 500
SCRUB_S = 5.0
"""Limits of one call of a scrub. The next call continues where it ended."""


class AdminServicer(ConsumerGroupKeys):
    """Serves `seriatim.v1.Admin`. `topic_admin` has the calls about topics, `consumer_group_admin` those of groups."""

    # ---- chains ----

    @typed_errors
    async def DescribeChain(  # noqa: N802
        self, request: broker_pb2.DescribeChainRequest, _context: Any
    ) -> records_pb2.ChainRecord:
        """The chain of one partition, as one record."""
        item = await self._services.coordinator.get(await self._chain_key(request))
        whole = await self._whole(item) if item is not None else None
        if whole is None:
            raise UnknownTopicError(f"topic {request.topic!r} is being deleted", topic=request.topic)
        return self._services.told(whole)

    async def _whole(self, item: KeyValue) -> WholeChain | None:
        """A chain with its pages, at the version of `item` or a later one; None if it was deleted meanwhile."""
        return await read_whole(self._services.coordinator, self._services.keys, item)

    async def WatchChain(  # noqa: N802
        self, request: broker_pb2.DescribeChainRequest, context: Any
    ) -> AsyncIterator[records_pb2.ChainRecord]:
        """Send the chain record, and each later version when it is written."""
        try:
            key = await self._chain_key(request)
            while True:
                result = await self._services.coordinator.txn((), [Get(key)])
                item = result.responses[0].item
                whole = await self._whole(item) if item is not None else None
                if whole is None:
                    raise UnknownTopicError(f"topic {request.topic!r} is being deleted", topic=request.topic)
                yield self._services.told(whole)
                with contextlib.suppress(CompactedError):
                    async for record in self._later_versions(key, max(result.revision, whole.item.mod_revision) + 1):
                        yield record
                    return
        except SeriatimError as exc:
            await abort(context, exc)

    async def _later_versions(self, key: str, revision: int) -> AsyncIterator[records_pb2.ChainRecord]:
        """The later versions, until the chain is deleted. While the pages of a long chain are read, some are missed."""
        told = 0
        async with contextlib.aclosing(self._services.coordinator.watch(key, start_revision=revision)) as batches:
            async for batch in batches:
                for event in batch.events:
                    if event.kind is EventKind.DELETE:
                        return
                    if event.item.mod_revision <= told:
                        continue
                    whole = await self._whole(event.item)
                    if whole is None:
                        return
                    told = whole.item.mod_revision
                    yield self._services.told(whole)

    async def _chain_key(self, request: broker_pb2.DescribeChainRequest) -> str:
        topic = await self._services.topic(request.topic, or_stage=True)
        if request.partition >= len(topic.partition_ids):
            raise _out_of_range(request.topic, request.partition, len(topic.partition_ids))
        return self._services.keys.chain(PartitionId(topic.partition_ids[request.partition]))

    @typed_errors
    async def SwitchPartition(  # noqa: N802
        self, request: broker_pb2.SwitchPartitionRequest, context: Any
    ) -> common_pb2.Route:
        """Have the master of the open segment run a planned switch."""
        # The operator's epoch is compared before the switch begins, because there is no way back after its fence.
        group, master_to_be = named(request, "target_group"), named(request, "target_master")
        await guard_of_call(self._services, context)()
        chains = await self._services.chains([request.partition_id])
        if not chains:
            raise UnknownTopicError(f"there is no partition id {request.partition_id}", partition=request.partition_id)
        master = chains[0].open_segment.master.broker
        if master != self._services.identity.member.broker:
            if is_forwarded(context):
                raise NotServingError("the partition moved while the call was passed on", retry_after_ms=20)
            route: common_pb2.Route = await self._calls.admin(
                master, "SwitchPartition", request, remaining_s(context) * 0.95, operator_epoch(context)
            )
            return self._addresses.readdressed(route)
        asked = await self._services.ask_core(
            lambda number: PlanSwitch(number, PartitionId(request.partition_id), group or "", master_to_be or ""),
            remaining_s(context),
        )
        reply = answered(asked, Resolved)
        assert reply.route is not None
        return self._addresses.route(reply.route)

    # ---- cluster ----

    @typed_errors
    async def DescribeCluster(  # noqa: N802
        self, _request: broker_pb2.DescribeClusterRequest, _context: Any
    ) -> broker_pb2.DescribeClusterResponse:
        """All members, the controller, and which members have a live key."""
        directory = self._services.directory
        item = await self._services.coordinator.get(self._services.keys.controller)
        controller = records_pb2.ControllerRecord.FromString(item.value).broker if item else ""
        return broker_pb2.DescribeClusterResponse(
            cluster=self._services.keys.cluster,
            cluster_id=self._services.identity.cluster_id,
            controller=controller,
            brokers=[
                broker_pb2.BrokerDescription(
                    record=record,
                    live=directory.is_live(name),
                    disk_state=self._services.disk_state(member_from_record(record.member)),
                )
                for name, record in sorted(directory.members.items())
            ],
        )

    @typed_errors
    async def DeclareDead(  # noqa: N802
        self, request: broker_pb2.DeclareDeadRequest, context: Any
    ) -> broker_pb2.DeclareDeadResponse:
        """Write a death certificate. The caller vouches that the run has ended.

        A run that answers this broker is not certified (`RunAliveError`). Otherwise a switcher that reaches no member
        of a segment would open over it, while this run keeps acknowledging. A missing link proves nothing; the
        caller's word does.
        """
        services = self._services
        known = services.directory.member_run_of(request.broker)
        if known is None:
            raise BadRequestError(f"there is no broker {request.broker!r}", broker=request.broker)
        if not request.issuer:
            raise BadRequestError("a death certificate names its issuer: set `issuer`")
        if not request.run:  # not the last one: it may be younger than the caller knows, and alive
            raise BadRequestError("a death certificate names the run that has ended: set `run`", broker=request.broker)
        incarnation = named(request, "incarnation")
        meant = known.member if incarnation is None else MemberId(known.member.broker, incarnation)
        if meant == known.member and request.run > known.run:
            raise PreconditionError(f"run {request.run} of {request.broker} has not begun: {known.run} is the last one")
        run = RunId(meant, request.run)
        await self._check_not_alive(run, remaining_s(context))
        now_ms = time.time_ns() // 1_000_000
        evidence = f"declared through {services.identity.member.broker} at {now_ms} ms"
        if request.evidence:
            evidence = f"{request.evidence[:EVIDENCE_LENGTH_MAX]}; {evidence}"
        guard = guard_of_call(services, context)
        await certify_death(services.coordinator, services.keys, run, request.issuer, evidence, now_ms, guard=guard)
        return broker_pb2.DeclareDeadResponse()

    async def _check_not_alive(self, run: RunId, left_s: float) -> None:
        services = self._services
        alive_s = min(ALIVE_S_MAX, left_s / 2)
        is_own = run == services.identity.run_id
        if not is_own and (services.is_alive is None or not await services.is_alive(run, alive_s)):
            return
        broker = run.member.broker
        raise RunAliveError(
            f"run {run.run} of {broker} answers {services.identity.member.broker}: it has not ended, and nothing was "
            "written. No data is affected. Remedy: end its process first (stop it, or cut the power of its machine), "
            f"then call again. If only its disk is lost: stop {broker}, and start it once with an empty directory and "
            "--replace-disk; on Kubernetes, annotate its Broker object",
            broker=broker,
            run=run.run,
        )

    @typed_errors
    async def Scrub(  # noqa: N802
        self, request: broker_pb2.ScrubRequest, context: Any
    ) -> broker_pb2.ScrubResponse:
        """Read a part of what a broker holds. Damage is reported, and its repair begins."""
        services = self._services
        if request.broker != services.identity.member.broker:
            passed_on: broker_pb2.ScrubResponse = await self._at_named("Scrub", request, context)
            return passed_on
        until_s = time.monotonic() + min(SCRUB_S, remaining_s(context) / 2)
        answer = broker_pb2.ScrubResponse(partition_id=request.after_partition_id, segment=request.after_segment)
        after, no = PartitionId(request.after_partition_id), request.after_segment
        listed = await services.ask_core(
            lambda number: ListLogs(number, after, no, SCRUB_LOGS_MAX), remaining_s(context)
        )
        assert isinstance(listed, LogsListed)
        for partition, segment, length in listed.logs:
            if answer.read_bytes >= SCRUB_BYTES_MAX or time.monotonic() > until_s:
                return answer
            await self._scrub_log(partition, segment, length, answer)
            answer.partition_id, answer.segment = partition, segment
            answer.read_segments += 1
        answer.done = len(listed.logs) < SCRUB_LOGS_MAX
        return answer

    @typed_errors
    async def ReadQuarantined(  # noqa: N802
        self, request: broker_pb2.ReadQuarantinedRequest, context: Any
    ) -> broker_pb2.ReadQuarantinedResponse:
        """Read some messages that a broker keeps above the length that the chain decided. Nothing is changed."""
        services = self._services
        if request.broker != services.identity.member.broker:
            passed_on: broker_pb2.ReadQuarantinedResponse = await self._at_named("ReadQuarantined", request, context)
            return passed_on
        last = (request.partition_id, request.segment)
        for partition, no, sealed_len, kept_len in services.quarantined_logs():
            start = max(sealed_len, request.index) if (partition, no) == last else sealed_len
            if (partition, no) < last or start >= kept_len:
                continue
            batches = await services.storage.read(partition, no, start, kept_len, SCRUB_READ_BYTES)
            if not batches:
                continue
            messages = [batch for batch in batches if not batch.header.flags & FLAG_CONTROL]
            return broker_pb2.ReadQuarantinedResponse(
                partition_id=partition,
                segment=no,
                sealed_len=sealed_len,
                kept_len=kept_len,
                headers=b"".join(batch.header.raw for batch in messages),
                bodies=b"".join(batch.body for batch in messages),
                next_index=batches[-1].header.end_index,
            )
        return broker_pb2.ReadQuarantinedResponse(done=True)

    async def _at_named(self, method: str, request: Any, context: Any) -> Any:
        """Have the broker answer that the request names.

        Raises:
            BadRequestError: There is no such broker.
        """
        if self._services.directory.member_run_of(request.broker) is None:
            raise BadRequestError(f"there is no broker {request.broker!r}", broker=request.broker)
        return await self._calls.admin(request.broker, method, request, remaining_s(context) * 0.95)

    async def _scrub_log(
        self, partition: PartitionId, segment: int, length: int, answer: broker_pb2.ScrubResponse
    ) -> None:
        """Read one log to its end, or to the first damage."""
        services, index = self._services, 0
        while index < length:
            try:
                batches = await services.storage.read(partition, segment, index, length, SCRUB_READ_BYTES)
            except CorruptionError as exc:
                answer.damages.add(partition_id=partition, segment=segment, index=index, text=str(exc))
                services.driver.feed(FoundDamage(partition, segment))
                return
            if not batches:
                return  # the log was cut or dropped meanwhile
            answer.read_bytes += sum(batch.size_bytes for batch in batches)
            index = batches[-1].header.end_index

    @typed_errors
    async def DeclareGap(  # noqa: N802
        self, request: broker_pb2.DeclareGapRequest, context: Any
    ) -> broker_pb2.DeclareGapResponse:
        """Declare a segment lost. The caller vouches that all its disks are lost for good."""
        services = self._services
        if not request.issuer:
            raise BadRequestError("a declared gap names its issuer: set `issuer`")
        topic = await services.topic(request.topic, or_stage=True)
        if request.partition >= len(topic.partition_ids):
            raise _out_of_range(request.topic, request.partition, len(topic.partition_ids))
        partition = PartitionId(topic.partition_ids[request.partition])
        chain = (await services.chains([partition]))[0]
        segment = chain.segment(request.segment)
        if segment is None:
            raise BadRequestError(
                f"{partition_name(request.topic, request.partition)} has no segment {request.segment}"
            )
        for member in segment.members:
            self._check_gone(member)
        if segment.state not in (SegmentState.OPEN, SegmentState.LOST):
            what = f"segment {segment.no} of {partition_name(request.topic, request.partition)} was declared a gap"
            now_ms = time.time_ns() // 1_000_000
            await declare_lost_disks(services.coordinator, services.keys, segment.members, request.issuer, what, now_ms)
        asked = await services.ask_core(
            lambda number: DeclareGap(number, partition, request.segment), remaining_s(context)
        )
        answered(asked, Resolved)
        return broker_pb2.DeclareGapResponse()

    def _check_gone(self, member: MemberId) -> None:
        """A disk is gone if another one has its slot, or if its last run is certified to have ended."""
        run = self._services.directory.member_run_of(member.broker)
        if run is not None and run.member == member and run not in self._services.directory.certified:
            raise PreconditionError(
                f"no certificate says that run {run.run} of {member.broker} has ended. If its disk is lost for good: "
                f"seriatim member declare-dead {member.broker} --run {run.run}",
                broker=member.broker,
            )


def _out_of_range(topic: str, number: int, count: int) -> PartitionOutOfRangeError:
    plural = "s" * (count != 1)
    return PartitionOutOfRangeError(
        f"topic {topic!r} has {count} partition{plural}, and none with the number {number}: the first one is 0",
        topic=topic,
        partition=number,
        partition_count=count,
    )
