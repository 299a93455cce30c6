"""Faults about delayed messages that wait in a sealed segment. They go with the load in which messages are delayed.

A planned switch leaves delayed messages in a segment that takes no others. Its server fires them into the open segment,
which another broker group has.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from seriatim import Segment
from seriatim_api.errors import SeriatimError

from e2e.faults.kinds.fault import Fault, NotStruckError, Scene
from e2e.faults.schedule import DELAYED, among
from e2e.faults.traffic.load import GROUP, PROGRESS_DEADLINE_S
from e2e.observe import Observer

AWAY_S: Final = 60.0
AWAY_QUICK_S: Final = 8.0
SETTLED_S: Final = 5.0
"""By this long after the kill, what comes was due after it."""

LATE_ELSEWHERE_S: Final = 20.0
"""Messages of other segments are not held up. On a busy machine they may be this late, because brokers seem dead."""

CLOCK_S: Final = 6.0
"""How long a clock is wrong. All messages that wait become due in this time."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sealed segment in which messages are delayed, and the open segment after it."""

    sealed: Segment
    open: Segment


async def leave_waiting(scene: Scene) -> Waiting:
    """Switch the first partition, and wait until readers have crossed.

    Raises:
        NotStruckError: There was no switch.
    """
    before = await scene.open_segment()
    chain = await scene.admin.describe_chain(scene.load.topic, 0)
    try:
        await scene.admin.switch_partition(chain.partition_id)
    except SeriatimError as error:
        raise NotStruckError(f"there was no switch: {error}") from error
    after = await scene.moved_past(before)
    await Observer(scene.admin, scene.load.topic, GROUP).wait_until(
        lambda now: any(reader.partition == 0 and reader.segment > before.no for reader in now.readers),
        "readers have crossed", PROGRESS_DEADLINE_S,
    )  # fmt: skip
    now = await scene.admin.describe_chain(scene.load.topic, 0)
    return Waiting(next(segment for segment in now.segments if segment.no == before.no), after)


class WaitingSegmentAway(Fault):
    """Both members of a sealed segment with delayed messages are killed, and are away for a minute.

    Messages that were sent later come in time. Those of the segment come when its members are back.
    """

    name = "segment with delayed messages away"
    workloads = among(DELAYED)

    def __init__(self) -> None:
        self._struck: tuple[str, ...] = ()
        self._since = 0.0

    async def inject(self, scene: Scene) -> None:
        """Leave messages in a segment, and kill its members."""
        waiting = await leave_waiting(scene)
        self._struck = waiting.sealed.members
        await scene.cluster.kill(*self._struck)
        self._since = time.monotonic() + SETTLED_S
        scene.note(f"killed {', '.join(self._struck)}, which have segment {waiting.sealed.no}")

    async def hold(self, scene: Scene) -> None:
        """Check that messages of other segments come in time."""
        await scene.load.accepts()
        await asyncio.sleep(AWAY_QUICK_S if scene.quick else AWAY_S)
        if not scene.load.has_fired(self._since, partition=0):
            raise NotStruckError("no delayed message of another segment came")
        late_s = scene.load.late_s(self._since, partition=0)
        scene.note(f"meanwhile others were up to {late_s:.2f} s late")
        if late_s > LATE_ELSEWHERE_S:
            raise NotStruckError(f"messages of other segments were {late_s:.1f} s late")
        stats = await scene.admin.delayed_stats(scene.load.topic)
        if not stats[0].unserved:
            raise NotStruckError("all segments are served, so nothing was delayed in the killed one")

    async def heal(self, scene: Scene) -> None:
        await scene.cluster.start_again(*self._struck)


class ClockOfWaiting(Fault):
    """The clock of one broker is wrong by an hour while messages wait, and none is sent: of the server of the sealed
    segment, or of the master to which it fires.

    A volley is stored when it is due by both clocks. So nothing comes early. If one of the clocks is behind, everything
    waits until it is right again, and then comes at once.
    """

    needs_shims: ClassVar[bool] = True
    workloads = among(DELAYED)

    def __init__(self, shift_s: float, whose: Literal["server", "next master"]) -> None:
        self.name = f"clock of {whose} {'ahead' if shift_s > 0 else 'behind'} while messages wait"
        self._shift_s = shift_s
        self._whose = whose
        self._struck = ""

    async def inject(self, scene: Scene) -> None:
        """Send no more, leave messages in a segment, and shift a clock."""
        scene.load.pause(paused=True)
        waiting = await leave_waiting(scene)
        self._struck = waiting.sealed.server if self._whose == "server" else waiting.open.members[0]
        if not self._struck or waiting.sealed.server in waiting.open.members[:1]:
            raise NotStruckError(f"segment {waiting.sealed.no} is served by {waiting.sealed.server or 'no broker'}")
        scene.shims.shift_clock(self._struck, self._shift_s)
        scene.note(f"the clock of {self._struck} is {self._shift_s:+g} s off")

    async def hold(self, scene: Scene) -> None:
        """Wait until everything is due."""
        await asyncio.sleep(CLOCK_S)

    async def heal(self, scene: Scene) -> None:
        """Set the clock right, and send again."""
        if self._struck:
            scene.shims.shift_clock(self._struck, 0)
        scene.load.pause(paused=False)
