"""A fault: a name, `inject` and `heal`; and the scene on which it acts.

A fault does not judge. It breaks something, checks that it really broke, and mends it. All faults share one judgement
of the histories. A fault that struck nothing proves nothing, so `inject` and `heal` raise `NotStruckError` if they do
not see its effect.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Final

from seriatim_api.errors import DeadlineExceededError
from seriatim_local import LocalCluster

from e2e.faults.admins import Admins
from e2e.faults.clusters import FaultPrograms, Kind, Running
from e2e.faults.load import LOST, PROGRESS_DEADLINE_S, Load
from e2e.faults.shims import Shims
from e2e.observe import OPEN, SegmentNow, Snapshot

POLL_S: Final = 0.05
ENDED_DEADLINE_S: Final = 20.0
TWO_COPIES_DEADLINE_S: Final = 60.0
"""From the heal until every segment has two copies that may serve. Restarted brokers need some seconds here."""

MEMBER_COUNT: Final = 2


class NotStruckError(AssertionError):
    """The fault was done, and what it must cause was not seen: the case shows nothing, or a promise is broken."""


def lacks_copies(snapshot: Snapshot) -> str:
    """The first thing that lacks two copies, for people; empty if everything has them. Lost segments do not count."""
    for chain in snapshot.chains:
        if chain.head.state != OPEN:
            return f"partition {chain.partition} accepts nothing"
        for segment in chain.segments:
            if segment.state == LOST:
                continue
            if len(set(segment.members)) < MEMBER_COUNT:
                return f"segment {segment.no} of partition {chain.partition} has the members {segment.members} only"
            if len(set(segment.eligible)) < MEMBER_COUNT:
                return f"segment {segment.no} of partition {chain.partition} can be served by {segment.eligible} only"
    return "" if snapshot.settled() else "a segment is not settled"


def lacks_copies_without(snapshot: Snapshot, broker: str) -> str:
    """What does not have two copies on other brokers than this one, for people; empty if everything has."""
    for chain in snapshot.chains:
        for segment in chain.segments:
            others = set(segment.eligible) - {broker}
            if segment.state != LOST and len(others) < MEMBER_COUNT:
                return f"segment {segment.no} of partition {chain.partition} can be served by {sorted(others)} only"
    return "" if snapshot.settled() else "a segment is not settled"


@dataclass(slots=True)
class Scene:
    """What a fault may use.

    Attributes:
        running: The cluster with its shims.
        admin: Of the cluster.
        load: What goes on meanwhile.
        dice: The case's.
        hold_s: How long the fault should last.
        quick: Whether it should be short.
        notes: For people: whom it struck, and what was seen.
    """

    running: Running
    admin: Admins
    load: Load
    dice: random.Random
    hold_s: float
    quick: bool
    notes: list[str] = field(default_factory=list)

    @property
    def cluster(self) -> LocalCluster:
        """The processes."""
        return self.running.cluster

    @property
    def shims(self) -> Shims:
        """Below the brokers."""
        return self.running.shims

    @property
    def programs(self) -> FaultPrograms:
        """For options of single starts."""
        return self.running.programs

    def note(self, text: str) -> None:
        """Remember something for people."""
        self.notes.append(text)

    async def head(self) -> SegmentNow:
        """The open segment of the first partition, now."""
        snapshot = await self.load.observer.wait_until(
            lambda now: now.chains[0].head.state == OPEN, "a look succeeds", PROGRESS_DEADLINE_S
        )
        return snapshot.chains[0].head

    async def moved_past(self, segment: SegmentNow) -> SegmentNow:
        """Wait until a later segment of the first partition is open.

        Raises:
            NotStruckError: None is.
        """
        try:
            snapshot = await self.load.observer.wait_until(
                lambda now: now.chains[0].head.no > segment.no, "the partition has moved", PROGRESS_DEADLINE_S
            )
        except DeadlineExceededError as error:
            raise NotStruckError(str(error)) from error
        return snapshot.chains[0].head

    async def has_two_copies(self) -> None:
        """Wait until every broker is ready and every segment of the topic has two copies.

        Raises:
            DeadlineExceededError: One lacks a copy.
        """
        missing = ""

        def whole(snapshot: Snapshot) -> bool:
            nonlocal missing
            missing = lacks_copies(snapshot)
            return not missing

        await self.cluster.wait_ready(deadline_s=TWO_COPIES_DEADLINE_S)
        try:
            await self.load.observer.wait_until(whole, "everything has two copies again", TWO_COPIES_DEADLINE_S)
        except DeadlineExceededError as error:
            raise DeadlineExceededError(f"{error}: {missing}") from error

    async def ended(self, broker: str) -> None:
        """Wait until a broker's process has ended.

        Raises:
            NotStruckError: It runs on.
        """
        until = time.monotonic() + ENDED_DEADLINE_S
        while self.cluster.pid(broker) is not None:
            if time.monotonic() > until:
                raise NotStruckError(f"{broker} still runs after {ENDED_DEADLINE_S:g} s")
            await asyncio.sleep(POLL_S)

    def log_size(self, process: str) -> int:
        """Where a process's log ends now."""
        path = self.cluster.log_file(process)
        return path.stat().st_size if path.exists() else 0

    def log_since(self, process: str, size: int) -> str:
        """What a process has said since its log was so long."""
        with self.cluster.log_file(process).open("rb") as file:
            file.seek(size)
            return file.read().decode(errors="replace")

    async def says(self, process: str, words: Sequence[str], since: int, deadline_s: float) -> str:
        """Wait until a process says one of `words`; which one.

        Raises:
            NotStruckError: It says none of them.
        """
        until = time.monotonic() + deadline_s
        while True:
            text = self.log_since(process, since)
            for word in words:
                if word in text:
                    return word
            if time.monotonic() > until:
                raise NotStruckError(f"{process} did not say {' or '.join(words)} within {deadline_s:g} s")
            await asyncio.sleep(POLL_S)


