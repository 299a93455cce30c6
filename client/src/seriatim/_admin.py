"""Administration: topics, chains, groups, members. Answers are plain values, read afresh by the broker that answers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, cast

from seriatim_api.errors import BadRequestError, IllegalNameError
from seriatim_api.frames import read_batches
from seriatim_api.ids import is_legal_name
from seriatim_api.v1 import broker_pb2, common_pb2, operations_pb2, records_pb2

from seriatim._group_operations import STARTS, GroupOperations, check_one_partition, target_to_proto
from seriatim._records import (
    Balance,
    Broker,
    BrokerLoad,
    Chain,
    Cluster,
    Damage,
    HeadMove,
    QuarantinedMessage,
    Route,
    ScrubProgress,
    Segment,
    Topic,
    TopicDescription,
    TopicSettings,
)
from seriatim._writers import WriterAdmin

if TYPE_CHECKING:
    from seriatim._settings import Target

DEADLINE_S: Final = 10.0
"""For what changes the cluster: the creation of a topic with many partitions takes seconds."""

SCRUB_DEADLINE_S: Final = 30.0
"""For a part of a scrub: a broker reads for some seconds at most, if its disk answers."""

LIST_PAGE: Final = 500

PARTITION_COUNT_MAX: Final = 100_000

_SMALL: Final = {"message_size_bytes_max", "batch_size_bytes_max", "chain_width"}

_STATES: Final = {
    records_pb2.SEGMENT_STATE_OPEN: "OPEN",
    records_pb2.SEGMENT_STATE_SEALED: "SEALED",
    records_pb2.SEGMENT_STATE_UNSETTLED: "UNSETTLED",
    records_pb2.SEGMENT_STATE_LOST: "LOST",
}
_TOPIC_STATES: Final = {
    records_pb2.TOPIC_STATE_CREATING: "CREATING",
    records_pb2.TOPIC_STATE_READY: "READY",
    records_pb2.TOPIC_STATE_DELETING: "DELETING",
}


class Admin(GroupOperations, WriterAdmin):
    """Looks at the cluster and changes it. Get one from `Client.admin`.

    Every method raises `UnavailableError` if no broker answered in time, and what the broker says of the request.
    """

    async def create_topic(self, name: str, partition_count: int = 1, settings: TopicSettings | None = None) -> Topic:
        """Create a topic and wait until all its partitions accept.

        Cancelling leaves open whether the topic is created.

        Args:
            name: Of the topic.
            partition_count: How many partitions it has.
            settings: If absent, the defaults: flushed before it is acknowledged, and kept for three days.

        Raises:
            IllegalNameError: The name.
            TopicExistsError: There is one already.
            BadRequestError: No topic may have such a setting; the text says what is possible.
        """
        if not is_legal_name(name):
            raise IllegalNameError(f"{name!r} cannot name a topic")
        if not 0 < partition_count <= PARTITION_COUNT_MAX:
            raise BadRequestError(f"a topic has 1 to {PARTITION_COUNT_MAX} partitions, not {partition_count}")
        settings = settings or TopicSettings()
        request = broker_pb2.CreateTopicRequest(
            name=name,
            partition_count=partition_count,
            settings=_settings_to_proto(settings),
            incarnation=uuid.uuid4().hex,
            default_retention=settings.retention_ms is None,
        )
        return topic_of(await self._caller.admin("CreateTopic", request, DEADLINE_S))

    async def update_topic(
        self,
        name: str,
        partition_count: int | None = None,
        *,
        message_size_bytes_max: int | None = None,
        batch_size_bytes_max: int | None = None,
        retention_ms: int | None = None,
        chain_width: int | None = None,
        retention_bytes: int | None = None,
        retain_unread: bool | None = None,
        unread_ms_max: int | None = None,
        unread_bytes_max: int | None = None,
    ) -> Topic:
        """Add partitions to a topic or change its settings, and wait until all its partitions accept.

        Messages of a key go to another partition from then on, as far as the partitioner says so; nothing moves that
        was sent before. What is None stays as it is; 0 is the cluster's default, or no limit. The settings are those of
        `TopicSettings`. To set any setting of retention makes retention act, also on a topic that a version before
        retention made: brokers then drop, within minutes, what is beyond the limits, and it does not come back.

        Cancelling leaves open whether the topic is changed.

        Raises:
            UnknownTopicError: There is none.
            BadRequestError: It has more partitions already, or no topic may have such a setting; the text says what is
                possible.
        """
        changes: dict[str, int | None] = {
            "message_size_bytes_max": message_size_bytes_max,
            "batch_size_bytes_max": batch_size_bytes_max,
            "retention_ms": retention_ms,
            "chain_width": chain_width,
            "retention_bytes": retention_bytes,
            "retain_unread": retain_unread,
            "unread_ms_max": unread_ms_max,
            "unread_bytes_max": unread_bytes_max,
        }
        given = {field: value for field, value in changes.items() if value is not None}
        _check_numbers(given)
        request = broker_pb2.UpdateTopicRequest(
            name=name,
            partition_count=partition_count or 0,
            settings=records_pb2.TopicSettings(**cast("Any", given)),
            settings_mask=given,
        )
        return topic_of(await self._caller.admin("UpdateTopic", request, DEADLINE_S))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all that is in it.

        Raises:
            UnknownTopicError: There is none.
        """
        await self._caller.admin("DeleteTopic", broker_pb2.DeleteTopicRequest(name=name), DEADLINE_S)

    async def list_topics(self) -> list[Topic]:
        """All topics, by name."""
        topics: list[Topic] = []
        while True:
            after = topics[-1].name if topics else ""
            request = broker_pb2.ListTopicsRequest(after=after, limit=LIST_PAGE)
            page = (await self._caller.admin("ListTopics", request, DEADLINE_S)).topics
            topics += map(topic_of, page)
            if len(page) < LIST_PAGE:
                return topics

    async def describe_topic(self, name: str) -> TopicDescription:
        """A topic and its chains.

        Raises:
            UnknownTopicError: There is none.
        """
        answer = await self._caller.admin("DescribeTopic", broker_pb2.DescribeTopicRequest(name=name), DEADLINE_S)
        return TopicDescription(topic_of(answer.topic), tuple(map(chain_of, answer.chains)))

    async def describe_chain(self, topic: str, partition: int) -> Chain:
        """A partition's chain.

        Raises:
            UnknownTopicError: There is no such topic.
            PartitionOutOfRangeError: It has fewer partitions.
        """
        request = broker_pb2.DescribeChainRequest(topic=topic, partition=partition)
        return chain_of(await self._caller.admin("DescribeChain", request, DEADLINE_S))

    async def watch_chain(self, topic: str, partition: int) -> AsyncIterator[Chain]:
        """The chain now, and again after each change, until the iteration is left.

        Raises:
            SeriatimError: The broker that told it is gone; begin again.
        """
        request = broker_pb2.DescribeChainRequest(topic=topic, partition=partition)
        async for record in self._caller.admin_stream("WatchChain", request):
            yield chain_of(record)

    async def create_group(
        self, topic: str, group: str, start: Target = "earliest", *, partitions: Sequence[int] | None = None
    ) -> bool:
        """Let a consumer group begin before anybody joins; whether it was not there on every partition already.

        Args:
            topic: Its name.
            group: The consumer group.
            start: Where it begins: see `plan_move`. It is looked up now, once; where the group is already it stays.
            partitions: Numbers in the topic; None: all. An offset is of one partition.

        Raises:
            OffsetOutOfRangeError: There is no such place, or the time lies in the future.
            BadRequestError: There can be no such place.
        """
        request = broker_pb2.CreateConsumerGroupRequest(topic=topic, group=group, partitions=partitions or ())
        if isinstance(start, str) and start in STARTS:
            request.start = STARTS[start]
        else:
            check_one_partition(start, partitions)
            request.at.CopyFrom(target_to_proto(start))
        answer = await self._caller.admin("CreateConsumerGroup", request, DEADLINE_S)
        return bool(answer.created)

    async def delete_group(self, topic: str, group: str) -> None:
        """Forget where a consumer group is: it begins anew if somebody joins it again.

        Raises:
            UnknownGroupError: It was never there.
            PreconditionError: Somebody is in it.
        """
        request = broker_pb2.DeleteConsumerGroupRequest(topic=topic, group=group)
        await self._caller.admin("DeleteConsumerGroup", request, DEADLINE_S)

    async def balance(self, *, run: bool = False) -> Balance:
        """What the brokers take, and which heads should stand elsewhere; with `run` that is begun.

        The controller does it by itself as well, when the difference is twice as large as what is shown here.
        """
        request = operations_pb2.BalanceRequest(run=run)
        answer = await self._caller.balancing("Balance", request, DEADLINE_S)
        return Balance(
            tuple(map(_load_of, answer.before)),
            tuple(map(_load_of, answer.after)),
            tuple(map(_move_of, answer.moves)),
            answer.reason,
        )

    async def describe_cluster(self) -> Cluster:
        """The cluster's brokers, and which of them is the controller."""
        answer = await self._caller.admin("DescribeCluster", broker_pb2.DescribeClusterRequest(), DEADLINE_S)
        return Cluster(answer.cluster, answer.cluster_id, answer.controller, tuple(map(_broker_of, answer.brokers)))

    async def switch_partition(self, partition_id: int, group: str = "", master: str = "") -> Route:
        """A planned switch; returns where the partition accepts then.

        Args:
            partition_id: Of which partition.
            group: Where to; the next group of the send chain if empty.
            master: Which of its members is to be the master; whose turn it is if empty.
        """
        request = broker_pb2.SwitchPartitionRequest(partition_id=partition_id, target_group=group, target_master=master)
        return route_of(await self._caller.admin("SwitchPartition", request, DEADLINE_S))

    async def declare_dead(
        self, broker: str, run: int, issuer: str, *, incarnation: str = "", evidence: str = ""
    ) -> None:
        """Certify that a run of a broker has ended and will never speak again. Only for those who know.

        Args:
            broker: Its name.
            run: The run that has ended.
            issuer: Who says so.
            incarnation: Of the disk that is meant; empty: the one that has the slot.
            evidence: How that is known, for people.
        """
        request = broker_pb2.DeclareDeadRequest(
            broker=broker, run=run, issuer=issuer, incarnation=incarnation, evidence=evidence
        )
        await self._caller.admin("DeclareDead", request, DEADLINE_S)

    async def scrub(self, broker: str) -> AsyncIterator[ScrubProgress]:
        """Have a broker read all that it holds, a part with each step, until the iteration is left.

        What it finds damaged it begins to write anew, from the other members; see its log for the end of that. To
        scrub again afterwards shows whether all is well.

        Raises:
            BadRequestError: There is no such broker.
        """
        request = broker_pb2.ScrubRequest(broker=broker)
        while True:
            answer = await self._caller.admin("Scrub", request, SCRUB_DEADLINE_S)
            damages = tuple(Damage(broker, d.partition_id, d.segment, d.index, d.text) for d in answer.damages)
            yield ScrubProgress(answer.read_bytes, answer.read_segments, damages)
            if answer.done:
                return
            request.after_partition_id, request.after_segment = answer.partition_id, answer.segment

    async def read_quarantined(self, broker: str) -> AsyncIterator[QuarantinedMessage]:
        """What a broker keeps above the lengths that the cluster decided, because the chain contradicts its disk.

        Reads, and changes nothing: the messages stay where they are.

        Raises:
            BadRequestError: There is no such broker.
        """
        from seriatim._batch import decode  # it needs pyarrow, which other administration does not

        request = broker_pb2.ReadQuarantinedRequest(broker=broker)
        while True:
            answer = await self._caller.admin("ReadQuarantined", request, SCRUB_DEADLINE_S)
            if answer.done:
                return
            for header, body in read_batches(memoryview(answer.headers), memoryview(answer.bodies)):
                rows = decode(bytes(body), header.message_count, header.body_crc).to_pylist()
                for at, row in enumerate(rows):
                    index = header.base_index + at
                    if index >= answer.sealed_len:
                        yield QuarantinedMessage(
                            broker,
                            answer.partition_id,
                            answer.segment,
                            answer.sealed_len,
                            index,
                            row["key"],
                            row["value"],
                            dict(row["headers"] or ()),
                            row["timestamp"],
                        )
            request.partition_id, request.segment = answer.partition_id, answer.segment
            request.index = answer.next_index

    async def declare_gap(self, topic: str, partition: int, segment: int, issuer: str) -> None:
        """Declare that all disks of a segment are lost for good: groups go on behind it, and what it held is given up.

        Its disks are refused from then on, wherever they turn up. This cannot be taken back; to repeat it does no harm.

        Args:
            topic: Its name.
            partition: Number in the topic.
            segment: Number in the chain; not the open one.
            issuer: Who says so.

        Raises:
            PreconditionError: The segment is open, a member of it runs, or nobody has said that a member's run ended.
        """
        request = broker_pb2.DeclareGapRequest(topic=topic, partition=partition, segment=segment, issuer=issuer)
        await self._caller.admin("DeclareGap", request, DEADLINE_S)


