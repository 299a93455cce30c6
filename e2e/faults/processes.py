"""Faults of processes: killed, and frozen. Brokers by the role they play at that moment; the coordinator; clients."""

from __future__ import annotations

import os
import signal
from typing import Literal

from e2e.faults.fault import Fault, NotStruckError, Scene
from e2e.faults.load import Role
from e2e.observe import SegmentNow

BrokerRole = Literal["master", "slave", "both"]


def brokers_of(head: SegmentNow, role: BrokerRole) -> tuple[str, ...]:
    """The brokers that play `role` in a segment."""
    return {"master": head.members[:1], "slave": head.members[1:], "both": head.members}[role]


class KillBrokers(Fault):
    """`kill -9`, all at once; started again on their disks."""

    def __init__(self, role: BrokerRole) -> None:
        self.name = f"kill {role}"
        self._role: BrokerRole = role
        self._struck: tuple[str, ...] = ()

    async def inject(self, scene: Scene) -> None:
        """Kill them, and see the partition move."""
        head = await scene.head()
        self._struck = brokers_of(head, self._role)
        scene.note(f"killed {', '.join(self._struck)}")
        await scene.cluster.kill(*self._struck)
        await scene.moved_past(head)

    async def heal(self, scene: Scene) -> None:
        """Start them again."""
        await scene.cluster.start_again(*self._struck)


class FreezeBrokers(Fault):
    """SIGSTOP: connections stay open, and the broker answers nothing. If both members are frozen, no broker may open
    over the segment, because the members are not dead: the partition waits."""

    def __init__(self, role: BrokerRole) -> None:
        self.name = f"freeze {role}"
        self.accepts = role != "both"
        self._role: BrokerRole = role
        self._struck: tuple[str, ...] = ()
        self._head: SegmentNow | None = None

    async def inject(self, scene: Scene) -> None:
        """Freeze them, and see the partition move if one member is left."""
        head = self._head = await scene.head()
        self._struck = brokers_of(head, self._role)
        scene.note(f"froze {', '.join(self._struck)}")
        await scene.cluster.freeze(*self._struck)
        if self._role != "both":
            await scene.moved_past(head)

    async def hold(self, scene: Scene) -> None:
        """With both frozen: check that no broker opens over the segment, because no proof says that they are dead."""
        await super().hold(scene)
        if self._role == "both":
            assert self._head is not None
            now = (await scene.load.observer.look()).chains[0].head
            if now.no != self._head.no:
                raise NotStruckError(f"segment {now.no} was opened over two members that live")

    async def heal(self, scene: Scene) -> None:
        """Let them go on."""
        await scene.cluster.thaw(*self._struck)


class KillCoordinator(Fault):
    """`kill -9` of the coordinator; the data path goes on without it."""

    def __init__(self, kind: Literal["embedded", "etcd"] = "embedded") -> None:
        self.name = "kill coordinator" if kind == "embedded" else "kill etcd"
        self.kind = kind

    async def inject(self, scene: Scene) -> None:
        """Kill it."""
        await scene.cluster.kill("coordinator")

    async def heal(self, scene: Scene) -> None:
        """Start it again."""
        await scene.cluster.start_again("coordinator")


class FreezeCoordinator(Fault):
    """SIGSTOP of the coordinator, for a moment or past every lease (3 s): no lease moves anything by itself."""

    def __init__(self, hold_s: float | None = None, kind: Literal["embedded", "etcd"] = "embedded") -> None:
        what = "coordinator" if kind == "embedded" else "etcd"
        self.name = f"freeze {what}" if hold_s is None else f"stall {what} past every lease"
        self.kind = kind
        self._hold_s = hold_s
        self._head: SegmentNow | None = None

    async def inject(self, scene: Scene) -> None:
        """Freeze it."""
        self._head = await scene.head()
        scene.hold_s = self._hold_s or scene.hold_s
        await scene.cluster.freeze("coordinator")

    async def hold(self, scene: Scene) -> None:
        """Messages are accepted at the beginning and at the end of it."""
        await super().hold(scene)
        await scene.load.accepts()

    async def heal(self, scene: Scene) -> None:
        """Let it go on; the lost leases alone move nothing."""
        await scene.cluster.thaw("coordinator")
        await scene.load.accepts()
        assert self._head is not None
        now = await scene.head()
        if now.no > self._head.no:
            scene.note(f"the partition moved from segment {self._head.no} to {now.no} all the same")


class KillClient(Fault):
    """`kill -9` of a client's process; another one takes over."""

    def __init__(self, role: Role) -> None:
        self.name = f"kill {role}"
        self.accepts = role != "producer"
        self._role: Role = role

    async def inject(self, scene: Scene) -> None:
        """Kill it."""
        await scene.load.kill(self._role)

    async def heal(self, scene: Scene) -> None:
        """Have another process go on."""
        await scene.load.start_again(self._role)


class FreezeClient(Fault):
    """SIGSTOP of a client's process: its connections fill up, then it goes on with what it had."""

    def __init__(self, role: Role) -> None:
        self.name = f"freeze {role}"
        self.accepts = role != "producer"
        self._role: Role = role
        self._pid = 0

    async def inject(self, scene: Scene) -> None:
        """Freeze it."""
        self._pid = scene.load.pid(self._role)
        os.kill(self._pid, signal.SIGSTOP)

    async def heal(self, scene: Scene) -> None:
        """Let it go on."""
        os.kill(self._pid, signal.SIGCONT)
