"""The publisher: what it reads, compares and asks, and what it answers when any of it goes wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api import errors
from seriatim_api.ids import MemberId, PartitionId, TopicIncarnation, make_offset
from seriatim_api.publications import (
    PRODUCER_MARK,
    STAGE_TOPIC,
    Manifest,
    ManifestPart,
    RowLayout,
    StagedBatch,
    StagedBatches,
    digest_of,
    make_chunk_id,
)
from seriatim_api.v1 import publications_pb2, records_pb2
from seriatim_broker.core.values import writers
from seriatim_broker.core.values.effects import CarriedOut
from seriatim_broker.core.values.events import CarryOut, Event, ResolveProducer
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.core.values.writers import ManifestPlace, Publication, WriterRecord, WriterState
from seriatim_broker.counters.broker import Counters
from seriatim_broker.interfaces.coordinator import Delete, Put
from seriatim_broker.rpc.distributed import publisher
from seriatim_broker.rpc.distributed.publisher import Publisher, Writer
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import writer_from_value, writer_to_record
from seriatim_broker.runtime.coordinator.topic_limits import TopicLimits
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

KEYS = Keys("c")
PRODUCER = writers.name_digest("nightly") + b"w" * 4 + PRODUCER_MARK
INCARNATION = TopicIncarnation("ab" * 16)
STAGE = 90
WRITER = Writer(INCARNATION, "nightly")
KEY = KEYS.writer(*WRITER)
PARTITIONS = (3, 4)


def manifest_of(rows: int = 2) -> Manifest:
    """Some rows for both partitions."""
    parts = tuple(
        ManifestPart(partition, 10, StagedBatches([StagedBatch(STAGE, rows, make_offset(1, 100 * number), b"c" * 16)]))
        for number, partition in enumerate(PARTITIONS, 1)
    )
    return Manifest(INCARNATION, parts)


class Cluster:
    """A coordinator, masters that answer as the test says, and what is staged."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(MemoryStore())
        self.keys = KEYS
        self.counters = Counters()
        self.identity = SimpleNamespace(member=MemberId("g0-0", "a" * 32))
        self.driver = self
        self.fed: list[Event] = []
        self.asked: list[tuple[int, int]] = []  # sequence and partition of each question to a master
        self.refusals: list[errors.SeriatimError] = []  # the next answers of masters
        self.crowded: tuple[int, ...] = ()  # partitions that remember too many writers
        self.manifests: dict[bytes, Manifest | errors.SeriatimError] = {}
        self.on_find: Callable[[], Any] | None = None
        self.stage_error: errors.SeriatimError | None = None
        self.lost: tuple[int, ...] = ()
        self.topic_limits = TopicLimits(1 << 20)
        self.bodies = self
        self.largest = 0  # bytes of the largest message of what is read
        self.read_count = 0
        self.note_revision: Callable[[int], Any] | None = None
        self.behind = ""  # what proves that the coordinator has lost decisions
        self.stage_topic = STAGE_TOPIC
        self.master = "g0-0"
        self.known: set[bytes] = set()  # ids of manifests that this broker remembers
        self.lost_manifests: set[bytes] = set()
        self.silences: list[errors.SeriatimError] = []  # of calls to another broker
        self.publisher = Publisher(cast(Any, self), cast(Any, self), cast(Any, self), cast(Any, self))

    async def begin(
        self, state: int = records_pb2.TOPIC_STATE_READY, settings: records_pb2.TopicSettings | None = None
    ) -> None:
        """The topic is there."""
        record = records_pb2.TopicRecord(
            name="orders",
            incarnation=INCARNATION,
            state=state,
            partition_ids=PARTITIONS,  # type: ignore[arg-type]
            settings=settings,
        )
        await self.coordinator.txn((), [Put(KEYS.topic("orders"), record.SerializeToString())])

    def wanted(self, sequence: int = 1, rows: int = 2, epoch: int = 0) -> Publication:
        """A publication whose manifest is staged."""
        manifest = manifest_of(rows)
        id_ = bytes([sequence, rows]) * 8
        self.manifests.setdefault(id_, manifest)
        place = ManifestPlace(
            PartitionId(STAGE), (make_offset(1, 900),), 80, 1, id_, content_digest=b"c" * 16, layout=RowLayout(2, 1000)
        )
        return Publication("nightly", epoch, "", sequence, place, digest_of(manifest.parts))

    def again(self, wanted: Publication) -> Publication:
        """The same rows, staged by another run."""
        id_ = wanted.manifest.id[::-1]
        self.manifests[id_] = self.manifests[wanted.manifest.id]
        return replace(wanted, manifest=replace(wanted.manifest, id=id_))

    async def publish(self, wanted: Publication, within_s: float = 5.0) -> tuple[Sequence[Any], bool]:
        """Publish it."""
        return await self.publisher.publish("orders", INCARNATION, wanted, time.monotonic() + within_s)

    async def record(self) -> WriterRecord | None:
        """As the coordinator has it."""
        item = await self.coordinator.get(KEY)
        return writer_from_value(item.value) if item is not None else None

    async def written(self) -> WriterRecord:
        """As the coordinator has it; there must be one."""
        record = await self.record()
        assert record is not None
        return record

    async def write(self, record: WriterRecord) -> None:
        """Another broker writes the record."""
        await self.coordinator.txn((), [Put(KEY, writer_to_record(record).SerializeToString())])

    # ---- services ----

    async def check_nothing_lost(self, what: str, refused: str) -> None:
        if self.behind:
            raise errors.CoordinatorBehindError(f"{what} is not {refused}: {self.behind}")

    async def topic(self, name: str) -> records_pb2.TopicRecord:
        item = await self.coordinator.get(KEYS.topic(name))
        if item is None:
            raise errors.UnknownTopicError(name)
        return records_pb2.TopicRecord.FromString(item.value)

    async def chain_records(self, partitions: Sequence[int]) -> list[Any]:
        member = SimpleNamespace(broker=self.master)
        segment = SimpleNamespace(no=5, members=[member])
        return [SimpleNamespace(partition_id=partition, segments=[segment]) for partition in partitions]

    async def chains(self, partitions: Sequence[int]) -> list[Any]:
        state = SegmentState.LOST if self.lost else SegmentState.SEALED
        segments = [SimpleNamespace(no=1, state=state)]
        return [SimpleNamespace(partition=partition, segments=segments) for partition in partitions]

    async def ask_core(self, event_of: Callable[[int], Any], _deadline_s: float) -> CarriedOut:
        event = event_of(1)
        assert isinstance(event, CarryOut)
        item = await self.coordinator.get(KEYS.writer(event.incarnation, event.writer))
        assert item is not None
        record = writer_from_value(item.value)
        assert record.has_decided(event.producer, event.sequence, event.manifest), "asked for what is not decided"
        self.asked.append((event.sequence, event.partition))
        error = self.refusals.pop(0) if self.refusals else None
        rows = sum(batch.rows for batch in event.batches)
        is_crowded = event.partition in self.crowded
        first = make_offset(5, 0) if error is None else None
        return CarriedOut(1, first, rows if error is None else 0, 0, error, is_crowded)

    async def publications(self, _broker: str, _method: str, request: Any, _deadline_s: float) -> Any:
        if self.silences:
            raise self.silences.pop(0)
        parts = [publications_pb2.CarriedOutPart(partition_id=id_, rows=2) for id_ in request.partition_ids]
        return publications_pb2.CarryOutResponse(parts=parts)

    def new_request(self, _take: Callable[[Any], None]) -> int:
        return 7

    def feed(self, event: Event) -> None:
        self.fed.append(event)

    # ---- places and staging ----

    async def survey_all(self, partitions: Sequence[int], _deadline_s: float) -> dict[int, Any]:
        segment = SimpleNamespace(state=SegmentState.OPEN, start=0)
        return {
            partition: SimpleNamespace(
                chain=SimpleNamespace(
                    partition=partition, topic=self.stage_topic, segment=lambda no: segment if no == 1 else None
                )
            )
            for partition in partitions
        }

    async def find(self, *_arguments: Any) -> None:
        if self.stage_error is not None:
            raise self.stage_error
        on_find, self.on_find = self.on_find, None
        if on_find is not None:
            await on_find()

    async def read(self, _staged: StagedBatch, *, must_match: bool) -> Any:
        assert must_match
        self.read_count += 1
        return SimpleNamespace(body=bytes(2000))

    def largest_message(self, _body: bytes, _message_count: int) -> int:
        return self.largest

    def forget_manifest(self, place: ManifestPlace) -> None:
        self.known.discard(place.id)

    async def manifest(self, place: ManifestPlace) -> Manifest:
        found = self.manifests[place.id]
        if place.id in self.lost_manifests and place.id not in self.known:
            raise errors.StagedDataGoneError("gone")
        self.known.add(place.id)
        if isinstance(found, errors.SeriatimError):
            raise found
        return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are short."""
    monkeypatch.setattr(publisher, "PAUSE_S", 0.001)
    monkeypatch.setattr(publisher, "PAUSE_S_MAX", 0.002)


async def begun() -> Cluster:
    """A cluster with the topic."""
    cluster = Cluster()
    await cluster.begin()
    return cluster


async def test_a_publication_is_decided_carried_out_and_done() -> None:
    cluster = await begun()
    carried, was_done = await cluster.publish(cluster.wanted())
    assert [(each.partition, each.rows) for each in carried] == [(3, 2), (4, 2)]
    assert not was_done
    record = await cluster.written()
    assert (record.state, record.sequence, record.rows, record.lost_rows) == (WriterState.DONE, 1, 4, 0)
    assert cluster.counters.publications_decided == 1
    assert await cluster.publish(cluster.wanted()) == ((), False), "the same call, sent again"
    assert await cluster.publish(cluster.again(cluster.wanted())) == ((), True)
    assert len(cluster.asked) == 2, "no master is asked again"


async def test_a_call_answers_with_its_own_parts_and_says_what_it_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finishes 7 first; another broker finishes 8, which it has decided."""
    cluster = await begun()
    await cluster.write(writers.decided(None, cluster.wanted(7, rows=5), "orders", 10, 0, b"w" * 4))
    decide = cluster.publisher._decide

    async def finished_elsewhere(*arguments: Any) -> None:
        await decide(*arguments)
        record = await cluster.written()
        await cluster.write(writers.done(record, 0, 1))

    monkeypatch.setattr(cluster.publisher, "_decide", finished_elsewhere)
    assert await cluster.publish(cluster.wanted(8)) == ((), False)


