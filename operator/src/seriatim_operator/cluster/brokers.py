"""Calls the brokers of one cluster over gRPC: Admin and Operations.

Any broker answers any call. So a call tries the addresses of all brokers one after another, first the one that answered
last. Every call has a deadline. It carries the epoch of the operator's Lease, and brokers refuse to write for a lower
epoch.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import structlog
from seriatim_api.errors import (
    CoordinatorBehindError,
    RoutingError,
    SeriatimError,
    StaleOperatorError,
    UnavailableError,
    UnknownTopicError,
)
from seriatim_api.network.grpc_options import DIAL_OPTIONS, PING_OPTIONS
from seriatim_api.status import error_from_proto, from_status
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, operations_pb2, operations_pb2_grpc, records_pb2

EPOCH_METADATA = "seriatim-operator-epoch"

ATTEMPT_S = 2.0
MOVE_S = 10.0
"""Seconds that one broker has to answer a rewind, skip, pause or resume on many partitions."""

PARTITIONS_PER_CALL = 1000
"""The most partitions in one call that rewinds, skips, pauses or resumes a consumer group."""

WATCH_SILENCE_S = 10.0
"""A broker sends something on a watch every 3 s. After this many seconds of silence the operator asks another one."""

CLOSE_S = 1.0
"""Seconds that calls under way get when their connection is closed, because its broker has left or the certificates
have changed."""

CALL_S = 8.0
MEMBERS_S = 4.0
"""Seconds in which brokers name the members. If two of them need longer, etcd does not answer them, and
administrators are told that within 10 s of its loss."""

PAUSE_S = 0.1
SWITCH_S = 15.0

_OPTIONS = (
    *DIAL_OPTIONS,
    *PING_OPTIONS,
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_500),
    ("grpc.max_reconnect_backoff_ms", 500),
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The certificates of a client as PEM texts, and the name that every broker's certificate has."""

    ca: bytes
    certificate: bytes
    key: bytes
    server_name: str

    def __repr__(self) -> str:
        return f"Credentials(server_name={self.server_name!r})"


