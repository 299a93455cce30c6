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

    _client         the client: it makes producers, consumers and the administration
    sync            the same names, with calls that wait
    _loop_thread    an event loop in a thread, on which `sync` stands
    _topic_changes  growth and deletion of topics, noticed for producers and consumers
    _recorder       histories of what a client does, for the checker

    _producing      producers
    _publishing     writers of publications
    _consuming      consumers, exclusive and key by key
    _ranges         readers of ranges
    _admin          administration
    _values         what users pass and get
    _bodies         bodies of batches
    _core           decisions of producers and consumers, without I/O
    _transport      connections to brokers
    _runtime        where a client works, how it ends, and what it logs
    history         the checker of histories
    cli             the command `seriatim`
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

# Before gRPC is loaded. Otherwise a process that is forked while a client is open ends with a signal, also if it uses
# none. gRPC's own support for forks cannot stop the thread with which `grpc.aio` waits.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if TYPE_CHECKING:
    from seriatim_api.delayed import CancelOutcome

    __version__: str
    from seriatim._admin.admin import Admin
    from seriatim._admin.broker_groups import BrokerGroup, BrokerGroupMember, RestartCheck
    from seriatim._admin.descriptions import (
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
    from seriatim._client import Client
    from seriatim._consuming.consumer import Consumer
    from seriatim._consuming.inbox import FetchedTable
    from seriatim._consuming.keyed_consumer import GiveUp, KeyedBatch, KeyedConsumer, KeyedMessage, Retry
    from seriatim._producing.backlog import FlushResult
    from seriatim._producing.deliveries import Deliveries, Delivery
    from seriatim._producing.producer import Producer
    from seriatim._publishing.chunks import Chunk, Published, PublishedPart
    from seriatim._publishing.writer import Writer
    from seriatim._ranges.reader import RangeReader, RangeTable
    from seriatim._ranges.records import LostRange, PartitionOffset, RangePiece, RangePlan, RetainedRange
    from seriatim._runtime.opening import Opening
    from seriatim._values.consumer_group_settings import GroupKey, GroupSettings, KeyResult, RetryPolicy
    from seriatim._values.dead_letters import DeadLetter, ReplayedDeadLetter
    from seriatim._values.delayed import DelayedMessages, DelayedStats
    from seriatim._values.errors import SendError, SendFailedError, SendUnknownError
    from seriatim._values.owners import NameOwner, OwnerDescription
    from seriatim._values.partitioner import Partitioner, partition_of_key
    from seriatim._values.records import (
        AckLevel,
        Assignment,
        Gap,
        GroupChange,
        Message,
        Part,
        Receipt,
        Topic,
        TopicSettings,
    )
    from seriatim._values.settings import ConsumerSettings, ProducerSettings
    from seriatim._values.tls import Tls

__all__ = [
    "AckLevel",
    "Admin",
    "Assignment",
    "Balance",
    "Broker",
    "BrokerGroup",
    "BrokerGroupMember",
    "BrokerLoad",
    "CancelOutcome",
    "Chain",
    "Chunk",
    "Client",
    "Cluster",
    "Consumer",
    "ConsumerSettings",
    "Damage",
    "DeadLetter",
    "DelayedMessages",
    "DelayedStats",
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
    "NameOwner",
    "Opening",
    "OperatedPartition",
    "OwnerDescription",
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
    "Admin": "seriatim._admin.admin",
    "Client": "seriatim._client",
    "Opening": "seriatim._runtime.opening",
    "Consumer": "seriatim._consuming.consumer",
    "GiveUp": "seriatim._consuming.keyed_consumer",
    "KeyedBatch": "seriatim._consuming.keyed_consumer",
    "KeyedConsumer": "seriatim._consuming.keyed_consumer",
    "KeyedMessage": "seriatim._consuming.keyed_consumer",
    "Retry": "seriatim._consuming.keyed_consumer",
    "FetchedTable": "seriatim._consuming.inbox",
    "SendError": "seriatim._values.errors",
    "SendFailedError": "seriatim._values.errors",
    "SendUnknownError": "seriatim._values.errors",
    "Partitioner": "seriatim._values.partitioner",
    "partition_of_key": "seriatim._values.partitioner",
    "Producer": "seriatim._producing.producer",
    "FlushResult": "seriatim._producing.backlog",
    "Deliveries": "seriatim._producing.deliveries",
    "Delivery": "seriatim._producing.deliveries",
    "BrokerGroup": "seriatim._admin.broker_groups",
    "BrokerGroupMember": "seriatim._admin.broker_groups",
    "RestartCheck": "seriatim._admin.broker_groups",
    "DeadLetter": "seriatim._values.dead_letters",
    "ReplayedDeadLetter": "seriatim._values.dead_letters",
    "CancelOutcome": "seriatim_api.delayed",
    "DelayedMessages": "seriatim._values.delayed",
    "DelayedStats": "seriatim._values.delayed",
    "NameOwner": "seriatim._values.owners",
    "OwnerDescription": "seriatim._values.owners",
    "GroupKey": "seriatim._values.consumer_group_settings",
    "GroupSettings": "seriatim._values.consumer_group_settings",
    "KeyResult": "seriatim._values.consumer_group_settings",
    "RetryPolicy": "seriatim._values.consumer_group_settings",
    "AckLevel": "seriatim._values.records",
    "Assignment": "seriatim._values.records",
    "Balance": "seriatim._admin.descriptions",
    "Broker": "seriatim._admin.descriptions",
    "BrokerLoad": "seriatim._admin.descriptions",
    "HeadMove": "seriatim._admin.descriptions",
    "Damage": "seriatim._admin.descriptions",
    "QuarantinedMessage": "seriatim._admin.descriptions",
    "ScrubProgress": "seriatim._admin.descriptions",
    "Chain": "seriatim._admin.descriptions",
    "Cluster": "seriatim._admin.descriptions",
    "Gap": "seriatim._values.records",
    "GroupChange": "seriatim._values.records",
    "GroupDescription": "seriatim._admin.descriptions",
    "GroupPartition": "seriatim._admin.descriptions",
    "Message": "seriatim._values.records",
    "MovePlan": "seriatim._admin.descriptions",
    "OperatedPartition": "seriatim._admin.descriptions",
    "PlannedMove": "seriatim._admin.descriptions",
    "Part": "seriatim._values.records",
    "LostRange": "seriatim._ranges.records",
    "PartitionOffset": "seriatim._ranges.records",
    "RangePiece": "seriatim._ranges.records",
    "RangePlan": "seriatim._ranges.records",
    "RetainedRange": "seriatim._ranges.records",
    "RangeReader": "seriatim._ranges.reader",
    "RangeTable": "seriatim._ranges.reader",
    "Receipt": "seriatim._values.records",
    "Route": "seriatim._admin.descriptions",
    "Segment": "seriatim._admin.descriptions",
    "Topic": "seriatim._values.records",
    "TopicDescription": "seriatim._admin.descriptions",
    "TopicSettings": "seriatim._values.records",
    "ConsumerSettings": "seriatim._values.settings",
    "ProducerSettings": "seriatim._values.settings",
    "Tls": "seriatim._values.tls",
    "Chunk": "seriatim._publishing.chunks",
    "Published": "seriatim._publishing.chunks",
    "PublishedPart": "seriatim._publishing.chunks",
    "Writer": "seriatim._publishing.writer",
    "WriterDescription": "seriatim._admin.descriptions",
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
