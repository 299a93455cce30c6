"""Asks one broker from a command: a channel for a few calls, with errors of the catalogue.

Brokers ask one another with `outbound`, which keeps its channels and marks its calls as forwarded.
"""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType
from typing import Any, TypeVar

import grpc
from seriatim_api.errors import UnavailableError
from seriatim_api.network.tls import TlsFiles, TlsSource
from seriatim_api.status import from_status
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, operations_pb2, operations_pb2_grpc

from .transport import PLAIN, TlsTransport, Transport

_Answer = TypeVar("_Answer")


def transport_of(tls: TlsFiles | None) -> Transport:
    """How brokers are reached with these certificates; None: in plain text.

    Raises:
        PreconditionError: A file cannot be used. The text says why, and what to do.
    """
    return PLAIN if tls is None else TlsTransport(TlsSource(tls))


class AskedBroker:
    """One broker. Use it in an `async with`, which closes the channel at its end.

    Each method raises the `SeriatimError` that the broker answered, or `UnavailableError` or `DeadlineExceededError` if
    it did not answer. `deadline_s` is for each call.
    """

    def __init__(self, address: str, transport: Transport = PLAIN) -> None:
        self._address = address
        self._transport = transport

    async def __aenter__(self) -> AskedBroker:
        self._channel = self._transport.channel(self._address)
        self._admin: Any = broker_pb2_grpc.AdminStub(self._channel)  # type: ignore[no-untyped-call]
        self._operations: Any = operations_pb2_grpc.OperationsStub(self._channel)  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def describe_chain(self, topic: str, partition: int, *, deadline_s: float) -> Any:
        """The record of a partition's chain (`records_pb2.ChainRecord`)."""
        request = broker_pb2.DescribeChainRequest(topic=topic, partition=partition)
        return await self._answer(self._admin.DescribeChain(request, timeout=deadline_s))

    async def list_topics(self, *, deadline_s: float) -> list[str]:
        """The names of all topics."""
        answer = await self._answer(self._admin.ListTopics(broker_pb2.ListTopicsRequest(), timeout=deadline_s))
        return [topic.name for topic in answer.topics]

    async def list_groups(self, topic: str, *, deadline_s: float) -> list[str]:
        """The names of the consumer groups of a topic, those of consumers of broadcast groups among them."""
        request = broker_pb2.ListConsumerGroupsRequest(topic=topic)
        return list((await self._answer(self._admin.ListConsumerGroups(request, timeout=deadline_s))).groups)

    async def describe_group(self, topic: str, group: str, *, deadline_s: float) -> list[broker_pb2.GroupPartition]:
        """The place of a consumer group on each partition."""
        request = broker_pb2.DescribeGroupRequest(topic=topic, group=group)
        return list((await self._answer(self._admin.DescribeGroup(request, timeout=deadline_s))).partitions)

    async def tell_known(self, *, deadline_s: float) -> list[operations_pb2.TellKnownResponse]:
        """All that the broker knows of the cluster, page by page."""
        pages: list[operations_pb2.TellKnownResponse] = []
        after = 0
        while not pages or not pages[-1].is_last:
            request = operations_pb2.TellKnownRequest(after_partition_id=after)
            pages.append(await self._answer(self._operations.TellKnown(request, timeout=deadline_s)))
            after = max((known.partition_id for known in pages[-1].partitions), default=after)
        return pages

    async def _answer(self, call: Awaitable[_Answer]) -> _Answer:
        try:
            return await call
        except grpc.aio.AioRpcError as exc:
            cause = self._transport.tls_failure(exc.details() or "")
            if cause is not None:
                raise UnavailableError(f"{self._address}: {cause}") from exc
            raise from_status(exc.code(), exc.details(), exc.trailing_metadata()) from exc
