"""The demo of orders: consumers work on messages by key, while they, brokers and two aircraft fail.

Beside what is in `e2e.demo.run`, one aircraft is parked and released, and another one is dead-lettered, while there are
faults. When all else is worked on, the dead letters are replayed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from rich.text import Text

from e2e.demo.faults import Kind, PlannedFault
from e2e.demo.flights import load_events
from e2e.demo.live import Scene, View
from e2e.demo.rebuild import read_histories
from e2e.demo.report import DemoFault, Outcome, Row, Told, equality, percentiles, verdict
from e2e.demo.run import DRAIN_DEADLINE_S, GROUP, RESERVE_SHARE, TOPIC, FlightsRun
from e2e.demo_orders.crew import Crew
from e2e.demo_orders.delivery_attempts import read_attempts
from e2e.demo_orders.judging import DeadLettered, Judgement, Parked, judge
from e2e.demo_orders.picture import Story, draw
from e2e.demo_orders.planning import BROKER_KINDS, CONSUMER_KINDS, broker_faults, choose_poison, consumer_faults
from e2e.demo_orders.settings import OrderSettings
from e2e.demo_orders.store import Store
from e2e.demo_orders.troubles import SETTINGS, Troubles

LEVEL_DEADLINE_S: Final = 30.0
POLL_S: Final = 0.3
_COLUMN_WIDTH: Final = 17


@dataclass(slots=True)
class OrderScene(Scene):
    """The scene of this demo.

    Attributes:
        finished: By the consumers' places: how many messages they have finished.
        aircraft: By aircraft: what is happening to the ones that fail.
    """

    title: ClassVar[str] = "Seriatim: order within a key"
    counted: ClassVar[str] = "finished"

    finished: dict[str, int] = field(default_factory=dict)
    aircraft: dict[str, str] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """How many messages all consumers have finished."""
        return sum(self.finished.values())

    def take(self, finished: dict[str, int]) -> None:
        """Take new figures of the consumers."""
        before, self.finished = self.done, finished
        self.count(self.at_s, max(0, self.done - before))

    def figures(self) -> list[tuple[str, str]]:
        """How much was sent."""
        return [(f" of {self.acknowledged:,} sent", "not bold")]

    def more(self) -> str:
        """The aircraft that fail."""
        return "".join(f"  {key} {state}" for key, state in self.aircraft.items())

    def panels(self, width: int) -> list[tuple[str, Text]]:
        """A bar for each consumer, several in a line, and the aircraft that fail."""
        columns = max(1, width // (_COLUMN_WIDTH + 1))
        most = max(self.finished.values(), default=0)
        bars = Text(no_wrap=True, overflow="crop")
        for number, (name, count) in enumerate(sorted(self.finished.items())):
            if number:
                bars.append("\n" if number % columns == 0 else " ")
            full = round(count / most * 5) if most else 0
            bars.append(f"{name} ", style="dim")
            bars.append("█" * full + "·" * (5 - full), style="cyan")
            bars.append(f" {count:>6,}")
        lines = [Text.assemble((f"{key} ", "bold"), state) for key, state in self.aircraft.items()]
        aircraft = Text("\n", no_wrap=True, overflow="ellipsis").join([*lines, Text(), Text()][:2])
        return [("finished by consumer", bars), ("aircraft that fail", aircraft)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersOutcome(Outcome):
    """The outcome of this demo.

    Attributes:
        judgement: What the store and the record of attempts say.
        parked: What happened to the parked aircraft.
        dead: What happened to the dead-lettered aircraft.
        settings: The settings of the run.
        process_starts: How many processes with consumers were started.
    """

    judgement: Judgement
    parked: Parked | None
    dead: DeadLettered | None
    settings: OrderSettings
    process_starts: int

    def own_problems(self) -> list[str]:
        """What the store, the record of attempts and the two aircraft show."""
        found = []
        if self.judgement.taken != self.event_count:
            found.append(f"the store took {self.judgement.taken:,} events of {self.event_count:,}")
        found += self.judgement.problems
        if self.parked is None:
            found.append("no aircraft was parked")
        if self.dead is None:
            found.append("no message was dead-lettered")
        return found


def tell(outcome: OrdersOutcome) -> Told:
    """Say what the report reports."""
    counts, judgement, settings = outcome.check.counts, outcome.judgement, outcome.settings
    parked, dead = outcome.parked, outcome.dead
    rate = judgement.taken / outcome.duration_s if outcome.duration_s > 0 else 0.0
    take_over = percentiles(seconds * 1000 for seconds in judgement.take_overs_s)
    kills = f"{outcome.process_starts - settings.process_count} kills"
    known, partitions = judgement.repeats - judgement.unflagged, settings.partition_count
    rows: list[Row] = [
        ("events sent", f"{counts['sent']:,}", f"of {outcome.event_count:,}, to {partitions} partitions"),
        ("finished", f"{judgement.taken:,}", f"{rate:,.0f} a second, by {settings.consumer_count} consumers"),
        ("attempts", f"{judgement.attempts:,}", f"{judgement.failed:,} failed, {judgement.cut_off:,} cut off by kills"),
        ("flagged repeats", f"{known:,}", "the store knew them by their offsets"),
        ("refused writes", f"{judgement.refused:,}", "the store had a newer token of the key"),
        ("lost", verdict(counts["lost"]), ""),
        ("reordered", verdict(counts["reordered"]), "within an aircraft"),
        ("repeated", verdict(counts["repeated"] + judgement.unflagged), "without a flag"),
        ("histories", equality(outcome.differences), f"{judgement.aircraft:,} aircraft, byte for byte as in the file"),
    ]
    figures: dict[str, object] = {
        "finished": judgement.taken, "attempts": judgement.attempts, "failed": judgement.failed,
        "cut_off": judgement.cut_off, "repeats": judgement.repeats, "repeats_unflagged": judgement.unflagged,
        "refused_by_token": judgement.refused, "aircraft": judgement.aircraft, "messages_per_s": round(rate),
        "consumer_processes": outcome.process_starts, "take_over": take_over, "parked": None, "dead_letters": None,
    }  # fmt: skip
    if parked is not None:
        waited_s, others = parked.released_at - parked.parked_at, judgement.others_meanwhile
        told = f"after {parked.attempts} attempts; {others:,} of others meanwhile"
        rows.append((f"{parked.key} parked", f"{waited_s:.1f} s", told))
        figures["parked"] = {
            "key": parked.key, "attempts": parked.attempts, "waiting": parked.waiting, "seconds": round(waited_s, 1),
            "others_meanwhile": others,
        }  # fmt: skip
    if dead is not None:
        rows.append((f"{dead.key} given up", f"{len(dead.letters)}", "dead letters, replayed in their order"))
        figures["dead_letters"] = {"key": dead.key, "replayed": len(dead.letters)}
    rows.append(("faults that hit", f"{len(outcome.hits)}", f"of {len(outcome.faults)}; at least {outcome.hits_min}"))
    if take_over is None:
        rows.append(("killed consumers", "–", kills))
    else:
        told = f"median of {take_over['count']:,} keys, {take_over['max_ms']:,.0f} at most; {kills}"
        rows.append(("keys taken over", f"{take_over['p50_ms']:,.0f} ms", told))
    good = "each aircraft's events were worked on once and in order"
    return outcome.told(good=good, rows=rows, figures=figures, pictures="attempts.svg")


class OrdersRun(FlightsRun):
    """One run of this demo."""

    final_places = True
    rates = (60.0, 1_500.0)
    kinds: ClassVar[Sequence[Kind]] = BROKER_KINDS

    def __init__(self, settings: OrderSettings, view: View | None = None) -> None:
        self.scene = OrderScene(settings.hits_min + settings.consumer_faults)
        self.settings = settings
        super().__init__(settings, self.scene, view)
        self._held_from = math.inf
        self._is_held = False  # all but the reserve is sent

    def plan(self) -> Iterator[PlannedFault]:
        """The faults of brokers."""
        return broker_faults(self.settings.seed)

    def faults(self) -> Sequence[DemoFault]:
        """The faults of brokers and of consumers."""
        return sorted([*super().faults(), *self._crew.records], key=lambda fault: fault.at_s)

    def consumer_faults_left(self) -> int:
        """How many faults of consumers are to come."""
        return self.settings.consumer_faults - len(self._crew.records)

    def is_sending(self) -> bool:
        """Whether not all but the reserve is sent."""
        return not self._is_held

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Make the consumer group, and start the consumers."""
        events = asyncio.create_task(asyncio.to_thread(load_events, self.settings.event_limit))
        self._crew = Crew(self.settings, stack, self.cluster.bootstrap, self.changed)
        self._troubles = Troubles(self.admin, self._crew, choose_poison(await events, self.settings.seed), self.changed)
        await self.admin.create_group(TOPIC, GROUP, settings=SETTINGS)
        self._crew.tell_poison(self._troubles.poison[0])
        await self._crew.start()

    def beside(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Watch the consumers, and hold the reserve back."""
        self._held_from = self.scene.total * (1 - RESERVE_SHARE)
        return (self._crew.guard(),)

    def troubles(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Consumers fail, and aircraft fail."""
        faults = consumer_faults(self.settings.seed, self.settings.consumer_faults)
        return self._crew.strike(faults, self.begin), self._park_and_dead_letter()

    async def _park_and_dead_letter(self) -> None:
        await self._troubles.park_and_release(self.settings.parked_s, self.settings.parked_max_s)
        await self._troubles.dead_letter()

    async def drain(self) -> str:
        """Wait until each event is in the store or a dead letter, replay these, and wait until all are in the store.

        The place of the consumer group says too little: it is after a message that waits in the list of its key.
        """

        async def is_done(count: int) -> bool:
            return count + len(await self._troubles.letters()) >= self.scene.total

        async def is_all(count: int) -> bool:
            return count >= self.scene.total

        self.say("waiting until all is worked on, but the dead letters")
        await self._wait_store(is_done)
        self.say("replaying the dead letters")
        await self._troubles.replay(self.settings.stalled_s)
        self.say("waiting until all is worked on")
        missing = self.scene.total - await self._wait_store(is_all)
        return f"{missing:,} events are not in the store" if missing > 0 else await self.level(LEVEL_DEADLINE_S)

    async def finish(self) -> None:
        """Let all consumers leave, and judge which of their faults hit."""
        await self._crew.finish(DRAIN_DEADLINE_S)
        self._crew.judge_hits()

    async def _wait_store(self, is_done: Callable[[int], Awaitable[bool]]) -> int:
        """Wait until the number of events in the store is enough, or does not grow any more. Return the number."""
        with closing(Store(self.out / "store.sqlite")) as store:
            count, grown_at = 0, time.monotonic()
            while True:
                taken = store.taken()
                before, count = count, sum(taken.values())
                if count != before:
                    grown_at = time.monotonic()
                self._crew.take_finished(taken)
                if await is_done(count) or time.monotonic() - grown_at >= self.settings.stalled_s:
                    return count
                await asyncio.sleep(POLL_S)

    def _producer_says(self, line: dict[str, Any]) -> None:
        super()._producer_says(line)
        if self.scene.sent >= self._held_from and not self._is_held:
            self._is_held = True
            self.producer.tell(rate=0)

    def changed(self) -> None:
        """Show the consumers and the aircraft as they are now."""
        if self.begin:
            self.scene.take(self._crew.finished)
            self.scene.aircraft = self._troubles.states
        super().changed()

    def judge(self) -> OrdersOutcome:
        """Judge the work by the store and the record of attempts."""
        crew, troubles = self._crew, self._troubles
        self._attempts = read_attempts(crew.files("attempts"))
        wanted = read_histories(self.out / "expected.json")
        parked, dead = troubles.parked, troubles.dead
        with closing(Store(self.out / "store.sqlite")) as store:
            judgement = judge(
                store.entries(), self._attempts, wanted, kills=crew.kills, parked=parked, dead=dead
            )  # fmt: skip
        last = max((attempt.ended_at or 0.0 for attempt in self._attempts), default=self.begin)
        return OrdersOutcome(
            **self.common(crew.files("history")),
            judgement=judgement,
            differences=judgement.differences,
            digest=judgement.digest,
            duration_s=max(last - self.begin, 1.0),
            kinds_wanted=(*self.striker.kinds, *(CONSUMER_KINDS if self.settings.consumer_faults else ())),
            parked=parked,
            dead=dead,
            settings=self.settings,
            process_starts=crew.starts,
        )

    def tell(self, outcome: Outcome) -> Told:
        """Draw the attempts."""
        assert isinstance(outcome, OrdersOutcome)
        settings, duration_s = self.settings, outcome.picture_s
        places, parked, dead = settings.places, outcome.parked, outcome.dead
        story = Story(self._attempts, places, outcome.faults, parked, dead, self.begin, duration_s)
        consumers = f"{settings.consumer_count} consumers in {settings.process_count} processes"
        sizes = f"{outcome.event_count:,} events of {outcome.judgement.aircraft:,} aircraft, {consumers}"
        draw(self.out / "attempts.svg", story, f"{sizes}, {len(outcome.hits)} faults, seed {outcome.seed}")
        return tell(outcome)
