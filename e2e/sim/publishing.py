"""Writers in the simulation: programs that publish, tasks that stage, publishers, what is staged, and their judge.

A program opens its writer, has tasks stage rows for some partitions, and asks some broker to publish them. That broker
is the publisher: it does what `rpc.publishing` does, by the same decisions of the core, with a coordinator that loses
requests and answers. Masters carry out, as everywhere. Programs are killed, wake up as zombies, and run again with
other rows; staged data is away for a while, is dropped by its own retention, or is lost for good.

What is staged is not in simulated segments: the stage topic is a topic like any other. Here it is a store from which a
batch can be had, or not now, or not any more.

    PUB         P1: a row is appended only for a manifest that is decided
    ONE         P2: one manifest for (writer, sequence)
    NEXT        P3: the next is decided when all of the one before is committed
    DONE        P4: ok follows from commits
    CUTS        P5: same numbers, cuts and bytes from whichever master
    KEPT-STAGE  P6: what is decided is not dropped
    FENCE       P7: once opened, nothing of an earlier epoch is decided
    WHOLE       P8: what is decided becomes whole, once and in order
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from seriatim_api import errors
from seriatim_api.batch import FLAG_PUBLISH, FLAG_STAGED, make_header, parse_header
from seriatim_api.ids import PartitionId, make_offset
from seriatim_api.publications import Manifest, ManifestPart, StagedBatch, digest_of
from seriatim_broker.core import effects as fx
from seriatim_broker.core.chain import Chain
from seriatim_broker.core.events import CarryOut, ResolveProducer, StagedFetched, WriterRead
from seriatim_broker.core.log import Batch, PutBatch, Write
from seriatim_broker.core.publications import writers
from seriatim_broker.core.publications.writers import ManifestPlace, Publication, Verdict, WriterRecord, WriterState

from .brokers import WALL_MS_START, checksum
from .coordinator import TIMEOUT_US
from .schedule import Violation

if TYPE_CHECKING:
    from .brokers import Process
    from .world import World

TOPIC = "topic"
INCARNATION = "ab" * 16
STAGE_PARTITIONS = (PartitionId(901), PartitionId(902))
CARRY_US = 300_000
PUBLISH_US = 1_500_000
FINISH_US = 400_000
"""For one try to finish. Then all partitions are asked again, those that are done too, and none forgets the writer."""

TAKEN_UP_US = 300_000
LOOK_US = 150_000
PAUSE_US = (5_000, 40_000)
STAGE_AWAY_US = (100_000, 2_500_000)


# ---- what is staged -------------------------------------------------------------------------------------


class Stage:
    """Staged batches by place, and what became of them."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._next = dict.fromkeys(STAGE_PARTITIONS, 0)
        self.batches: dict[tuple[int, int], Batch] = {}
        self.gone: set[tuple[int, int]] = set()
        self.dropped: set[tuple[int, int]] = set()  # of these, by retention
        self.away_until_us = dict.fromkeys(STAGE_PARTITIONS, 0)

    def put(self, chunk: bytes, first_message: int, rows: int) -> StagedBatch:
        """A task stages a batch."""
        partition = self._rng.choice(STAGE_PARTITIONS)
        index = self._next[partition]
        self._next[partition] += rows
        body = first_message.to_bytes(8, "big")
        raw = make_header(
            partition=partition,
            message_count=rows,
            producer=chunk,
            producer_epoch=0,
            base_sequence=index,
            first_timestamp_ms=0,
            last_timestamp_ms=0,
            body_length=len(body),
            body_crc=checksum(0, body),
            flags=FLAG_STAGED,
            stage=chunk,
        )
        header = parse_header(raw)._replace(segment=1, base_index=index)
        offset = make_offset(1, index)
        self.batches[partition, offset] = Batch(header, body)
        return StagedBatch(partition, rows, offset, chunk)

    def end(self, partition: PartitionId) -> int:
        """The offset behind all that is staged."""
        return make_offset(1, self._next[partition])

    def is_away(self, partition: int) -> bool:
        """Whether no member that has it answers now."""
        return self.away_until_us[PartitionId(partition)] > self._world.schedule.now_us

    def lose(self, partition: PartitionId) -> None:
        """All that is staged there now is declared lost, or dropped."""
        self.gone.update(place for place in self.batches if place[0] == partition)

    def drop_below(self, partition: PartitionId, offset: int) -> None:
        """Retention drops it."""
        self.dropped.update(place for place in self.batches if place[0] == partition and place[1] < offset)
        self.gone |= self.dropped

    def fetch(self, staged: StagedBatch) -> tuple[Batch | None, bool]:
        """The batch, and whether it is gone for good."""
        place = (staged.partition, staged.offset)
        if place in self.gone:
            return None, True
        if self.is_away(staged.partition):
            return None, False
        return self.batches[place], False


