"""The members of a partition's open segment. With them a fault can hit a master without a look-up by the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from seriatim_api.errors import BadRequestError, SeriatimError, UnavailableError
from seriatim_api.network.tls import TlsFiles
from seriatim_broker.rpc.calls.command_channel import AskedBroker, transport_of

ATTEMPT_DEADLINE_S: Final = 3.0
"""For the answer of one broker. Then the next one is asked."""


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
    """The broker group that now has a partition's open segment, and its members, with the master first.

    Args:
        addresses: Addresses of brokers. They are asked in this order until one answers.
        tls: The certificate files of a client; None: plain text.
        topic: The topic's name.
        partition: The partition's number in the topic.

    Raises:
        UnknownTopicError: There is no such topic.
        PartitionOutOfRangeError: The topic has fewer partitions.
        UnavailableError: No broker answered, each within `ATTEMPT_DEADLINE_S`.
    """
    transport = transport_of(tls)
    last: SeriatimError = UnavailableError("no broker runs")
    for address in addresses:
        try:
            async with AskedBroker(address, transport) as broker:
                record = await broker.describe_chain(topic, partition, deadline_s=ATTEMPT_DEADLINE_S)
        except SeriatimError as error:
            if not error.retriable:
                raise
            last = error
        else:
            segment = record.segments[-1]
            return segment.group, tuple(member.broker for member in segment.members)
    raise UnavailableError(f"no broker could name the members of {topic}/{partition}: {last.message}") from last
