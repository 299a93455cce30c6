"""A world for a story: so small that what goes wrong in it can be told, with everything seen that a reader needs."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from seriatim_api.ids import PartitionId, RunId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.segment import SegmentState

from ..cluster import ClusterKind
from ..cores.cluster import CoreCluster
from ..faults import Options, draw
from ..judge import Judge
from ..schedule import Schedule
from ..world import Result, World, more_chance


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing that happened.

    Attributes:
        who: A broker, a client, or who wrote a record.
        what: An event of a core with its effects, a chain, a cursor, or words.
    """

    who: str
    what: Any


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a broker's core."""

    event: Any
    effects: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ChainWritten:
    """The coordinator took a chain record."""

    before: Chain | None
    after: Chain


@dataclass(frozen=True, slots=True)
class CursorWritten:
    """The coordinator took a cursor."""

    consumer_group: str
    new: CursorRecord


@dataclass(frozen=True, slots=True)
class Words:
    """A fault, or what an application did or was told."""

    text: str


class StorySchedule(Schedule):
    """Keeps what is told."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, trace=True)
        self.seen: list[Seen] = []
        self.witness = lambda who, event, effects: self.seen.append(Seen(who, Step(event, tuple(effects))))

    def tell(self, who: str, text: str) -> None:
        """A line of the story."""
        self.seen.append(Seen(who, Words(text)))


class _OverlookedError(Exception):
    """Another promise than the one that the story is about was broken first."""


def _overlooking(name: str) -> Any:
    """The judge's method of that name, for a judge who looks for one broken promise alone."""
    looks = getattr(Judge, name)

    def look(self: StoryJudge, *arguments: Any, **named: Any) -> None:
        with contextlib.suppress(_OverlookedError):
            looks(self, *arguments, **named)

    return look


class StoryJudge(Judge):
    """Keeps what the coordinator took, and may overlook what the story is not about.

    Attributes:
        only: The promise that it looks at; empty for all.
    """

    only = ""

    writes = _overlooking("writes")
    accepted = _overlooking("accepted")
    denied = _overlooking("denied")
    served = _overlooking("served")
    begun = _overlooking("begun")
    skipped = _overlooking("skipped")
    final = _overlooking("final")

    def _keep(self, what: Seen) -> None:
        assert isinstance(self.seen.schedule, StorySchedule)
        self.seen.schedule.seen.append(what)

    def fail(self, rule: str, text: str) -> NoReturn:
        """Report a broken promise, or not."""
        if self.only in ("", rule):
            super().fail(rule, text)
        raise _OverlookedError

    def chain_written(self, who: str, before: Chain | None, after: Chain, certificate: RunId | None) -> None:
        """A chain record was written."""
        self._keep(Seen(who, ChainWritten(before, after)))
        with contextlib.suppress(_OverlookedError):
            super().chain_written(who, before, after, certificate)
        for segment in after.segments:
            if segment.state is SegmentState.SEALED and segment.sealed_len is not None:
                known = (segment.sealed_len, segment.sealed_checksum)
                self.seen.sealed.setdefault((after.partition, segment.no), known)

    def delivered(
        self,
        group: str,
        partition: PartitionId,
        offset: int,
        message: int,
        *,
        flagged: bool,
        group_epoch: int | None = None,
    ) -> None:
        """The application of a group is given a message."""
        try:
            super().delivered(group, partition, offset, message, flagged=flagged, group_epoch=group_epoch)
        except _OverlookedError:
            view = self.view(group, partition)
            view.seen.add(message)
            view.first_at.setdefault(message, offset)
            view.firsts.append((offset, message))

    def cursor_written(
        self, who: str, partition: PartitionId, group: str, old: CursorRecord | None, new: CursorRecord
    ) -> None:
        """A cursor was written."""
        if old is not None:
            self._keep(Seen(who, CursorWritten(group, new)))
        with contextlib.suppress(_OverlookedError):
            super().cursor_written(who, partition, group, old, new)


def _draw(seed: int, rng: random.Random, profile: str, _batch_count: int, more: random.Random) -> Options:
    """Few messages, few faults, one partition."""
    options = draw(rng, profile, more)
    chance = more_chance(seed)
    return replace(
        options,
        partition_count=1,
        producer_count=min(2, options.producer_count),
        batches_per_producer=chance.choice((1, 2, 3)),
        messages_per_batch_max=1,
        late_group=options.late_group and chance.random() < 0.3,
        fault_count=min(options.fault_count, chance.choice((1, 2, 3))),
        fault_span_us=chance.choice((100_000, 300_000)),
        send_gap_us=chance.choice((5_000, 40_000)),
    )


class StoryWorld:
    """A small world of bare cores, and what has happened in it.

    Args:
        seed: Decides everything that is drawn.
        profile: A name of `faults.PROFILES`, or empty for any.
        only: The promise that is judged; empty for all.
        left_out: Faults of the plan that do not strike.
    """

    def __init__(self, seed: int, *, profile: str, only: str, left_out: frozenset[int]) -> None:
        schedule = StorySchedule(seed)
        self.seen = schedule.seen
        kind = ClusterKind(partial(_draw, seed), CoreCluster)
        self._world = World(seed, kind, profile=profile, left_out=left_out, schedule=schedule, judge_kind=StoryJudge)
        assert isinstance(self._world.judge, StoryJudge)
        self._world.judge.only = only

    def run(self) -> Result:
        """Run to the end."""
        return self._world.run()