class Fault(ABC):
    """One kind of fault; an object serves one case at a time.

    Attributes:
        name: As in the table and for `ONLY`.
        workloads: Loads that go with it; empty: all.
        kind: The coordinator it needs.
        own_cluster: Whether its cluster is of no use afterwards.
        needs_shims: Whether it works through a preloaded library.
        needs_root: Whether only root can do it.
        accepts: Whether partitions must accept messages while it lasts (within a deadline), as promised when one
            group, the coordinator or a client is lost.
        ends: Whether a broker may end by itself; otherwise one that does fails the case.
        cuts: Whether it is about links: then it is done to a network of namespaces, where that can be made.
        declares_gaps: Whether something is given up for good, by a declared gap; otherwise readers are told of none.
        reads_all: Whether a group reads everything from the beginning: not done where topics keep messages for seconds.
        options: Of the brokers of its own cluster.
        small_disks: The brokers of its own cluster whose data is on small file systems.
    """

    name: str
    workloads: tuple[str, ...] = ()
    kind: Kind = "embedded"
    own_cluster: ClassVar[bool] = False
    needs_shims: ClassVar[bool] = False
    needs_root: ClassVar[bool] = False
    accepts: bool = True
    ends: ClassVar[bool] = False
    cuts: ClassVar[bool] = False
    declares_gaps: ClassVar[bool] = False
    reads_all: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()
    small_disks: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    async def inject(self, scene: Scene) -> None:
        """Break something.

        Raises:
            NotStruckError: It was done, and did not have the effect that it must have.
        """

    async def hold(self, scene: Scene) -> None:
        """Let it last."""
        if self.accepts:
            await scene.load.accepts()
        await asyncio.sleep(scene.hold_s)

    @abstractmethod
    async def heal(self, scene: Scene) -> None:
        """Mend it; also after an `inject` that failed half-way."""

    async def confirm(self, scene: Scene) -> None:  # noqa: B027 - most faults promise nothing more
        """See, once everything has two copies again, what else the fault promises of the time after it.

        Raises:
            NotStruckError: It is not so.
        """


@asynccontextmanager
async def injected(fault: Fault, scene: Scene) -> AsyncIterator[None]:
    """The fault for as long as the block lasts: healed however it ends."""
    try:
        await fault.inject(scene)
        yield
    finally:
        await fault.heal(scene)