async def test_without_rows_nothing_is_decided_and_it_is_refused_as_with_rows() -> None:
    cluster = await begun()

    def empty(sequence: int, epoch: int = 0) -> Publication:
        return Publication("nightly", epoch, "", sequence, writers.NO_MANIFEST, digest_of(()))

    assert await cluster.publish(empty(1)) == ((), False)
    assert await cluster.record() is None
    await cluster.publish(cluster.wanted(2))
    assert await cluster.publish(empty(3)) == ((), False)
    with pytest.raises(errors.PublicationDiffersError):
        await cluster.publish(empty(2))
    with pytest.raises(errors.SequencePassedError):
        await cluster.publish(empty(1))
    _, record = await cluster.publisher.open("orders", INCARNATION, "nightly")
    with pytest.raises(errors.WriterFencedError):
        await cluster.publish(empty(3))
    await cluster.publish(empty(3, record.epoch))
    with pytest.raises(errors.BadRequestError):
        await cluster.publish(replace(empty(3, record.epoch), digest=b"d" * 16))
    record = await cluster.written()
    assert record.sequence == 2


async def test_nothing_is_decided_for_a_new_writer_in_a_crowded_partition() -> None:
    """Rule `crowded-before-decided`. Known writers continue, and what is decided is finished."""
    cluster = await begun()
    cluster.crowded = (4,)
    await cluster.publish(cluster.wanted(1))

    other = replace(cluster.wanted(1), writer="other")
    with pytest.raises(errors.TooManyProducersError) as refused:
        await cluster.publish(other)
    assert refused.value.retriable
    assert await cluster.coordinator.get(KEYS.writer(INCARNATION, "other")) is None
    await cluster.publish(cluster.wanted(2))
    cluster.crowded = ()
    await cluster.publish(cluster.wanted(3))
    assert await cluster.publish(other)