# ---- records --------------------------------------------------------------------------------------------


@dataclass
class Records:
    """The coordinator's keys about publications."""

    revision: int = 0
    writers: dict[str, tuple[WriterRecord, int]] = field(default_factory=dict)
    floors: dict[int, tuple[int, int]] = field(default_factory=dict)

    def floors_now(self) -> dict[int, int]:
        """Offsets by partition."""
        return {partition: offset for partition, (offset, _) in self.floors.items()}

    def put(self, writer: str, record: WriterRecord) -> None:
        """Write a record."""
        self.revision += 1
        self.writers[writer] = record, self.revision

    def raise_floor(self, partition: int, offset: int) -> None:
        """Write a floor."""
        self.revision += 1
        self.floors[partition] = offset, self.revision


# The transaction's compares, by name, so that planted bugs can leave one out.


def record_is(records: Records, writer: str, revision: int) -> bool:
    """Rule `compares-record`."""
    return records.writers.get(writer, (None, 0))[1] == revision


def floors_are(records: Records, revision: int) -> bool:
    """Rule `compares-floors`."""
    return all(written <= revision for _, written in records.floors.values())


def floor_first(records: Records, partition: int, offset: int) -> None:
    """Rule `floor-first`."""
    records.raise_floor(partition, offset)


def is_waited_for(record: WriterRecord, manifest: Manifest, partition: int, offset: int) -> bool:
    """Whether retention waits for this record before it drops what lies below."""
    staged = (batch for part in manifest.parts for batch in part.batches)
    reaches = any(batch.partition == partition and batch.offset < offset for batch in staged)
    return record.state is WriterState.DECIDED and reaches


def is_taken_up(_record: WriterRecord) -> bool:
    """Rule `taken-up`."""
    return True


# ---- the judge ------------------------------------------------------------------------------------------


@dataclass
class _Decided:
    writer: str
    record: WriterRecord
    manifest: Manifest
    is_done: bool = False


