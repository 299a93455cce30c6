"""Faults of processes: brokers, the coordinator and clients are killed or frozen. A broker is chosen by its role."""

from __future__ import annotations

import os
import signal
from typing import Literal

from seriatim import Segment

from e2e.faults.kinds.fault import Fault, NotStruckError, Scene
from e2e.faults.traffic.load import Role

BrokerRole = Literal["master", "slave", "both"]


def brokers_of(open_segment: Segment, role: BrokerRole) -> tuple[str, ...]:
    """Return the brokers that have `role` in a segment: `slave` is one of the slaves, and `both` are all members."""
    master, *slaves = open_segment.members
    slave = slaves[open_segment.no % len(slaves)]
    return {"master": (master,), "slave": (slave,), "both": open_segment.members}[role]


class KillBrokers(Fault):
    """`kill -9` of the brokers of a role, all at once. Then they are started again on their disks."""

    def __init__(self, role: BrokerRole) -> None:
        self.name = f"kill {role}"
        self._role: BrokerRole = role
        self._struck: tuple[str, ...] = ()

    async def inject(self, scene: Scene) -> None:
        """Kill the brokers, and wait until the partition has moved."""
        open_segment = await scene.open_segment()
        self._struck = brokers_of(open_segment, self._role)
        scene.note(f"killed {', '.join(self._struck)}")
        await scene.cluster.kill(*self._struck)
        await scene.moved_past(open_segment)

    async def heal(self, scene: Scene) -> None:
        await scene.cluster.start_again(*self._struck)


class KillInTakeOver(Fault):
    """`kill -9` of the master, and then of the master of the next open segment, as soon as there is one."""

    name = "kill master in a take-over"

    def __init__(self) -> None:
        self._struck: list[str] = []

    async def inject(self, scene: Scene) -> None:
        """Kill two masters, and wait until the partition has moved twice."""
        for _ in range(2):
            open_segment = await scene.open_segment()
            self._struck.append(open_segment.members[0])
            await scene.cluster.kill(open_segment.members[0])
            await scene.moved_past(open_segment)
        scene.note(f"killed {', '.join(self._struck)}")

    async def heal(self, scene: Scene) -> None:
        await scene.cluster.start_again(*self._struck)


class FreezeBrokers(Fault):
    """SIGSTOP of the brokers of a role: connections stay open, and the brokers answer nothing.

    If all members are frozen, they are not dead, so no broker may open a new segment: the partition waits.
    """

    def __init__(self, role: BrokerRole) -> None:
        self.name = f"freeze {role}"
        self.accepts = role != "both"
        self._role: BrokerRole = role
        self._struck: tuple[str, ...] = ()
        self._open_segment: Segment | None = None

    async def inject(self, scene: Scene) -> None:
        """Freeze the brokers. If one member is left, wait until the partition has moved."""
        open_segment = self._open_segment = await scene.open_segment()
        self._struck = brokers_of(open_segment, self._role)
        scene.note(f"froze {', '.join(self._struck)}")
        await scene.cluster.freeze(*self._struck)
        if self._role != "both":
            await scene.moved_past(open_segment)

    async def hold(self, scene: Scene) -> None:
        """If both are frozen, check that no broker opens a new segment, because no proof says that they are dead."""
        await super().hold(scene)
        if self._role == "both":
            assert self._open_segment is not None
            now = (await scene.load.observer.look()).chains[0].open_segment
            if now.no != self._open_segment.no:
                raise NotStruckError(f"segment {now.no} was opened over two members that live")

    async def heal(self, scene: Scene) -> None:
        await scene.cluster.thaw(*self._struck)


class KillCoordinator(Fault):
    """`kill -9` of the coordinator. The data path continues without it."""

    def __init__(self, kind: Literal["embedded", "etcd"] = "embedded") -> None:
        self.name = "kill coordinator" if kind == "embedded" else "kill etcd"
        self.kind = kind

    async def inject(self, scene: Scene) -> None:
        await scene.cluster.kill("coordinator")

    async def heal(self, scene: Scene) -> None:
        await scene.cluster.start_again("coordinator")


class FreezeCoordinator(Fault):
    """SIGSTOP of the coordinator, for a moment or longer than every lease (3 s). No lease alone moves a partition."""

    def __init__(self, hold_s: float | None = None, kind: Literal["embedded", "etcd"] = "embedded") -> None:
        what = "coordinator" if kind == "embedded" else "etcd"
        self.name = f"freeze {what}" if hold_s is None else f"stall {what} past every lease"
        self.kind = kind
        self._hold_s = hold_s
        self._open_segment: Segment | None = None

    async def inject(self, scene: Scene) -> None:
        self._open_segment = await scene.open_segment()
        scene.hold_s = self._hold_s or scene.hold_s
        await scene.cluster.freeze("coordinator")

    async def hold(self, scene: Scene) -> None:
        """Check that messages are accepted at the beginning and at the end."""
        await super().hold(scene)
        await scene.load.accepts()

    async def heal(self, scene: Scene) -> None:
        """Let the coordinator continue, and check that the lost leases alone moved nothing."""
        await scene.cluster.thaw("coordinator")
        await scene.load.accepts()
        assert self._open_segment is not None
        now = await scene.open_segment()
        if now.no > self._open_segment.no:
            scene.note(f"the partition moved from segment {self._open_segment.no} to {now.no} all the same")


class KillClient(Fault):
    """`kill -9` of a client's process. A new one takes over."""

    def __init__(self, role: Role) -> None:
        self.name = f"kill {role}"
        self.accepts = role != "producer"
        self._role: Role = role

    async def inject(self, scene: Scene) -> None:
        await scene.load.kill(self._role)

    async def heal(self, scene: Scene) -> None:
        """Start a new process that continues."""
        await scene.load.start_again(self._role)


class FreezeClient(Fault):
    """SIGSTOP of a client's process: its connections fill up. Then it continues with what it had."""

    def __init__(self, role: Role) -> None:
        self.name = f"freeze {role}"
        self.accepts = role != "producer"
        self._role: Role = role
        self._pid = 0

    async def inject(self, scene: Scene) -> None:
        self._pid = scene.load.pid(self._role)
        os.kill(self._pid, signal.SIGSTOP)

    async def heal(self, scene: Scene) -> None:
        os.kill(self._pid, signal.SIGCONT)
