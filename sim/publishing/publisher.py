"""What a broker does for publications in a world, step by step, as `rpc.distributed.publisher` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seriatim_api import errors
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import writers
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import ResolveProducer
from seriatim_broker.core.values.writers import Publication, Verdict, WriterRecord
from seriatim_broker.runtime.coordinator import writer_conditions

from ..basics.interfaces import WALL_MS_START
from . import staged
from .staged import INCARNATION, KEYS

if TYPE_CHECKING:
    from ..basics.interfaces import Process
    from .environment import Publishing

TOPIC = "topic"
PUBLISH_US = 1_500_000
FINISH_US = 400_000
"""The time for one try to finish. Then the publisher asks all partitions again, so that none forgets the writer."""

LOOKS_US_MAX = (30_000, 30_000, 250_000)
"""How long a publisher may take between a look at what is staged and its transaction."""


class Steps:
    """Work that a process does step by step. It ends with the process, and pauses while the process is frozen."""

    def __init__(self, publishing: Publishing, process: Process) -> None:
        self.publishing = publishing
        self.schedule = publishing.setting.schedule
        self.process = process

    def go(self, call: Callable[..., None], *arguments: Any) -> None:
        """Take the next step, if the process is there."""
        if not self.process.alive:
            self.over()
        elif self.process.frozen:
            self.schedule.after(10_000, self.go, call, *arguments)
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
        process: Process,
        writer: str,
        record: WriterRecord,
        revision: int,
        then: Callable[[bool], None],
    ) -> None:
        super().__init__(publishing, process)
        self._writer = writer
        self._record = record
        self._revision = revision
        self._then: Callable[[bool], None] | None = then
        self._manifest = publishing.judge.manifest_of(record.manifest.id)
        self._lost_rows = 0
        self._waiting = {PartitionId(part.partition) for part in self._manifest.parts}
        self._until_us = self.schedule.now_us + FINISH_US
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
            lambda: self.publishing.cluster.coordinator.records.chain(partition)[0],
            lambda found: self._asked(partition, found),
        )

    def _asked(self, partition: PartitionId, found: Any) -> None:
        if self._then is None:
            return
        if self.schedule.now_us > self._until_us:
            self._end(is_done=False)
            return
        if found is None or found[0] is None:
            self.publishing.later(self.go, self._ask, partition)
            return
        chain: Chain = found[0]
        make = self.publishing.question(self._writer, self._record, partition)
        master = chain.open_segment.master.broker
        answered = lambda answer: self.go(self._answered, partition, chain, answer)  # noqa: E731
        self.publishing.clients.ask_at(master, make, answered)

    def _answered(self, partition: PartitionId, chain: Chain, answer: fx.CarriedOut | None) -> None:
        if self._then is None or partition not in self._waiting:
            return
        if answer is not None and answer.error is None:
            master = chain.open_segment.master.broker
            self.publishing.judge.carried(master, partition, self._record.producer, self._record.sequence)
            self._lost_rows += answer.lost_rows
            self._waiting.discard(partition)
            if staged.may_be_done(self._waiting):
                self._write()
            return
        if answer is not None and isinstance(answer.error, errors.PreconditionError):
            self._end(is_done=False)
            return
        if answer is not None and isinstance(answer.error, errors.CorruptionError):
            self.publishing.judge.fail("CUTS", f"a master cannot continue: {answer.error}")

        def complain(request: int, deadline_us: int) -> ResolveProducer:
            return ResolveProducer(request, partition, chain.open_segment.no, deadline_us)

        if answer is None or isinstance(answer.error, errors.RoutingError):
            self.publishing.clients.unary(chain.open_segment.master.broker, complain, lambda _: None)
        self.publishing.later(self.go, self._ask, partition)

    def _write(self) -> None:
        records = self.publishing.records
        staged_lost = self.publishing.stage.lost
        lost = sum(
            batch.rows
            for part in self._manifest.parts
            for batch in part.batches
            if (batch.partition, batch.offset) in staged_lost
        )
        now_ms = WALL_MS_START + self.schedule.now_us // 1000
        done = writers.done(self._record, max(lost, self._lost_rows), now_ms)

        def write() -> bool:
            same = writer_conditions.of_record(KEYS, INCARNATION, self._writer, self._revision)
            if not records.put(self._writer, done, same):
                return False
            self.publishing.judge.done(self._writer, done)
            return True

        self.ask(write, lambda found: self._end(is_done=found is not None and found[0]), writes=True)


class Publish(Steps):
    """One call of Publish at one broker; `then(error or None)`, or never, if the broker ends."""

    def __init__(
        self,
        publishing: Publishing,
        process: Process,
        wanted: Publication,
        then: Callable[[errors.SeriatimError | None], None],
    ) -> None:
        super().__init__(publishing, process)
        self._wanted = wanted
        self._then = then
        self._until_us = self.schedule.now_us + PUBLISH_US
        self.go(self._begin)

    def _begin(self) -> None:
        if self.schedule.now_us > self._until_us:
            self._then(errors.DeadlineExceededError("not finished yet"))
            return
        records, name = self.publishing.records, self._wanted.writer

        def read() -> tuple[WriterRecord | None, int, dict[int, int], int, int]:
            return *records.get(name), records.floors_now(), records.revision, self.publishing.partition_count

        self.ask(read, self._read)

    def _read(self, found: Any) -> None:
        if found is None:
            self.publishing.later(self.go, self._begin)
            return
        record, revision, floors, as_of, partition_count = found[0]
        try:
            verdict = writers.judge(record, self._wanted)
            if verdict is Verdict.DONE:
                self._then(None)
            elif verdict is Verdict.FINISH:
                self._finish(record, revision)
            else:
                self._check(floors, partition_count)
                after_us = self.publishing.rng.randint(0, self.publishing.rng.choice(LOOKS_US_MAX))
                looked_us = self.schedule.now_us
                self.schedule.after(after_us, self.go, self._decide, record, revision, as_of, looked_us)
        except errors.SeriatimError as exc:
            self._then(exc)

    def _finish(self, record: WriterRecord, revision: int) -> None:
        again = lambda _: self.publishing.later(self.go, self._begin)  # noqa: E731
        Finish(self.publishing, self.process, self._wanted.writer, record, revision, again)

    def _check(self, floors: dict[int, int], partition_count: int) -> None:
        wanted, stage = self._wanted, self.publishing.stage
        manifest = self.publishing.judge.manifest_of(wanted.manifest.id)
        partitions = set(self.publishing.setting.partitions[:partition_count])
        writers.check_manifest(wanted, manifest, INCARNATION, partitions, floors)
        for part in manifest.parts:
            if not all(staged.is_there(stage, batch) for batch in part.batches):
                raise errors.StagedDataGoneError("no broker has it")

    def _decide(self, record: WriterRecord | None, revision: int, as_of: int, looked_us: int) -> None:
        wanted, records = self._wanted, self.publishing.records
        manifest = self.publishing.judge.manifest_of(wanted.manifest.id)
        now_ms = WALL_MS_START + self.schedule.now_us // 1000
        new_id = self.publishing.rng.randbytes(8)[: writers.NEW_ID_BYTES]
        after = writers.decided(record, wanted, TOPIC, manifest.rows, now_ms, new_id)

        def write() -> bool:
            same = writer_conditions.of_record(KEYS, INCARNATION, wanted.writer, revision)
            if not records.put(wanted.writer, after, [*same, *writer_conditions.of_floors(KEYS, as_of)]):
                return False
            self.publishing.judge.decided(wanted.writer, after, wanted, looked_us)
            self.publishing.on_decided()
            return True

        self.ask(write, lambda _: self._written(after), writes=True)

    def _written(self, after: WriterRecord) -> None:
        if staged.is_read_again():
            self._begin()
        else:
            self._finish(after, 0)