class Brokers:
    """A client of one cluster's brokers.

    A call that fails raises `SeriatimError`: the error that a broker answered, or `UnavailableError` if none answers
    within 8 s (15 s for calls that make, change or delete a topic, 10 s for operations on consumer groups, 4 s for the
    members). If a call is cancelled or fails, the brokers may still carry it out.

    Args:
        cluster: The name of the cluster, for messages.
        epoch: Returns the epoch of the Lease, at each call; None for a client that is not the operator.
    """

    def __init__(self, cluster: str, epoch: Callable[[], int] | None) -> None:
        self.cluster = cluster
        self._epoch = epoch
        self._addresses: tuple[str, ...] = ()
        self._good = ""
        self._bad = ""
        self._credentials: Credentials | None = None
        self._channels: dict[str, Any] = {}
        self._retired: list[asyncio.Task[None]] = []

    def reach(self, addresses: Sequence[str], credentials: Credentials | None) -> None:
        """Set the brokers' addresses and the certificates. Connections to other addresses are closed.

        New certificates close all connections.
        """
        stale = set(self._channels) - set(addresses) if credentials == self._credentials else set(self._channels)
        for address in stale:
            channel = self._channels.pop(address)
            self._retired = [task for task in self._retired if not task.done()]
            self._retired.append(asyncio.create_task(channel.close(CLOSE_S), name=f"close {address}"))
        self._addresses = tuple(addresses)
        self._credentials = credentials

    @property
    def is_reachable(self) -> bool:
        """Whether the address of any broker is known."""
        return bool(self._addresses)

    async def close(self) -> None:
        """Close all connections. Calls under way are cancelled."""
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close(None) for channel in channels), *self._retired, return_exceptions=True)

    # ---- groups and members ----

    async def list_broker_groups(self, *, with_counts: bool) -> list[operations_pb2.BrokerGroupDescription]:
        """The broker groups with their members, within 4 s. With counts the broker reads every chain: within 8 s."""
        request = operations_pb2.ListBrokerGroupsRequest(with_counts=with_counts)
        within_s = CALL_S if with_counts else MEMBERS_S
        return list((await self._operations("ListBrokerGroups", request, within_s)).groups)

    async def describe_cluster(self) -> broker_pb2.DescribeClusterResponse:
        """The cluster's id, and which broker is the controller."""
        response: broker_pb2.DescribeClusterResponse = await self._admin(
            "DescribeCluster", broker_pb2.DescribeClusterRequest()
        )
        return response

    async def set_broker_group(
        self, group: str, intent: records_pb2.BrokerGroupIntent.ValueType, weight: float
    ) -> None:
        """Set the intent and weight of a broker group."""
        request = operations_pb2.SetBrokerGroupRequest(group=group, intent=intent, weight=weight)
        await self._operations("SetBrokerGroup", request)

    async def remove_broker_group(self, group: str) -> None:
        """Have the brokers forget a broker group that holds no segment any more.

        Raises:
            PreconditionError: It still holds segments.
        """
        await self._operations("RemoveBrokerGroup", operations_pb2.RemoveBrokerGroupRequest(group=group))

    async def check_restart(self, broker: str) -> operations_pb2.CheckRestartResponse:
        """Ask the brokers whether a member may be stopped now."""
        request = operations_pb2.CheckRestartRequest(broker=broker)
        response: operations_pb2.CheckRestartResponse = await self._operations("CheckRestart", request)
        return response

    async def declare_dead(self, broker: str, incarnation: str, run: int, evidence: str) -> None:
        """Have the brokers write a death certificate. The caller has proof that the member run has ended."""
        request = broker_pb2.DeclareDeadRequest(
            broker=broker, run=run, issuer="operator", incarnation=incarnation, evidence=evidence
        )
        await self._admin("DeclareDead", request)

    # ---- topics ----

    async def create_topic(
        self, name: str, partition_count: int, settings: records_pb2.TopicSettings, incarnation: str
    ) -> records_pb2.TopicRecord:
        """Make a topic. A second call with the same incarnation makes no second topic."""
        request = broker_pb2.CreateTopicRequest(
            name=name, partition_count=partition_count, settings=settings, incarnation=incarnation
        )
        record: records_pb2.TopicRecord = await self._admin("CreateTopic", request, attempt_s=SWITCH_S)
        return record

    async def update_topic(self, request: broker_pb2.UpdateTopicRequest) -> records_pb2.TopicRecord:
        """Add partitions or change settings, as the request says."""
        record: records_pb2.TopicRecord = await self._admin("UpdateTopic", request, attempt_s=SWITCH_S)
        return record

    async def delete_topic(self, name: str, incarnation: str) -> None:
        """Delete the topic of that incarnation with its data. A later topic of the same name stays."""
        request = broker_pb2.DeleteTopicRequest(name=name, incarnation=incarnation)
        await self._admin("DeleteTopic", request, attempt_s=SWITCH_S)

    async def ask_for_losses(self) -> dict[str, str]:
        """What each broker says that the coordinator has lost, by the broker's address; an empty text: nothing.

        Each broker looks at the coordinator for the answer. Brokers that give none are missing in it.

        Raises:
            StaleOperatorError: A newer operator acts: this one must end.
        """
        answers = await asyncio.gather(*(self._loss_of(address) for address in self._addresses))
        return {address: lost for address, lost in zip(self._addresses, answers, strict=True) if lost is not None}

    async def _loss_of(self, address: str) -> str | None:
        """What one broker says that the coordinator has lost; None if it gives no answer.

        It is asked for a topic that was never made: a broker does not say that a topic is unknown if the coordinator
        may have lost it.
        """
        stub = broker_pb2_grpc.AdminStub(self._channel(address))  # type: ignore[no-untyped-call]
        request = broker_pb2.DescribeTopicRequest(name=uuid.uuid4().hex)
        try:
            await _answer(stub.DescribeTopic(request, timeout=ATTEMPT_S, metadata=self._metadata()), address)
        except UnknownTopicError:
            return ""
        except CoordinatorBehindError as exc:
            return str(exc)
        except StaleOperatorError:
            raise
        except SeriatimError:
            return None
        return None

    async def list_topics(self, limit: int) -> list[records_pb2.TopicRecord]:
        """The first topics by name, at most `limit`."""
        return list((await self._admin("ListTopics", broker_pb2.ListTopicsRequest(limit=limit))).topics)

    async def list_consumer_groups(self, topic: str) -> list[str]:
        """The names of the consumer groups of a topic.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        request = broker_pb2.ListConsumerGroupsRequest(topic=topic)
        return list((await self._admin("ListConsumerGroups", request)).groups)

    async def describe_topic(self, name: str) -> broker_pb2.DescribeTopicResponse:
        """The topic with its chains."""
        request = broker_pb2.DescribeTopicRequest(name=name)
        response: broker_pb2.DescribeTopicResponse = await self._admin("DescribeTopic", request)
        return response

    async def watch_topics(self) -> AsyncIterator[broker_pb2.WatchTopicsResponse]:
        """Yield all topics, then each change, as one broker reports them. If it fails, the next call asks another
        broker.

        Raises:
            SeriatimError: The broker does not answer, is silent for 10 s, or ended the stream. Call again.
        """
        if not self._addresses:
            raise UnavailableError(f"no broker of {self.cluster} is there yet")
        address = self._in_turn()[0]
        stub = broker_pb2_grpc.AdminStub(self._channel(address))  # type: ignore[no-untyped-call]
        call = stub.WatchTopics(broker_pb2.WatchTopicsRequest(), metadata=self._metadata())
        reading = asyncio.ensure_future(call.read())
        try:
            while True:
                done, _ = await asyncio.wait([reading], timeout=WATCH_SILENCE_S)
                if not done:
                    raise UnavailableError(f"{address} has reported nothing of its topics for {WATCH_SILENCE_S:.0f} s")
                if reading.cancelled():  # by gRPC: `reach` has closed the connection
                    raise UnavailableError(f"the connection to {address} was closed")
                response = reading.result()
                if response is grpc.aio.EOF:
                    raise UnavailableError(f"{address} ended the watch")
                self._good = address
                yield response
                reading = asyncio.ensure_future(call.read())
        except grpc.aio.AioRpcError as exc:
            self._forget(address)
            raise from_status(exc.code(), exc.details(), exc.trailing_metadata()) from exc
        except UnavailableError:
            self._forget(address)
            raise
        finally:
            call.cancel()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def is_any_there(self) -> bool:
        """Whether any broker answers a call for which it needs no etcd. At most 4 are asked."""
        for address in self._in_turn()[:4]:
            if await self._is_there(address):
                return True
        return False

    async def _is_there(self, address: str) -> bool:
        """Whether a broker answers at all. The call is one that every broker refuses at once."""
        stub = broker_pb2_grpc.AdminStub(self._channel(address))  # type: ignore[no-untyped-call]
        call = stub.DescribeGroup(broker_pb2.DescribeGroupRequest(), timeout=ATTEMPT_S, metadata=self._metadata())
        try:
            await _answer(call, address)
        except UnavailableError:
            return False
        except SeriatimError:
            pass  # it refuses, so it is there
        return True

    async def create_consumer_group(
        self, topic: str, group: str, at: broker_pb2.GroupTarget, settings: records_pb2.GroupSettings | None = None
    ) -> bool:
        """Write a consumer group's cursors before a consumer joins. Returns False if the consumer group was there.

        Without settings it is exclusive.
        """
        request = broker_pb2.CreateConsumerGroupRequest(topic=topic, group=group, settings=settings)
        if at.HasField("position"):
            # As the command does. Without it, a consumer group that begins at the first message is not notified of a
            # gap that was declared there, and one that begins at the end begins where an unsettled segment does.
            request.start = at.position
        else:
            request.at.CopyFrom(at)
        return bool((await self._admin("CreateConsumerGroup", request)).created)

    async def move_consumer_group(self, topic: str, group: str, to: broker_pb2.GroupTarget, request_id: bytes) -> int:
        """Rewind or skip the consumer group on all its partitions, once for each `request_id`.

        Returns:
            On how many partitions.

        Raises:
            SeriatimError: If the plan was refused, the consumer group cannot go there on some partition and was not
                moved. If an operation failed, some partitions may be moved and others not: call again with the same
                `request_id`.
        """
        request = broker_pb2.PlanGroupMoveRequest(topic=topic, group=group, to=to)
        plan = (await self._admin("PlanGroupMove", request, MOVE_S)).moves
        moves = [move for move in plan if move.group.has_cursor]
        for move in moves:
            if move.HasField("error"):
                raise error_from_proto(move.error)
        for operation in (records_pb2.GROUP_OPERATION_REWIND, records_pb2.GROUP_OPERATION_SKIP):
            rows = [
                broker_pb2.OperatedPartition(
                    partition=move.group.partition, group_epoch=move.group.group_epoch, offset=move.to_offset
                )
                for move in moves
                if move.operation == operation
            ]
            await self._operate_consumer_group(topic, group, operation, rows, request_id)
        return len(moves)

    async def hold_consumer_group(self, topic: str, group: str, *, paused: bool) -> None:
        """Pause the consumer group on all its partitions, or resume it."""
        operation = records_pb2.GROUP_OPERATION_PAUSE if paused else records_pb2.GROUP_OPERATION_RESUME
        await self._operate_on_all(topic, group, operation)

    async def configure_consumer_group(self, topic: str, group: str, settings: records_pb2.GroupSettings) -> None:
        """Change the settings that are set, on all partitions of the consumer group.

        Raises:
            SeriatimError: A partition refuses it, for example another mode while a consumer is connected. Other
                partitions may have the new settings: call again.
        """
        await self._operate_on_all(topic, group, records_pb2.GROUP_OPERATION_CONFIGURE, settings)

    async def parked_keys(self, topic: str, group: str, partition: int, limit: int) -> list[broker_pb2.GroupKey]:
        """The first parked keys of a partition."""
        request = broker_pb2.ListGroupKeysRequest(
            topic=topic, group=group, partition=partition, states=[broker_pb2.KEY_STATE_PARKED], limit=limit
        )
        return list((await self._admin("ListGroupKeys", request)).keys)

    async def _operate_on_all(
        self,
        topic: str,
        group: str,
        operation: records_pb2.GroupOperation.ValueType,
        settings: records_pb2.GroupSettings | None = None,
    ) -> None:
        described = await self.describe_consumer_group(topic, group)
        rows = [broker_pb2.OperatedPartition(partition=row.partition) for row in described if row.has_cursor]
        await self._operate_consumer_group(topic, group, operation, rows, os.urandom(16), settings)

    async def _operate_consumer_group(
        self,
        topic: str,
        group: str,
        operation: records_pb2.GroupOperation.ValueType,
        rows: Sequence[broker_pb2.OperatedPartition],
        request_id: bytes,
        settings: records_pb2.GroupSettings | None = None,
    ) -> None:
        for start in range(0, len(rows), PARTITIONS_PER_CALL):
            request = broker_pb2.OperateGroupRequest(
                topic=topic,
                group=group,
                operation=operation,
                request_id=request_id,
                partitions=rows[start : start + PARTITIONS_PER_CALL],
                settings=settings,
            )
            for result in (await self._admin("OperateGroup", request, MOVE_S)).results:
                if result.HasField("error"):
                    raise error_from_proto(result.error)

    async def delete_consumer_group(self, topic: str, group: str) -> None:
        """Delete the cursors of a consumer group that has no consumers."""
        await self._admin("DeleteConsumerGroup", broker_pb2.DeleteConsumerGroupRequest(topic=topic, group=group))

    async def describe_consumer_group(self, topic: str, group: str) -> list[broker_pb2.GroupPartition]:
        """The consumer group's places, one for each partition."""
        request = broker_pb2.DescribeGroupRequest(topic=topic, group=group)
        return list((await self._admin("DescribeGroup", request)).partitions)

    # ---- calls ----

    async def _admin(self, method: str, request: Any, attempt_s: float = ATTEMPT_S) -> Any:
        return await self._ask(broker_pb2_grpc.AdminStub, method, request, attempt_s)

    async def _operations(self, method: str, request: Any, within_s: float = CALL_S) -> Any:
        return await self._ask(operations_pb2_grpc.OperationsStub, method, request, within_s / 2, within_s)

    async def _ask(
        self, stub: Callable[[Any], Any], method: str, request: Any, attempt_s: float, within_s: float = CALL_S
    ) -> Any:
        """Ask one broker after another until one answers or the time is over. So a request may be carried out twice."""
        until_s = time.monotonic() + max(within_s, attempt_s)
        last: SeriatimError = UnavailableError(f"no broker of {self.cluster} is there yet")
        while self._addresses:
            for address in self._in_turn():
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise last
                call = getattr(stub(self._channel(address)), method)
                try:
                    answer = await _answer(
                        call(request, timeout=min(left_s, attempt_s), metadata=self._metadata()), address
                    )
                except UnavailableError as exc:
                    last = exc
                    self._forget(address)
                except RoutingError as exc:
                    last = exc
                else:
                    self._good = address
                    return answer
            await asyncio.sleep(PAUSE_S)
        raise last

    def _in_turn(self) -> list[str]:
        """All addresses: first the one that answered last, at the end the one that failed last."""
        return sorted(self._addresses, key=lambda address: (address != self._good, address == self._bad))

    def _forget(self, address: str) -> None:
        self._bad = address
        if self._good == address:
            self._good = ""

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._epoch is None else ((EPOCH_METADATA, str(self._epoch())),)

    def _channel(self, address: str) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            credentials = self._credentials
            if credentials is None:
                channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
            else:
                secure = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate)
                # The operator connects to the pods' addresses, and every broker's certificate has the cluster's name.
                override = ("grpc.ssl_target_name_override", credentials.server_name)
                channel = grpc.aio.secure_channel(address, secure, options=(*_OPTIONS, override))
            self._channels[address] = channel
        return channel


async def _answer(call: Awaitable[Any], address: str) -> Any:
    """The answer to a call.

    Raises:
        SeriatimError: The broker answered with an error or not at all, or the connection was closed.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as exc:
        raise from_status(exc.code(), exc.details(), exc.trailing_metadata()) from exc
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # gRPC cancels calls under way when their channel is closed, as `reach` does. Without this, the caller would
        # believe that it was cancelled itself.
        raise UnavailableError(f"the connection to {address} was closed") from exc