def topic_of(record: records_pb2.TopicRecord) -> Topic:
    """A topic from its record."""
    settings = record.settings
    return Topic(
        record.name,
        record.incarnation,
        _TOPIC_STATES.get(record.state, "UNKNOWN"),
        tuple(record.partition_ids),
        TopicSettings(
            settings.flush,
            settings.message_size_bytes_max,
            settings.batch_size_bytes_max,
            settings.retention_ms,
            settings.chain_width,
            settings.retention_bytes,
            settings.retain_unread,
            settings.unread_ms_max,
            settings.unread_bytes_max,
            settings.retention_acts,
        ),
        record.created_at_ms,
    )


def _settings_to_proto(settings: TopicSettings) -> records_pb2.TopicSettings:
    fields = {name: value for name, value in asdict(settings).items() if name != "retention_acts"}
    fields["retention_ms"] = fields["retention_ms"] or 0
    _check_numbers(fields)
    return records_pb2.TopicSettings(**fields)


def _check_numbers(settings: Mapping[str, int]) -> None:
    """Refuse what no field holds; the brokers check the rest.

    Raises:
        BadRequestError: A number below 0, or too large for a topic's record.
    """
    for name, value in settings.items():
        bits = 32 if name in _SMALL else 63
        if not 0 <= value < 1 << bits:
            raise BadRequestError(f"{name} is {value}: it is 0 or more, and below 2**{bits}")