class PublicationJudge:
    """Sees decisions, appends and answers; says which promise was broken."""

    def __init__(self, world: World, stage: Stage) -> None:
        self._world = world
        self._stage = stage
        self.manifests: dict[bytes, Manifest] = {}
        self.decisions: list[_Decided] = []
        self.epochs: dict[str, int] = {}

    def fail(self, rule: str, text: str) -> None:
        """Report it."""
        raise Violation(rule, text)

    # ---- the coordinator ----

    def opened(self, writer: str, epoch: int) -> None:
        """A writer was opened."""
        self.epochs[writer] = epoch

    def decided(self, writer: str, record: WriterRecord, wanted: Publication) -> None:
        """ONE, NEXT, FENCE: of a decision."""
        what = f"publication {record.sequence} of {writer} is decided"
        seen = self._world.judge.seen_states
        seen.add("publication decided")
        if wanted.epoch != self.epochs.get(writer, 0):
            self.fail("FENCE", f"{what} in epoch {wanted.epoch}, and {self.epochs.get(writer)} was opened")
        for other in self._of(writer):
            if other.record.sequence >= record.sequence:
                self.fail("ONE", f"{what}, and {other.record.sequence} was before")
            if not other.is_done:
                self.fail("NEXT", f"{what}, and {other.record.sequence} is not done")
        for part in self.manifests[record.manifest.id].parts:
            for batch in part.batches:
                place = (batch.partition, batch.offset)
                if place in self._stage.dropped:
                    self.fail("KEPT-STAGE", f"{what}, and {place} was dropped before")
        self.decisions.append(_Decided(writer, record, self.manifests[record.manifest.id]))

    def done(self, writer: str, record: WriterRecord) -> None:
        """DONE: all is committed when the record says so."""
        for each in self._of(writer):
            if each.record.sequence == record.sequence:
                each.is_done = True
                self._check_whole(each, "the record says DONE")

    def _of(self, writer: str) -> Iterator[_Decided]:
        return (each for each in self.decisions if each.writer == writer)

    def find(self, producer: bytes, sequence: int) -> _Decided | None:
        """The decision for these numbers."""
        return next(
            (each for each in self.decisions if (each.record.producer, each.record.sequence) == (producer, sequence)),
            None,
        )

    def dropped(self, partition: int) -> None:
        """KEPT-STAGE: nothing that is decided and not done is dropped."""
        for each in self.decisions:
            for part in each.manifest.parts:
                for batch in part.batches:
                    if not each.is_done and (batch.partition, batch.offset) in self._stage.dropped:
                        what = f"publication {each.record.sequence} of {each.writer} is decided"
                        self.fail("KEPT-STAGE", f"{what}, and {batch} of {partition} is dropped")

    # ---- brokers ----

    def wrote(self, who: str, writes: tuple[Write, ...]) -> None:
        """PUB, CUTS: of each batch that was published."""
        for write in writes:
            if not isinstance(write, PutBatch) or not write.batch.header.flags & FLAG_PUBLISH:
                continue
            header = write.batch.header
            what = f"{who} has {header.producer_epoch}/{header.base_sequence} of a publication at {header.segment}"
            known = self.find(header.producer, header.producer_epoch)
            if known is None or known.record.manifest.id != header.stage:
                self.fail("PUB", f"{what}:{header.base_index}, and it was never decided")
            assert known is not None
            rows = 0
            part = known.manifest.part_of(write.partition)
            for batch in part.batches if part is not None else ():
                body = self._stage.batches[batch.partition, batch.offset].body
                if (rows, batch.rows, body) == (header.base_sequence, header.message_count, write.batch.body):
                    break
                rows += batch.rows
            else:
                self.fail("CUTS", f"{what}:{header.base_index}, and the manifest has no such batch there")

    def carried(self, who: str, partition: PartitionId, producer: bytes, sequence: int) -> None:
        """DONE: what a master says is committed is."""
        known = self.find(producer, sequence)
        if known is None:
            self.fail("PUB", f"{who} has carried out {sequence}, which was never decided")
        assert known is not None
        part = known.manifest.part_of(partition)
        assert part is not None
        self._check_part(known, part, f"{who} says so")

    def _check_whole(self, known: _Decided, why: str) -> None:
        for part in known.manifest.parts:
            self._check_part(known, part, why)

    def _check_part(self, known: _Decided, part: ManifestPart, why: str) -> None:
        row = 0
        judge = self._world.judge
        placed = self._placed(PartitionId(part.partition), known)
        for batch in part.batches:
            is_lost = (batch.partition, batch.offset) in self._stage.gone
            if row not in placed and not is_lost:
                what = f"row {row} of publication {known.record.sequence} of {known.writer}"
                self.fail("DONE", f"{why}, and {what} is not committed in partition {part.partition}")
            if row in placed:
                judge._two_hold(placed[row], why)  # noqa: SLF001 - the judge's other half
            row += batch.rows

    def _placed(self, partition: PartitionId, known: _Decided) -> dict[int, Batch]:
        """Batches of a publication that stand where no cut has removed them, and as many members as must have them."""
        found: dict[int, Batch] = {}
        for (of, no, index), batch in self._world.judge.placed.items():
            header = batch.header
            if of != partition or (header.producer, header.producer_epoch) != (
                known.record.producer,
                known.record.sequence,
            ):
                continue
            sealed = self._world.judge.sealed.get((of, no))
            if sealed is None or index < sealed[0]:
                found[header.base_sequence] = batch
        return found

    # ---- the end ----

    def final(self, partition: PartitionId, chain: Chain, open_length: int) -> None:
        """Whole, once, in order: the published rows of a partition, writer by writer."""
        judge = self._world.judge
        order = [message for _, message in judge.replay(chain, open_length)]
        published = {
            message: batch.header.producer
            for (of, _, _), batch in judge.placed.items()
            if of == partition and batch.header.flags & FLAG_PUBLISH
            for message in self._messages(batch)
        }
        for writer in dict.fromkeys(each.writer for each in self.decisions):
            producers = {each.record.producer for each in self._of(writer)}
            found = [message for message in order if published.get(message) in producers]
            wanted: list[int] = []
            for each in sorted(self._of(writer), key=lambda each: each.record.sequence):
                part = each.manifest.part_of(partition)
                for batch in part.batches if part is not None else ():
                    place = (batch.partition, batch.offset)
                    rows = self._messages(self._stage.batches[place])
                    if place not in self._stage.gone or rows[0] in found:
                        wanted += rows
            gone = [message for message in wanted if message not in found]
            if gone and judge.losses.declared:
                wanted = [message for message in wanted if message in found]
            if found != wanted:
                self.fail("WHOLE", f"partition {partition} has {found} of {writer}, and {wanted} was decided")

    @staticmethod
    def _messages(batch: Batch) -> list[int]:
        first = int.from_bytes(batch.body[:8], "big")
        return list(range(first, first + batch.header.message_count))


