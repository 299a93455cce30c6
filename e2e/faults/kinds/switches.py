"""Switches as faults: many in a row, one inside another, brokers restarted one after another.

Nothing breaks, so no message may be lost, and no send may get the outcome `failed`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from seriatim_api.errors import SeriatimError

from e2e.faults.kinds.fault import Fault, NotStruckError, Scene

SWITCH_DEADLINE_S: Final = 240.0
SWITCHES: Final = 200
SWITCHES_QUICK: Final = 40
ROUNDS: Final = 10
ROUNDS_QUICK: Final = 4


class ManySwitches(Fault):
    """Planned switches of one partition. Each begins as soon as the one before is done."""

    name = "200 switches in a row"

    async def inject(self, scene: Scene) -> None:
        """Switch the partition `SWITCHES` times."""
        wanted = SWITCHES_QUICK if scene.quick else SWITCHES
        chain = await scene.admin.describe_chain(scene.load.topic, 0)
        first = no = chain.segments[-1].no
        until = time.monotonic() + SWITCH_DEADLINE_S
        refusals = 0
        while no - first < wanted:
            if time.monotonic() > until:
                raise NotStruckError(f"only {no - first} of {wanted} switches in {SWITCH_DEADLINE_S:g} s")
            try:
                no = max(no, (await scene.admin.switch_partition(chain.partition_id)).segment)
            except SeriatimError:  # the plan was dropped, and the partition still accepts: try again
                refusals += 1
        scene.note(f"{no - first} switches, {refusals} plans dropped")

    async def hold(self, scene: Scene) -> None:
        """Check that messages flow."""
        await scene.load.goes_on()

    async def heal(self, scene: Scene) -> None:
        """Do nothing, because nothing is broken."""


class SwitchDuringSwitch(Fault):
    """Two planned switches of one partition at once. A member of its open segment is frozen in the middle of them."""

    name = "switch during switch"

    def __init__(self) -> None:
        self._frozen = ""

    async def inject(self, scene: Scene) -> None:
        """Switch and freeze `ROUNDS` times."""
        first = (await scene.open_segment()).no
        for _ in range(ROUNDS_QUICK if scene.quick else ROUNDS):
            open_segment = await scene.open_segment()
            chain = await scene.admin.describe_chain(scene.load.topic, 0)
            switches = [
                asyncio.create_task(scene.admin.switch_partition(chain.partition_id), name=f"switch {number}")
                for number in range(2)
            ]
            await asyncio.sleep(scene.dice.uniform(0.0, 0.03))
            self._frozen = open_segment.members[scene.dice.randrange(len(open_segment.members))]
            await scene.cluster.freeze(self._frozen)
            await asyncio.gather(*switches, return_exceptions=True)
            await scene.moved_past(open_segment)
            await scene.load.accepts()
            await scene.cluster.thaw(self._frozen)
            self._frozen = ""
        scene.note(f"{(await scene.open_segment()).no - first} segments")

    async def heal(self, scene: Scene) -> None:
        """Let the last frozen broker continue."""
        if self._frozen:
            await scene.cluster.thaw(self._frozen)


class RollingRestart(Fault):
    """Each broker in turn is asked to end, hands over, and is started again."""

    name = "rolling restart"

    async def inject(self, scene: Scene) -> None:
        """Restart the brokers one after another. Each is ready before the next one ends."""
        brokers = list(scene.cluster.broker_names)
        scene.dice.shuffle(brokers)
        if scene.quick:
            open_segment = await scene.open_segment()
            brokers = list(open_segment.members)
        for broker in brokers:
            await scene.cluster.stop_gracefully(broker)
            await scene.cluster.start_again(broker)
            await scene.cluster.wait_ready(broker)
            await scene.load.accepts()
        counts = scene.load.counts
        if counts.failed or counts.unknown:
            raise NotStruckError(f"{counts.failed} sends failed and {counts.unknown} are unknown, though nothing broke")

    async def heal(self, scene: Scene) -> None:
        """Start each broker that is still stopped."""
        await scene.cluster.start_again("brokers")
