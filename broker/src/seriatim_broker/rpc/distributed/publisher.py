"""The publisher: any broker decides a publication, and has the masters of its partitions carry it out.

It keeps nothing between two calls. Several publishers of one publication at once do no harm: one transaction decides,
and each master continues where its own producer table says. `core.values.writers` has the decisions.

    read record, floors, topic ─▶ judge ─▶ DECIDED by another call or an earlier one: finish it, and begin again
                                    ├─▶ done before: ok
                                    └─▶ read the manifest, check it ─▶ one transaction: DECIDED ─▶ begin again
    finish: ask all masters until each has answered ─▶ one transaction: DONE
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import structlog
from seriatim_api.errors import (
    BadRequestError,
    CoordinatorBehindError,
    CoordinatorRefusedError,
    CoordinatorUnavailableError,
    DeadlineExceededError,
    NotServingError,
    PreconditionError,
    RoutingError,
    SeriatimError,
    StagedDataGoneError,
    TooManyProducersError,
    UnavailableError,
    UnknownTopicError,
    UnknownWriterError,
)
from seriatim_api.ids import PartitionId, TopicIncarnation
from seriatim_api.publications import STAGE_TOPIC, Manifest, ManifestPart
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import publications_pb2, ranges_pb2, records_pb2

from ...core.values import writers
from ...core.values.effects import CarriedOut
from ...core.values.events import CarryOut, ResolveProducer
from ...core.values.segment import SegmentState
from ...core.values.writers import ManifestPlace, Publication, Verdict, WriterRecord, WriterState
from ...interfaces.coordinator import (
    Compare,
    Delete,
    DeletePrefix,
    Get,
    GetPrefix,
    KeyValue,
    Operation,
    Put,
    mod_revision_is,
)
from ...runtime.coordinator import writer_conditions
from ...runtime.coordinator.keys import partition_of
from ...runtime.coordinator.records import manifest_place_to, writer_from_value, writer_to_record
from ..calls.outbound import BrokerCalls
from ..calls.services import Services
from .places import Places
from .staged_data import StagedData

PARTITIONS_PER_CALL: Final = 200
"""Partitions that one call to one master names."""

PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 0.5
"""First and longest pause before partitions that have not answered are asked again."""

CALL_DEADLINE_S: Final = 10.0
"""Time for one question to a master. If a publication takes longer, the master continues with it, and is asked
again."""

TAKEN_UP_S: Final = 30.0
"""Time for one try of the controller to finish a publication that another broker decided."""

TRANSACTIONS_MAX: Final = 50
"""Tries of one call. A try starts over if the record was changed since it was read."""

STAGED_QUESTIONS_AT_ONCE: Final = 16

CROWDED_S: Final = 60.0
"""How long a publisher decides nothing for new writers after a master said that its partition is crowded."""


_log = structlog.get_logger(__name__)


class Writer(NamedTuple):
    """The name of a writer, with the incarnation of its topic."""

    incarnation: str
    name: str


class Known(NamedTuple):
    """What the coordinator has of a writer and its topic, at one revision.

    If the writer has no record of its own, `lost` is the one that a rebuild made without its name, and `record` says
    what is in it. The next write gives it its name.
    """

    topic: records_pb2.TopicRecord
    topic_revision: int
    item: KeyValue | None
    lost: KeyValue | None
    record: WriterRecord | None
    floors: dict[int, int]
    revision: int
    rebuilt_at_ms: int


class Carried(NamedTuple):
    """What a master answered about a partition."""

    partition: int
    first_offset: int | None
    rows: int
    lost_rows: int
    is_crowded: bool = False


class Publisher:
    """Opens writers, decides publications, and finishes those that are decided."""

    def __init__(self, services: Services, calls: BrokerCalls, places: Places, staging: StagedData) -> None:
        self._services = services
        self._calls = calls
        self._places = places
        self._staging = staging
        self._crowded: dict[int, float] = {}  # partition -> until when it takes no new writers, on the monotonic clock

    # ---- writers ----

    async def open(self, topic: str, incarnation: str, writer: str) -> tuple[Writer, WriterRecord]:
        """Raise the writer's epoch. A program that opened it earlier publishes nothing more.

        If the call is cancelled, the epoch may be raised.

        Raises:
            UnknownTopicError: There is no such topic.
            PreconditionError: Another incarnation has its name.
            CoordinatorBehindError: The coordinator may have lost what the writer published last.
            NotServingError: Other publishers changed the writer at each of 50 tries.
            CoordinatorUnavailableError: It is not known whether the epoch was raised: open the writer again.
        """
        for _ in range(TRANSACTIONS_MAX):
            known = await self._read(topic, incarnation, writer)
            await self._services.check_nothing_lost(f"writer {writer!r}", "opened")
            new_id = secrets.token_bytes(writers.NEW_ID_BYTES)
            # Rule `epochs-grow` (P7): revisions start over after a rebuild, so its time is added. Without it: 1. A
            # program opens the writer, in epoch 500, and is frozen. 2. The coordinator is rebuilt. Another program
            # opens the writer at revision 499, in epoch 500. 3. The first one wakes, and publishes too.
            revision = known.revision + known.rebuilt_at_ms
            record = writers.opened(known.record, topic, writer, new_id, revision, int(time.time() * 1000))
            compares = [mod_revision_is(self._services.keys.topic(topic), known.topic_revision)]
            if await self._write(Writer(known.topic.incarnation, writer), known.item, record, compares, known.lost):
                return Writer(known.topic.incarnation, writer), record
        raise NotServingError(f"writer {writer!r} was changed by others at every try: try again", retry_after_ms=200)

    async def delete(self, topic: str, writer: str) -> None:
        """Delete a writer.

        Raises:
            UnknownWriterError: There is no such writer.
            PreconditionError: A publication of it is not finished.
        """
        keys = self._services.keys
        for _ in range(TRANSACTIONS_MAX):
            known = await self._read(topic, "", writer)
            if known.item is None or known.record is None:
                raise UnknownWriterError(f"topic {topic!r} has no writer {writer!r}")
            if known.record.state is WriterState.DECIDED:
                raise PreconditionError(
                    f"publication {known.record.sequence} of writer {writer!r} is decided and not finished: nothing "
                    "was deleted; it is finished as soon as the disks with its rows are there"
                )
            key = keys.writer(known.topic.incarnation, writer)
            result = await self._services.coordinator.txn(
                [mod_revision_is(key, known.item.mod_revision)], [Delete(key)]
            )
            if result.succeeded:
                return
        raise NotServingError(f"writer {writer!r} was changed by others at every try: try again", retry_after_ms=200)

    # ---- publishing ----

    async def publish(
        self, topic: str, incarnation: str, wanted: Publication, until: float
    ) -> tuple[Sequence[Carried], bool]:
        """Decide a publication, and have it carried out.

        A publication without rows decides nothing: it is answered if its writer may publish it. If the call is
        cancelled, the publication may be decided, and is then carried out whatever happens.

        Args:
            topic: The name of the topic.
            incarnation: Of the topic for which the rows were staged.
            wanted: What is to be published.
            until: The deadline, on the monotonic clock.

        Returns:
            What masters answered; empty if another broker finished the publication. And whether an earlier call decided
            it: the client may have sent this call twice. It counts as the same call if it names the same manifest.

        Raises:
            WriterFencedError, WriterOwnedError, UnknownWriterError, SequencePassedError, PublicationDiffersError: See
                `core.values.writers.judge`. Nothing was decided, unless the publication was decided before the writer
                was opened again. Then it is finished whatever happens.
            StagedDataGoneError: Nothing was decided: stage the rows again.
            CoordinatorBehindError: Nothing was decided: the coordinator may have lost a publication of the writer.
            TooManyProducersError: Nothing was decided: a partition remembers too many writers, and this one is new.
            PublishedWithLossError: It was decided, and some of its rows are lost.
            DeadlineExceededError, UnavailableError: It may be decided, and is then carried out whatever happens. The
                same call reports the outcome.
        """
        wanted.check()
        carried: tuple[bytes, Sequence[Carried]] = b"", ()  # the id of a manifest, and what masters answered about it
        said = ""
        for _ in range(TRANSACTIONS_MAX):
            known = await self._read(topic, incarnation, wanted.writer)
            writer = Writer(known.topic.incarnation, wanted.writer)
            verdict = writers.judge(known.record, wanted)
            if verdict is Verdict.DONE:
                assert known.record is not None
                id_ = known.record.manifest.id
                return carried[1] if carried[0] == id_ else (), id_ != wanted.manifest.id
            if verdict is Verdict.FINISH:
                assert known.item is not None
                assert known.record is not None
                if self._services.note_revision is not None:
                    await self._services.note_revision(known.revision)
                try:
                    carried = known.record.manifest.id, await self.finish(writer, known.item, until)
                except NotServingError as exc:  # another publisher was faster: read what it wrote
                    said = f" ({exc.message})"
                    await asyncio.sleep(PAUSE_S)
            elif not wanted.has_rows:
                return (), False
            else:
                await self._decide(known, writer, wanted, until)
            if time.monotonic() >= until:
                break
        raise DeadlineExceededError(
            "the publication is not finished yet. If it was decided, it is finished whatever happens; the same call "
            f"reports the outcome{said}"
        )

    async def _decide(self, known: Known, writer: Writer, wanted: Publication, until: float) -> None:
        """Decide in one transaction, if all staged data is there. The caller reads the record to see the outcome.

        Rule `lost-decides-nothing` (P2): nothing is decided, and no writer opened, while this broker knows that the
        coordinator lost decisions. It looks after it has read the record. Without it:
          1. A program publishes 7. The coordinator is restored as it was when 6 was the last one.
          2. Before the rebuild the program opens its writer, and is sent 6. It publishes other rows as 7.
          3. The masters have as many rows of 7 already. They append nothing, and the program is answered ok.
        """
        writers.check_floor(wanted, known.floors)
        try:
            manifest = await self._staging.manifest(wanted.manifest)
        except UnavailableError as exc:
            raise StagedDataGoneError(f"the manifest cannot be read: {exc.message}: stage the rows again") from exc
        # Rule `above-floors` (KEPT-STAGE), kept by `check_manifest`. Without it: 1. Retention raises a floor above a
        # staged batch, and drops the batch. 2. The publisher reads the floors after that, so its comparison holds. 3.
        # It decides, and no disk has the rows.
        incarnation = TopicIncarnation(known.topic.incarnation)
        writers.check_manifest(wanted, manifest, incarnation, set(known.topic.partition_ids), known.floors)
        writers.check_rebuilt(known.record, wanted, manifest)
        if known.record is None or known.record.state is WriterState.NEW:
            self._check_crowded(manifest)
        name = f"publication {wanted.sequence} of writer {wanted.writer!r}"
        await asyncio.gather(
            self._check_staged(wanted.manifest, manifest, until), self._services.check_nothing_lost(name, "decided")
        )
        limits = self._services.topic_limits.of_settings(known.topic.settings)
        if limits is not None:
            await asyncio.to_thread(writers.check_sizes, manifest, limits)
        record = writers.decided(
            known.record,
            wanted,
            known.topic.name,
            manifest.rows,
            int(time.time() * 1000),
            secrets.token_bytes(writers.NEW_ID_BYTES),
        )
        compares = [
            *writer_conditions.of_floors(self._services.keys, known.revision),
            mod_revision_is(self._services.keys.topic(known.topic.name), known.topic_revision),
        ]
        if await self._write(writer, known.item, record, compares, known.lost):
            self._services.counters.publications_decided += 1
            self._services.counters.published_rows += manifest.rows

    def _check_crowded(self, manifest: Manifest) -> None:
        """Refuse a new writer for partitions that remember too many. What is decided is never refused.

        Rule `crowded-before-decided`. Without it: 1. A program makes writer after writer, a million in an hour. 2. Each
        publication is decided, so masters must let each writer in. 3. Their memory grows without a limit.
        """
        now = time.monotonic()
        crowded = [part.partition for part in manifest.parts if self._crowded.get(part.partition, now) > now]
        if crowded:
            raise TooManyProducersError(
                f"partition id {crowded[0]} remembers as many writers as it may, and each published within the last "
                "hour; nothing was decided; publish with fewer writers, or try again later",
                retry_after_ms=1_000,
            )

    async def _check_staged(self, place: ManifestPlace, manifest: Manifest, until: float) -> None:
        """Check that a member has each of the segments that the manifest names, up to the last batch that it names.

        Rule `asks-members` (KEPT-STAGE). Without it: 1. Rows were staged, and both disks with them are lost. 2. A
        publication that names them is decided. 3. No master ever finds the rows.

        Raises:
            BadRequestError: The manifest names a partition that does not belong to the stage topic.
            StagedDataGoneError: For one of the segments, no member that has it answers.
        """
        spans = manifest.spans
        room = asyncio.Semaphore(STAGED_QUESTIONS_AT_ONCE)

        async def check(partition: int, no: int, first: int, end: int) -> None:
            async with room:
                left_s = max(until - time.monotonic(), 0.05)
                chain = chains[partition].chain if partition in chains else None
                segment = chain.segment(no) if chain is not None else None
                is_there = segment is not None and segment.state in (SegmentState.OPEN, SegmentState.SEALED)
                if chain is None or segment is None or not is_there or first < segment.start:
                    raise StagedDataGoneError(f"segment {no} of stage partition id {partition} is gone: stage again")
                request = ranges_pb2.FindPlacesRequest(
                    partition_id=partition, segment=no, from_index=first, to_index=end
                )
                await self._places.find(chain, segment, request, left_s)

        try:
            partitions = sorted({place.partition, *(partition for partition, _ in spans)})
            # Rule `reads-the-chain`, as in `staged_data`: this broker's chain may lack segments that were opened since.
            chains = await self._places.survey_all(partitions, max(until - time.monotonic(), 0.05))
            for told in chains.values():
                if told.chain.topic != STAGE_TOPIC:
                    raise BadRequestError(f"partition id {told.chain.partition} does not belong to the stage topic")
            await asyncio.gather(*(check(*key, spans[key].first, spans[key].end) for key in sorted(spans)))
        except (UnavailableError, RoutingError, UnknownTopicError) as exc:
            raise StagedDataGoneError(
                f"a part of the staged data cannot be read: {exc.message}: stage the rows again"
            ) from exc

    # ---- finishing ----

    async def finish(self, writer: Writer, item: KeyValue, until: float) -> Sequence[Carried]:
        """Have all masters carry out the publication that this record says is DECIDED, then write DONE.

        Rule `decided-first` (PUB): masters are asked only for publications that were read as DECIDED. Without it: 1.
        The transaction of this publisher gets no answer, and is never carried out. 2. The publisher asks the masters,
        and one of them stores rows. 3. The program publishes other rows instead. Rows that were never published stay.

        Raises:
            DeadlineExceededError: Not all masters have answered in time. The next call continues.
            CoordinatorBehindError: A master has rows of a later publication: the coordinator lost decisions.
            NotServingError: A master refuses; as a rule another publisher has finished it. Read the record again.
        """
        record = writer_from_value(item.value)
        assert record.state is WriterState.DECIDED
        carried: Sequence[Carried] = ()
        try:
            manifest = await self._staging.manifest(record.manifest)
            carried = await self._carry_out(writer, record, manifest, until)
        except StagedDataGoneError as exc:  # rows that are not carried out yet are lost, and which ones is not known
            _log.error("manifest_lost", writer=writer.name, sequence=record.sequence, error=str(exc))
            lost_rows = record.rows
        else:
            lost_rows = max(sum(each.lost_rows for each in carried), await self._lost_rows(manifest))
        done = writers.done(record, lost_rows, int(time.time() * 1000))
        if not await self._write(writer, item, done, ()):
            _log.info("publication_finished_elsewhere", writer=writer.name, sequence=record.sequence)
        return carried

    async def finish_again(self, incarnation: str, writer: str) -> None:
        """Finish what that writer has decided, if there is something. The controller calls it.

        Raises:
            DeadlineExceededError, NotServingError, UnavailableError: It is not finished yet.
        """
        key = self._services.keys.writer(incarnation, writer)
        item = await self._services.coordinator.get(key)
        if item is not None and writer_from_value(item.value).state is WriterState.DECIDED:
            await self.finish(Writer(incarnation, writer), item, time.monotonic() + TAKEN_UP_S)

    async def _carry_out(
        self, writer: Writer, record: WriterRecord, manifest: Manifest, until: float
    ) -> Sequence[Carried]:
        parts = {part.partition: part for part in manifest.parts}
        found: dict[int, Carried] = {}
        pause_s = PAUSE_S
        said: SeriatimError | None = None
        told: set[tuple[int, type[SeriatimError]]] = set()
        # Rule `each-answers` (DONE): every partition must have answered. Without it: 1. Nine of ten masters answer. 2.
        # The publisher writes DONE. 3. The tenth never stores its rows, and the program was answered ok.
        while waiting := [partition for partition in parts if partition not in found]:
            if time.monotonic() >= until:
                raise DeadlineExceededError(
                    f"{len(waiting)} of {len(parts)} partitions have not stored their rows yet; they are stored as "
                    "soon as they can be" + (f" ({said.message})" if said is not None else "")
                )
            before = len(found)
            failed = await self._ask_masters(writer, record, [parts[partition] for partition in waiting], found, until)
            for partition, (segment_no, error) in failed.items():
                said = error
                if segment_no:
                    self._complain(partition, segment_no)
                elif (partition, type(error)) not in told and _is_odd(error):
                    told.add((partition, type(error)))
                    _log.warning("publication_refused", partition=partition, writer=writer.name, error=str(error))
            refusal = next((error for _, error in failed.values() if isinstance(error, PreconditionError)), None)
            if isinstance(refusal, CoordinatorBehindError):
                raise refusal
            if refusal is not None:  # as a rule it was finished meanwhile, and the caller reads the record again
                raise NotServingError(f"a master refuses: {refusal.message}", retry_after_ms=20)
            # Rule `reads-again` (I13): if a master calls the manifest gone, the publisher reads it again. Without it:
            # 1.
            # The manifest's disks are declared lost after the decision. 2. This broker still knows the manifest, and
            # the masters do not. 3. The publisher asks them for ever.
            if any(isinstance(error, StagedDataGoneError) for _, error in failed.values()):
                self._staging.forget_manifest(record.manifest)
                await self._staging.manifest(record.manifest)
            if len(found) < len(parts):
                pause_s = PAUSE_S if len(found) > before else min(2 * pause_s, PAUSE_S_MAX)
                await asyncio.sleep(min(pause_s, max(until - time.monotonic(), 0.0)))
        return [found[partition] for partition in parts]

    async def _ask_masters(
        self,
        writer: Writer,
        record: WriterRecord,
        parts: Sequence[ManifestPart],
        found: dict[int, Carried],
        until: float,
    ) -> dict[int, tuple[int, SeriatimError]]:
        """Ask the masters once. Answers go to `found`.

        Rule `complains-of-silence`: the publisher complains about a master if it did not answer, or says that it is not
        the master; never about another answer. Without it: 1. A publication waits for a broker group that is down. 2.
        Its masters say so in time, each time. 3. Because of the complaints each of their healthy segments is ended,
        and the next one, and so on.

        Returns:
            The errors of the other partitions, each with the segment to complain about, or 0.
        """
        by_master: dict[str, dict[int, tuple[int, ManifestPart]]] = {}
        wanted = {part.partition: part for part in parts}
        failed: dict[int, tuple[int, SeriatimError]] = {
            partition: (0, NotServingError(f"partition id {partition} has no chain")) for partition in wanted
        }
        for chain_record in await self._services.chain_records(list(wanted)):
            segment = chain_record.segments[-1]
            rows = by_master.setdefault(segment.members[0].broker, {})
            rows[chain_record.partition_id] = segment.no, wanted[chain_record.partition_id]

        async def ask(master: str, rows: dict[int, tuple[int, ManifestPart]]) -> None:
            ids = list(rows)
            deadline_s = min(max(until - time.monotonic(), 0.05), CALL_DEADLINE_S)
            try:
                answers = await self._ask(master, writer, record, [rows[id_][1] for id_ in ids], deadline_s)
            except SeriatimError as exc:
                was_short = isinstance(exc, DeadlineExceededError) and deadline_s < CALL_DEADLINE_S
                is_silent = isinstance(exc, (UnavailableError, RoutingError)) and not was_short
                failed.update({id_: (rows[id_][0] if is_silent else 0, exc) for id_ in ids})
                return
            for id_, answer in zip(ids, answers, strict=True):
                if isinstance(answer, SeriatimError):
                    failed[id_] = rows[id_][0] if isinstance(answer, RoutingError) else 0, answer
                else:
                    found[id_] = answer
                    del failed[id_]
                    self._crowded.pop(id_, None)
                    if answer.is_crowded:
                        self._crowded[id_] = time.monotonic() + CROWDED_S

        await asyncio.gather(
            *(ask(master, page) for master, rows in by_master.items() for page in _pages(rows, PARTITIONS_PER_CALL))
        )
        return failed

    async def _ask(
        self, master: str, writer: Writer, record: WriterRecord, parts: Sequence[ManifestPart], deadline_s: float
    ) -> Sequence[Carried | SeriatimError]:
        if master == self._services.identity.member.broker:
            return await self.carry_out_here(
                writer, record.producer, record.sequence, record.manifest, parts, deadline_s
            )
        request = publications_pb2.CarryOutRequest(
            incarnation=writer.incarnation,
            writer=writer.name,
            producer=record.producer,
            sequence=record.sequence,
            manifest=manifest_place_to(record.manifest),
            partition_ids=[part.partition for part in parts],
        )
        answer: publications_pb2.CarryOutResponse = await self._calls.publications(
            master, "CarryOut", request, deadline_s
        )
        if [row.partition_id for row in answer.parts] != [part.partition for part in parts]:
            raise NotServingError(f"{master} answered for other partitions than it was asked for")
        return [
            error_from_proto(row.error)
            if row.HasField("error")
            else Carried(
                row.partition_id,
                row.first_offset if row.HasField("first_offset") else None,
                row.rows,
                row.lost_rows,
                row.is_crowded,
            )
            for row in answer.parts
        ]

    async def check_decided(self, writer: Writer, producer: bytes, sequence: int, place: ManifestPlace) -> None:
        """Refuse a publication that the caller calls DECIDED and the coordinator does not: any client can say so.

        Raises:
            PreconditionError: It is not decided, or is done already.
        """
        item = await self._services.coordinator.get(self._services.keys.writer(*writer))
        record = writer_from_value(item.value) if item is not None else None
        if record is None or record.manifest != place or not record.has_decided(producer, sequence, place.id):
            raise PreconditionError(
                f"publication {sequence} of writer {writer.name!r} is not decided, or is done already"
            )

    async def carry_out_here(
        self,
        writer: Writer,
        producer: bytes,
        sequence: int,
        place: ManifestPlace,
        parts: Sequence[ManifestPart],
        deadline_s: float,
    ) -> Sequence[Carried | SeriatimError]:
        """Have this broker's core carry out parts. Each has its own outcome, and none waits for another one."""
        until_us = time.monotonic_ns() // 1000 + int(deadline_s * 0.9e6)

        async def one(part: ManifestPart) -> Carried | SeriatimError:
            try:
                reply = await self._services.ask_core(
                    lambda number: CarryOut(
                        number, PartitionId(part.partition), writer.incarnation, writer.name, producer, sequence,
                        place.id, part.batches, until_us,
                    ),
                    deadline_s,
                )  # fmt: skip
            except SeriatimError as exc:
                return exc
            assert isinstance(reply, CarriedOut)
            if reply.error is not None:
                return reply.error
            return Carried(part.partition, reply.first_offset, reply.rows, reply.lost_rows, reply.is_crowded)

        return await asyncio.gather(*map(one, parts))

    def _complain(self, partition: int, segment_no: int) -> None:
        """Report this broker's core that a master is silent or is not the master, as a producer's complaint does."""
        driver = self._services.driver
        until_us = time.monotonic_ns() // 1000 + int(PAUSE_S_MAX * 1e6)
        request = driver.new_request(lambda _reply: None)
        driver.feed(ResolveProducer(request, PartitionId(partition), segment_no, until_us))

    async def _lost_rows(self, manifest: Manifest) -> int:
        """Rows that were staged in segments that are declared lost, whether or not they were carried out before."""
        partitions = sorted({partition for partition, _ in manifest.spans})
        lost = {
            (chain.partition, segment.no)
            for chain in await self._services.chains(partitions)
            for segment in chain.segments
            if segment.state is SegmentState.LOST
        }
        return sum(span.rows for place, span in manifest.spans.items() if place in lost)

    # ---- the coordinator ----

    async def _read(self, topic: str, incarnation: str, writer: str) -> Known:
        """A writer, its topic and all floors, at one revision.

        Raises:
            UnknownTopicError: There is no such topic.
            PreconditionError: Another incarnation has its name.
        """
        services = self._services
        known = await services.topic(topic)
        if incarnation not in ("", known.incarnation):
            raise PreconditionError(
                f"topic {topic!r} was deleted and made again: it is {known.incarnation}", topic=topic
            )
        keys = services.keys
        key = keys.writer(known.incarnation, writer)
        nameless = keys.lost_writers(known.incarnation, writers.name_digest(writer))
        result = await services.coordinator.txn(
            (),
            [
                Get(keys.topic(topic)),
                Get(key),
                GetPrefix(keys.stage_floors),
                GetPrefix(nameless),
                Get(keys.cluster_record),
            ],
        )
        found, written, floors, rebuilt, cluster = result.responses
        record = records_pb2.TopicRecord.FromString(found.item.value) if found.item is not None else None
        if record is None or found.item is None or record.incarnation != known.incarnation:
            raise UnknownTopicError(f"there is no topic {topic!r} any more", topic=topic)
        if record.state == records_pb2.TOPIC_STATE_DELETING:
            raise UnknownTopicError(f"topic {topic!r} is being deleted", topic=topic)
        item, lost = written.item, None
        if item is None and rebuilt.items:
            lost = max(rebuilt.items, key=lambda one: (writer_from_value(one.value).done_at_ms, one.key))
        value = item or lost
        return Known(
            record,
            found.item.mod_revision,
            item,
            lost,
            writer_from_value(value.value) if value is not None else None,
            {
                partition_of(floor.key): records_pb2.StageFloorRecord.FromString(floor.value).offset
                for floor in floors.items
            },
            result.revision,
            records_pb2.ClusterRecord.FromString(cluster.item.value).rebuilt_at_ms if cluster.item is not None else 0,
        )

    async def _write(
        self,
        writer: Writer,
        item: KeyValue | None,
        record: WriterRecord,
        compares: Iterable[Compare],
        lost: KeyValue | None = None,
    ) -> bool:
        """Write a record in place of the one that was read.

        Returns:
            False if the record had changed, or if the outcome is not known: the caller reads it again.
        """
        keys = self._services.keys
        value = writer_to_record(record, item.value if item is not None else None).SerializeToString()
        same = list(writer_conditions.of_record(keys, *writer, item.mod_revision if item is not None else 0))
        operations: list[Operation] = [Put(keys.writer(*writer), value)]
        if lost is not None:
            same.append(mod_revision_is(lost.key, lost.mod_revision))
            # All of them, or an earlier writer of this name, which was deleted, would come back with the next opening.
            operations.append(DeletePrefix(keys.lost_writers(writer.incarnation, writers.name_digest(writer.name))))
        try:
            result = await self._services.coordinator.txn([*same, *compares], operations)
        except CoordinatorRefusedError:
            raise
        except CoordinatorUnavailableError as exc:
            _log.warning("writer_write_unknown", writer=writer.name, error=str(exc))
            return False
        return result.succeeded


def _is_odd(error: SeriatimError) -> bool:
    """Whether an administrator should know of this answer of a master."""
    return not error.retriable and not isinstance(error, PreconditionError)


def _pages(rows: dict[int, tuple[int, ManifestPart]], size: int) -> Iterable[dict[int, tuple[int, ManifestPart]]]:
    ids = list(rows)
    for first in range(0, len(ids), size):
        yield {id_: rows[id_] for id_ in ids[first : first + size]}