# ---- all of it ------------------------------------------------------------------------------------------


class Publishing:
    """Everything about publications in one world."""

    def __init__(self, world: World, writer_count: int, publication_count: int) -> None:
        self._world = world
        self.rng = random.Random(f"publishing {world.seed}")
        self.records = Records()
        self.stage = Stage(world, self.rng)
        self.judge = PublicationJudge(world, self.stage)
        self.programs = [Program(self, world, f"w{number}", publication_count) for number in range(writer_count)]
        self._is_over = False
        self._finishing: set[str] = set()

    def start(self) -> None:
        """Begin."""
        for program in self.programs:
            self.later(program.start)
        self._world.schedule.after(LOOK_US, self._look)
        self._world.schedule.after(self.rng.randint(100_000, 600_000), self._disturb)

    @property
    def is_done(self) -> bool:
        """Whether every program has published all, and everything that is decided is done."""
        states = [record.state for record, _ in self.records.writers.values()]
        return all(program.is_done for program in self.programs) and WriterState.DECIDED not in states

    @property
    def stuck(self) -> str:
        """What is not."""
        names = [program.name for program in self.programs if not program.is_done]
        records = [(record.state.name, record.sequence) for record, _ in self.records.writers.values()]
        return f"writers {names} wait, records are {records}"

    def end(self) -> None:
        """Faults are over."""
        self._is_over = True
        self.stage.away_until_us = dict.fromkeys(STAGE_PARTITIONS, 0)

    def later(self, call: Callable[..., None], *arguments: Any) -> None:
        """Do it in a moment."""
        self._world.schedule.after(self.rng.randint(*PAUSE_US), call, *arguments)

    # ---- the coordinator ----

    def ask(self, name: str, work: Callable[[], Any], answer: Callable[[Any], None], *, writes: bool = False) -> None:
        """A broker asks the coordinator; `answer(None)` if there was none: it may be done all the same, or late."""
        world, rng = self._world, self.rng
        coordinator, options = world.coordinator, world.options
        is_away = coordinator.is_down or coordinator.isolated.get(name)
        draw = rng.random()
        lost = bool(is_away) or (coordinator.is_faulty and draw < options.txn_lost_share)
        answer_lost = coordinator.is_faulty and rng.random() < options.txn_answer_lost_share
        if writes and coordinator.is_refusing:
            lost = True
        if lost:
            if writes and rng.random() < options.txn_late_share * 3:
                world.schedule.after(TIMEOUT_US + rng.randint(0, 400_000), work)
            world.schedule.after(TIMEOUT_US, answer, None)
            return

        def carry_out() -> None:
            found = work()
            if answer_lost:
                world.schedule.after(TIMEOUT_US, answer, None)
            else:
                world.schedule.after(rng.randint(200, options.coordinator_us_max), answer, (found,))

        world.schedule.after(rng.randint(200, options.coordinator_us_max), carry_out)

    # ---- what processes ask ----

    def read_writer(self, process: Process, effect: fx.ReadWriter) -> None:
        """A master reads a record."""

        def answered(found: Any) -> None:
            record = found[0] if found is not None else None
            if process.alive:
                process.deliver(WriterRead(effect.serial, effect.partition, record, found is None))

        self.ask(process.name, lambda: self.records.writers.get(effect.writer, (None, 0))[0], answered)

    def fetch(self, process: Process, effect: fx.FetchStaged) -> None:
        """A master fetches a staged batch; sometimes nobody answers."""

        def come() -> None:
            batch, is_gone = self.stage.fetch(effect.staged)
            if not is_gone and not self._is_over and self.rng.random() < 0.05:
                others = [place for place in self.stage.batches if place not in self.stage.gone]
                batch = self.stage.batches[self.rng.choice(others)] if others and self.rng.random() < 0.3 else None
            if process.alive:
                process.deliver(StagedFetched(effect.serial, effect.partition, batch, is_gone))

        self._world.schedule.after(self.rng.randint(200, 15_000), come)

    # ---- faults of what is staged, retention, and the controller ----

    def _disturb(self) -> None:
        if self._is_over:
            return
        partition = self.rng.choice(STAGE_PARTITIONS)
        what = self.rng.random()
        if what < 0.35:
            self.stage.away_until_us[partition] = self._world.schedule.now_us + self.rng.randint(*STAGE_AWAY_US)
        elif what < 0.45:
            self._world.judge.seen_states.add("staged data lost")
            self._world.schedule.tell("FAULT", f"what is staged on {partition} is lost")
            self.stage.lose(partition)
        else:
            self._trim(partition)
        if self.rng.random() < 0.5:
            self._ask_late()
        self._world.schedule.after(self.rng.randint(50_000, 400_000), self._disturb)

    def _ask_late(self) -> None:
        """A question of a publisher comes that was on its way for long: masters append nothing more for it."""
        if not self.judge.decisions:
            return
        known = self.rng.choice(self.judge.decisions)
        part = self.rng.choice(known.manifest.parts)
        chain = self._world.coordinator.records.chain(PartitionId(part.partition))[0]
        if chain is None:
            return
        record = known.record

        def make(request: int, deadline_us: int) -> CarryOut:
            return CarryOut(
                request, PartitionId(part.partition), INCARNATION, known.writer, record.producer, record.sequence,
                record.manifest.id, part.batches, deadline_us,
            )  # fmt: skip

        self._world.clients.ask_at(chain.open_segment.master.broker, make, lambda _: None)

    def _trim(self, partition: PartitionId) -> None:
        """Retention of a stage partition: as `runtime.stage_floors` does it."""
        offset = self.stage.end(partition)

        def look() -> None:
            for record, _ in self.records.writers.values():
                if record.state is WriterState.NEW:
                    continue
                if is_waited_for(record, self.judge.manifests[record.manifest.id], partition, offset):
                    self._world.judge.seen_states.add("staged data waits")
                    return
            self._world.schedule.after(self.rng.randint(0, 100_000), drop)

        def drop() -> None:
            self._world.schedule.tell("stage", f"what is staged on {partition} below {offset} is dropped")
            self._world.judge.seen_states.add("staged data dropped")
            self.stage.drop_below(partition, offset)
            self.judge.dropped(partition)

        floor_first(self.records, partition, offset)
        self._world.schedule.after(self.rng.randint(0, 20_000), look)

    def _look(self) -> None:
        """The controller takes up what has been DECIDED for a while."""
        world = self._world
        now_ms = WALL_MS_START + world.schedule.now_us // 1000
        running = [broker.process for broker in world.brokers.values() if broker.process and not broker.process.frozen]
        for name, (record, revision) in list(self.records.writers.items()):
            is_due = record.state is WriterState.DECIDED and now_ms - record.decided_at_ms > TAKEN_UP_US // 1000
            if is_due and running and is_taken_up(record) and name not in self._finishing:
                world.judge.seen_states.add("publication taken up")
                self._finishing.add(name)
                process = self.rng.choice(running)
                Finish(self, world, process, name, record, revision, partial(self._taken_up, name))
        world.schedule.after(LOOK_US, self._look)

    def _taken_up(self, name: str, _is_done: bool) -> None:
        self._finishing.discard(name)