async def test_an_earlier_decision_is_finished_first() -> None:
    cluster = await begun()
    await cluster.write(writers.decided(None, cluster.wanted(1), "orders", 4, 0, b"w" * 4))
    await cluster.publish(cluster.wanted(2))
    assert cluster.asked == [(1, 3), (1, 4), (2, 3), (2, 4)]


async def test_another_publisher_was_quicker() -> None:
    """Both looked at a record without a decision; only one decision is kept."""
    cluster = await begun()
    other = cluster.wanted(1, rows=5)

    async def decide() -> None:
        await cluster.write(writers.decided(None, other, "orders", 10, 0, b"w" * 4))

    cluster.on_find = decide
    with pytest.raises(errors.PublicationDiffersError):
        await cluster.publish(cluster.wanted(1))
    record = await cluster.written()
    assert (record.digest, record.producer) == (other.digest, PRODUCER)


async def test_a_writer_that_is_opened_meanwhile_fences_the_decision() -> None:
    cluster = await begun()

    async def opened() -> None:
        await cluster.publisher.open("orders", "", "nightly")

    cluster.on_find = opened
    with pytest.raises(errors.WriterFencedError):
        await cluster.publish(cluster.wanted(1))
    record = await cluster.written()
    assert record.state is WriterState.NEW


