"""The demo that rebuilds each aircraft's history: a consumer reads all partitions while brokers fail."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from seriatim_api.errors import SeriatimError

from e2e.demo.faults import KINDS
from e2e.demo.live import View
from e2e.demo.rebuild import differences, digest, read_histories
from e2e.demo.report import BROKEN_PROMISES, Outcome, Row, Told, equality, verdict
from e2e.demo.run import DRAIN_DEADLINE_S, GROUP, LOAD_DEADLINE_S, TOPIC, FlightsRun
from e2e.demo.segments import ChainScene, SegmentSpan, Silence, draw, spans
from e2e.demo.settings import Settings
from e2e.observe import Observer
from e2e.workers import Worker

LOOK_S: Final = 0.5
"""The time between two looks at the cluster for the view."""

STEP_S: Final = 0.1
"""The time between two samples of the picture's rate, so that a gap of a partition can be seen."""

SAMPLES_MAX: Final = 1_000
SILENCE_SHOWN_S: Final = 0.1
"""The picture shows silences of a partition that last at least this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoriesOutcome(Outcome):
    """The outcome of this demo.

    Attributes:
        drained_s: From the first send to the last delivery, in seconds.
        segments: Every segment of the topic's chains.
        hits_planned: The number of faults that would have had to hit on a faster machine.
    """

    drained_s: float
    segments: Sequence[SegmentSpan]
    hits_planned: int


def tell(outcome: HistoriesOutcome) -> Told:
    """Say what the report reports."""
    counts, share = outcome.check.counts, outcome.check.unknown_share
    rate = counts["ok"] / outcome.duration_s if outcome.duration_s > 0 else 0.0
    partitions = len({segment.partition for segment in outcome.segments})
    slow = "" if outcome.hits_min == outcome.hits_planned else f" ({outcome.hits_planned} if faster)"
    hits = f"at least {outcome.hits_min}{slow}; {len(outcome.segments):,} segments"
    unknown = f"{counts['failed']:,} failed, {counts['unknown']:,} unknown ({share:.4%} of all)"
    broken = sum(counts[kind] for kind in BROKEN_PROMISES)
    kinds = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("lost", "repeated", "reordered", "stuck"))
    rows: list[Row] = [
        ("events sent", f"{counts['sent']:,}", f"of {outcome.event_count:,}, to {partitions} partitions"),
        ("acknowledged", f"{counts['ok']:,}", f"{rate:,.0f} a second over {outcome.duration_s:.1f} s"),
        ("other outcomes", f"{counts['failed'] + counts['unknown']:,}", unknown),
        ("delivered", f"{counts['delivered']:,}", f"the last one after {outcome.drained_s:.1f} s"),
        ("flagged repeats", f"{counts['redelivered']:,}", "delivered again, and said so"),
        ("broken promises", verdict(broken), kinds),
        ("histories", equality(outcome.differences), "byte for byte"),
        ("faults that hit", f"{len(outcome.hits):,}", f"of {len(outcome.faults):,}; {hits}"),
    ]
    figures = {
        "drained_s": round(outcome.drained_s, 3), "messages_per_s": round(rate), "segments": len(outcome.segments),
        "gap_one_member": outcome.gaps(*(kind for kind in KINDS if kind != "kill both")),
        "gap_both_members": outcome.gaps("kill both"),
    }  # fmt: skip
    good = "nothing lost, repeated or reordered; all histories are those of the file"
    return outcome.told(good=good, rows=rows, figures=figures, pictures="segments.svg")


class HistoriesRun(FlightsRun):
    """One run of this demo."""

    def __init__(self, settings: Settings, view: View | None = None) -> None:
        self.scene = ChainScene(settings.hits_min)
        super().__init__(settings, self.scene, view)
        self._counts: Counter[int] = Counter()  # acknowledged events, by step of `STEP_S`
        self._begin_ms = 0

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Start the consumer."""
        options = ("--group", GROUP, "--histories", str(self.out / "rebuilt.json"))
        self._consumer: Worker = await stack.enter_async_context(
            self.started("consumer", self._consumer_says, *options)
        )
        await self.producer.wait_for("ready", LOAD_DEADLINE_S)
        await self._consumer.wait_for("ready", LOAD_DEADLINE_S)
        self._begin_ms = time.time_ns() // 1_000_000

    def beside(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Watch the consumer and the chains."""
        return self._guard(self._consumer), self._watch()

    async def drain(self) -> str:
        """Wait until the consumer is level."""
        self.say("waiting until the consumer is level")
        waiting = await super().drain()
        self._drained_at = time.monotonic()
        self.scene.segments = spans(self.observer.latest, self._begin_ms)
        return waiting

    async def finish(self) -> None:
        """Let the consumer write the histories."""
        self._consumer.tell(finish=True)
        done = await self._consumer.wait_for("done", DRAIN_DEADLINE_S)
        self._drained_at = min(done["last_delivery_at"] or self._drained_at, self._drained_at)

    async def _watch(self) -> None:
        observer = Observer(self.admin, TOPIC, GROUP)
        while True:
            try:
                self.scene.segments = spans(await observer.look(), self._begin_ms)
            except SeriatimError as error:
                self.scene.doing = self.scene.doing or f"cannot look: {error}"
            self.changed()
            await asyncio.sleep(LOOK_S)

    def acknowledged(self, partition: int, at: float, count: int) -> None:
        """Count an acknowledgement."""
        self.scene.accepted[partition] += count
        self.scene.count(at, count)
        self._counts[max(0, int(at / STEP_S))] += count

    def _consumer_says(self, line: dict[str, Any]) -> None:
        if line["k"] == "progress":
            self.scene.delivered, self.scene.consumed = line["delivered"], dict(line["by_partition"])

    def judge(self) -> HistoriesOutcome:
        """Compare the rebuilt histories with those of the file."""
        rebuilt, wanted = (read_histories(self.out / name) for name in ("rebuilt.json", "expected.json"))
        return HistoriesOutcome(
            **self.common([self.out / "consumer.jsonl"]),
            duration_s=self.sent["last_ack_at"] - self.sent["first_send_at"],
            drained_s=self._drained_at - self.sent["first_send_at"],
            differences=differences(rebuilt, wanted),
            digest=digest(rebuilt),
            segments=tuple(self.scene.segments),
            hits_planned=self._settings.hits_min,
            kinds_wanted=KINDS,
        )

    def tell(self, outcome: Outcome) -> Told:
        """Draw the segments."""
        assert isinstance(outcome, HistoriesOutcome)
        silences: list[Silence] = [
            (partition, begin - self.begin, end - self.begin)
            for partition in range(self._settings.partition_count)
            for begin, end in self.silences.of(partition)
            if end - begin >= SILENCE_SHOWN_S
        ]
        duration_s = max(outcome.picture_s, outcome.drained_s)
        subtitle = f"{outcome.event_count:,} events, {len(outcome.hits)} faults that hit, seed {outcome.seed}"
        draw(
            self.out / "segments.svg", outcome.segments, outcome.faults, rate_samples(self._counts, duration_s),
            silences, duration_s=duration_s, subtitle=subtitle,
        )  # fmt: skip
        return tell(outcome)


def rate_samples(counts: Mapping[int, int], duration_s: float) -> list[tuple[float, float]]:
    """The rates over time, with a sample for each step in which nothing was acknowledged too.

    Args:
        counts: What was acknowledged in each step of `STEP_S`, by its number.
        duration_s: The end of the axis. At most `SAMPLES_MAX` samples are made of it.
    """
    merged = max(1, math.ceil(duration_s / STEP_S / SAMPLES_MAX))
    step_s, sums = merged * STEP_S, Counter[int]()
    for number, count in counts.items():
        sums[number // merged] += count
    return [((number + 0.5) * step_s, sums[number] / step_s) for number in range(max(sums, default=-1) + 1)]