class Steps:
    """Something that a process does step by step: it ends with the process, and stands still while that is frozen."""

    def __init__(self, publishing: Publishing, world: World, process: Process) -> None:
        self.publishing = publishing
        self.world = world
        self.process = process

    def go(self, call: Callable[..., None], *arguments: Any) -> None:
        """Take the next step, if the process is there."""
        if not self.process.alive:
            self.over()
        elif self.process.frozen:
            self.world.schedule.after(10_000, self.go, call, *arguments)
        else:
            call(*arguments)

    def over(self) -> None:
        """The process has ended."""

    def ask(self, work: Callable[[], Any], then: Callable[[Any], None], *, writes: bool = False) -> None:
        """Ask the coordinator; the answer is the next step."""
        self.publishing.ask(self.process.name, work, lambda found: self.go(then, found), writes=writes)


class Finish(Steps):
    """Have all masters carry out what a record says is DECIDED, then write DONE; `then(is_done)`."""

    def __init__(
        self,
        publishing: Publishing,
        world: World,
        process: Process,
        writer: str,
        record: WriterRecord,
        revision: int,
        then: Callable[[bool], None],
    ) -> None:
        super().__init__(publishing, world, process)
        self._writer = writer
        self._record = record
        self._revision = revision
        self._then: Callable[[bool], None] | None = then
        self._manifest = publishing.judge.manifests[record.manifest.id]
        self._lost_rows = 0
        self._waiting = {PartitionId(part.partition) for part in self._manifest.parts}
        self._until_us = world.schedule.now_us + FINISH_US
        for partition in sorted(self._waiting):
            self._ask(partition)

    def over(self) -> None:
        self._end(is_done=False)

    def _end(self, *, is_done: bool) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(is_done)

    def _ask(self, partition: PartitionId) -> None:
        self.ask(
            lambda: self.world.coordinator.records.chain(partition)[0], lambda found: self._asked(partition, found)
        )

    def _asked(self, partition: PartitionId, found: Any) -> None:
        if self._then is None:
            return
        if self.world.schedule.now_us > self._until_us:
            self._end(is_done=False)
            return
        if found is None or found[0] is None:
            self.publishing.later(self.go, self._ask, partition)
            return
        chain: Chain = found[0]
        record, part = self._record, self._manifest.part_of(partition)
        assert part is not None

        def make(request: int, deadline_us: int) -> CarryOut:
            return CarryOut(
                request, partition, INCARNATION, self._writer, record.producer, record.sequence, record.manifest.id,
                part.batches, deadline_us,
            )  # fmt: skip

        master = chain.open_segment.master.broker
        answered = lambda answer: self.go(self._answered, partition, chain, answer)  # noqa: E731
        self.world.clients.ask_at(master, make, answered)

    def _answered(self, partition: PartitionId, chain: Chain, answer: fx.CarriedOut | None) -> None:
        if self._then is None or partition not in self._waiting:
            return
        if answer is not None and answer.error is None:
            master = chain.open_segment.master.broker
            self.publishing.judge.carried(master, partition, self._record.producer, self._record.sequence)
            self._lost_rows += answer.lost_rows
            self._waiting.discard(partition)
            if not self._waiting:
                self._write()
            return
        if answer is not None and isinstance(answer.error, errors.PreconditionError):
            self._end(is_done=False)
            return
        if answer is not None and isinstance(answer.error, errors.CorruptionError):
            self.publishing.judge.fail("CUTS", f"a master cannot go on: {answer.error}")

        def complain(request: int, deadline_us: int) -> ResolveProducer:
            return ResolveProducer(request, partition, chain.open_segment.no, deadline_us)

        if answer is None or isinstance(answer.error, errors.RoutingError):
            self.world.clients.unary(chain.open_segment.master.broker, complain, lambda _: None)
        self.publishing.later(self.go, self._ask, partition)

    def _write(self) -> None:
        records = self.publishing.records
        lost = sum(
            batch.rows
            for part in self._manifest.parts
            for batch in part.batches
            if (batch.partition, batch.offset) in self.publishing.stage.gone
        )
        now_ms = WALL_MS_START + self.world.schedule.now_us // 1000
        done = writers.done(self._record, max(lost, self._lost_rows), now_ms)

        def write() -> bool:
            if not record_is(records, self._writer, self._revision):
                return False
            records.put(self._writer, done)
            self.publishing.judge.done(self._writer, done)
            return True

        self.ask(write, lambda found: self._end(is_done=found is not None and found[0]), writes=True)


