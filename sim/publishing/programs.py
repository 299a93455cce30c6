"""Programs that publish in a world: killed, run again with other rows, woken as zombies, two of them under one name."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seriatim._publishing import chunks
from seriatim._publishing.chunks import Chunk, Repeat
from seriatim_api import errors
from seriatim_api.ids import PartitionId, make_offset
from seriatim_api.publications import ManifestPart, RowLayout, StagedBatch, StagedBatches, digest_of
from seriatim_broker.core.values import writers
from seriatim_broker.core.values.writers import ManifestPlace, Publication, WriterRecord, WriterState

from .judge import Plan, messages_of
from .publisher import PUBLISH_US, TOPIC, Publish
from .staged import INCARNATION, STAGE_PARTITIONS

if TYPE_CHECKING:
    from ..basics.interfaces import Process
    from .environment import Publishing

PATIENCE_US = (20_000, 200_000, PUBLISH_US)
"""How long a program may wait for an answer to `Publish` before it asks another broker, or is killed."""

TASK_US_MAX = (20_000, 300_000)
"""The pause between two tasks that stage; the second value if the topic grows."""

KILLED_SHARE = 0.3
MORTAL_SHARE = 0.15
"""The share of programs that do not run again after a kill: others finish what they decided."""

GOES_BACK_SHARE = 0.2
FORGETS_SHARE = 0.3
"""Of the runs, this many begin with the last publication, because they were killed before they knew that it was
done."""

REPEATS_SHARE = 0.5
"""Of these, this many publish the same rows again, and the others publish other rows."""

ZOMBIE_SHARE = 0.7
"""Of the steps of a run that was killed, this many are taken all the same, because it was only frozen."""


@dataclass(frozen=True)
class Run:
    """One run of a program: which it is, and the epoch in which it opened the writer."""

    number: int
    epoch: int


class Program:
    """Publishes a number of publications, one after another.

    Args:
        name: The name of the writer.
        owner: What the program calls itself; empty: nothing.
        count: How many publications.
        opens: Whether it opens its writer. One that does not shares it with another program, by mistake.
    """

    def __init__(self, publishing: Publishing, name: str, owner: str, count: int, *, opens: bool) -> None:
        self.name = name
        self._owner = owner
        self._publishing = publishing
        self._count = count
        self._opens = opens
        self._done = 0
        self._newest = 0
        self._repeating = random.Random(f"repeats of {name}{owner} {publishing.setting.seed}")
        self._is_mortal = publishing.rng.random() < MORTAL_SHARE

    @property
    def is_done(self) -> bool:
        """Whether all is published, or the program has ended because the writer is another one's."""
        return self._done >= self._count

    def start(self) -> None:
        """A new run opens the writer, and continues after the last publication."""
        self._newest += 1
        self._open(self._newest)

    def _may_act(self, run: Run) -> bool:
        """Whether this run is the newest. An older one is a zombie, which still acts for some time."""
        return run.number == self._newest or self._publishing.rng.random() < ZOMBIE_SHARE

    def _called(self, number: int) -> str:
        return f"{self.name}{self._owner and ' of ' + self._owner}, run {number}"

    def _process(self) -> Process | None:
        found = [broker.process for broker in self._publishing.cluster.brokers.values() if broker.process is not None]
        return self._publishing.rng.choice(found) if found else None

    def _open(self, number: int) -> None:
        publishing = self._publishing
        process = self._process()
        if process is None or process.frozen:
            publishing.later(self._open, number)
            return
        new_id = publishing.rng.randbytes(8)[: writers.NEW_ID_BYTES]

        def write() -> WriterRecord | None:
            records = publishing.records
            record, _ = records.get(self.name)
            if self._opens:
                record = writers.opened(record, TOPIC, self.name, new_id, records.revision, 0)
                records.put(self.name, record)
                publishing.judge.opened(self.name, self._called(number))
            return record

        def opened(found: Any) -> None:
            if found is None:
                publishing.later(self._open, number)
            elif number == self._newest:
                record: WriterRecord | None = found[0]
                is_new = record is None or record.state is WriterState.NEW
                self._done = 0 if record is None or is_new else record.sequence + 1
                forgets = bool(self._done) and publishing.rng.random() < FORGETS_SHARE
                epoch = record.epoch if record is not None and self._opens else 0
                if record is not None and epoch and forgets and self._repeating.random() < REPEATS_SHARE:
                    self._repeat(Run(number, epoch), record)
                    return
                self._stage(Run(number, epoch), self._done - forgets)

        publishing.ask(process.name, write, opened, writes=self._opens)

    # ---- staging ----

    def _stage(self, run: Run, sequence: int) -> None:
        """Tasks stage rows, one after another: other rows in each run."""
        if sequence >= self._count and run.number == self._newest:
            self._done = max(self._done, sequence)
            return
        if self._may_act(run):
            tasks = self._publishing.rng.choice((1, 1, 2, 3))
            self._stage_next(run, sequence, tasks, ())

    def _stage_next(self, run: Run, sequence: int, tasks: int, staged: Sequence[Chunk]) -> None:
        if not self._may_act(run):
            return
        staged = (*staged, self._chunk())
        if len(staged) < tasks:
            pause_us = self._publishing.rng.randint(0, TASK_US_MAX[self._publishing.is_growing])
            self._publishing.setting.schedule.after(pause_us, self._stage_next, run, sequence, tasks, staged)
            return
        try:
            manifest = chunks.manifest_of(TOPIC, staged)
        except errors.BadRequestError as exc:
            self._publishing.setting.schedule.tell(self.name, f"run {run.number}, publication {sequence}: {exc}")
            self._publishing.judge.saw("staged again for a topic that grew")
            self._publishing.later(self._stage, run, sequence)
            return
        place = _place(self._publishing.rng.randbytes(16), staged)
        plan = Plan(self._called(run.number), staged, manifest)
        self._publishing.judge.plans[place.id] = plan
        repeats = tuple(chunks.repeats_of(staged))
        digest = digest_of(manifest.parts)
        wanted = Publication(self.name, run.epoch, self._owner, sequence, place, digest, repeats=repeats)
        self._publishing.setting.schedule.tell(self.name, f"run {run.number} stages publication {sequence}: {manifest}")
        self._publishing.later(self._publish, run, plan, wanted)

    def _repeat(self, run: Run, record: WriterRecord) -> None:
        """The run makes the rows of the last publication again, and stages them for the partitions that it knows."""
        rng, judge = self._repeating, self._publishing.judge
        layout = writers.earlier_layout(record)
        known = self._publishing.setting.partitions[: self._publishing.partition_count]
        staged = [_laid_out(chunk, known, layout) for chunk in judge.plans[record.manifest.id].chunks]
        manifest = chunks.manifest_of(TOPIC, staged)
        place = _place(rng.randbytes(16), staged)
        plan = Plan(self._called(run.number), staged, manifest, record.digest)
        judge.plans[place.id] = plan
        repeats = tuple(chunks.repeats_of(staged))
        if repeats:
            judge.saw("repeated after growth")
        wanted = Publication(
            self.name, run.epoch, self._owner, record.sequence, place, digest_of(manifest.parts), False,
            repeats,
        )  # fmt: skip
        self._publishing.setting.schedule.tell(
            self.name, f"run {run.number} repeats publication {record.sequence}: {manifest}"
        )
        self._publishing.later(self._publish, run, plan, wanted)

    def _chunk(self) -> Chunk:
        """What one task stages: rows for the partitions that it knows."""
        publishing, rng = self._publishing, self._publishing.rng
        known = publishing.setting.partitions[: publishing.partition_count]
        parts: dict[PartitionId, list[StagedBatch]] = {}
        places = {partition: self._publishing.stage.place() for partition in known}
        id_ = rng.randbytes(16)
        for _ in range(rng.choice((1, 2, 5, 20))):
            partition = rng.choice(known)
            rows = rng.randint(1, 3)
            messages = [publishing.clients.number() for _ in range(rows)]
            for message in messages:
                publishing.main_judge.sent(message, partition, rng.randbytes(16))
            parts.setdefault(partition, []).append(
                self._publishing.stage.put(places[partition], id_, messages[0], rows)
            )
        record, _ = self._publishing.records.get(self.name)
        batches = [batch for number in sorted(parts) for batch in parts[number]]
        repeats = tuple(
            Repeat(layout, tuple(part.summary for part in _spread(batches, known[: layout.partition_count])))
            for layout in (writers.earlier_layout(record),)
            if layout is not None and layout.partition_count < len(known)
        )
        return Chunk(TOPIC, INCARNATION, len(known), id_, _parts_of(parts), repeats=repeats)

    # ---- publishing ----

    def _publish(self, run: Run, plan: Plan, wanted: Publication) -> None:
        """Ask some broker; if there is no answer in time, ask again, or be killed and run again with other rows."""
        process = self._process()
        if process is None or not self._may_act(run):
            if run.number == self._newest:
                self._publishing.later(self._publish, run, plan, wanted)
            return
        schedule, rng = self._publishing.setting.schedule, self._publishing.rng
        answered = [False]

        def then(error: errors.SeriatimError | None) -> None:
            if not answered[0]:
                answered[0] = True
                if error is None:
                    self._settle(plan, wanted)
                self._publishing.later(self._answered, run, plan, wanted, error)

        Publish(self._publishing, process, wanted, then)
        schedule.after(rng.choice(PATIENCE_US), then, errors.DeadlineExceededError("no broker answered"))

    def _answered(self, run: Run, plan: Plan, wanted: Publication, error: errors.SeriatimError | None) -> None:
        schedule, rng = self._publishing.setting.schedule, self._publishing.rng
        schedule.tell(self.name, f"run {run.number}, publication {wanted.sequence}: {error or 'ok'}")
        self._publishing.judge.saw(f"publish: {type(error).__name__ if error else 'ok'}")
        if run.number != self._newest:
            return  # a zombie has had its say
        if plan.repeats and isinstance(error, (errors.PublicationDiffersError, errors.StagedDataGoneError)):
            self._publishing.judge.fail("REPEAT", f"{self.name} publishes the rows of {wanted.sequence} again: {error}")
        following = wanted.sequence + 1
        if error is None or isinstance(error, (errors.PublicationDiffersError, errors.PublishedWithLossError)):
            self._done = max(self._done, following)
            goes_back = error is None and wanted.sequence > 0 and rng.random() < GOES_BACK_SHARE
            self._stage(run, wanted.sequence - 1 if goes_back else self._done)
        elif isinstance(error, errors.StagedDataGoneError):
            self._stage(run, wanted.sequence)
        elif isinstance(error, errors.SequencePassedError):
            if wanted.sequence == self._done and self._opens:
                self._publishing.judge.fail("ONE", f"{self.name} is told that {wanted.sequence} was passed")
            # Otherwise it had gone back, as with a restored checkpoint.
            self._done = max(self._done, following)
            self._stage(run, self._done)
        elif isinstance(error, errors.WriterOwnedError):
            self._done = self._count  # this program ends
        elif isinstance(error, (errors.WriterFencedError, errors.UnknownWriterError)):
            self.start()
        elif rng.random() < KILLED_SHARE:
            schedule.tell("FAULT", f"{self._called(run.number)}, is killed")
            if self._is_mortal:
                self._done = self._count
                self._newest += 1
            else:
                self.start()
        else:
            self._publishing.later(self._publish, run, plan, wanted)

    def _settle(self, plan: Plan, wanted: Publication) -> None:
        """ok: its rows are acknowledged, so all rows that are sent from now on come after them."""
        judge = self._publishing.judge
        known = judge.told_ok(self.name, plan, wanted)
        now_us = self._publishing.setting.schedule.now_us
        for part in known.plan.manifest.parts:
            for places in judge.placed(PartitionId(part.partition), known).values():
                batch = places[-1]
                for message in messages_of(batch):
                    fate = self._publishing.main_judge.seen.fates[message]
                    if not fate.outcome:
                        fate.outcome = "ok"
                        fate.acked_us = now_us
                        fate.offset = make_offset(batch.header.segment, batch.header.base_index)