async def test_a_floor_that_is_raised_meanwhile_stops_the_decision() -> None:
    cluster = await begun()

    async def raised() -> None:
        floor = records_pb2.StageFloorRecord(offset=make_offset(1, 101))
        await cluster.coordinator.txn((), [Put(KEYS.stage_floor(PartitionId(STAGE)), floor.SerializeToString())])

    cluster.on_find = raised
    with pytest.raises(errors.StagedDataGoneError):
        await cluster.publish(cluster.wanted(1))
    assert await cluster.record() is None


async def test_a_topic_that_is_deleted_meanwhile_stops_the_decision() -> None:
    cluster = await begun()

    async def deleted() -> None:
        await cluster.begin(records_pb2.TOPIC_STATE_DELETING)

    cluster.on_find = deleted
    with pytest.raises(errors.UnknownTopicError):
        await cluster.publish(cluster.wanted(1))
    assert await cluster.record() is None


@pytest.mark.parametrize("error", [errors.UnavailableError("away"), errors.NotServingError("moving")])
async def test_what_nobody_has_now_is_not_decided(error: errors.SeriatimError) -> None:
    cluster = await begun()
    cluster.stage_error = error
    with pytest.raises(errors.StagedDataGoneError):
        await cluster.publish(cluster.wanted(1))
    cluster.stage_error = None
    wanted = cluster.wanted(1)
    cluster.manifests[wanted.manifest.id] = error
    if isinstance(error, errors.UnavailableError):
        with pytest.raises(errors.StagedDataGoneError):
            await cluster.publish(wanted)
    assert await cluster.record() is None


async def test_what_lies_in_another_topic_is_not_decided() -> None:
    cluster = await begun()
    cluster.stage_topic = "payments"
    with pytest.raises(errors.BadRequestError, match="stage topic"):
        await cluster.publish(cluster.wanted(1))
    assert await cluster.record() is None


async def test_masters_that_do_not_answer_are_asked_again_and_looked_after() -> None:
    cluster = await begun()
    cluster.refusals = [
        errors.NotServingError("moved"),
        errors.OverloadedError("busy"),
        errors.UnavailableError("away"),
    ]
    await cluster.publish(cluster.wanted())
    assert len(cluster.asked) == 5
    complaints = [event for event in cluster.fed if isinstance(event, ResolveProducer)]
    assert [event.failed_segment for event in complaints] == [5], (
        "only the answer that a broker is not the master leads to a complaint"
    )