class Publish(Steps):
    """One call of Publish at one broker; `then(error or None)`, or never, if the broker ends."""

    def __init__(
        self,
        publishing: Publishing,
        world: World,
        process: Process,
        wanted: Publication,
        then: Callable[[errors.SeriatimError | None], None],
    ) -> None:
        super().__init__(publishing, world, process)
        self._wanted = wanted
        self._then = then
        self._until_us = world.schedule.now_us + PUBLISH_US
        self.go(self._begin)

    def _begin(self) -> None:
        if self.world.schedule.now_us > self._until_us:
            self._then(errors.DeadlineExceededError("not finished yet"))
            return
        records, name = self.publishing.records, self._wanted.writer

        def read() -> tuple[WriterRecord | None, int, dict[int, int], int]:
            return *records.writers.get(name, (None, 0)), records.floors_now(), records.revision

        self.ask(read, self._read)

    def _read(self, found: Any) -> None:
        if found is None:
            self.publishing.later(self.go, self._begin)
            return
        record, revision, floors, as_of = found[0]
        try:
            verdict = writers.judge(record, self._wanted)
            if verdict is Verdict.DONE:
                self._then(None)
            elif verdict is Verdict.FINISH:
                again = lambda _: self.publishing.later(self.go, self._begin)  # noqa: E731
                Finish(self.publishing, self.world, self.process, self._wanted.writer, record, revision, again)
            else:
                self._check(floors)
                after_us = self.publishing.rng.randint(0, 80_000)
                self.world.schedule.after(after_us, self.go, self._decide, record, revision, as_of)
        except errors.SeriatimError as exc:
            self._then(exc)

    def _check(self, floors: dict[int, int]) -> None:
        wanted, stage = self._wanted, self.publishing.stage
        manifest = self.publishing.judge.manifests[wanted.manifest.id]
        writers.check_manifest(wanted, manifest, INCARNATION, set(self.world.partitions), floors)
        for part in manifest.parts:
            for batch in part.batches:
                if stage.fetch(batch)[0] is None:
                    raise errors.StagedDataGoneError("nobody has it")

    def _decide(self, record: WriterRecord | None, revision: int, as_of: int) -> None:
        wanted, records = self._wanted, self.publishing.records
        manifest = self.publishing.judge.manifests[wanted.manifest.id]
        now_ms = WALL_MS_START + self.world.schedule.now_us // 1000
        after = writers.decided(record, wanted, TOPIC, manifest.rows, now_ms, self.publishing.rng.randbytes(16))

        def write() -> bool:
            if not record_is(records, wanted.writer, revision) or not floors_are(records, as_of):
                return False
            records.put(wanted.writer, after)
            self.publishing.judge.decided(wanted.writer, after, wanted)
            return True

        self.ask(write, lambda _: self._begin(), writes=True)


