"""Seriatim: a message broker that keeps strict order. This is its client.

    async with Client.connect("127.0.0.1:7000") as client:
        async with client.producer("flights") as producer:
            delivery = await producer.send(b"departed", key=b"N14228")
            receipt = await delivery
        async with client.consumer("flights", "history") as consumer:
            async for message in consumer:
                await consumer.ack(message)

Order: messages of one producer to one partition stand in the order of the sends. Outcomes: a delivery ends as a
`Receipt`, or raises `SendFailedError` (provably not stored, never delivered) or `SendUnknownError`. `seriatim.sync`
holds the same names for programs without asyncio; `seriatim.history` the checker.
"""

from seriatim._admin import Admin
from seriatim._client import Client, Opening
from seriatim._consumer import Consumer, ConsumerSettings, FetchedTable
from seriatim._errors import SendError, SendFailedError, SendUnknownError
from seriatim._partitioner import Partitioner, partition_of_key
from seriatim._producer import FlushResult, Producer, ProducerSettings
from seriatim._records import (
    AckLevel,
    Assignment,
    Broker,
    Chain,
    Cluster,
    Gap,
    GroupDescription,
    GroupPartition,
    Message,
    Part,
    Receipt,
    Route,
    Segment,
    Topic,
    TopicDescription,
    TopicSettings,
)
from seriatim._sending import Deliveries, Delivery

__all__ = [
    "AckLevel",
    "Admin",
    "Assignment",
    "Broker",
    "Chain",
    "Client",
    "Cluster",
    "Consumer",
    "ConsumerSettings",
    "Deliveries",
    "Delivery",
    "FetchedTable",
    "FlushResult",
    "Gap",
    "GroupDescription",
    "GroupPartition",
    "Message",
    "Opening",
    "Part",
    "Partitioner",
    "Producer",
    "ProducerSettings",
    "Receipt",
    "Route",
    "Segment",
    "SendError",
    "SendFailedError",
    "SendUnknownError",
    "Topic",
    "TopicDescription",
    "TopicSettings",
    "partition_of_key",
]