async def test_a_master_that_answers_that_it_waits_is_not_looked_after() -> None:
    cluster = await begun()
    cluster.refusals = [errors.DeadlineExceededError("not all rows are committed yet")] * 5
    await cluster.publish(cluster.wanted())
    assert not cluster.fed


@pytest.mark.parametrize("error", [errors.UnavailableError("no connection"), errors.DeadlineExceededError("silent")])
async def test_a_master_that_is_silent_is_looked_after(
    monkeypatch: pytest.MonkeyPatch, error: errors.SeriatimError
) -> None:
    monkeypatch.setattr(publisher, "CALL_DEADLINE_S", 2.0)
    cluster = await begun()
    cluster.master = "g1-0"
    cluster.silences = [error]
    await cluster.publish(cluster.wanted())
    complaints = [event.partition for event in cluster.fed if isinstance(event, ResolveProducer)]
    assert complaints == [3, 4]


async def test_a_master_that_had_little_time_is_not_looked_after() -> None:
    cluster = await begun()
    cluster.master = "g1-0"
    cluster.silences = [errors.DeadlineExceededError("late")]
    await cluster.publish(cluster.wanted(), publisher.CALL_DEADLINE_S / 2)
    assert not cluster.fed


async def test_what_is_not_finished_in_time_is_said_and_stays_decided() -> None:
    cluster = await begun()
    cluster.refusals = [errors.UnavailableError("away")] * 10_000
    with pytest.raises(errors.DeadlineExceededError):
        await cluster.publish(cluster.wanted(), 0.1)
    record = await cluster.written()
    assert record.state is WriterState.DECIDED
    cluster.refusals = []
    await cluster.publisher.finish_again(*WRITER)
    record = await cluster.written()
    assert record.state is WriterState.DONE
    await cluster.publisher.finish_again(*WRITER)
    await cluster.coordinator.txn((), [Delete(KEY)])
    await cluster.publisher.finish_again(*WRITER)


async def test_a_decision_without_an_answer_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await begun()
    txn, unanswered = cluster.coordinator.txn, [True, False, True]

    async def lossy(compares: Any, then: Any, *arguments: Any, **named: Any) -> Any:
        result = await txn(compares, then, *arguments, **named)
        if any(isinstance(operation, Put) for operation in then) and unanswered and unanswered.pop(0):
            raise errors.CoordinatorUnavailableError("no answer")
        return result

    monkeypatch.setattr(cluster.coordinator, "txn", lossy)
    await cluster.publish(cluster.wanted())
    record = await cluster.written()
    assert record.state is WriterState.DONE
    assert sorted(set(cluster.asked)) == [(1, 3), (1, 4)]


async def test_staged_rows_on_lost_disks_are_told_again_and_again() -> None:
    cluster = await begun()
    cluster.lost = (STAGE,)
    for _ in range(2):
        with pytest.raises(errors.PublishedWithLossError):
            await cluster.publish(cluster.wanted())
    record = await cluster.written()
    assert (record.state, record.lost_rows) == (WriterState.DONE, 4)


async def test_a_manifest_that_is_lost_after_the_decision_ends_the_publication_with_loss() -> None:
    cluster = await begun()
    wanted = cluster.wanted()
    await cluster.write(writers.decided(None, wanted, "orders", 4, 0, b"w" * 4))
    cluster.manifests[wanted.manifest.id] = errors.StagedDataGoneError("gone")
    with pytest.raises(errors.PublishedWithLossError):
        await cluster.publish(wanted)
    record = await cluster.written()
    assert record.lost_rows == 4


async def test_a_manifest_that_is_lost_and_known_here_ends_the_publication_with_loss() -> None:
    """This broker read it before; the masters cannot."""
    cluster = await begun()
    wanted = cluster.wanted()
    await cluster.write(writers.decided(None, wanted, "orders", 4, 0, b"w" * 4))
    await cluster.manifest(wanted.manifest)
    cluster.lost_manifests.add(wanted.manifest.id)
    cluster.refusals = [errors.StagedDataGoneError("gone")] * 1000
    with pytest.raises(errors.PublishedWithLossError):
        await cluster.publish(wanted)
    record = await cluster.written()
    assert (record.state, record.lost_rows) == (WriterState.DONE, 4)