# ---- programs -------------------------------------------------------------------------------------------


class Program:
    """A program that publishes a number of publications; it may be killed and run again, or live on as a zombie."""

    def __init__(self, publishing: Publishing, world: World, name: str, count: int) -> None:
        self.name = name
        self._publishing = publishing
        self._world = world
        self._count = count
        self._done = 0
        self._life = 0

    @property
    def is_done(self) -> bool:
        """Whether all is published."""
        return self._done >= self._count

    def start(self) -> None:
        """A new run opens the writer, and goes on behind what was published."""
        self._life += 1
        self._open(self._life)

    def _may_act(self, life: int) -> bool:
        """Whether this run is the newest; an older one is a zombie, which acts a while longer."""
        return life == self._life or self._publishing.rng.random() < 0.7

    def _process(self) -> Process | None:
        found = [broker.process for broker in self._world.brokers.values() if broker.process is not None]
        return self._publishing.rng.choice(found) if found else None

    def _open(self, life: int) -> None:
        records, judge = self._publishing.records, self._publishing.judge
        process = self._process()
        if process is None or process.frozen:
            self._publishing.later(self._open, life)
            return
        producer = self._publishing.rng.randbytes(16)

        def write() -> WriterRecord:
            record = writers.opened(records.writers.get(self.name, (None, 0))[0], TOPIC, producer)
            records.put(self.name, record)
            judge.opened(self.name, record.epoch)
            return record

        def opened(found: Any) -> None:
            if found is None:
                self._publishing.later(self._open, life)
            elif life == self._life:
                record: WriterRecord = found[0]
                self._done = record.sequence + 1 if record.state is not WriterState.NEW else 0
                self._stage(life, record.epoch, self._done)

        self._publishing.ask(process.name, write, opened, writes=True)

    def _stage(self, life: int, epoch: int, sequence: int) -> None:
        """Tasks stage rows: other rows in each run."""
        if sequence >= self._count and life == self._life:
            self._done = max(self._done, sequence)
            return
        if not self._may_act(life):
            return
        rng, world = self._publishing.rng, self._world
        parts: dict[int, list[StagedBatch]] = {}
        chunk = rng.randbytes(16)
        for _ in range(rng.choice((1, 2, 5, 20))):
            partition = rng.choice(world.partitions)
            rows = rng.randint(1, 3)
            messages = [world.clients.number() for _ in range(rows)]
            for message in messages:
                world.judge.sent(message, partition, rng.randbytes(16))
            staged = self._publishing.stage.put(chunk, messages[0], rows)
            parts.setdefault(partition, []).append(staged)
        manifest = Manifest(
            INCARNATION,
            tuple(
                ManifestPart(partition, 8 * len(batches), tuple(batches))
                for partition, batches in sorted(parts.items())
            ),
        )
        place = ManifestPlace(STAGE_PARTITIONS[0], (make_offset(9, 0),), 1, 1, rng.randbytes(16))
        self._publishing.judge.manifests[place.id] = manifest
        wanted = Publication(self.name, epoch, "", sequence, place, digest_of(manifest.parts))
        world.schedule.tell(self.name, f"run {life} stages publication {sequence}: {manifest}")
        self._publishing.later(self._publish, life, wanted)

    def _publish(self, life: int, wanted: Publication) -> None:
        """Ask some broker; if there is no answer in time, ask again, or be killed and run again with other rows."""
        process = self._process()
        if process is None or not self._may_act(life):
            if life == self._life:
                self._publishing.later(self._publish, life, wanted)
            return
        world, rng = self._world, self._publishing.rng
        answered = [False]

        def then(error: errors.SeriatimError | None) -> None:
            if not answered[0]:
                answered[0] = True
                self._publishing.later(self._answered, life, wanted, error)

        Publish(self._publishing, world, process, wanted, then)
        patience_us = rng.choice((20_000, 200_000, PUBLISH_US))
        world.schedule.after(patience_us, then, errors.DeadlineExceededError("nobody answered"))

    def _answered(self, life: int, wanted: Publication, error: errors.SeriatimError | None) -> None:
        world = self._world
        world.schedule.tell(self.name, f"run {life}, publication {wanted.sequence}: {error or 'ok'}")
        world.judge.seen_states.add(f"publish: {type(error).__name__ if error else 'ok'}")
        if error is None:
            self._settle(wanted)
        if life != self._life:
            return  # a zombie has had its say
        following = wanted.sequence + 1
        if error is None or isinstance(error, (errors.PublicationDiffersError, errors.PublishedWithLossError)):
            self._done = max(self._done, following)
            goes_back = error is None and wanted.sequence > 0 and self._publishing.rng.random() < 0.2
            self._stage(life, wanted.epoch, wanted.sequence - 1 if goes_back else self._done)
        elif isinstance(error, errors.StagedDataGoneError):
            self._stage(life, wanted.epoch, wanted.sequence)
        elif isinstance(error, errors.SequencePassedError):
            if wanted.sequence == self._done:
                self._publishing.judge.fail("ONE", f"{self.name} is told that {wanted.sequence} was passed")
            self._stage(life, wanted.epoch, self._done)  # it had gone back, as with a restored checkpoint
        elif isinstance(error, (errors.WriterFencedError, errors.UnknownWriterError)):
            self.start()
        elif self._publishing.rng.random() < 0.3:
            world.schedule.tell("FAULT", f"{self.name} is killed and runs again")
            self.start()
        else:
            self._publishing.later(self._publish, life, wanted)

    def _settle(self, wanted: Publication) -> None:
        """ok: its rows are acknowledged, so what is sent from now on stands behind them."""
        known = next(
            (
                each
                for each in self._publishing.judge.decisions
                if (each.writer, each.record.sequence) == (self.name, wanted.sequence)
            ),
            None,
        )
        if known is None or known.record.digest != wanted.digest:
            self._publishing.judge.fail("PUB", f"{self.name} is told that {wanted.sequence} is ok, and it is not")
            return
        if not known.is_done:
            self._publishing.judge.fail("DONE", f"{self.name} is told that {wanted.sequence} is ok before it is done")
        judge, stage = self._world.judge, self._publishing.stage
        for part in known.manifest.parts:
            placed = judge_placed(self._publishing.judge, part, known)
            row = 0
            for batch in part.batches:
                for message in self._publishing.judge._messages(stage.batches[batch.partition, batch.offset]):  # noqa: SLF001
                    fate = judge.fates[message]
                    found = placed.get(row)
                    if found is not None and not fate.outcome:
                        fate.outcome = "ok"
                        fate.acked_us = self._world.schedule.now_us
                        fate.offset = make_offset(found.header.segment, found.header.base_index)
                row += batch.rows


def judge_placed(judge: PublicationJudge, part: ManifestPart, known: _Decided) -> dict[int, Batch]:
    """Where the batches of a part stand."""
    return judge._placed(PartitionId(part.partition), known)  # noqa: SLF001
