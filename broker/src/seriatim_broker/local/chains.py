"""Who is in charge of a partition: so that a fault can be aimed at a master without looking it up first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
from seriatim_api.errors import BadRequestError, SeriatimError, UnavailableError
from seriatim_api.status import from_status
from seriatim_api.tls import TlsFiles
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc

ATTEMPT_DEADLINE_S: Final = 3.0
"""For the answer of one broker; then the next one is asked."""


def parse_partition(text: str) -> tuple[str, int]:
    """Topic and partition number of `TOPIC/PARTITION`, for example `orders/0`.

    Raises:
        BadRequestError: The text does not have that form.
    """
    topic, slash, number = text.rpartition("/")
    if not slash or not topic or not number.isdecimal():
        raise BadRequestError(f"a partition is written TOPIC/PARTITION, for example orders/0, and not {text!r}")
    return topic, int(number)


async def open_members(
    addresses: Sequence[str], tls: TlsFiles | None, topic: str, partition: int
) -> tuple[str, tuple[str, ...]]:
    """The broker group that accepts messages of a partition now, and its members, the master first.

    Args:
        addresses: Brokers; they are asked in this order until one answers.
        tls: A client's certificate files; None speaks plain text.
        topic: Its name.
        partition: Number in the topic.

    Raises:
        UnknownTopicError: There is no such topic.
        PartitionOutOfRangeError: The topic has fewer partitions.
        UnavailableError: No broker answered, each within `ATTEMPT_DEADLINE_S`.
    """
    request = broker_pb2.DescribeChainRequest(topic=topic, partition=partition)
    last: SeriatimError = UnavailableError("no broker runs")
    for address in addresses:
        try:
            record = await _ask(address, tls, request)
        except grpc.aio.AioRpcError as exc:
            error = from_status(exc.code(), exc.details(), list(exc.trailing_metadata() or ()))
            if not error.retriable:
                raise error from exc
            last = error
        else:
            segment = record.segments[-1]
            return segment.group, tuple(member.broker for member in segment.members)
    raise UnavailableError(f"no broker could tell who is in charge of {topic}/{partition}: {last.message}") from last


async def _ask(address: str, tls: TlsFiles | None, request: Any) -> Any:
    async with _channel(address, tls) as channel:
        stub: Any = broker_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        return await stub.DescribeChain(request, timeout=ATTEMPT_DEADLINE_S)


def _channel(address: str, tls: TlsFiles | None) -> Any:
    if tls is None:
        return grpc.aio.insecure_channel(address)
    assert tls.cert is not None
    assert tls.key is not None
    credentials = grpc.ssl_channel_credentials(tls.ca.read_bytes(), tls.key.read_bytes(), tls.cert.read_bytes())
    return grpc.aio.secure_channel(address, credentials)