async def test_a_manifest_that_only_a_master_calls_gone_is_not() -> None:
    cluster = await begun()
    cluster.refusals = [errors.StagedDataGoneError("gone")]
    await cluster.publish(cluster.wanted())
    record = await cluster.written()
    assert record.lost_rows == 0


async def test_partitions_that_wait_keep_no_others_of_the_call_waiting() -> None:
    """All of a call go to the core at once, and each has its own answer."""
    cluster = await begun()
    wanted = cluster.wanted()
    await cluster.write(writers.decided(None, wanted, "orders", 4, 0, b"w" * 4))
    ask, asked = cluster.ask_core, 0
    all_asked = asyncio.Event()

    async def slow(event_of: Callable[[int], Any], deadline_s: float) -> CarriedOut:
        nonlocal asked
        asked += 1
        if asked == 200:
            all_asked.set()
        await all_asked.wait()
        if event_of(1).partition <= 130:
            raise errors.DeadlineExceededError("not yet")
        return await ask(event_of, deadline_s)

    cluster.ask_core = slow  # type: ignore[method-assign]
    (part, _) = manifest_of().parts
    parts = [replace(part, partition=number) for number in range(1, 201)]
    async with asyncio.timeout(60):
        answers = await cluster.publisher.carry_out_here(WRITER, PRODUCER, 1, wanted.manifest, parts, 5.0)
    assert [isinstance(answer, errors.SeriatimError) for answer in answers] == [True] * 130 + [False] * 70


async def test_a_master_that_refuses_for_good_is_named() -> None:
    cluster = await begun()
    cluster.refusals = [errors.PreconditionError("its certificate is another one's")] * 10_000
    with pytest.raises(errors.DeadlineExceededError, match="its certificate"):
        await cluster.publish(cluster.wanted())
    assert not cluster.fed


async def test_another_incarnation_of_the_topic_is_refused() -> None:
    cluster = await begun()
    with pytest.raises(errors.PreconditionError, match="made again"):
        await cluster.publisher.publish("orders", "cd" * 16, cluster.wanted(), time.monotonic() + 1)


async def test_a_writer_is_deleted_unless_it_has_something_decided() -> None:
    cluster = await begun()
    with pytest.raises(errors.UnknownWriterError):
        await cluster.publisher.delete("orders", "nightly")
    decided = writers.decided(None, cluster.wanted(), "orders", 4, 0, b"w" * 4)
    await cluster.write(decided)
    with pytest.raises(errors.PreconditionError, match="not finished"):
        await cluster.publisher.delete("orders", "nightly")
    await cluster.write(writers.done(decided, 0, 1))
    await cluster.publisher.delete("orders", "nightly")
    assert await cluster.record() is None
    with pytest.raises(errors.UnknownWriterError):
        await cluster.publish(replace(cluster.wanted(), epoch=1))


async def lost(
    cluster: Cluster, *, sequence: int = 1, rows: int = 2, random: bytes = b"w" * 4, time_ms: int = 9
) -> str:
    """A rebuild found that the writer has published that, and not its name."""
    producer = writers.name_digest("nightly") + random + PRODUCER_MARK
    record = WriterRecord(
        producer, "orders", state=WriterState.DONE, sequence=sequence, done_at_ms=time_ms, rebuilt=((3, rows),),
        manifest=replace(writers.NO_MANIFEST, layout=RowLayout(2, 0)),
    )  # fmt: skip
    key = KEYS.lost_writer(INCARNATION, producer, writers.NAME_BYTES)
    await cluster.coordinator.txn((), [Put(key, writer_to_record(record).SerializeToString())])
    return key