def _place(id_: bytes, staged: Sequence[Chunk]) -> ManifestPlace:
    return ManifestPlace(STAGE_PARTITIONS[0], (make_offset(9, 0),), 1, 1, id_, layout=staged[0].layout)


def _laid_out(chunk: Chunk, known: Sequence[PartitionId], layout: RowLayout | None) -> Chunk:
    """The rows of a chunk, staged for these partitions, and what they were in that layout, as in `Stager.stage`."""
    if chunk.partition_count == len(known):
        return chunk
    summaries = tuple(part.summary for part in chunk.parts)
    return replace(
        chunk,
        partition_count=len(known),
        parts=_spread([batch for part in chunk.parts for batch in part.batches], known),
        repeats=(Repeat(chunk.layout, summaries),) if layout == chunk.layout else (),
    )


def _spread(batches: Sequence[StagedBatch], known: Sequence[PartitionId]) -> tuple[ManifestPart, ...]:
    """Batches laid out for these partitions: as keys do it, alike each time."""
    parts: dict[PartitionId, list[StagedBatch]] = {}
    for batch in batches:
        parts.setdefault(known[batch.offset % len(known)], []).append(batch)
    return _parts_of(parts)


def _parts_of(parts: Mapping[PartitionId, Sequence[StagedBatch]]) -> tuple[ManifestPart, ...]:
    return tuple(
        ManifestPart(partition, 8 * len(batches), StagedBatches(batches))
        for partition, batches in sorted(parts.items())
    )
