"""Calls of clients and other brokers about writers and publications: translated here, done by the publisher."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from seriatim_api.errors import (
    BadRequestError,
    DeadlineExceededError,
    NotServingError,
    SeriatimError,
    StagedDataGoneError,
    UnknownWriterError,
)
from seriatim_api.ids import check_name
from seriatim_api.publications import (
    PRODUCER_MARK,
    SEQUENCE_MAX,
    STAGE_TOPIC,
    LaidOut,
    StagedBatch,
    is_place,
)
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2, publications_pb2, publications_pb2_grpc, records_pb2

from ...core.values.writers import ID_BYTES, Publication, earlier_layout
from ...runtime.controller.controller import Controller
from ...runtime.coordinator.records import (
    chain_from_record,
    layout_from,
    layout_to,
    manifest_place_from,
    writer_from_value,
)
from ...runtime.coordinator.stage import STAGE_INCARNATION, stage_settings
from ..calls.addresses import Addresses
from ..calls.outbound import BrokerCalls, calling_broker
from ..calls.services import Services, controller_elsewhere, named, remaining_s, typed_errors
from ..distributed.publisher import PARTITIONS_PER_CALL, Carried, Publisher, Writer
from ..distributed.staged_data import StagedData
from ..links.peer_names import PeerNames

PARTITIONS_PER_BROKER: Final = 2
"""Partitions of the stage topic for each broker, so that each broker is the master of some of them."""

WRITERS_PER_PAGE_MAX: Final = 1000


@dataclass(slots=True, eq=False)
class PublicationsServicer(publications_pb2_grpc.PublicationsServicer):
    """Serves `seriatim.v1.Publications`.

    Args:
        services: Of this broker.
        controller: Makes the stage topic.
        calls: To other brokers.
        publisher: Decides publications.
        staging: Reads staged data.
        names: Checks the certificates of brokers; None without TLS.
    """

    _services: Services
    _controller: Controller
    _calls: BrokerCalls
    _publisher: Publisher
    _staging: StagedData
    _names: PeerNames | None
    _addresses: Addresses

    # ---- staging ----

    @typed_errors
    async def PrepareStaging(  # noqa: N802 - the contract's names
        self, request: publications_pb2.PrepareStagingRequest, context: Any
    ) -> publications_pb2.PrepareStagingResponse:
        """Tell a program where to stage rows."""
        services = self._services
        topic = await self._stage_topic(request, context)
        # Only the newest segments are read, because each call that stages asks for all partitions.
        chains = [chain_from_record(chain_record) for chain_record in await services.chain_records(topic.partition_ids)]
        if len(chains) != len(topic.partition_ids):
            raise NotServingError("the stage topic is not complete yet", retry_after_ms=200)
        stage = broker_pb2.GetTopicResponse(
            topic=topic,
            routes=[self._addresses.route_of(chain) for chain in chains],
            brokers=self._addresses.all(),
        )
        return publications_pb2.PrepareStagingResponse(
            stage=stage,
            groups=[chain.open_segment.broker_group for chain in chains],
            earlier=await self._earlier(request.topic, request.writer) if request.writer else (),
        )

    async def _earlier(self, topic: str, writer: str) -> list[records_pb2.RowLayout]:
        """The layout, if there is one, in which the client must report the digests of its rows too.

        Rule `repeats-as-decided`: see `core.values.writers`.
        """
        check_name(writer, "writer")
        target = await self._services.topic(topic)
        item = await self._services.coordinator.get(self._services.keys.writer(target.incarnation, writer))
        layout = earlier_layout(writer_from_value(item.value) if item is not None else None)
        return [layout_to(layout)] if layout is not None else []

    async def _stage_topic(
        self, request: publications_pb2.PrepareStagingRequest, context: Any
    ) -> records_pb2.TopicRecord:
        """The stage topic. If it does not exist or is too small, the controller makes it or lets it grow."""
        services = self._services
        item = await services.coordinator.get(services.keys.topic(STAGE_TOPIC))
        known = records_pb2.TopicRecord.FromString(item.value) if item is not None else None
        count = PARTITIONS_PER_BROKER * sum(map(len, services.directory.broker_groups().values()))
        if known is not None and known.state == records_pb2.TOPIC_STATE_READY and len(known.partition_ids) >= count:
            return known
        left_s = remaining_s(context) * 0.9
        if self._controller.election.is_controller:
            topics = self._controller.topics
            if known is None:
                return await topics.create(
                    STAGE_TOPIC, max(count, 1), stage_settings(), left_s, incarnation=STAGE_INCARNATION
                )
            return await topics.update(STAGE_TOPIC, None, max(count, len(known.partition_ids)), lambda _: None, left_s)
        answer: publications_pb2.PrepareStagingResponse = await self._calls.publications(
            await controller_elsewhere(services, context), "PrepareStaging", request, left_s
        )
        return answer.stage.topic

    @typed_errors
    async def ReadStaged(  # noqa: N802
        self, request: publications_pb2.ReadStagedRequest, context: Any
    ) -> publications_pb2.ReadStagedResponse:
        """A staged batch from this disk, for another broker."""
        await self._check_broker(context)
        if not is_place(request.offset, request.rows):
            raise BadRequestError("the request must name rows, and an offset that can exist")
        staged = StagedBatch(request.partition_id, request.rows, request.offset, b"")
        try:
            batch = await self._staging.read_here(staged)
        except StagedDataGoneError:
            return publications_pb2.ReadStagedResponse(is_gone=True)
        return publications_pb2.ReadStagedResponse(header=batch.header.raw, body=batch.body)

    # ---- writers ----

    @typed_errors
    async def OpenWriter(  # noqa: N802
        self, request: publications_pb2.OpenWriterRequest, context: Any
    ) -> publications_pb2.OpenWriterResponse:
        """Open a writer. Programs that opened it earlier publish nothing more."""
        check_name(request.writer, "writer")
        writer, record = await self._publisher.open(request.topic, request.incarnation, request.writer)
        answer = publications_pb2.OpenWriterResponse(incarnation=writer.incarnation, epoch=record.epoch)
        if record.done_sequence is not None:
            answer.sequence = record.done_sequence
        return answer

    @typed_errors
    async def Publish(  # noqa: N802
        self, request: publications_pb2.PublishRequest, context: Any
    ) -> publications_pb2.PublishResponse:
        """Publish all rows of the manifest, or none."""
        check_name(request.writer, "writer")
        if not request.incarnation and request.HasField("manifest"):
            raise BadRequestError("a publication with rows names the incarnation of its topic")
        wanted = Publication(
            request.writer,
            request.epoch,
            request.owner,
            request.sequence,
            manifest_place_from(request.manifest),
            request.digest,
            request.ephemeral,
            tuple(LaidOut(layout_from(one.layout), one.digest, one.content_digest) for one in request.repeats),
        )
        until = time.monotonic() + remaining_s(context) * 0.95
        carried, was_done = await self._publisher.publish(request.topic, request.incarnation, wanted, until)
        return publications_pb2.PublishResponse(parts=map(_published, carried), was_done=was_done)

    @typed_errors
    async def CarryOut(  # noqa: N802
        self, request: publications_pb2.CarryOutRequest, context: Any
    ) -> publications_pb2.CarryOutResponse:
        """Append the rows of a decided publication, as the master of these partitions, for another broker."""
        await self._check_broker(context)
        ids = list(request.partition_ids)
        if not 0 < len(ids) <= PARTITIONS_PER_CALL or len(set(ids)) < len(ids):
            raise BadRequestError(f"a call names 1 to {PARTITIONS_PER_CALL} partitions, and each once")
        check_name(request.writer, "writer")
        is_writer = len(request.producer) == ID_BYTES and request.producer.endswith(PRODUCER_MARK)
        if request.sequence > SEQUENCE_MAX or not is_writer:
            raise BadRequestError(f"a sequence is at most {SEQUENCE_MAX}, and a writer has a writer's producer id")
        manifest_place_from(request.manifest).check()
        answers = await self._carry_out(request, remaining_s(context) * 0.95)
        return publications_pb2.CarryOutResponse(
            parts=[_carried(partition, answer) for partition, answer in zip(ids, answers, strict=True)]
        )

    async def _check_broker(self, context: Any) -> None:
        """Refuse a call that is not from a broker.

        Raises:
            PreconditionError: The certificate is not that of the broker that the call names.
        """
        if self._names is not None:
            await self._names.check(calling_broker(context), context)

    async def _carry_out(
        self, request: publications_pb2.CarryOutRequest, deadline_s: float
    ) -> Sequence[Carried | SeriatimError]:
        """The outcome of each partition. An error that all have is given to each: the call itself does not fail."""
        writer = Writer(request.incarnation, request.writer)
        place = manifest_place_from(request.manifest)
        until = time.monotonic() + deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                await self._publisher.check_decided(writer, request.producer, request.sequence, place)
                manifest = await self._staging.manifest(place)
        except TimeoutError:
            late = DeadlineExceededError("the record or the manifest of the publication could not be read in time")
            return [late] * len(request.partition_ids)
        except SeriatimError as exc:
            return [exc] * len(request.partition_ids)
        wanted = set(request.partition_ids)
        found = {part.partition: part for part in manifest.parts if part.partition in wanted}
        if len(found) < len(wanted):
            raise BadRequestError(f"the manifest does not name partition id {min(wanted - found.keys())}")
        parts = [found[partition] for partition in request.partition_ids]
        return await self._publisher.carry_out_here(
            writer, request.producer, request.sequence, place, parts, max(until - time.monotonic(), 0.05)
        )

    @typed_errors
    async def DescribeWriter(  # noqa: N802
        self, request: publications_pb2.DescribeWriterRequest, context: Any
    ) -> publications_pb2.WriterDescription:
        """A writer's record."""
        check_name(request.writer, "writer")
        topic = await self._services.topic(request.topic)
        item = await self._services.coordinator.get(self._services.keys.writer(topic.incarnation, request.writer))
        if item is None:
            raise UnknownWriterError(f"topic {request.topic!r} has no writer {request.writer!r}")
        return _described(item.key, item.value)

    @typed_errors
    async def ListWriters(  # noqa: N802
        self, request: publications_pb2.ListWritersRequest, context: Any
    ) -> publications_pb2.ListWritersResponse:
        """Writers of one topic or of all topics, page by page."""
        keys = self._services.keys
        topic = named(request, "topic")
        prefix = keys.writers
        if topic is not None:
            prefix = keys.writers_of((await self._services.topic(topic)).incarnation)
        limit = min(request.limit or WRITERS_PER_PAGE_MAX, WRITERS_PER_PAGE_MAX)
        after = keys.writers + request.after if request.after else ""
        listing = await self._services.coordinator.list(prefix, after=after, count_max=limit + 1)
        page = listing.items[:limit]
        return publications_pb2.ListWritersResponse(
            writers=[_described(item.key, item.value) for item in page],
            next_after=page[-1].key.removeprefix(keys.writers) if len(listing.items) > limit else "",
        )

    @typed_errors
    async def DeleteWriter(  # noqa: N802
        self, request: publications_pb2.DeleteWriterRequest, context: Any
    ) -> publications_pb2.DeleteWriterResponse:
        """Delete a writer."""
        check_name(request.writer, "writer")
        await self._publisher.delete(request.topic, request.writer)
        return publications_pb2.DeleteWriterResponse()


def _described(key: str, value: bytes) -> publications_pb2.WriterDescription:
    _, incarnation, writer = key.rsplit("/", 2)
    record = records_pb2.WriterRecord.FromString(value)
    return publications_pb2.WriterDescription(topic=record.topic, incarnation=incarnation, writer=writer, record=record)


def _published(carried: Carried) -> publications_pb2.PublishedPart:
    part = publications_pb2.PublishedPart(
        partition_id=carried.partition, rows=carried.rows, lost_rows=carried.lost_rows
    )
    if carried.first_offset is not None:
        part.first_offset = carried.first_offset
    return part


def _carried(partition: int, answer: Carried | SeriatimError) -> publications_pb2.CarriedOutPart:
    part = publications_pb2.CarriedOutPart(partition_id=partition)
    if isinstance(answer, SeriatimError):
        part.error.CopyFrom(error_to_proto(answer))
        return part
    part.rows, part.lost_rows, part.is_crowded = answer.rows, answer.lost_rows, answer.is_crowded
    if answer.first_offset is not None:
        part.first_offset = answer.first_offset
    return part
