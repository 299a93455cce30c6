"""The publisher: any broker decides a publication, and has the masters of its partitions carry it out.

It keeps nothing between two calls. Several of them at once, for one publication, are harmless: one transaction decides,
and each master goes on where its own table says. What is decided is in `core.values.writers`.

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
    CoordinatorRefusedError,
    CoordinatorUnavailableError,
    DeadlineExceededError,
    NotServingError,
    PreconditionError,
    RoutingError,
    SeriatimError,
    StagedDataGoneError,
    UnavailableError,
    UnknownTopicError,
    UnknownWriterError,
)
from seriatim_api.ids import PartitionId
from seriatim_api.publications import STAGE_TOPIC, Manifest, ManifestPart
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import publications_pb2, ranges_pb2, records_pb2

from ..core.values import writers
from ..core.values.chain import SegmentState
from ..core.values.effects import CarriedOut
from ..core.values.events import CarryOut, ResolveProducer
from ..core.values.messages import FORM_PUBLICATIONS
from ..core.values.writers import ManifestPlace, Publication, Verdict, WriterRecord, WriterState
from ..interfaces.coordinator import Compare, Delete, Get, GetPrefix, KeyValue, Put, mod_revision_is
from ..runtime import deciding
from ..runtime.keys import partition_of
from ..runtime.records import manifest_place_to, writer_from_value, writer_to_record
from .outbound import BrokerCalls
from .places import Places
from .services import Services
from .staging import Staging

PARTITIONS_PER_CALL: Final = 200
"""That one master is asked for in one call."""

PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 0.5
"""Before partitions that have not answered are asked again."""

CALL_DEADLINE_S: Final = 10.0
"""Of one question to a master; a long publication is asked for again, and goes on meanwhile."""

TAKEN_UP_S: Final = 30.0
"""For one try to finish what somebody else decided."""

TRANSACTIONS_MAX: Final = 50
"""Of one call: each of them but the last met a record that was changed meanwhile."""

STAGED_QUESTIONS_AT_ONCE: Final = 16

_log = structlog.get_logger(__name__)


class Writer(NamedTuple):
    """A writer of a topic, by the topic's incarnation."""

    incarnation: str
    name: str


class Known(NamedTuple):
    """What the coordinator says of a writer and its topic, as of one revision."""

    topic: records_pb2.TopicRecord
    topic_revision: int
    item: KeyValue | None
    record: WriterRecord | None
    floors: dict[int, int]
    revision: int


class Carried(NamedTuple):
    """What a master answered for a partition."""

    partition: int
    first_offset: int | None
    rows: int
    lost_rows: int