def chain_of(record: records_pb2.ChainRecord) -> Chain:
    """A chain from its record."""
    return Chain(
        record.topic,
        record.partition,
        record.partition_id,
        record.epoch,
        tuple(record.send_chain),
        tuple(map(_segment_of, record.segments)),
        record.flush,
        record.page_count,
    )


def _segment_of(record: records_pb2.SegmentRecord) -> Segment:
    def optional(name: Any) -> int | None:
        return cast("int", getattr(record, name)) if record.HasField(name) else None

    return Segment(
        no=record.no,
        group=record.group,
        members=tuple(member.broker for member in record.members),
        state=cast("Any", _STATES.get(record.state, "OPEN")),
        base=optional("base"),
        sealed_len=optional("sealed_len"),
        sealed_checksum=optional("sealed_checksum"),
        tail_from=optional("tail_from"),
        tail_copies=tuple(member.broker for member in record.tail_copies),
        incomplete_table=record.incomplete_table,
        server=record.server.broker,
        server_epoch=record.server_epoch,
        eligible=tuple(member.broker for member in record.eligible),
        opened_at_ms=record.opened_at_ms,
        sealed_at_ms=record.sealed_at_ms,
        start=record.start,
    )


def _broker_of(row: broker_pb2.BrokerDescription) -> Broker:
    record = row.record
    return Broker(
        name=record.member.broker,
        incarnation=record.member.incarnation,
        group=record.group,
        slot=record.slot,
        run=record.run,
        address=record.address,
        admitted=record.admitted,
        live=row.live,
        peer_addresses=dict(record.peer_addresses),
        disk_state=row.disk_state,
    )


def _load_of(row: operations_pb2.BrokerLoad) -> BrokerLoad:
    return BrokerLoad(row.broker, row.group, row.heads_as_master, row.bytes_per_s)


def _move_of(row: operations_pb2.HeadMove) -> HeadMove:
    return HeadMove(
        topic=row.topic,
        partition=row.partition,
        partition_id=row.partition_id,
        from_group=row.from_group,
        from_broker=row.from_master,
        to_group=row.to_group,
        to_broker=row.to_master,
        bytes_per_s=row.bytes_per_s,
    )


def route_of(route: common_pb2.Route) -> Route:
    """A route as users see it."""
    return Route(
        route.partition_id,
        route.epoch,
        route.segment,
        route.master_broker,
        route.master_address,
        tuple(route.next_addresses),
    )
