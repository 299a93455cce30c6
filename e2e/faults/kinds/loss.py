"""Both disks of a broker group are lost, and their messages with them. An administrator then declares the gap.

The partition continues in another broker group. Consumer groups wait at the lost segment until its gap is declared.
Then they are notified of the gap and read on. Only messages of the lost segment may be missing.
"""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar, Final

from seriatim_api.errors import DeadlineExceededError, PreconditionError, UnavailableError

from e2e.faults.kinds.disks import start_with_new_disk, wipe
from e2e.faults.kinds.fault import POLL_S, Fault, NotStruckError, Scene
from e2e.faults.schedule import CLIENT_SAFE
from e2e.faults.traffic.load import GROUP, LATE_GROUP, LOST, PROGRESS_DEADLINE_S
from e2e.observe import OPEN, UNSETTLED, Observer, Snapshot

ISSUER: Final = "fault suite"
DECLARE_DEADLINE_S: Final = 30.0
"""The deadline for a declaration. The asked broker must first know that the member runs of the old disks have ended."""


def lost_with(snapshot: Snapshot, brokers: tuple[str, ...]) -> dict[tuple[int, int], str]:
    """Return the state of each closed segment that only these brokers hold, by partition and number."""
    return {
        (chain.partition, segment.no): segment.state
        for chain in snapshot.chains
        for segment in chain.segments
        if segment.state not in (OPEN, LOST) and set(segment.members) <= set(brokers)
    }


class BothDisksLost(Fault):
    """Both members of a group are killed, and their directories are emptied.

    Their slots get new disks. Before or after that, an administrator declares a gap for the lost messages.
    """

    reads_all: ClassVar[bool] = True

    name = "both disks lost"
    own_cluster: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("--set", "heal_after_s=2")
    declares_gaps: ClassVar[bool] = True
    workloads = CLIENT_SAFE

    def __init__(self) -> None:
        self._struck: tuple[str, ...] = ()
        self._lost: dict[tuple[int, int], str] = {}

    async def inject(self, scene: Scene) -> None:
        """Kill both members, empty their directories, and wait until every partition has moved away."""
        open_segment = await scene.open_segment()
        self._struck = open_segment.members
        await scene.cluster.kill(*self._struck)
        for broker in self._struck:
            await wipe(scene, broker)
        moved = await scene.load.observer.wait_until(
            lambda now: all(
                chain.open_segment.state == OPEN and not set(chain.open_segment.members) & set(self._struck)
                for chain in now.chains
            ),
            f"nothing is open on {open_segment.group}",
            PROGRESS_DEADLINE_S,
        )
        self._lost = lost_with(moved, self._struck)
        if not self._lost:
            raise NotStruckError(f"no segment was on {open_segment.group} alone")
        scene.note(f"lost {', '.join(self._struck)}, and with them {self._told(self._lost)}")

    @staticmethod
    def _told(lost: dict[tuple[int, int], str]) -> str:
        return ", ".join(f"segment {no} of partition {partition} ({state})" for (partition, no), state in lost.items())

    async def hold(self, scene: Scene) -> None:
        """Check that messages are accepted, that readers wait at lost segments, and that no reader is informed of a gap
        yet.
        """
        await super().hold(scene)
        now = await Observer(scene.admin, scene.load.topic, GROUP).look()
        waiting = {partition: no for (partition, no), state in self._lost.items() if state == UNSETTLED}
        passed = [reader for reader in now.readers if reader.segment > waiting.get(reader.partition, reader.segment)]
        if passed or scene.load.gaps:
            raise NotStruckError(f"readers did not wait: {passed}, notified of {sorted(scene.load.gaps)}")

    async def heal(self, scene: Scene) -> None:
        """Declare the gaps, and give the slots new disks, in either order.

        Then wait until readers were notified of the gaps.
        """
        if not self._struck:
            return
        declared_first = scene.dice.random() < 0.5
        scene.note(f"declared {'before' if declared_first else 'after'} the slots had new disks")
        if declared_first:
            await self._declare(scene)
        await start_with_new_disk(scene, *self._struck)
        if not declared_first:
            await self._declare(scene)
        await scene.load.told_of({(GROUP, *where) for where, state in self._lost.items() if state == UNSETTLED})
        if LATE_GROUP not in scene.load.groups:
            await scene.load.begin_reader(LATE_GROUP)

    async def _declare(self, scene: Scene) -> None:
        """Declare the gaps, as an administrator does. A broker refuses until it knows that the old disks are gone."""
        until = time.monotonic() + DECLARE_DEADLINE_S
        for partition, no in self._lost:
            while True:
                try:
                    await scene.admin.declare_gap(scene.load.topic, partition, no, ISSUER)
                    break
                except (PreconditionError, UnavailableError, DeadlineExceededError) as error:
                    if time.monotonic() > until:
                        raise NotStruckError(f"no gap could be declared: {error}") from error
                await asyncio.sleep(POLL_S)
        if scene.person is not None:
            await scene.person.declare_lost(self._struck, ISSUER)

    async def confirm(self, scene: Scene) -> None:
        """Check that a group which begins afterwards is notified of all lost segments, and that no reader is informed
        of another gap.
        """
        await scene.load.told_of({(LATE_GROUP, *where) for where in self._lost})
        unsaid = sorted(gap for gap in scene.load.gaps if gap[1:] not in self._lost)
        if unsaid:
            raise NotStruckError(f"readers were notified of gaps that were not declared: {unsaid}")
        now = await scene.load.observer.look()
        states = {(chain.partition, segment.no): segment.state for chain in now.chains for segment in chain.segments}
        if any(states.get(where) != LOST for where in self._lost):
            raise NotStruckError(f"the chains do not say what was declared: {states}")
