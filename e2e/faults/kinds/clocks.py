"""Wall clocks that jump, through `tools/badclock`. No promise of the broker may depend on wall clocks."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from e2e.faults.kinds.fault import Fault, NotStruckError, Scene
from e2e.faults.schedule import CLIENT_SAFE, DELAYED, WORKLOADS

TOLERANCE_S: Final = 60.0


class ClockJump(Fault):
    """The wall clock of the master, or of all brokers, jumps.

    Args:
        shift_s: How far it jumps, in seconds.
        whose: The brokers whose clock jumps.
    """

    needs_shims: ClassVar[bool] = True

    def __init__(self, shift_s: float, whose: Literal["master", "all"]) -> None:
        self.name = f"clock of {whose} jumps {'ahead' if shift_s > 0 else 'back'}"
        self._shift_s = shift_s
        self._whose = whose
        # If connections break, the partition moves and gets times of another clock. What is delayed by a clock that is
        # wrong by an hour is due an hour early or late.
        safe = CLIENT_SAFE if whose == "master" else tuple(load.name for load in WORKLOADS)
        self.workloads = tuple(name for name in safe if name != DELAYED)
        self._struck: tuple[str, ...] = ()

    async def inject(self, scene: Scene) -> None:
        open_segment = await scene.open_segment()
        self._struck = scene.cluster.broker_names if self._whose == "all" else open_segment.members[:1]
        scene.load.clock_shifts_ms.clear()
        for broker in self._struck:
            scene.shims.shift_clock(broker, self._shift_s)

    async def hold(self, scene: Scene) -> None:
        """Check that messages are still accepted. Their append times jump ahead, or stand still, but never go back."""
        await super().hold(scene)
        seen_s = [shift_ms / 1000 for shift_ms in scene.load.clock_shifts_ms]
        if any(shift_s < -TOLERANCE_S for shift_s in seen_s):
            raise NotStruckError(f"append times went back, to {min(seen_s):.1f} s off")
        if self._shift_s > 0 and not any(abs(shift_s - self._shift_s) < TOLERANCE_S for shift_s in seen_s):
            raise NotStruckError(f"no message has a time that is {self._shift_s:g} s ahead")
        if self._shift_s < 0 and not min(seen_s, default=0.0) < -scene.hold_s / 2:
            raise NotStruckError("append times did not stand still, though the clock is behind them")

    async def heal(self, scene: Scene) -> None:
        for broker in self._struck:
            scene.shims.shift_clock(broker, 0)
