"""Seriatim: a message broker that keeps strict order. This is its client.

    async with Client.connect("127.0.0.1:7000") as client:
        async with client.producer("flights") as producer:
            delivery = await producer.send(b"departed", key=b"N14228")
            receipt = await delivery
        async with client.consumer("flights", "history") as consumer:
            async for message in consumer:
                await consumer.ack(message)

Order: brokers store the messages of one producer to one partition in the order of the sends. Outcomes: a delivery
ends as a `Receipt`, or raises `SendFailedError` (the message is provably not stored and is never delivered) or
`SendUnknownError` (it may be stored or not).

`seriatim.sync` has the same names for programs without asyncio. `seriatim.history` is the history checker.

The client logs warnings to the logger `seriatim`, for example that no broker answers.

This package imports a name only when a program first uses it. So the command, the checker and administration do not
load Arrow, the command's help does not load gRPC, and a program that only sends does not load administration.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

# Before gRPC is loaded. Otherwise a process that is forked while a client is open ends with a signal, also if it uses
# none. gRPC's own support for forks cannot stop the thread with which `grpc.aio` waits.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if TYPE_CHECKING:
    __version__: str
    from seriatim._admin import Admin
    from seriatim._broker_groups import BrokerGroup, BrokerGroupMember, RestartCheck
    from seriatim._client import Client, Opening
    from seriatim._consumer import Consumer
    from seriatim._consumer_group_settings import GroupKey, GroupSettings, KeyResult, RetryPolicy
    from seriatim._consuming.inbox import FetchedTable
    from seriatim._dead_letters import DeadLetter, ReplayedDeadLetter
    from seriatim._descriptions import (
        Balance,
        Broker,
        BrokerLoad,
        Chain,
        Cluster,
        Damage,
        GroupDescription,
        GroupPartition,
        HeadMove,
        MovePlan,
        OperatedPartition,
        PlannedMove,
        QuarantinedMessage,
        Route,
        ScrubProgress,
        Segment,
        TopicDescription,
        WriterDescription,
    )
    from seriatim._errors import SendError, SendFailedError, SendUnknownError
    from seriatim._keyed_consumer import GiveUp, KeyedBatch, KeyedConsumer, KeyedMessage, Retry
    from seriatim._partitioner import Partitioner, partition_of_key
    from seriatim._producer import Producer
    from seriatim._producing.backlog import FlushResult
    from seriatim._producing.deliveries import Deliveries, Delivery
    from seriatim._publishing.chunks import Chunk, Published, PublishedPart
    from seriatim._ranges.reading import RangeReader, RangeTable
    from seriatim._ranges.records import LostRange, PartitionOffset, RangePiece, RangePlan, RetainedRange
    from seriatim._records import AckLevel, Assignment, Gap, GroupChange, Message, Part, Receipt, Topic, TopicSettings
    from seriatim._settings import ConsumerSettings, ProducerSettings
    from seriatim._tls import Tls
    from seriatim._writer import Writer

__all__ = [
    "AckLevel",
    "Admin",
    "Assignment",
    "Balance",
    "Broker",
    "BrokerGroup",
    "BrokerGroupMember",
    "BrokerLoad",
    "Chain",
    "Chunk",
    "Client",
    "Cluster",
    "Consumer",
    "ConsumerSettings",
    "Damage",
    "DeadLetter",
    "Deliveries",
    "Delivery",
    "FetchedTable",
    "FlushResult",
    "Gap",
    "GiveUp",
    "GroupChange",
    "GroupDescription",
    "GroupKey",
    "GroupPartition",
    "GroupSettings",
    "HeadMove",
    "KeyResult",
    "KeyedBatch",
    "KeyedConsumer",
    "KeyedMessage",
    "LostRange",
    "Message",
    "MovePlan",
    "Opening",
    "OperatedPartition",
    "Part",
    "PartitionOffset",
    "Partitioner",
    "PlannedMove",
    "Producer",
    "ProducerSettings",
    "Published",
    "PublishedPart",
    "QuarantinedMessage",
    "RangePiece",
    "RangePlan",
    "RangeReader",
    "RangeTable",
    "Receipt",
    "ReplayedDeadLetter",
    "RestartCheck",
    "RetainedRange",
    "Retry",
    "RetryPolicy",
    "Route",
    "ScrubProgress",
    "Segment",
    "SendError",
    "SendFailedError",
    "SendUnknownError",
    "Tls",
    "Topic",
    "TopicDescription",
    "TopicSettings",
    "Writer",
    "WriterDescription",
    "partition_of_key",
]

_HOMES: Final = {
    "Admin": "seriatim._admin",
    "Client": "seriatim._client",
    "Opening": "seriatim._client",
    "Consumer": "seriatim._consumer",
    "GiveUp": "seriatim._keyed_consumer",
    "KeyedBatch": "seriatim._keyed_consumer",
    "KeyedConsumer": "seriatim._keyed_consumer",
    "KeyedMessage": "seriatim._keyed_consumer",
    "Retry": "seriatim._keyed_consumer",
    "FetchedTable": "seriatim._consuming.inbox",
    "SendError": "seriatim._errors",
    "SendFailedError": "seriatim._errors",
    "SendUnknownError": "seriatim._errors",
    "Partitioner": "seriatim._partitioner",
    "partition_of_key": "seriatim._partitioner",
    "Producer": "seriatim._producer",
    "FlushResult": "seriatim._producing.backlog",
    "Deliveries": "seriatim._producing.deliveries",
    "Delivery": "seriatim._producing.deliveries",
    "BrokerGroup": "seriatim._broker_groups",
    "BrokerGroupMember": "seriatim._broker_groups",
    "RestartCheck": "seriatim._broker_groups",
    "DeadLetter": "seriatim._dead_letters",
    "ReplayedDeadLetter": "seriatim._dead_letters",
    "GroupKey": "seriatim._consumer_group_settings",
    "GroupSettings": "seriatim._consumer_group_settings",
    "KeyResult": "seriatim._consumer_group_settings",
    "RetryPolicy": "seriatim._consumer_group_settings",
    "AckLevel": "seriatim._records",
    "Assignment": "seriatim._records",
    "Balance": "seriatim._descriptions",
    "Broker": "seriatim._descriptions",
    "BrokerLoad": "seriatim._descriptions",
    "HeadMove": "seriatim._descriptions",
    "Damage": "seriatim._descriptions",
    "QuarantinedMessage": "seriatim._descriptions",
    "ScrubProgress": "seriatim._descriptions",
    "Chain": "seriatim._descriptions",
    "Cluster": "seriatim._descriptions",
    "Gap": "seriatim._records",
    "GroupChange": "seriatim._records",
    "GroupDescription": "seriatim._descriptions",
    "GroupPartition": "seriatim._descriptions",
    "Message": "seriatim._records",
    "MovePlan": "seriatim._descriptions",
    "OperatedPartition": "seriatim._descriptions",
    "PlannedMove": "seriatim._descriptions",
    "Part": "seriatim._records",
    "LostRange": "seriatim._ranges.records",
    "PartitionOffset": "seriatim._ranges.records",
    "RangePiece": "seriatim._ranges.records",
    "RangePlan": "seriatim._ranges.records",
    "RetainedRange": "seriatim._ranges.records",
    "RangeReader": "seriatim._ranges.reading",
    "RangeTable": "seriatim._ranges.reading",
    "Receipt": "seriatim._records",
    "Route": "seriatim._descriptions",
    "Segment": "seriatim._descriptions",
    "Topic": "seriatim._records",
    "TopicDescription": "seriatim._descriptions",
    "TopicSettings": "seriatim._records",
    "ConsumerSettings": "seriatim._settings",
    "ProducerSettings": "seriatim._settings",
    "Tls": "seriatim._tls",
    "Chunk": "seriatim._publishing.chunks",
    "Published": "seriatim._publishing.chunks",
    "PublishedPart": "seriatim._publishing.chunks",
    "Writer": "seriatim._writer",
    "WriterDescription": "seriatim._descriptions",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value = globals()[name] = version("seriatim")
        return value
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
