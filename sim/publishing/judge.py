"""The judge of publications: it sees decisions, appends and answers, and says which promise was broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seriatim._publishing.chunks import Chunk
from seriatim_api.batch import FLAG_PUBLISH
from seriatim_api.ids import PartitionId
from seriatim_api.publications import Manifest, ManifestPart, StagedBatch
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.log import Batch, PutBatch, Write
from seriatim_broker.core.values.writers import Publication, WriterRecord

from ..basics.schedule import Violation
from ..judge import Judge
from .staged import Stage


@dataclass(frozen=True)
class Plan:
    """What a run of a program wants published: the run, its chunks in their order, and the manifest of them.

    If the run repeats what its writer published last, `repeats` is the digest of that publication.
    """

    run: str
    chunks: Sequence[Chunk]
    manifest: Manifest
    repeats: bytes = b""

    def batches_of(self, partition: int) -> Iterator[StagedBatch]:
        """The batches for a partition, in the order that they must have there."""
        for chunk in self.chunks:
            for part in chunk.parts:
                if part.partition == partition:
                    yield from part.batches


@dataclass
class Decided:
    """A decision that was written."""

    writer: str
    record: WriterRecord
    plan: Plan
    is_done: bool = False

    @property
    def what(self) -> str:
        """For humans."""
        return f"publication {self.record.sequence} of {self.writer}"


def messages_of(batch: Batch) -> list[int]:
    """The messages of a batch, published or staged."""
    first = int.from_bytes(batch.body[:8], "big")
    return list(range(first, first + batch.header.message_count))


class PublicationJudge:
    """Remembers decisions, appends and answers, and fails the run when a promise is broken."""

    def __init__(self, judge: Judge, stage: Stage) -> None:
        self._judge = judge
        self._stage = stage
        self.plans: dict[bytes, Plan] = {}  # by the id of the manifest
        self.decisions: list[Decided] = []
        self._opened_by: dict[str, str] = {}  # the run that opened a writer last
        self._owners: dict[str, str] = {}

    def manifest_of(self, id_: bytes) -> Manifest:
        """A manifest, by its id."""
        return self.plans[id_].manifest

    def fail(self, rule: str, text: str) -> None:
        """Report it."""
        raise Violation(rule, text)

    def saw(self, state: str) -> None:
        """Count that something happened in this world."""
        self._judge.seen.states.add(state)

    # ---- the coordinator ----

    def opened(self, writer: str, run: str) -> None:
        """A run opened a writer."""
        self._opened_by[writer] = run

    def deleted(self, writer: str) -> None:
        """A writer's record is deleted: all is forgotten, except which openings may not publish any more."""
        self._owners.pop(writer, None)
        self.saw("writer deleted")

    def decided(self, writer: str, record: WriterRecord, wanted: Publication, looked_us: int) -> None:
        """ONE, NEXT, FENCE, OWNER, SPREAD, KEPT-STAGE: of a decision; `looked_us`: when its staged batches were."""
        plan = self.plans[record.manifest.id]
        decided = Decided(writer, record, plan)
        what = f"{decided.what} is decided"
        self.saw("publication decided")
        opener = self._opened_by.get(writer)
        if opener is not None and plan.run != opener:
            self.fail("FENCE", f"{what} for {plan.run}, and {opener} has opened the writer")
        if self._owners.setdefault(writer, wanted.owner) != wanted.owner:
            self.fail("OWNER", f"{what} for {wanted.owner}, and the writer is {self._owners[writer]}'s")
        if len({chunk.partition_count for chunk in plan.chunks}) > 1:
            self.fail("SPREAD", f"{what} with chunks for {[chunk.partition_count for chunk in plan.chunks]} partitions")
        for other in self._of(writer):
            if other.record.producer == record.producer and other.record.sequence >= record.sequence:
                self.fail("ONE", f"{what}, and {other.record.sequence} was before")
            if not other.is_done:
                self.fail("NEXT", f"{what}, and {other.record.sequence} is not done")
        for part in plan.manifest.parts:
            for batch in part.batches:
                place = (batch.partition, batch.offset)
                if place in self._stage.dropped or self._stage.gone.get(place, looked_us) < looked_us:
                    self.fail("KEPT-STAGE", f"{what}, and {place} was gone before")
        self.decisions.append(decided)

    def done(self, writer: str, record: WriterRecord) -> None:
        """DONE: all is committed when the record says so."""
        for each in self._of(writer):
            if (each.record.producer, each.record.sequence) == (record.producer, record.sequence):
                each.is_done = True
                self._check_whole(each, "the record says DONE")

    def _of(self, writer: str) -> Iterator[Decided]:
        return (each for each in self.decisions if each.writer == writer)

    def find(self, producer: bytes, sequence: int) -> Decided | None:
        """The decision for these numbers."""
        return next(
            (each for each in self.decisions if (each.record.producer, each.record.sequence) == (producer, sequence)),
            None,
        )

    def dropped(self, partition: int) -> None:
        """KEPT-STAGE: nothing that is decided and not done is dropped."""
        for each in self.decisions:
            for part in each.plan.manifest.parts:
                for batch in part.batches:
                    if not each.is_done and (batch.partition, batch.offset) in self._stage.dropped:
                        self.fail("KEPT-STAGE", f"{each.what} is decided, and {batch} of {partition} is dropped")

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
            for batch in known.plan.batches_of(write.partition):
                body = self._stage.batches[batch.partition, batch.offset].body
                if (rows, batch.rows, body) == (header.base_sequence, header.message_count, write.batch.body):
                    break
                rows += batch.rows
            else:
                self.fail("CUTS", f"{what}:{header.base_index}, and the chunks have no such batch there")

    def carried(self, who: str, partition: PartitionId, producer: bytes, sequence: int) -> None:
        """DONE: if a master says that rows are committed, they are."""
        known = self.find(producer, sequence)
        if known is None:
            self.fail("PUB", f"{who} has carried out {sequence}, which was never decided")
        assert known is not None
        part = known.plan.manifest.part_of(partition)
        assert part is not None
        self._check_part(known, part, f"{who} says so")

    def _check_whole(self, known: Decided, why: str) -> None:
        for part in known.plan.manifest.parts:
            self._check_part(known, part, why)

    def _check_part(self, known: Decided, part: ManifestPart, why: str) -> None:
        row = 0
        partition = PartitionId(part.partition)
        placed = self.placed(partition, known)
        for batch in part.batches:
            # What retention drops was carried out before: it excuses nothing.
            is_lost = (batch.partition, batch.offset) in self._stage.lost
            if row not in placed and not is_lost:
                self.fail("DONE", f"{why}, and row {row} of {known.what} is not committed in partition {partition}")
            # Lost rows may be in a segment that is not settled. The master has passed over them all the same.
            if row in placed and not is_lost:
                self._check_copies([each for each in placed[row] if not self._was_lost(partition, each)], why)
            row += batch.rows

    def _check_copies(self, places: list[Batch], why: str) -> None:
        """After a segment that is not settled a batch can be stored twice: one of the two was committed."""
        judge = self._judge
        for number, batch in enumerate(places, 1):
            try:
                judge.rules.two_copies.on_two_disks(batch, why)
            except Violation:
                if number == len(places):
                    raise
            else:
                return

    def _was_lost(self, partition: PartitionId, batch: Batch) -> bool:
        """Whether its segment was declared lost."""
        place = (partition, batch.header.segment)
        return self._judge.seen.losses.covers(place, batch.header.base_index)

    def placed(self, partition: PartitionId, known: Decided) -> dict[int, list[Batch]]:
        """By its first row, each batch of a publication, at the places where no cut has removed it."""
        found: dict[int, list[Batch]] = {}
        numbers = (known.record.producer, known.record.sequence)
        for (of, no, index), batch in self._judge.seen.placed.items():
            header = batch.header
            if of != partition or (header.producer, header.producer_epoch) != numbers:
                continue
            sealed = self._judge.seen.sealed.get((of, no))
            if sealed is None or index < sealed[0]:
                found.setdefault(header.base_sequence, []).append(batch)
        return found

    # ---- programs ----

    def told_ok(self, writer: str, plan: Plan, wanted: Publication) -> Decided:
        """PUB, DONE: a program is told that its rows are committed."""
        digests = {plan.repeats or wanted.digest, *(one.digest for one in wanted.repeats)}  # of the same rows
        decided = [each for each in self._of(writer) if each.record.sequence == wanted.sequence]
        found = [each for each in decided if each.record.digest in digests]
        if not found:
            self.fail("PUB", f"{writer} is told that {wanted.sequence} is ok, and it is not")
        known = found[-1]  # an earlier one is of a writer that was deleted
        if not known.is_done:
            self.fail("DONE", f"{writer} is told that {wanted.sequence} is ok before it is done")
        if self._owners.get(writer, wanted.owner) != wanted.owner:
            self.fail("OWNER", f"{plan.run} is told that {wanted.sequence} is ok, and the writer is another one's")
        for part in known.plan.manifest.parts:
            placed, row = self.placed(PartitionId(part.partition), known), 0
            for batch in part.batches:
                if row not in placed:
                    self.fail("DONE", f"{writer} is told that {wanted.sequence} is ok, and row {row} is lost")
                row += batch.rows
        return known

    # ---- the end ----

    def final(self, partition: PartitionId, chain: Chain, open_length: int) -> None:
        """Whole, once, in order: the published rows of a partition, writer by writer."""
        judge = self._judge
        order = [message for _, message in judge.replay(chain, open_length)]
        published = {
            message: batch.header.producer
            for (of, _, _), batch in judge.seen.placed.items()
            if of == partition and batch.header.flags & FLAG_PUBLISH
            for message in messages_of(batch)
        }
        for writer in dict.fromkeys(each.writer for each in self.decisions):
            producers = {each.record.producer for each in self._of(writer)}
            found = [message for message in order if published.get(message) in producers]
            wanted: list[int] = []
            for each in self._of(writer):
                for batch in each.plan.batches_of(partition):
                    place = (batch.partition, batch.offset)
                    rows = messages_of(self._stage.batches[place])
                    if place not in self._stage.lost or rows[0] in found:
                        wanted += rows
            lost = self._messages_lost(partition).difference(found)
            if lost.intersection(wanted):
                self.saw("published rows lost with their disks")
                wanted = [message for message in wanted if message not in lost]
            if found != wanted:
                self.fail("WHOLE", f"partition {partition} has {found} of {writer}, and {wanted} was decided")

    def _messages_lost(self, partition: PartitionId) -> set[int]:
        """The rows that were appended to a segment that was declared lost."""
        return {
            message
            for (of, _, _), batch in self._judge.seen.placed.items()
            if of == partition and self._was_lost(partition, batch)
            for message in messages_of(batch)
        }
