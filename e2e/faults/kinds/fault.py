"""A fault has a name, `inject` and `heal`. It acts on a `Scene`.

A fault does not judge. It breaks something, checks that it really broke, and mends it. All faults share one judgement
of the histories. If a fault had no effect, the case proves nothing. So `inject` and `heal` raise `NotStruckError` if
they do not see the effect.
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

from seriatim import Segment
from seriatim_api.errors import DeadlineExceededError
from seriatim_local import LocalCluster

from e2e.faults.systems.admin_calls import Admins
from e2e.faults.systems.clusters import FaultPrograms, Kind, Running
from e2e.faults.systems.shims import Shims
from e2e.faults.traffic.features import Features
from e2e.faults.traffic.keyed_consumers import Crew
from e2e.faults.traffic.load import LOST, PROGRESS_DEADLINE_S, Load
from e2e.observe import OPEN, Snapshot

POLL_S: Final = 0.05
ENDED_DEADLINE_S: Final = 20.0
TWO_COPIES_DEADLINE_S: Final = 60.0
"""The deadline from the heal until every segment has all copies, each of which may serve.

Restarted brokers need some seconds for it.
"""

MIN_COPIES: Final = 2
"""A segment keeps at least that many copies, whatever a broker group loses."""


class NotStruckError(AssertionError):
    """The fault was injected, but its effect was not seen. Either the case shows nothing, or a promise is broken."""


def lacks_copies(snapshot: Snapshot, count: int) -> str:
    """Name the first segment that lacks some of `count` copies, as human-readable text; empty if none does.

    Lost segments do not count.
    """
    for chain in snapshot.chains:
        if chain.open_segment.state != OPEN:
            return f"partition {chain.partition} accepts nothing"
        for segment in chain.segments:
            if segment.state == LOST:
                continue
            if len(set(segment.members)) < count:
                return f"segment {segment.no} of partition {chain.partition} has the members {segment.members} only"
            if len(set(segment.eligible)) < count:
                return f"segment {segment.no} of partition {chain.partition} can be served by {segment.eligible} only"
    return "" if snapshot.settled() else "a segment is not settled"


def lacks_copies_without(snapshot: Snapshot, broker: str) -> str:
    """Name a segment that lacks two copies on other brokers than this one, as human-readable text; empty if none
    does."""
    for chain in snapshot.chains:
        for segment in chain.segments:
            others = set(segment.eligible) - {broker}
            if segment.state != LOST and len(others) < MIN_COPIES:
                return f"segment {segment.no} of partition {chain.partition} can be served by {sorted(others)} only"
    return "" if snapshot.settled() else "a segment is not settled"


@dataclass(slots=True)
class Scene:
    """All that a fault may use.

    Attributes:
        running: The cluster with its shims.
        admin: The admin calls of the cluster.
        load: The load that runs during the fault.
        dice: The dice of the case.
        hold_s: How long the fault should last, in seconds.
        quick: Whether the fault should be short.
        notes: Texts for humans: which brokers it struck, and what was seen.
        crew: The workers beside the load; None: there are none.
        administrator: The administrator who uses features beside the load; None: there is none.
    """

    running: Running
    admin: Admins
    load: Load
    dice: random.Random
    hold_s: float
    quick: bool
    notes: list[str] = field(default_factory=list)
    crew: Crew | None = None
    person: Features | None = None

    @property
    def cluster(self) -> LocalCluster:
        """The processes of the cluster."""
        return self.running.cluster

    @property
    def shims(self) -> Shims:
        """The shims below the brokers."""
        return self.running.shims

    @property
    def programs(self) -> FaultPrograms:
        """The programs of the cluster; they take options for single starts."""
        return self.running.programs

    def note(self, text: str) -> None:
        """Add a note for humans."""
        self.notes.append(text)

    async def open_segment(self) -> Segment:
        """Return the open segment of the first partition."""
        snapshot = await self.load.observer.wait_until(
            lambda now: now.chains[0].open_segment.state == OPEN, "a look succeeds", PROGRESS_DEADLINE_S
        )
        return snapshot.chains[0].open_segment

    async def moved_past(self, segment: Segment) -> Segment:
        """Wait until a later segment of the first partition is open.

        Raises:
            NotStruckError: No later segment is open within `PROGRESS_DEADLINE_S`.
        """
        try:
            snapshot = await self.load.observer.wait_until(
                lambda now: now.chains[0].open_segment.no > segment.no, "the partition has moved", PROGRESS_DEADLINE_S
            )
        except DeadlineExceededError as error:
            raise NotStruckError(str(error)) from error
        return snapshot.chains[0].open_segment

    async def has_copies(self) -> None:
        """Wait until every broker is ready, and every segment of the topic has as many copies as groups have members.

        Raises:
            DeadlineExceededError: A segment lacks a copy.
        """
        missing = ""

        def whole(snapshot: Snapshot) -> bool:
            nonlocal missing
            missing = lacks_copies(snapshot, self.running.members)
            return not missing

        await self.cluster.wait_ready(deadline_s=TWO_COPIES_DEADLINE_S)
        try:
            await self.load.observer.wait_until(whole, "everything has all its copies again", TWO_COPIES_DEADLINE_S)
        except DeadlineExceededError as error:
            raise DeadlineExceededError(f"{error}: {missing}") from error

    async def ended(self, broker: str) -> None:
        """Wait until a broker's process has ended.

        Raises:
            NotStruckError: It still runs after `ENDED_DEADLINE_S`.
        """
        until = time.monotonic() + ENDED_DEADLINE_S
        while self.cluster.pid(broker) is not None:
            if time.monotonic() > until:
                raise NotStruckError(f"{broker} still runs after {ENDED_DEADLINE_S:g} s")
            await asyncio.sleep(POLL_S)

    def log_size(self, process: str) -> int:
        """Return the size of a process's log."""
        path = self.cluster.log_file(process)
        return path.stat().st_size if path.exists() else 0

    def log_since(self, process: str, size: int) -> str:
        """Return what a process has logged since its log had that size."""
        with self.cluster.log_file(process).open("rb") as file:
            file.seek(size)
            return file.read().decode(errors="replace")

    async def says(self, process: str, words: Sequence[str], since: int, deadline_s: float) -> str:
        """Wait until a process logs one of `words`. Return that one.

        Raises:
            NotStruckError: It logs none of them in time.
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
    """One kind of fault. An object serves one case at a time.

    Attributes:
        name: The name in the table and for `ONLY`.
        workloads: The names of loads that go with it; empty: all.
        kind: The kind of coordinator that it needs.
        own_cluster: Whether the fault needs a cluster of its own, which is thrown away afterwards.
        needs_shims: Whether it works through a preloaded library.
        needs_root: Whether only root can do it.
        accepts: Whether partitions must accept messages while it lasts (within a deadline). We promise this if one
            group, the coordinator or a client is lost.
        ends: Whether a broker may end by itself. If not, such an end fails the case.
        cuts: Whether it cuts links. Then it runs on a network of namespaces, if this machine can make one.
        declares_gaps: Whether it declares a gap. If not, readers must not be notified of one.
        rebuilds: Whether the coordinator's data is lost and rebuilt from the brokers' disks.
        reads_all: Whether a group reads everything from the beginning. Such a fault is left out if topics keep messages
            only for seconds.
        options: Options of the brokers of its own cluster.
        small_disks: The brokers of its own cluster whose data is on small file systems.
        members_min: The fewest members of a broker group with which the fault makes sense.
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
    rebuilds: ClassVar[bool] = False
    reads_all: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()
    small_disks: ClassVar[tuple[str, ...]] = ()
    members_min: ClassVar[int] = 2

    @abstractmethod
    async def inject(self, scene: Scene) -> None:
        """Break something.

        Raises:
            NotStruckError: It did not have the effect that it must have.
        """

    async def hold(self, scene: Scene) -> None:
        """Let the fault last for `hold_s`. If `accepts`, check that messages are accepted."""
        if self.accepts:
            await scene.load.accepts()
        await asyncio.sleep(scene.hold_s)

    @abstractmethod
    async def heal(self, scene: Scene) -> None:
        """Mend what is broken, also if `inject` failed half-way."""

    async def confirm(self, scene: Scene) -> None:  # noqa: B027 - most faults promise nothing more
        """Check what else the fault promises, after everything has all its copies again.

        Raises:
            NotStruckError: The promise is not kept.
        """


@asynccontextmanager
async def injected(fault: Fault, scene: Scene) -> AsyncIterator[None]:
    """Inject the fault for as long as the block lasts, and heal it in any case."""
    try:
        await fault.inject(scene)
        yield
    finally:
        await fault.heal(scene)