async def test_a_program_that_names_its_lost_writer_gets_it_back() -> None:
    cluster = await begun()
    keys = [await lost(cluster, sequence=9, random=b"gone", time_ms=5), await lost(cluster, sequence=7, rows=1)]
    _, other = await cluster.publisher.open("orders", INCARNATION, "hourly")
    assert other.state is WriterState.NEW
    _, record = await cluster.publisher.open("orders", INCARNATION, "nightly")
    assert (record.producer, record.sequence, record.done_sequence) == (PRODUCER, 7, 6)
    assert [await cluster.coordinator.get(key) for key in keys] == [None, None]
    with pytest.raises(errors.SequencePassedError):
        await cluster.publish(cluster.wanted(6, epoch=record.epoch))
    with pytest.raises(errors.PublicationDiffersError):
        await cluster.publish(cluster.wanted(7, rows=2, epoch=record.epoch))
    assert cluster.asked == []
    carried, was_done = await cluster.publish(cluster.wanted(7, rows=1, epoch=record.epoch))
    assert not was_done
    assert sum(part.rows for part in carried) == 2
    found = await cluster.written()
    assert (found.producer, found.sequence, found.state, found.rebuilt) == (PRODUCER, 7, WriterState.DONE, ())
    assert (await cluster.publish(cluster.again(cluster.wanted(7, rows=1, epoch=record.epoch))))[1]


async def test_a_lost_writer_that_is_never_opened_is_found_too() -> None:
    """Spark's sink publishes under its query's id, without opening it."""
    cluster = await begun()
    key = await lost(cluster, sequence=7)
    with pytest.raises(errors.SequencePassedError):
        await cluster.publish(cluster.wanted(6))
    await cluster.publish(cluster.wanted(8))
    record = await cluster.written()
    assert (record.producer, record.sequence) == (PRODUCER, 8)
    assert await cluster.coordinator.get(key) is None


async def limited(message_bytes: int, chunk: bytes) -> tuple[Cluster, Publication]:
    """A topic that allows messages of 1,000 bytes, and a publication of a chunk whose messages have that many."""
    cluster = Cluster()
    await cluster.begin(settings=records_pb2.TopicSettings(message_size_bytes_max=1000))
    cluster.largest = message_bytes
    batches = StagedBatches([StagedBatch(STAGE, 2, make_offset(1, 7), chunk)])
    manifest = Manifest(INCARNATION, (ManifestPart(3, 10, batches),))
    wanted = replace(cluster.wanted(), digest=digest_of(manifest.parts))
    cluster.manifests[wanted.manifest.id] = manifest
    return cluster, wanted


async def test_rows_over_a_limit_of_the_topic_are_not_published() -> None:
    """The chunk's id reports its sizes."""
    cluster, wanted = await limited(1001, make_chunk_id(bytes(16), 5000, 1001))
    with pytest.raises(errors.MessageTooLargeError, match="1001"):
        await cluster.publish(wanted)
    assert await cluster.record() is None
    assert cluster.read_count == 0
    assert cluster.asked == []


async def test_chunk_whose_id_does_not_say_its_sizes_is_not_published() -> None:
    cluster, wanted = await limited(1000, b"c" * 16)
    with pytest.raises(errors.BadRequestError, match="the id of a chunk"):
        await cluster.publish(wanted)
    assert await cluster.record() is None


async def test_rows_within_the_limits_of_the_topic_are_published() -> None:
    cluster, wanted = await limited(1000, make_chunk_id(bytes(16), 5000, 1000))
    await cluster.publish(wanted)
    record = await cluster.written()
    assert record.state is WriterState.DONE


async def test_a_decision_is_on_the_disk_before_it_is_carried_out() -> None:
    cluster = await begun()
    noted: list[tuple[int, int]] = []

    async def note(revision: int) -> None:
        item = await cluster.coordinator.get(KEY)
        assert item is not None
        noted.append((revision - item.mod_revision, len(cluster.asked)))

    cluster.note_revision = note
    await cluster.publish(cluster.wanted())
    assert noted == [(0, 0)], "the revision of the decision, and no master was asked"


