"""Administration of topics: the controller makes, changes and deletes them; any broker lists and watches them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from google.protobuf.field_mask_pb2 import FieldMask
from seriatim_api.attributes import check_attributes
from seriatim_api.delay_limits import check_delay_limits, delay_limits_of
from seriatim_api.errors import BadRequestError, PreconditionError, SeriatimError
from seriatim_api.ids import PartitionId, TopicIncarnation, check_name
from seriatim_api.publications import STAGE_TOPIC
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, records_pb2

from ...core.values.messages import FORM_EXCLUSIVE
from ...core.values.placement import CHAIN_WIDTH_DEFAULT
from ...interfaces.coordinator import Compare, Get
from ...runtime.controller.controller import Controller
from ...runtime.coordinator.forms import all_read
from ...runtime.coordinator.operator_lease import Guard
from ...runtime.coordinator.pages import read_all_whole
from ...runtime.coordinator.topic_feed import TopicFeed
from ...runtime.driver.coordinator_requests import READS_PER_TXN
from ..calls.limits import BATCH_BYTES_MAX
from ..calls.outbound import BrokerCalls, operator_epoch
from ..calls.services import Services, abort, controller_elsewhere, guard_of_call, named, remaining_s, typed_errors

PARTITION_COUNT_MAX = 20_000
"""Partitions of one topic: their ids still fit into one record."""

RETENTION_MS_DEFAULT = 3 * 86_400_000
"""Three days: used if a caller asks for default retention."""

RETENTION_BYTES_MIN = 1 << 20
"""A batch has up to 1 MiB, and a partition keeps at least one."""

RETENTION_MS_MIN = 1000

TOPICS_PER_PAGE_MAX = 1000

ENTRY: Final = "attributes."
"""What a request's mask has before the name of one attribute."""

WATCH_HEARTBEAT_S = 3.0
"""After three of these times without a message, a watcher treats the stream as silent."""


