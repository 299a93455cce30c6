"""Administration: topics, chains, consumer groups, members. Answers are plain values.

The broker that answers reads them from the coordinator at the time of the call.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, cast

from seriatim_api.attributes import check_attribute_name, check_attributes
from seriatim_api.delay_limits import check_delay_limits
from seriatim_api.errors import (
    BadRequestError,
    DeadlineExceededError,
    PreconditionError,
    TopicExistsError,
    UnknownTopicError,
)
from seriatim_api.ids import TopicIncarnation, check_name
from seriatim_api.retry import dead_letter_topic_of
from seriatim_api.v1 import broker_pb2, common_pb2, operations_pb2, records_pb2
from seriatim_api.wire.frames import read_batches

from seriatim._admin.dead_letters import DeadLetterAdmin
from seriatim._admin.delayed import DelayedAdmin
from seriatim._admin.descriptions import (
    Balance,
    Broker,
    BrokerLoad,
    Chain,
    Cluster,
    Damage,
    HeadMove,
    OperatedPartition,
    QuarantinedMessage,
    Route,
    ScrubProgress,
    Segment,
    TopicDescription,
)
from seriatim._admin.group_operations import check_one_partition, target_to_proto
from seriatim._admin.owners import OwnerAdmin
from seriatim._admin.waiting_keys import ConsumerGroupKeys
from seriatim._admin.writers import WriterAdmin
from seriatim._values.arguments import NUMBER_MAX, RUN_MAX, check_partitions, check_text, check_whole
from seriatim._values.consumer_group_settings import (
    STARTS,
    GroupMode,
    GroupSettings,
    RetryPolicy,
    Spread,
    check_delivery,
    check_mode,
    check_spread,
    settings_to_proto,
)
from seriatim._values.conversion import value_of
from seriatim._values.headers import headers_of
from seriatim._values.records import Topic, TopicSettings
from seriatim._values.topics import topic_of

if TYPE_CHECKING:
    from seriatim._values.settings import Target

DEADLINE_S: Final = 10.0
"""Seconds for a call that changes the cluster. To create a topic with many partitions takes seconds."""

SCRUB_DEADLINE_S: Final = 30.0
"""Seconds for one part of a scrub. A broker reads for a few seconds at most, if its disk answers."""

LIST_PAGE: Final = 500

DEAD_LETTERS_KEPT_MS: Final = 30 * 86_400_000
"""How long a dead-letter topic that a call makes keeps its messages: 30 days, so that administrators have time to
look."""

PARTITION_COUNT_MAX: Final = 100_000

_SMALL: Final = {"message_size_bytes_max", "batch_size_bytes_max", "chain_width"}
_FLAGS: Final = {"flush", "retain_unread", "exclusive_only"}

_STATES: Final = {
    records_pb2.SEGMENT_STATE_OPEN: "OPEN",
    records_pb2.SEGMENT_STATE_SEALED: "SEALED",
    records_pb2.SEGMENT_STATE_UNSETTLED: "UNSETTLED",
    records_pb2.SEGMENT_STATE_LOST: "LOST",
}


class Admin(DeadLetterAdmin, ConsumerGroupKeys, DelayedAdmin, OwnerAdmin, WriterAdmin):
    """Shows the cluster and changes it. Get one from `Client.admin`.

    Every method raises `UnavailableError` if no broker answered in time, and the error with which a broker refused the
    request. A method that changes the cluster raises `DeadlineExceededError` if a broker took the request and did not
    answer in time: then the change may have been made. The same is true if such a call is cancelled.
    """

    async def create_topic(self, name: str, partition_count: int = 1, settings: TopicSettings | None = None) -> Topic:
        """Create a topic and wait until all its partitions accept messages.

        If the call is cancelled, the topic may have been created.

        Args:
            name: The topic's name.
            partition_count: The number of partitions, at least 1. Brokers of this version take at most 20,000.
            settings: None: the defaults. Messages are flushed before they are acknowledged, and kept for three days.

        Raises:
            IllegalNameError: A topic cannot have this name.
            TopicExistsError: The cluster has a topic of this name already.
            BadRequestError: A setting or the number of partitions is over its limit; the text says what is possible.
        """
        check_name(name, "topic")
        check_whole("partition_count", partition_count, 1, PARTITION_COUNT_MAX)
        settings = settings or TopicSettings()
        request = broker_pb2.CreateTopicRequest(
            name=name,
            partition_count=partition_count,
            settings=_settings_to_proto(settings),
            incarnation=TopicIncarnation.of_bytes(uuid.uuid4().bytes),
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
        attributes: Mapping[str, str] | None = None,
        attribute_changes: Mapping[str, str | None] | None = None,
        delay_max_ms: int | None = None,
        delayed_pending_max: int | None = None,
        exclusive_only: bool | None = None,
    ) -> Topic:
        """Add partitions to a topic or change its settings, and wait until all its partitions accept messages.

        With more partitions, new messages of a key may go to another partition. Messages that were sent before stay
        where they are.

        Brokers drop, within minutes, the messages that are beyond new limits of retention. These do not come back.

        If the call is cancelled, the topic may have been changed.

        Args:
            name: The topic's name.
            partition_count: The new number of partitions, at least the present one; None: no change.
            message_size_bytes_max: See `TopicSettings`, also for all settings below. None: no change. 0: the cluster's
                default, or no limit, unless `TopicSettings` says otherwise.
            batch_size_bytes_max: See `TopicSettings`.
            retention_ms: See `TopicSettings`.
            chain_width: See `TopicSettings`.
            retention_bytes: See `TopicSettings`.
            retain_unread: See `TopicSettings`.
            unread_ms_max: See `TopicSettings`.
            unread_bytes_max: See `TopicSettings`.
            attributes: See `TopicSettings`. They replace all attributes of the topic.
            attribute_changes: New values of some attributes, by name; None removes an attribute. The others stay as
                they are, also if another program changes them at the same time.
            delay_max_ms: See `TopicSettings`. Messages that are delayed already stay so.
            delayed_pending_max: See `TopicSettings`.
            exclusive_only: See `TopicSettings`.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            BadRequestError: The topic has more partitions already, or a setting is over its limit; the text says what
                is possible.
        """
        changes: dict[str, object] = {
            "message_size_bytes_max": message_size_bytes_max,
            "batch_size_bytes_max": batch_size_bytes_max,
            "retention_ms": retention_ms,
            "chain_width": chain_width,
            "retention_bytes": retention_bytes,
            "retain_unread": retain_unread,
            "unread_ms_max": unread_ms_max,
            "unread_bytes_max": unread_bytes_max,
            "attributes": attributes,
            "delay_max_ms": delay_max_ms,
            "delayed_pending_max": delayed_pending_max,
            "exclusive_only": exclusive_only,
        }
        request = _update_of(name, partition_count)
        _fill(request, {field: value for field, value in changes.items() if value is not None}, attribute_changes)
        return topic_of(await self._caller.admin("UpdateTopic", request, DEADLINE_S))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its messages. They do not come back.

        Raises:
            UnknownTopicError: The cluster has no such topic.
        """
        if self._recorder is not None:
            self._recorder.topic("delete", name)
        await self._caller.admin("DeleteTopic", broker_pb2.DeleteTopicRequest(name=name), DEADLINE_S)

    async def list_topics(self) -> list[Topic]:
        """All topics, sorted by name."""
        topics: list[Topic] = []
        while True:
            after = topics[-1].name if topics else ""
            request = broker_pb2.ListTopicsRequest(after=after, limit=LIST_PAGE)
            page = (await self._caller.admin("ListTopics", request, DEADLINE_S)).topics
            topics += map(topic_of, page)
            if len(page) < LIST_PAGE:
                return topics

    async def describe_topic(self, name: str) -> TopicDescription:
        """A topic and the chains of its partitions.

        Raises:
            UnknownTopicError: The cluster has no such topic.
        """
        answer = await self._caller.admin("DescribeTopic", broker_pb2.DescribeTopicRequest(name=name), DEADLINE_S)
        return TopicDescription(topic_of(answer.topic), tuple(map(chain_of, answer.chains)))

    async def describe_chain(self, topic: str, partition: int) -> Chain:
        """The chain record of a partition.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            PartitionOutOfRangeError: The topic has fewer partitions.
        """
        check_whole("partition", partition, 0, NUMBER_MAX)
        request = broker_pb2.DescribeChainRequest(topic=topic, partition=partition)
        return chain_of(await self._caller.admin("DescribeChain", request, DEADLINE_S))

    async def watch_chain(self, topic: str, partition: int) -> AsyncIterator[Chain]:
        """The chain record now, and again after each change, until the program leaves the iteration.

        Raises:
            SeriatimError: The stream from the broker broke. Call again to continue.
        """
        check_whole("partition", partition, 0, NUMBER_MAX)
        request = broker_pb2.DescribeChainRequest(topic=topic, partition=partition)
        async for record in self._caller.admin_stream("WatchChain", request):
            yield chain_of(record)

    async def create_group(
        self,
        topic: str,
        group: str,
        start: Target = "earliest",
        *,
        partitions: Sequence[int] | None = None,
        settings: GroupSettings | None = None,
    ) -> bool:
        """Make the cursors of a consumer group before a consumer joins it.

        Args:
            topic: The topic's name.
            group: The consumer group's name.
            start: Where the consumer group begins: see `to` of `plan_move`. The broker looks the place up once, now. On
                a partition on which the consumer group has a cursor already, the cursor stays.
            partitions: Numbers in the topic; None: all. With an offset: exactly one.
            settings: How the consumer group is served; None: in exclusive mode. If its retry policy has dead letters,
                and their topic is not there, the call makes it, with as many partitions as the topic has.

        Returns:
            Whether a cursor was made on at least one partition.

        Raises:
            PreconditionError: The consumer group exists with other settings: use `configure_group`. Or the dead-letter
                topic has too few partitions.
            OffsetOutOfRangeError: The topic has no such place, or the time is in the future.
            BadRequestError: `start` is no place, or an offset comes without its one partition.
        """
        check_partitions(partitions)
        request = broker_pb2.CreateConsumerGroupRequest(topic=topic, group=group, partitions=partitions)
        if isinstance(start, str) and start in STARTS:
            request.start = STARTS[start]
        else:
            check_one_partition(start, partitions)
            request.at.CopyFrom(target_to_proto(start))
        if settings is not None:
            retry = await self._with_dead_letter_topic(topic, group, settings.retry)
            spread = settings.spread if settings.mode == "exclusive" else None
            request.settings.CopyFrom(settings_to_proto(settings.mode, retry, settings.at_most_once, spread))
        answer = await self._caller.admin("CreateConsumerGroup", request, DEADLINE_S)
        return bool(answer.created)

    async def configure_group(
        self,
        topic: str,
        group: str,
        *,
        mode: GroupMode | None = None,
        retry: RetryPolicy | None = None,
        at_most_once: bool | None = None,
        partitions: Sequence[int] | None = None,
        drop_aside: bool = False,
        spread: Spread | None = None,
    ) -> list[OperatedPartition]:
        """Change the settings of a consumer group. What is None stays as it is.

        Another retry policy counts at once. Keys that wait keep the time of their next attempt, and attempts count on.
        Another mode, and the beginning or end of at-most-once delivery, need that the group has no consumers. A new
        group epoch begins at the first message that is not acknowledged. So messages after it that were acknowledged
        one by one come again.

        If the call is cancelled, the settings may have been changed on any of the partitions.

        Args:
            topic: The topic's name.
            group: The consumer group's name.
            mode: The new mode.
            retry: The new retry policy. A dead-letter topic that is not there is made, as `create_group` does.
            at_most_once: Whether messages are acknowledged when they are granted. If it begins, the retry policy ends,
                except for the time of a grant.
            partitions: Numbers in the topic; None: all on which the group has a position.
            drop_aside: With another mode: drop parked keys, and messages that were set aside.
            spread: Only of a group that is exclusive: `even` or `none`. It counts at once.

        Returns:
            The result on each partition. If consumers are there, or keys are parked, it has a `PreconditionError`, and
            nothing was changed on that partition.

        Raises:
            UnknownGroupError: The topic has no such consumer group.
            BadRequestError: Nothing is to be changed, there is no such mode or spread, or at-most-once delivery comes
                with retries. On a partition on which a shared group would park keys, the result has this error.
        """
        if mode is None and retry is None and at_most_once is None and spread is None:
            raise BadRequestError("nothing is to be configured: name a mode, a retry policy, at_most_once or a spread")
        if spread is not None:
            check_spread(spread)
        if mode is not None:
            check_mode(mode)
        is_only_spread = mode is None and retry is None and at_most_once is None
        if (mode is None or at_most_once is None) and not is_only_spread:
            found = (await self.describe_group(topic, group)).settings or GroupSettings()
            check_delivery(retry, found.at_most_once if at_most_once is None else at_most_once)
            if mode is not None or at_most_once is not None:  # brokers read `at_most_once` only with a mode
                mode = found.mode if mode is None else mode
                at_most_once = found.at_most_once if at_most_once is None else at_most_once
        check_delivery(retry, at_most_once)  # before a dead-letter topic is made
        retry = await self._with_dead_letter_topic(topic, group, retry)
        rows = await self._rows_of(topic, group, partitions)
        written = settings_to_proto(mode, retry, at_most_once, spread)
        if mode is not None:
            self._record_mode(topic, group, [row.partition for row in rows])
        done = await self._operate(
            topic, group, "configure", rows, uuid.uuid4().bytes, settings=written, drop_aside=drop_aside
        )
        if mode is not None:
            self._record_mode(topic, group, [row.partition for row in done if row.error is None], done=True)
        return done

    def _record_mode(self, topic: str, group: str, partitions: Iterable[int], *, done: bool = False) -> None:
        for partition in partitions if self._recorder is not None else ():
            assert self._recorder is not None
            self._recorder.person("move", group, topic, partition, way="mode", done=done)

    async def _with_dead_letter_topic(self, topic: str, group: str, retry: RetryPolicy | None) -> RetryPolicy | None:
        """The policy with the name of its dead-letter topic, which is made if it is not there.

        Brokers may need longer for that than the call has, for example if many topics are made. Then the topic is
        there a little later, and its own call waits for it.

        Raises:
            PreconditionError: That topic has fewer partitions than the source.
            DeadlineExceededError: The topic was not made in time.
        """
        if retry is None or retry.exhausted != "dead_letter":
            return retry
        name = retry.dead_letter_topic or dead_letter_topic_of(topic, group)
        count = len((await self.describe_topic(topic)).topic.partition_ids)
        try:
            await self.create_topic(name, count, TopicSettings(retention_ms=DEAD_LETTERS_KEPT_MS))
        except (TopicExistsError, DeadlineExceededError) as exc:
            try:
                found = len((await self.describe_topic(name)).topic.partition_ids)  # waits while it is being made
            except UnknownTopicError:
                raise exc from None  # it took too long, and was not made
            if found < count:
                raise PreconditionError(
                    f"dead letters of partition i go to partition i of {name}, which has only {found} of {count} "
                    "partitions: nothing was changed; add partitions to it first"
                ) from None
        return replace(retry, dead_letter_topic=name)

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete the cursors of a consumer group. If a consumer joins it later, it starts over.

        Raises:
            UnknownGroupError: The topic has no such consumer group.
            PreconditionError: A consumer is in the consumer group.
        """
        request = broker_pb2.DeleteConsumerGroupRequest(topic=topic, group=group)
        if self._recorder is not None:
            self._recorder.person("delete", group, topic, 0)
        await self._caller.admin("DeleteConsumerGroup", request, DEADLINE_S)

    async def balance(self, *, run: bool = False) -> Balance:
        """The load of each master, and the open segments that should move. With `run`, the cluster begins to move them.

        This plan begins if the highest load is more than half of `balance_threshold` above the mean. By itself the
        controller begins only above the whole threshold.
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

    async def switch_partition(self, partition_id: int, group: str | None = None, master: str | None = None) -> Route:
        """Do a planned switch of one partition, and return where the partition accepts messages after it.

        Args:
            partition_id: The partition's id in the cluster.
            group: The broker group that gets the open segment. None: the next one of the send chain.
            master: The member of it that becomes the master. None: the member whose turn it is.
        """
        check_whole("partition_id", partition_id, 1, NUMBER_MAX)
        check_text("group", group, "to have the next broker group of the send chain")
        check_text("master", master, "to have the member whose turn it is")
        request = broker_pb2.SwitchPartitionRequest(partition_id=partition_id, target_group=group, target_master=master)
        return route_of(await self._caller.admin("SwitchPartition", request, DEADLINE_S))

    async def declare_dead(
        self, broker: str, run: int, issuer: str, *, incarnation: str | None = None, evidence: str = ""
    ) -> None:
        """Write a death certificate: a member run of a broker has ended and will never send anything again.

        Call this only if you know that the process has ended. If it still runs, brokers dismiss that member run, and
        acknowledged messages may be lost.

        Args:
            broker: The broker's name.
            run: The number of the member run that has ended.
            issuer: The administrator or program that says so.
            incarnation: The incarnation of the disk. None: the one that has the broker's slot.
            evidence: How the issuer knows it, as human-readable text.

        Raises:
            RunAliveError: The member run still answers. Nothing was written.
        """
        check_whole("run", run, 1, RUN_MAX)
        check_text("incarnation", incarnation, "to mean the disk that has the broker's slot")
        request = broker_pb2.DeclareDeadRequest(
            broker=broker, run=run, issuer=issuer, incarnation=incarnation, evidence=evidence
        )
        await self._caller.admin("DeclareDead", request, DEADLINE_S)

    async def scrub(self, broker: str) -> AsyncIterator[ScrubProgress]:
        """Have a broker read everything on its disk: one part with each step of the iteration.

        The broker begins to rewrite damaged parts, from the other members. Its log says when that has ended. Scrub
        again afterwards to see whether everything is repaired. If the program leaves the iteration, the scrub ends.

        Raises:
            BadRequestError: The cluster has no such broker.
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
        """Read the messages that a broker keeps in quarantined segments, above the lengths that the chain decided.

        The call only reads: the messages stay on the broker.

        Raises:
            BadRequestError: The cluster has no such broker.
        """
        from seriatim._bodies.arrow import decode  # imported here because it loads Arrow, which no other method needs

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
                            row["value"] or b"",
                            headers_of(row["headers"]),
                            row["timestamp"],
                            row["value"] is None,
                        )
            request.partition_id, request.segment = answer.partition_id, answer.segment
            request.index = answer.next_index

    async def declare_gap(self, topic: str, partition: int, segment: int, issuer: str) -> None:
        """Declare that all disks of a segment are lost for good. Readers continue after it without its messages.

        If one of these disks returns later, brokers refuse it. The declaration cannot be taken back. To repeat it does
        no harm.

        Args:
            topic: The topic's name.
            partition: The partition's number in the topic.
            segment: The segment's number in the chain. It is not the open segment.
            issuer: The administrator or program that says so.

        Raises:
            PreconditionError: The segment is open, a member of it runs, or a member run of it has no death certificate.
        """
        check_whole("partition", partition, 0, NUMBER_MAX)
        check_whole("segment", segment, 1, NUMBER_MAX)
        request = broker_pb2.DeclareGapRequest(topic=topic, partition=partition, segment=segment, issuer=issuer)
        await self._caller.admin("DeclareGap", request, DEADLINE_S)


def _settings_to_proto(settings: TopicSettings) -> records_pb2.TopicSettings:
    fields = asdict(settings)
    fields["retention_ms"] = fields["retention_ms"] or 0
    _check_values(fields)
    return records_pb2.TopicSettings(**fields)


def _update_of(name: str, partition_count: int | None) -> broker_pb2.UpdateTopicRequest:
    if partition_count is None:
        return broker_pb2.UpdateTopicRequest(name=name)
    check_whole("partition_count", partition_count, 1, PARTITION_COUNT_MAX)
    return broker_pb2.UpdateTopicRequest(name=name, partition_count=partition_count)


def _fill(request: broker_pb2.UpdateTopicRequest, given: dict[str, object], changes: object) -> None:
    """Write the settings that are given, and changes of attributes, into a request.

    Raises:
        BadRequestError: One of them is illegal.
    """
    request.settings_mask.extend(given)
    if changes is not None:
        if "attributes" in given:
            raise BadRequestError("give either attributes, which replace all, or attribute_changes")
        if not isinstance(changes, Mapping):
            raise BadRequestError(f"attribute_changes is a map of names to texts or None, not {changes!r}")
        for name in changes:
            check_attribute_name(name)
            request.settings_mask.append(f"attributes.{name}")
        given["attributes"] = {name: text for name, text in changes.items() if text is not None}
    _check_values(given)
    request.settings.CopyFrom(records_pb2.TopicSettings(**cast("Any", given)))


def _check_values(settings: Mapping[str, object]) -> None:
    """Refuse values that do not fit into their fields. The brokers check the rest.

    Raises:
        BadRequestError: A value is of another kind, below 0, or too large for a topic's record, or attributes or
            limits of delays are illegal.
    """
    for name, value in settings.items():
        if name == "attributes":
            check_attributes(value)
            continue
        if name in _FLAGS:
            if not isinstance(value, bool):
                raise BadRequestError(f"{name} is True or False, not {value!r}")
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadRequestError(f"{name} is a whole number, not {value!r}")
        bits = 32 if name in _SMALL else 63
        if not 0 <= value < 1 << bits:
            raise BadRequestError(f"{name} is {value}: it is 0 or more, and below 2**{bits}")
    check_delay_limits(settings)


def chain_of(record: records_pb2.ChainRecord) -> Chain:
    """The chain record as users see it, from the one that brokers send."""
    return value_of(Chain, record, segments=tuple(map(_segment_of, record.segments)))


def _segment_of(record: records_pb2.SegmentRecord) -> Segment:
    return value_of(
        Segment,
        record,
        members=tuple(member.broker for member in record.members),
        state=_STATES.get(record.state, "OPEN"),
        tail_copies=tuple(member.broker for member in record.tail_copies),
        server=record.server.broker,
        eligible=tuple(member.broker for member in record.eligible),
    )


def _broker_of(row: broker_pb2.BrokerDescription) -> Broker:
    record = row.record
    return value_of(
        Broker,
        record,
        name=record.member.broker,
        incarnation=record.member.incarnation,
        live=row.live,
        external_address=record.external_address if record.external_run == record.run else "",
        disk_state=row.disk_state,
    )


def _load_of(row: operations_pb2.BrokerLoad) -> BrokerLoad:
    return value_of(BrokerLoad, row, heads=row.heads_as_master)


def _move_of(row: operations_pb2.HeadMove) -> HeadMove:
    return value_of(HeadMove, row, from_broker=row.from_master, to_broker=row.to_master)


def route_of(route: common_pb2.Route) -> Route:
    """The route as users see it, from the one that brokers send."""
    return value_of(Route, route)
