"""All that has to do with publications in one world: the programs that publish, and the faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from seriatim_api.batch import FLAG_PUBLISH
from seriatim_api.ids import PartitionId
from seriatim_api.publications import Manifest
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import AckLevel, Append, CarryOut, StagedFetched, WriterRead
from seriatim_broker.core.values.writers import ManifestPlace, WriterRecord, WriterState
from seriatim_broker.interfaces.coordinator import Coordinator
from seriatim_broker.runtime.controller import unfinished_publications
from seriatim_broker.runtime.duties.stage_floors import StageFloors

from ..basics.batches import header_of
from ..basics.interfaces import COORDINATOR_TIMEOUT_US, WALL_MS_START
from ..programs.clients import Clients
from . import staged
from .judge import Decided, PublicationJudge
from .programs import Program
from .publisher import Finish
from .staged import INCARNATION, KEYS, STAGE_PARTITIONS, Records, Stage, Unhurried

if TYPE_CHECKING:
    from ..basics.interfaces import Cluster, Process
    from ..basics.setting import Setting
    from ..judge import Judge

TAKEN_UP_US = 300_000
LOOK_US = 150_000
PAUSE_US = (5_000, 40_000)
STAGE_AWAY_US = (100_000, 2_500_000)
GROWS_US = (20_000, 500_000)
SLOW_SHARE = 0.5
SLOW_US = (1_800_000, 3_000_000)
SAYS_SO_US = 100_000
"""A master says this long before the publisher's patience ends that it needs more time. Otherwise the publisher would
complain about a healthy master, whose segment ends then (rule `complains-of-silence`)."""

LATE_US = (2_000_000, 12_000_000)
SHARED_SHARE = 0.35
"""Of the worlds with two programs, this many have them use one writer."""

STAGED_HERE_SHARE = 0.8
"""Of the staged batches that a master fetches, this many are on its own disk. Followers look on theirs for these."""

GROWING_SHARE = 0.5
"""Of the worlds with several partitions, this many have a topic that grows to them."""


class Publishing:
    """Everything about publications in one world."""

    def __init__(self, setting: Setting, cluster: Cluster, judge: Judge, clients: Clients) -> None:
        self.setting = setting
        self.cluster = cluster
        self.clients = clients
        self.main_judge = judge
        self._schedule = setting.schedule
        self.rng = random.Random(f"publishing {setting.seed}")
        self.records = Records()
        self.stage = Stage(self._schedule, self.rng)
        self.judge = PublicationJudge(judge, self.stage)
        coordinator = Unhurried(self.records, lambda: self.rng.randint(0, 20_000))
        self._floors = StageFloors(cast(Coordinator, coordinator), KEYS)
        self._floors.on_read(self._read_manifest)
        self.programs: list[Program] = []
        self.partition_count = 0
        self._is_over = False
        self._is_slow = bool(setting.options.producers_max)
        self._finishing: set[str] = set()
        self._counts = setting.options.writers, setting.options.publications

    def start(self) -> None:
        """Begin."""
        writer_count, publication_count = self._counts
        is_shared = writer_count > 1 and self.rng.random() < SHARED_SHARE
        for number in range(writer_count):
            name, owner = ("w", f"owner {number}") if is_shared else (f"w{number}", "")
            self.programs.append(Program(self, name, owner, publication_count, opens=not is_shared))
        partitions = len(self.setting.partitions)
        self.partition_count = partitions
        if partitions > 1 and self.rng.random() < GROWING_SHARE:
            self.partition_count = self.rng.randint(1, partitions - 1)
            self._schedule.after(self.rng.randint(*GROWS_US), self._grow)
        # A shared writer is not deleted: a program that opens nothing is not refused after that.
        for _ in range(self.rng.choice((0, 0, 3)) * (not is_shared)):
            self._schedule.after(self.rng.randint(20_000, 1_500_000), self._delete)
        starts, until_us = random.Random(f"starts {self.setting.seed}"), self.setting.options.producers_start_us
        for program in self.programs:
            if until_us > PAUSE_US[1]:
                self._schedule.after(starts.randint(0, until_us), program.start)
            else:
                self.later(program.start)
        self._schedule.after(LOOK_US, self._look)
        self._schedule.after(self.rng.randint(20_000, 300_000), self._disturb)

    async def _read_manifest(self, place: ManifestPlace) -> Manifest:
        return self.judge.manifest_of(place.id)

    @property
    def is_done(self) -> bool:
        """Whether every program has published all, and everything that is decided is done."""
        states = [record.state for record, _ in self.records.writers.values()]
        return all(program.is_done for program in self.programs) and WriterState.DECIDED not in states

    @property
    def stuck(self) -> str:
        """The programs and the records that are not done."""
        names = [program.name for program in self.programs if not program.is_done]
        records = [(record.state.name, record.sequence) for record, _ in self.records.writers.values()]
        return f"writers {names} wait, records are {records}"

    @property
    def is_growing(self) -> bool:
        """Whether the topic is to get more partitions."""
        return self.partition_count < len(self.setting.partitions)

    def end(self) -> None:
        """Faults are over."""
        self._is_over = True
        self.stage.away_until_us = dict.fromkeys(STAGE_PARTITIONS, 0)

    def later(self, call: Callable[..., None], *arguments: Any) -> None:
        """Do it in a moment."""
        self._schedule.after(self.rng.randint(*PAUSE_US), call, *arguments)

    # ---- the coordinator ----

    def ask(self, name: str, work: Callable[[], Any], answer: Callable[[Any], None], *, writes: bool = False) -> None:
        """A broker asks the coordinator. `answer(None)` means that none came: it may act now, later or never."""
        rng = self.rng
        coordinator, options = self.cluster.coordinator, self.setting.options
        is_away = coordinator.is_down or coordinator.isolated.get(name)
        draw = rng.random()
        lost = bool(is_away) or (coordinator.is_faulty and draw < options.txn_lost_share)
        answer_lost = coordinator.is_faulty and rng.random() < options.txn_answer_lost_share
        if writes and coordinator.is_refusing:
            lost = True
        if lost:
            if writes and rng.random() < options.txn_late_share * 3:
                self._schedule.after(COORDINATOR_TIMEOUT_US + rng.randint(0, 400_000), work)
            self._schedule.after(COORDINATOR_TIMEOUT_US, answer, None)
            return

        def carry_out() -> None:
            found = work()
            if answer_lost:
                self._schedule.after(COORDINATOR_TIMEOUT_US, answer, None)
            else:
                self._schedule.after(rng.randint(200, options.coordinator_us_max), answer, (found,))

        self._schedule.after(rng.randint(200, options.coordinator_us_max), carry_out)

    # ---- what processes ask ----

    def read_writer(self, process: Process, effect: fx.ReadWriter) -> None:
        """A master reads a record."""

        def answered(found: Any) -> None:
            record = found[0] if found is not None else None
            if process.alive:
                process.deliver(WriterRead(effect.serial, effect.partition, record, found is None))

        self.ask(process.name, lambda: self.records.get(effect.writer)[0], answered)

    def fetch(self, process: Process, effect: fx.FetchStaged) -> None:
        """A master fetches a staged batch, or a follower looks for it on its disk; sometimes it is not to be had."""

        def come() -> None:
            batch, is_gone = self.stage.fetch(effect.staged)
            is_here = effect.only_here or self.rng.random() < STAGED_HERE_SHARE
            if not is_gone and not self._is_over and self.rng.random() < 0.05:
                others = [place for place in self.stage.batches if place not in self.stage.gone]
                batch = self.stage.batches[self.rng.choice(others)] if others and self.rng.random() < 0.3 else None
            if process.alive:
                process.deliver(StagedFetched(effect.serial, effect.partition, batch, is_gone, is_here))

        self._schedule.after(self.rng.randint(200, 15_000), come)

    def question(self, writer: str, record: WriterRecord, partition: PartitionId) -> Callable[[int, int], CarryOut]:
        """What a publisher asks a master."""
        part = self.judge.manifest_of(record.manifest.id).part_of(partition)
        assert part is not None
        return lambda request, deadline_us: CarryOut(
            request, partition, INCARNATION, writer, record.producer, record.sequence, record.manifest.id,
            part.batches, deadline_us - SAYS_SO_US,
        )  # fmt: skip

    # ---- what goes wrong ----

    def _disturb(self) -> None:
        if self._is_over:
            return
        partition = self.rng.choice(STAGE_PARTITIONS)
        what = self.rng.random()
        if what < 0.35:
            self._away(partition, STAGE_AWAY_US)
        elif what < 0.45 and not self._is_slow:
            self.judge.saw("staged data lost")
            self._schedule.tell("FAULT", f"what is staged on {partition} is lost")
            self.stage.lose(partition)
        elif not self._is_slow or what > 0.9:  # otherwise a DONE record would be gone before its writer is forgotten
            self._trim(partition)
        if self.judge.decisions and not self._is_slow and self.rng.random() < 0.5:
            self._ask_late(self.rng.choice(self.judge.decisions))
        if self.rng.random() < 0.1:
            self._forge()
        self._schedule.after(self.rng.randint(30_000, 200_000), self._disturb)

    def _away(self, partition: PartitionId, for_us: tuple[int, int]) -> None:
        self.stage.away_until_us[partition] = self._schedule.now_us + self.rng.randint(*for_us)

    def on_decided(self) -> None:
        """If brokers forget producers, many publications wait longer than that for a part of their staged batches.

        Of others a question comes when they may have been forgotten; earlier ones would keep them in the tables.
        """
        if not self._is_slow or self._is_over:
            return
        if self.rng.random() < SLOW_SHARE:
            self._away(self.stage.place(), SLOW_US)
        else:
            self._schedule.after(self.rng.randint(*LATE_US), self._ask_late, self.judge.decisions[-1])

    def _grow(self) -> None:
        """The topic gets one more partition. It existed from the beginning, but no client knew of it."""
        self.partition_count += 1
        self._schedule.tell("topic", f"grows to {self.partition_count} partitions")
        self.judge.saw("topic grew")
        if self.is_growing:
            self._schedule.after(self.rng.randint(*GROWS_US), self._grow)

    def _master_of(self, partition: PartitionId) -> str | None:
        chain = self.cluster.coordinator.records.chain(partition)[0]
        return chain.open_segment.master.broker if chain is not None else None

    def _ask_late(self, known: Decided) -> None:
        """A question of a publisher comes that was on its way for long: masters append nothing more for it."""
        part = self.rng.choice(known.plan.manifest.parts)
        partition = PartitionId(part.partition)
        master = self._master_of(partition)
        if master is not None:
            self.clients.ask_at(master, self.question(known.writer, known.record, partition), lambda _: None)

    def _forge(self) -> None:
        """A client sends the next rows of some writer, as if a master had appended them."""
        partition = self.rng.choice(self.setting.partitions)
        master = self._master_of(partition)
        if master is None or not self.judge.decisions:
            return
        record = self.rng.choice(self.judge.decisions).record
        message = self.clients.number()
        self.main_judge.sent(message, partition, record.producer)
        body = message.to_bytes(8, "big")
        header = header_of(
            partition, record.producer, body, epoch=record.sequence + 1, flags=FLAG_PUBLISH, stage=record.manifest.id
        )
        self.judge.saw("forged")
        self.clients.ask_at(
            master,
            lambda request, _: Append(request, partition, header, body, 1, True, AckLevel.REPLICATED_FLUSHED),
            lambda _: None,
        )

    def _delete(self) -> None:
        """An administrator deletes a writer of which nothing is decided and not done, and starts its program again.

        The program that opened it before was frozen, perhaps.
        """
        idle = [name for name, (record, _) in self.records.writers.items() if record.state is not WriterState.DECIDED]
        if self._is_over:
            return
        if not idle:
            self.later(self._delete)
            return
        name = self.rng.choice(idle)
        self._schedule.tell("people", f"delete writer {name}")
        self.records.delete(name)
        self.judge.deleted(name)
        for program in self.programs:
            if program.name == name and not program.is_done:
                self.later(program.start)

    def _trim(self, partition: PartitionId) -> None:
        """Retention of a stage partition."""
        offset = self.stage.end(partition)

        def told(may_drop: bool) -> None:
            if not may_drop:
                self.judge.saw("staged data waits")
                return
            self._schedule.after(self.rng.randint(0, 100_000), drop)

        def drop() -> None:
            self._schedule.tell("stage", f"what is staged on {partition} below {offset} is dropped")
            self.judge.saw("staged data dropped")
            self.stage.drop_below(partition, offset)
            self.judge.dropped(partition)

        staged.go(self._schedule, self._floors.may_drop(partition, offset), told)

    # ---- the controller ----

    def _look(self) -> None:
        """The controller finishes publications that have been DECIDED for more than `TAKEN_UP_US`."""
        now_ms = WALL_MS_START + self._schedule.now_us // 1000
        running = [
            broker.process for broker in self.cluster.brokers.values() if broker.process and not broker.process.frozen
        ]
        for name, (record, revision) in list(self.records.writers.items()):
            is_due = (
                unfinished_publications.is_to_finish(record) and now_ms - record.decided_at_ms > TAKEN_UP_US // 1000
            )
            if is_due and running and name not in self._finishing:
                self.judge.saw("publication taken up")
                self._finishing.add(name)
                process = self.rng.choice(running)
                Finish(self, process, name, record, revision, partial(self._taken_up, name))
        self._schedule.after(LOOK_US, self._look)

    def _taken_up(self, name: str, _is_done: bool) -> None:
        self._finishing.discard(name)
