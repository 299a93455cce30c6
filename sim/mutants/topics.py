# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules about deleted topics and consumer groups, removed one at a time: worlds that make them again must find each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seriatim_broker.core.consumers import subscribing
from seriatim_broker.core.dispatch import dropping
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.consumers import ConsumerGroupPhase
from seriatim_broker.core.state.dispatcher import Consumer
from seriatim_broker.core.state.outbox import Outbox
from seriatim_broker.core.state.partition import Partition
from seriatim_broker.core.values.deleted import DeletedPartitions
from seriatim_broker.core.values.events import ConsumerJoin, CursorRecord
from seriatim_broker.core.values.log import DropPartition, Write
from seriatim_broker.runtime import topics
from seriatim_broker.runtime.expiry import Expiry

from .mutation import Mutation, Patch, nothing


def _data_stays() -> list[Patch]:
    write = Outbox.write

    def kept(self: Outbox, one: Write) -> None:
        if not isinstance(one, DropPartition):
            write(self, one)

    return [(Outbox, "write", kept)]


def _floor_stays() -> list[Patch]:
    real = Expiry._remove_some_cursors

    async def remove(self: Expiry, part: Sequence[tuple[Any, CursorRecord]]) -> bool:
        return await real(self, [(item, replace(record, group_epoch=0)) for item, record in part])

    return [(Expiry, "_remove_some_cursors", remove)]


def _stale_cursor_segment_serves() -> list[Patch]:
    real = subscribing.join

    def join(broker: BrokerState, partition: Partition, event: ConsumerJoin) -> None:
        consumer_group = partition.consumer_groups.get(event.consumer_group)
        if consumer_group is None or consumer_group.phase is not ConsumerGroupPhase.SERVING or consumer_group.consumers:
            real(broker, partition, event)
            return
        consumer = Consumer(event)
        consumer_group.consumers.append(consumer)
        subscribing.activate(broker, partition, consumer_group, consumer)

    return [(subscribing, "join", join)]


def _ranges_stay() -> list[Patch]:
    def none_more(self: DeletedPartitions, _partitions: Any) -> DeletedPartitions:
        return self

    return [(DeletedPartitions, "with_ids", none_more)]


def _no_cursors_on_new_partitions() -> list[Patch]:
    async def give(*_arguments: Any) -> None:
        """Groups begin where their consumers say."""

    return [(topics, "give_cursors", give)]


MUTATIONS: dict[str, Mutation] = {
    "deleted-unanswered": Mutation(
        "a request that waits for a deleted topic is answered",
        lambda: [(dropping, "answer_all", nothing)],
        ("GONE",),
        "topics-again",
        world="brokers",
        batch_count=100,
    ),
    "deleted-kept": Mutation(
        "brokers drop what they store of a deleted topic",
        _data_stays,
        ("GONE",),
        "topics-again",
        world="brokers",
        batch_count=100,
    ),
    "expires-without-floor": Mutation(
        "the removal of a deleted cursor raises the floor of group epochs",
        _floor_stays,
        ("EPOCH", "I1", "I2", "I8", "I11"),
        "groups-again",
        world="brokers",
        layer="runtime",
        batch_count=100,
    ),
    "first-reads": Mutation(
        "if a consumer group had no consumers, its server reads the cursor again",
        _stale_cursor_segment_serves,
        ("I1", "I2", "I9", "I11"),
        "groups-again",
        world="brokers",
        batch_count=100,
    ),
    "cursors-follow-growth": Mutation(
        "the groups of a topic have cursors on new partitions before these belong to it",
        _no_cursors_on_new_partitions,
        ("I1",),
        "topics-grow",
        world="brokers",
        layer="runtime",
        batch_count=100,
    ),
    "expires-without-range": Mutation(
        "a removed tombstone leaves its partition id in the ranges of deleted partitions",
        _ranges_stay,
        ("GONE", "I13"),
        "topics-again",
        world="brokers",
        layer="runtime",
        batch_count=100,
    ),
}
"""By name."""