class Publisher:
    """Opens writers, decides publications, and finishes those that are decided."""

    def __init__(self, services: Services, calls: BrokerCalls, places: Places, staging: Staging) -> None:
        self._services = services
        self._calls = calls
        self._places = places
        self._staging = staging

    # ---- writers ----

    async def open(self, topic: str, incarnation: str, writer: str) -> tuple[Writer, WriterRecord]:
        """Raise the writer's epoch: whoever opened it before publishes nothing more.

        Raises:
            UnknownTopicError, PreconditionError: The topic is not there, or another one; or brokers are too old.
            CoordinatorUnavailableError: It is not known whether the epoch was raised: open it again.
        """
        self.check_understood()
        for _ in range(TRANSACTIONS_MAX):
            known = await self._read(topic, incarnation, writer)
            new_id = secrets.token_bytes(writers.NEW_ID_BYTES)
            record = writers.opened(known.record, topic, new_id, known.revision, int(time.time() * 1000))
            compares = [mod_revision_is(self._services.keys.topic(topic), known.topic_revision)]
            if await self._write(Writer(known.topic.incarnation, writer), known.item, record, compares):
                return Writer(known.topic.incarnation, writer), record
        raise NotServingError(f"writer {writer!r} was changed again and again meanwhile", retry_after_ms=200)

    async def delete(self, topic: str, writer: str) -> None:
        """Forget a writer.

        Raises:
            UnknownWriterError: There is none. PreconditionError: A publication of it is not finished.
        """
        keys = self._services.keys
        for _ in range(TRANSACTIONS_MAX):
            known = await self._read(topic, "", writer)
            if known.item is None or known.record is None:
                raise UnknownWriterError(f"topic {topic!r} has no writer {writer!r}")
            if known.record.state is WriterState.DECIDED:
                raise PreconditionError(
                    f"publication {known.record.sequence} of writer {writer!r} is decided and not finished: it is "
                    "finished as soon as the disks with its rows are there"
                )
            key = keys.writer(known.topic.incarnation, writer)
            result = await self._services.coordinator.txn(
                [mod_revision_is(key, known.item.mod_revision)], [Delete(key)]
            )
            if result.succeeded:
                return
        raise NotServingError(f"writer {writer!r} was changed again and again meanwhile", retry_after_ms=200)

    # ---- publishing ----

    async def publish(
        self, topic: str, incarnation: str, wanted: Publication, until: float
    ) -> tuple[Sequence[Carried], bool]:
        """Decide a publication, and have it carried out.

        Returns what masters said, unless another broker finished it; and whether it was decided by an earlier call
        (this one may have been sent twice, and is the same by its manifest). One without rows decides nothing: it is
        answered if its writer may publish it.

        Args:
            topic: Its name.
            incarnation: Of the topic for which the rows were staged.
            wanted: What is to be published.
            until: On the monotonic clock.

        Raises:
            WriterFencedError, WriterOwnedError, UnknownWriterError, SequencePassedError, PublicationDiffersError: As of
                `core.values.writers.judge`. Nothing was decided, or it was before the writer was opened again,
                and is finished whatever happens.
            StagedDataGoneError: Nothing was decided: stage the rows anew.
            PublishedWithLossError: It was decided, and some of its rows are lost.
            DeadlineExceededError, UnavailableError: It may be decided, and is carried out then whatever happens. The
                same call tells what became of it.
        """
        wanted.check()
        self.check_understood()
        carried: tuple[bytes, Sequence[Carried]] = b"", ()  # for which manifest, and what masters said
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
                try:
                    carried = known.record.manifest.id, await self.finish(writer, known.item, until)
                except NotServingError as exc:  # another publisher was quicker: read what it wrote
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
            f"says what became of it{said}"
        )

    async def _decide(self, known: Known, writer: Writer, wanted: Publication, until: float) -> None:
        """One transaction, if all that is needed is there; whoever asked reads what became of it."""
        writers.check_floor(wanted, known.floors)
        try:
            manifest = await self._staging.manifest(wanted.manifest)
        except UnavailableError as exc:
            raise StagedDataGoneError(f"the manifest cannot be read: {exc.message}: stage the rows anew") from exc
        writers.check_manifest(wanted, manifest, known.topic.incarnation, set(known.topic.partition_ids), known.floors)
        await self._check_staged(wanted.manifest, manifest, until)
        record = writers.decided(
            known.record,
            wanted,
            known.topic.name,
            manifest.rows,
            int(time.time() * 1000),
            secrets.token_bytes(writers.NEW_ID_BYTES),
        )
        compares = [
            *deciding.of_floors(self._services.keys, known.revision),
            mod_revision_is(self._services.keys.topic(known.topic.name), known.topic_revision),
        ]
        if await self._write(writer, known.item, record, compares):
            self._services.counters.publications_decided += 1
            self._services.counters.published_rows += manifest.rows

    async def _check_staged(self, place: ManifestPlace, manifest: Manifest, until: float) -> None:
        """Whether some member has each of the segments that the manifest names, as far as it names them.

        Raises:
            BadRequestError: It names a partition that is none of the stage topic's.
            StagedDataGoneError: None answers that has one of them.
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
                    raise StagedDataGoneError(f"segment {no} of stage partition {partition} is gone: stage anew")
                request = ranges_pb2.FindPlacesRequest(
                    partition_id=partition, segment=no, from_index=first, to_index=end
                )
                await self._places.find(chain, segment, request, left_s)

        try:
            partitions = sorted({place.partition, *(partition for partition, _ in spans)})
            # Rule `reads-the-chain`, as in `staging`: the chain that is known here may lack what was staged since.
            chains = await self._places.survey_all(partitions, max(until - time.monotonic(), 0.05))
            for told in chains.values():
                if told.chain.topic != STAGE_TOPIC:
                    raise BadRequestError(f"partition id {told.chain.partition} is none of the stage topic's")
            await asyncio.gather(*(check(*key, spans[key].first, spans[key].end) for key in sorted(spans)))
        except (UnavailableError, RoutingError, UnknownTopicError) as exc:
            raise StagedDataGoneError(f"a part of what was staged cannot be read: {exc.message}: stage anew") from exc

    # ---- finishing ----

    async def finish(self, writer: Writer, item: KeyValue, until: float) -> Sequence[Carried]:
        """Have all masters carry out what this record says is DECIDED, then write DONE.

        Rule `decided-first` (P1): masters are asked only for what was read as DECIDED in the coordinator, never for
        what a transaction without an answer may have written.

        Raises:
            DeadlineExceededError: Not all of them have answered in time. Whoever asks again goes on.
        """
        record = writer_from_value(item.value)
        assert record.state is WriterState.DECIDED
        carried: Sequence[Carried] = ()
        try:
            manifest = await self._staging.manifest(record.manifest)
            carried = await self._carry_out(writer, record, manifest, until)
        except StagedDataGoneError as exc:  # with it, what is not carried out yet is lost: which rows, nobody knows
            _log.error("manifest_lost", writer=writer.name, sequence=record.sequence, error=str(exc))
            lost_rows = record.rows
        else:
            lost_rows = max(sum(each.lost_rows for each in carried), await self._lost_rows(manifest))
        done = writers.done(record, lost_rows, int(time.time() * 1000))
        if not await self._write(writer, item, done, ()):
            _log.info("publication_finished_elsewhere", writer=writer.name, sequence=record.sequence)
        return carried

    async def finish_again(self, incarnation: str, writer: str) -> None:
        """Finish what that writer has decided, if it has: for whoever takes up what nobody else finishes.

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
            if refusal is not None:  # as a rule it was finished meanwhile: whoever asked reads the record again
                raise NotServingError(f"a master refuses: {refusal.message}", retry_after_ms=20)
            # Rule `reads-again`: if a master calls the manifest gone, it is looked for anew. Without it: (1) the
            # manifest's disks are declared lost after the decision; (2) this broker knows the manifest from before, and
            # the masters do not; (3) it asks them for ever.
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
        """One round; what was answered goes to `found`. Returns the errors of the others, and segments to complain of.

        Rule `complains-of-silence`: a master is complained of if it did not answer the question, or says that it is
        none; never for what it answered. Without it: (1) a publication waits for a group that is down; (2) its masters
        say so in time, each time; (3) each of their healthy segments is ended for that, and the next one, and so on.
        """
        by_master: dict[str, dict[int, tuple[int, ManifestPart]]] = {}
        wanted = {part.partition: part for part in parts}
        failed: dict[int, tuple[int, SeriatimError]] = {
            partition: (0, NotServingError(f"partition {partition} has no chain")) for partition in wanted
        }
        for head in await self._services.chain_heads(list(wanted)):
            segment = head.segments[-1]
            rows = by_master.setdefault(segment.members[0].broker, {})
            rows[head.partition_id] = segment.no, wanted[head.partition_id]

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
            )
            for row in answer.parts
        ]

    async def check_decided(self, writer: Writer, producer: bytes, sequence: int, place: ManifestPlace) -> None:
        """Refuse what somebody else calls DECIDED, and the coordinator does not: any client can say so.

        Raises:
            PreconditionError: It is not, or is done already.
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
        """Have this broker's core carry out parts; each has its own outcome, and none waits for another one's."""
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
            return Carried(part.partition, reply.first_offset, reply.rows, reply.lost_rows)

        return await asyncio.gather(*map(one, parts))

    def _complain(self, partition: int, segment_no: int) -> None:
        """A master does not answer, or is none: have this broker look after the partition, as for a producer."""
        driver = self._services.driver
        until_us = time.monotonic_ns() // 1000 + int(PAUSE_S_MAX * 1e6)
        request = driver.new_request(lambda _reply: None)
        driver.feed(ResolveProducer(request, PartitionId(partition), segment_no, until_us))

    async def _lost_rows(self, manifest: Manifest) -> int:
        """Rows that were staged on segments that are declared lost, whether or not they were carried out before."""
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
        """A writer, its topic and all floors, as of one revision.

        Raises:
            UnknownTopicError: There is no such topic. PreconditionError: Another one has the name.
        """
        services = self._services
        known = await services.topic(topic)
        if incarnation not in ("", known.incarnation):
            raise PreconditionError(
                f"topic {topic!r} was deleted and made again: it is {known.incarnation}", topic=topic
            )
        keys = services.keys
        key = keys.writer(known.incarnation, writer)
        result = await services.coordinator.txn((), [Get(keys.topic(topic)), Get(key), GetPrefix(keys.stage_floors)])
        found, written, floors = result.responses
        record = records_pb2.TopicRecord.FromString(found.item.value) if found.item is not None else None
        if record is None or found.item is None or record.incarnation != known.incarnation:
            raise UnknownTopicError(f"there is no topic {topic!r} any more", topic=topic)
        if record.state == records_pb2.TOPIC_STATE_DELETING:
            raise UnknownTopicError(f"topic {topic!r} is being deleted", topic=topic)
        item = written.item
        return Known(
            record,
            found.item.mod_revision,
            item,
            writer_from_value(item.value) if item is not None else None,
            {
                partition_of(floor.key): records_pb2.StageFloorRecord.FromString(floor.value).offset
                for floor in floors.items
            },
            result.revision,
        )

    async def _write(
        self, writer: Writer, item: KeyValue | None, record: WriterRecord, compares: Iterable[Compare]
    ) -> bool:
        """Write a record in place of the one that was read.

        Returns False if it was another one by then, or if nobody knows what became of the write: it is read again.
        """
        keys = self._services.keys
        value = writer_to_record(record, item.value if item is not None else None).SerializeToString()
        same = deciding.of_record(keys, *writer, item.mod_revision if item is not None else 0)
        try:
            result = await self._services.coordinator.txn([*same, *compares], [Put(keys.writer(*writer), value)])
        except CoordinatorRefusedError:
            raise
        except CoordinatorUnavailableError as exc:
            _log.warning("writer_write_unknown", writer=writer.name, error=str(exc))
            return False
        return result.succeeded

    def check_understood(self) -> None:
        """Refuse while a broker is registered that would not carry out what is decided.

        Raises:
            PreconditionError: One is.
        """
        members = self._services.directory.members.values()
        if any(record.forms_run != record.run or not record.forms & FORM_PUBLICATIONS for record in members):
            raise PreconditionError(
                "a broker of an older version does not know publications: upgrade all brokers first"
            )


def _is_odd(error: SeriatimError) -> bool:
    """Whether somebody should know of this answer of a master."""
    return not error.retriable and not isinstance(error, PreconditionError)


def _pages(rows: dict[int, tuple[int, ManifestPart]], size: int) -> Iterable[dict[int, tuple[int, ManifestPart]]]:
    ids = list(rows)
    for first in range(0, len(ids), size):
        yield {id_: rows[id_] for id_ in ids[first : first + size]}
