"""Maintenance leaves all open segments on one broker group. The controller spreads them again under load.

Nothing breaks: brokers hand their open segments over, end, and come back. So no message may be lost, and no send may
get the outcome `failed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar, Final

from seriatim_api.errors import DeadlineExceededError

from e2e.faults.kinds.fault import Fault, NotStruckError, Scene
from e2e.observe import Snapshot

SPREAD_DEADLINE_S: Final = 60.0
GROUP_KEPT: Final = "g0"
BALANCE: Final = {
    "balance_interval_s": "1",
    "balance_moves_per_s": "4",
    "balance_floor_bytes_per_s": "1000",
    "balance_steady_s": "2",
    "balance_move_again_s": "20",
}


def open_segments_by_broker_group(snapshot: Snapshot) -> Counter[str]:
    """Count the open segments of each group."""
    return Counter(chain.open_segment.group for chain in snapshot.chains)


class UnevenOpenSegments(Fault):
    """All groups but one are restarted, one after another.

    Then the controller spreads the open segments by planned switches.
    """

    name = "heads on one group"
    workloads = ("keys",)
    own_cluster = True
    options: ClassVar[tuple[str, ...]] = tuple(
        word for name, value in BALANCE.items() for word in ("--set", f"{name}={value}")
    )

    async def inject(self, scene: Scene) -> None:
        """Stop the brokers of all other groups. They hand over. Start them when one group has all open segments."""
        others = [broker for broker in scene.cluster.broker_names if not broker.startswith(f"{GROUP_KEPT}-")]
        for broker in others:
            await scene.cluster.stop_gracefully(broker)
        snapshot = await self._wait(
            scene, lambda now: set(open_segments_by_broker_group(now)) == {GROUP_KEPT}, "one group has all"
        )
        for broker in others:
            await scene.cluster.start_again(broker)
            await scene.cluster.wait_ready(broker)
        scene.note(f"heads before: {dict(open_segments_by_broker_group(snapshot))}")

    async def hold(self, scene: Scene) -> None:
        """Wait until no group has more than half of the open segments."""
        partitions = scene.load.workload.partitions
        snapshot = await self._wait(
            scene,
            lambda now: max(open_segments_by_broker_group(now).values()) <= partitions // 2,
            "no group has more than half",
        )
        masters = Counter(chain.open_segment.members[0] for chain in snapshot.chains)
        scene.note(f"heads after: {dict(open_segments_by_broker_group(snapshot))}, masters: {dict(masters)}")
        counts = scene.load.counts
        if counts.failed or counts.unknown:
            raise NotStruckError(f"{counts.failed} sends failed and {counts.unknown} are unknown, though nothing broke")

    async def heal(self, scene: Scene) -> None:
        await scene.cluster.start_again("brokers")

    async def _wait(self, scene: Scene, condition: Callable[[Snapshot], bool], what: str) -> Snapshot:
        try:
            return await scene.load.observer.wait_until(condition, what, SPREAD_DEADLINE_S)
        except DeadlineExceededError as error:
            raise NotStruckError(str(error)) from error