class TopicAdmin(broker_pb2_grpc.AdminServicer):
    """The part of `seriatim.v1.Admin` for topics."""

    def __init__(self, services: Services, controller: Controller, calls: BrokerCalls, feed: TopicFeed) -> None:
        self._services = services
        self._controller = controller
        self._calls = calls
        self._feed = feed

    @typed_errors
    async def CreateTopic(  # noqa: N802 - the contract's names
        self, request: broker_pb2.CreateTopicRequest, context: Any
    ) -> records_pb2.TopicRecord:
        """Make a topic. Returns when all its partitions accept messages."""
        check_name(request.name, "topic")
        if not 1 <= request.partition_count <= PARTITION_COUNT_MAX:
            raise BadRequestError(f"a topic has 1 to {PARTITION_COUNT_MAX} partitions, not {request.partition_count}")
        incarnation = TopicIncarnation(request.incarnation) if request.incarnation else None
        # If no settings are given, the topic flushes before commit.
        settings = records_pb2.TopicSettings(flush=True)
        if request.HasField("settings"):
            settings.CopyFrom(request.settings)
        if request.default_retention and not settings.retention_ms and not settings.retention_bytes:
            settings.retention_ms = RETENTION_MS_DEFAULT
        _complete(settings)
        await self._services.check_nothing_lost(f"topic {request.name!r}")
        if not self._controller.election.is_controller:
            record: records_pb2.TopicRecord = await self._at_controller("CreateTopic", request, context)
            return record
        return await self._controller.topics.create(
            request.name,
            request.partition_count,
            settings,
            remaining_s(context) * 0.95,
            incarnation,
            self._guard(settings, context),
        )

    @typed_errors
    async def UpdateTopic(  # noqa: N802
        self, request: broker_pb2.UpdateTopicRequest, context: Any
    ) -> records_pb2.TopicRecord:
        """Add partitions or change settings. Returns when all partitions accept messages."""
        check_name(request.name, "topic")
        if request.partition_count > PARTITION_COUNT_MAX:
            raise BadRequestError(
                f"a topic has at most {PARTITION_COUNT_MAX} partitions, not {request.partition_count}"
            )
        change = _change_of(request)
        incarnation = named(request, "incarnation")
        if request.partition_count:
            await self._services.check_nothing_lost(f"a partition of {request.name!r}")
        if not self._controller.election.is_controller:
            record: records_pb2.TopicRecord = await self._at_controller("UpdateTopic", request, context)
            return record
        return await self._controller.topics.update(
            request.name,
            incarnation,
            request.partition_count,
            change,
            remaining_s(context) * 0.95,
            self._guard(request.settings, context),
        )

    @typed_errors
    async def DeleteTopic(  # noqa: N802
        self, request: broker_pb2.DeleteTopicRequest, context: Any
    ) -> broker_pb2.DeleteTopicResponse:
        """Delete a topic and its data."""
        check_name(request.name, "topic")
        incarnation = named(request, "incarnation")
        if not self._controller.election.is_controller:
            await self._at_controller("DeleteTopic", request, context)
        else:
            guard = guard_of_call(self._services, context)
            await self._controller.topics.delete(request.name, guard, incarnation)
        return broker_pb2.DeleteTopicResponse()

    @typed_errors
    async def ListTopics(  # noqa: N802
        self, request: broker_pb2.ListTopicsRequest, _context: Any
    ) -> broker_pb2.ListTopicsResponse:
        """Topics by name, page by page."""
        limit = min(request.limit or TOPICS_PER_PAGE_MAX, TOPICS_PER_PAGE_MAX)
        keys = self._services.keys
        after = keys.topic(request.after) if request.after else ""
        listing = await self._services.coordinator.list(keys.topics, after=after, count_max=limit + 1)
        records = (records_pb2.TopicRecord.FromString(item.value) for item in listing.items)
        page = [record for record in records if record.name != STAGE_TOPIC][:limit]  # it is hidden
        return broker_pb2.ListTopicsResponse(topics=page)

    async def WatchTopics(  # noqa: N802
        self, _request: broker_pb2.WatchTopicsRequest, context: Any
    ) -> AsyncIterator[broker_pb2.WatchTopicsResponse]:
        """Send all topics with short forms of their chains, then each change, until the caller ends the call.

        If nothing changes for 3 s, an empty message is sent. So a caller can tell a quiet stream from a frozen broker.
        """
        try:
            async with self._feed.watch() as watcher:
                while True:
                    try:
                        response = await asyncio.wait_for(watcher.take(), WATCH_HEARTBEAT_S)
                    except TimeoutError:
                        response = broker_pb2.WatchTopicsResponse()
                    yield response
        except SeriatimError as exc:
            await abort(context, exc)

    @typed_errors
    async def DescribeTopic(  # noqa: N802
        self, request: broker_pb2.DescribeTopicRequest, _context: Any
    ) -> broker_pb2.DescribeTopicResponse:
        """A topic with the chains of its partitions."""
        topic = await self._services.topic(request.name, or_stage=True)
        gets = [Get(self._services.keys.chain(PartitionId(partition))) for partition in topic.partition_ids]
        response = broker_pb2.DescribeTopicResponse(topic=topic)
        for start in range(0, len(gets), READS_PER_TXN):
            result = await self._services.coordinator.txn((), gets[start : start + READS_PER_TXN])
            items = [found.item for found in result.responses if found.item is not None]
            for whole in await read_all_whole(self._services.coordinator, self._services.keys, items):
                response.chains.append(self._services.told(whole))
        return response

    def _guard(self, settings: records_pb2.TopicSettings, context: Any) -> Guard:
        """What the transactions of a call compare, so that each broker knows the settings that it writes.

        Without it: 1. All brokers know exclusive producers. 2. While a topic gets `exclusive_only`, a broker of the
        version before registers. 3. It leads a partition, and takes messages of ordinary producers.

        The guard raises `PreconditionError` if not all brokers know them.
        """
        services, guard = self._services, guard_of_call(self._services, context)

        async def with_forms() -> Sequence[Compare]:
            forms = await all_read(services.coordinator, services.keys, FORM_EXCLUSIVE)
            if forms is None:
                raise PreconditionError(
                    "exclusive_only is not possible, because the brokers of this cluster do not all know exclusive "
                    "producers: nothing was changed. Upgrade all brokers first"
                )
            return (*await guard(), forms)

        return with_forms if settings.exclusive_only else guard

    async def _at_controller(self, method: str, request: Any, context: Any) -> Any:
        """Pass a call on to the controller."""
        broker = await controller_elsewhere(self._services, context)
        return await self._calls.admin(broker, method, request, remaining_s(context) * 0.95, operator_epoch(context))