async def test_older_coordinator_decides_no_publication_again() -> None:
    """Rule `lost-decides-nothing`: the masters have rows of the lost publication under its sequence."""
    cluster = await begun()
    await cluster.publish(cluster.wanted(sequence=6))
    older = await cluster.record()
    assert older is not None
    await cluster.publish(cluster.wanted(sequence=7))
    await cluster.write(older)
    asked, cluster.behind = len(cluster.asked), "its revision is 3, and this broker has seen 9"
    with pytest.raises(errors.CoordinatorBehindError, match="publication 7 of writer 'nightly' is not decided"):
        await cluster.publish(cluster.wanted(sequence=7, rows=3))
    with pytest.raises(errors.CoordinatorBehindError, match="writer 'nightly' is not opened"):
        await cluster.publisher.open("orders", INCARNATION, "nightly")
    assert (await cluster.record(), len(cluster.asked)) == (older, asked)
    _, was_decided = await cluster.publish(cluster.wanted(sequence=6))
    assert not was_decided, "what the record has is answered: a repeat needs no decision"


async def test_an_epoch_from_before_a_rebuild_does_not_come_again() -> None:
    """The revisions of an emptied coordinator count from 1 again."""
    cluster = await begun()
    rebuilt = records_pb2.ClusterRecord(cluster="c", id="id", rebuilt_at_ms=1_700_000_000_000)
    await cluster.coordinator.txn((), [Put(KEYS.cluster_record, rebuilt.SerializeToString())])
    _, record = await cluster.publisher.open("orders", INCARNATION, "nightly")
    assert record.epoch > 1_700_000_000_000
    _, later = await cluster.publisher.open("orders", INCARNATION, "nightly")
    assert later.epoch > record.epoch
    with pytest.raises(errors.WriterFencedError):
        await cluster.publish(cluster.wanted(epoch=500))


async def test_each_opening_raises_the_epoch() -> None:
    cluster = await begun()
    before = 0
    for _ in range(3):
        writer, record = await cluster.publisher.open("orders", INCARNATION, "nightly")
        assert writer == WRITER
        assert record.epoch > before
        before = record.epoch


async def test_who_opened_a_writer_that_was_deleted_since_is_fenced_by_who_opens_the_next_one() -> None:
    cluster = await begun()
    _, zombie = await cluster.publisher.open("orders", INCARNATION, "nightly")
    await cluster.publisher.delete("orders", "nightly")
    _, record = await cluster.publisher.open("orders", INCARNATION, "nightly")
    with pytest.raises(errors.WriterFencedError):
        await cluster.publish(cluster.wanted(epoch=zombie.epoch))
    await cluster.publish(cluster.wanted(epoch=record.epoch))


async def test_what_another_broker_calls_decided_is_looked_up() -> None:
    cluster = await begun()
    wanted = cluster.wanted()
    check = cluster.publisher.check_decided
    with pytest.raises(errors.PreconditionError):
        await check(WRITER, PRODUCER, 1, wanted.manifest)
    decided = writers.decided(None, wanted, "orders", 4, 0, b"w" * 4)
    await cluster.write(decided)
    await check(WRITER, PRODUCER, 1, wanted.manifest)
    for producer, sequence, place in (
        (b"v" * 16, 1, wanted.manifest),
        (PRODUCER, 2, wanted.manifest),
        (PRODUCER, 1, replace(wanted.manifest, length=81)),
    ):
        with pytest.raises(errors.PreconditionError):
            await check(WRITER, producer, sequence, place)
    await cluster.write(writers.done(decided, 0, 1))
    with pytest.raises(errors.PreconditionError):
        await check(WRITER, PRODUCER, 1, wanted.manifest)


async def test_a_manifest_that_cannot_be_read_now_is_not_given_up() -> None:
    cluster = await begun()
    wanted = cluster.wanted()
    await cluster.write(writers.decided(None, wanted, "orders", 4, 0, b"w" * 4))
    cluster.manifests[wanted.manifest.id] = errors.UnavailableError("what one gave is not it")
    with pytest.raises(errors.UnavailableError):
        await cluster.publish(wanted)
    record = await cluster.written()
    assert record.state is WriterState.DECIDED
