"""Drains of broker groups under load, and disks that are replaced by name: frequent work of an administrator.

Nothing breaks while a broker group is drained, so no send may get the outcome `failed` or `unknown`.
"""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar, Final, Literal

from seriatim import BrokerGroup

from e2e.faults.kinds.disks import wipe
from e2e.faults.kinds.fault import Fault, NotStruckError, Scene
from e2e.faults.kinds.processes import brokers_of

DRAINED_DEADLINE_S: Final = 90.0
LOOK_S: Final = 0.25


class DrainedBrokerGroup(Fault):
    """The group of the first partition's open segment is drained: its open segments and copies leave it, while messages
    flow.

    Then each of its brokers is stopped, after `check_restart` allows it, and the cluster continues without the group.
    """

    name = "drained group"
    own_cluster: ClassVar[bool] = True

    def __init__(self) -> None:
        self._group = ""
        self._stopped: list[str] = []

    async def inject(self, scene: Scene) -> None:
        """Drain the group, and stop its brokers."""
        open_segment = await scene.open_segment()
        self._group = open_segment.group
        began = time.monotonic()
        await scene.admin.set_broker_group(self._group, "draining")
        await scene.moved_past(open_segment)
        open_segments_s = time.monotonic() - began
        await self._until_empty(scene)
        took_s = time.monotonic() - began
        scene.note(f"the head left {self._group} after {open_segments_s:.1f} s, the last copy after {took_s:.1f} s")
        counts = scene.load.counts
        if counts.failed or counts.unknown:
            raise NotStruckError(f"{counts.failed} sends failed and {counts.unknown} are unknown, though nothing broke")
        for broker in [name for name in scene.cluster.broker_names if name.startswith(f"{self._group}-")]:
            await self._may_be_stopped(scene, broker)
            self._stopped.append(broker)
            await scene.cluster.stop_gracefully(broker)

    async def hold(self, scene: Scene) -> None:
        """Check that messages flow without the group."""
        await scene.load.goes_on()

    async def heal(self, scene: Scene) -> None:
        """Start the brokers again, and set the group active."""
        if self._stopped:
            await scene.cluster.start_again(*self._stopped)
            await scene.cluster.wait_ready(*self._stopped)
        if self._group:
            await scene.admin.set_broker_group(self._group, "active")

    async def _until_empty(self, scene: Scene) -> None:
        until = time.monotonic() + DRAINED_DEADLINE_S
        while (group := await _find(scene, self._group)).segments:
            if time.monotonic() > until:
                raise NotStruckError(f"{group.heads} heads and {group.segments} segments are left on {self._group}")
            await asyncio.sleep(LOOK_S)

    async def _may_be_stopped(self, scene: Scene, broker: str) -> None:
        found = await scene.admin.check_restart(broker)
        if not found.is_safe:
            raise NotStruckError(f"{broker} must not be stopped, though nothing lies on it: {found.reason}")


async def _find(scene: Scene, name: str) -> BrokerGroup:
    for group in await scene.admin.list_broker_groups():
        if group.name == name:
            return group
    raise NotStruckError(f"there is no broker group {name}")


class ReplacedDisk(Fault):
    """A member's disk is lost, and an administrator gives its slot to a new disk by the name of the lost one.

    The new disk is filled at once. (Without the name, a missing member is replaced only after ten minutes.) If the name
    is not that of the lost disk, the start is refused.
    """

    own_cluster: ClassVar[bool] = True
    ends: ClassVar[bool] = True

    def __init__(self, role: Literal["master", "slave"]) -> None:
        self.name = f"replaced disk of {role}"
        self._role: Literal["master", "slave"] = role
        self._struck = ""
        self._lost = ""

    async def inject(self, scene: Scene) -> None:
        """Kill the member, empty its directory, and check that a wrong name is refused."""
        open_segment = await scene.open_segment()
        self._struck = brokers_of(open_segment, self._role)[0]
        self._lost = await self._incarnation(scene)
        await scene.cluster.kill(self._struck)
        await scene.moved_past(open_segment)
        await wipe(scene, self._struck)
        since = scene.log_size(self._struck)
        await self._start(scene, "0" * 32)
        await scene.ended(self._struck)
        text = scene.log_since(self._struck, since)
        if "may take the place of the disk 0000" not in text:
            raise NotStruckError(f"{self._struck} was not refused for the name: {text[-500:]}")

    async def heal(self, scene: Scene) -> None:
        """Start the member with the name of the lost disk."""
        if self._lost and scene.cluster.pid(self._struck) is None:
            await self._start(scene, self._lost)
            await scene.cluster.wait_ready(self._struck)

    async def confirm(self, scene: Scene) -> None:
        """Check that no record names the lost disk any more, and that the broker may be stopped as any other."""
        until = time.monotonic() + DRAINED_DEADLINE_S
        while not (found := await scene.admin.check_restart(self._struck)).is_safe:
            if time.monotonic() > until:
                raise NotStruckError(f"{self._struck} must not be stopped: {found.reason}")
            await asyncio.sleep(LOOK_S)
        if await self._incarnation(scene) == self._lost:
            raise NotStruckError(f"{self._struck} has the lost disk")

    async def _start(self, scene: Scene, lost: str) -> None:
        scene.programs.once[self._struck] = ("--set", f"replace_disk_of={lost}")
        await scene.cluster.start_again(self._struck)

    async def _incarnation(self, scene: Scene) -> str:
        for group in await scene.admin.list_broker_groups():
            for member in group.members:
                if member.broker == self._struck:
                    return member.incarnation
        raise NotStruckError(f"no broker group has the member {self._struck}")