def _complete(settings: records_pb2.TopicSettings) -> None:
    """Fill in defaults.

    Raises:
        BadRequestError: A limit is too large, or illegal for retention or delays, or attributes are illegal.
    """
    settings.chain_width = settings.chain_width or CHAIN_WIDTH_DEFAULT
    settings.batch_size_bytes_max = settings.batch_size_bytes_max or BATCH_BYTES_MAX
    settings.message_size_bytes_max = settings.message_size_bytes_max or BATCH_BYTES_MAX
    if max(settings.batch_size_bytes_max, settings.message_size_bytes_max) > BATCH_BYTES_MAX:
        raise BadRequestError(f"batches and messages have at most {BATCH_BYTES_MAX} bytes")
    _check_retention(settings)
    check_delay_limits({field.name: value for field, value in settings.ListFields()})
    settings.delay_max_ms, settings.delayed_pending_max = delay_limits_of(settings)
    check_attributes(settings.attributes)


def _check_retention(settings: records_pb2.TopicSettings) -> None:
    """Refuse limits of retention that no broker could keep.

    Raises:
        BadRequestError: A size is below a batch, a time is below 1 s, or a limit for unread messages is below the one
            for read messages.
    """
    sizes = {"retention_bytes": settings.retention_bytes, "unread_bytes_max": settings.unread_bytes_max}
    for name, size_bytes in sizes.items():
        if 0 < size_bytes < RETENTION_BYTES_MIN:
            raise BadRequestError(f"{name} is {size_bytes}: it is 0 (no limit) or at least {RETENTION_BYTES_MIN} bytes")
    for name in ("retention_ms", "unread_ms_max"):
        if 0 < getattr(settings, name) < RETENTION_MS_MIN:
            raise BadRequestError(
                f"{name} is {getattr(settings, name)}: it is 0 (no limit) or at least {RETENTION_MS_MIN} ms"
            )
    pairs = (("unread_ms_max", "retention_ms"), ("unread_bytes_max", "retention_bytes"))
    for cap, limit in pairs:
        if 0 < getattr(settings, cap) < getattr(settings, limit):
            raise BadRequestError(
                f"{cap} is {getattr(settings, cap)}, and {limit} is {getattr(settings, limit)}: unread messages stay "
                "at least as long as read ones, so the first limit cannot be below the second"
            )


def _change_of(request: broker_pb2.UpdateTopicRequest) -> Callable[[records_pb2.TopicSettings], None]:
    """The change of a request: the settings that are set in it, and those that its mask names.

    Raises:
        BadRequestError: There is no such setting, or a value is illegal.
    """
    entries = {name.removeprefix(ENTRY) for name in request.settings_mask if name.startswith(ENTRY)}
    names = {field.name for field, _ in request.settings.ListFields()} - ({"attributes"} if entries else set())
    names |= {name for name in request.settings_mask if not name.startswith(ENTRY)}
    unknown = names - set(records_pb2.TopicSettings.DESCRIPTOR.fields_by_name)
    if unknown:
        raise BadRequestError(f"a topic has no setting {min(unknown)!r}")
    if entries and ("attributes" in names or not entries.issuperset(request.settings.attributes)):
        raise BadRequestError("name either `attributes` in the mask, or each attribute that is set or removed")
    wanted = records_pb2.TopicSettings()
    wanted.CopyFrom(request.settings)
    _complete(wanted)

    def change(settings: records_pb2.TopicSettings) -> None:
        if "flush" in names and wanted.flush != settings.flush:
            raise PreconditionError(
                "a topic's `flush` is set when it is made and never changes: nothing was changed; make another topic"
            )
        FieldMask(paths=names).MergeMessage(wanted, settings, replace_repeated_field=True)
        for entry in entries:
            settings.attributes.pop(entry, None)
        settings.attributes.update({entry: wanted.attributes[entry] for entry in entries & set(wanted.attributes)})
        _check_retention(settings)
        check_attributes(settings.attributes)

    return change
