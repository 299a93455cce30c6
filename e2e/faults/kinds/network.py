"""Cuts of links, in both directions or in one: connections stay open, and nothing arrives.

On a network of namespaces (`namespaces`) a cut drops packets. If one direction of a connection is cut, the other
direction loses TCP's acknowledgements too. The local cluster's proxy needs no root. It holds back the bytes of each
direction of each connection.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from seriatim import Segment

from e2e.faults.kinds.fault import Fault, NotStruckError, Scene
from e2e.faults.kinds.processes import brokers_of
from e2e.faults.schedule import CLIENT_SAFE

End = Literal["master", "slave", "other slave", "coordinator", "clients", "others", "all"]


def ends_of(open_segment: Segment, end: End, groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that `LocalCluster.cut` uses for an end, at this moment."""
    if end == "master" or end == "slave":
        return brokers_of(open_segment, end)
    if end == "other slave":
        return tuple(sorted({*open_segment.members[1:]} - {*brokers_of(open_segment, "slave")}))[:1]
    if end == "others":
        return tuple(group for group in groups if group != open_segment.group)
    return (end,)


class Cut(Fault):
    """Nothing passes between two ends, or from the first to the second.

    Args:
        left: One end.
        right: The other end.
        one_way: Whether only what `left` sends to `right` is lost.
    """

    cuts: ClassVar[bool] = True

    def __init__(self, left: End, right: End, *, one_way: bool = False) -> None:
        self.name = f"cut {left}{'>' if one_way else '-'}{right}"
        if "clients" in (left, right) or "all" in (left, right):
            self.workloads = CLIENT_SAFE
        self._left: End = left
        self._right: End = right
        self._one_way = one_way
        self._pairs: list[tuple[str, str]] = []

    @property
    def moves(self) -> bool:
        """Whether the partition must move, because members of its open segment do not hear each other."""
        inside = {"master", "slave", "all"}
        return self._left in inside and self._right in inside

    async def inject(self, scene: Scene) -> None:
        """Cut the links. If the members cannot work together, wait until the partition has moved."""
        open_segment = await scene.open_segment()
        groups = scene.cluster.plan.groups
        for left in ends_of(open_segment, self._left, groups):
            for right in ends_of(open_segment, self._right, groups):
                self._pairs.append((left, right))
                await scene.cluster.cut(left, right, one_way=self._one_way)
        scene.note(", ".join(f"{left}{'>' if self._one_way else '-'}{right}" for left, right in self._pairs))
        if self.moves:
            await scene.moved_past(open_segment)

    async def heal(self, scene: Scene) -> None:
        """Let everything through again. Bytes that the proxy held back arrive first."""
        pairs, self._pairs = self._pairs, []
        for left, right in pairs:
            await scene.cluster.heal(left, right)


class CutBetweenSlaves(Cut):
    """Two slaves of one master do not hear each other. Both hear the master, so the segment stays open."""

    members_min: ClassVar[int] = 3

    def __init__(self) -> None:
        super().__init__("slave", "other slave")
        self.workloads = CLIENT_SAFE  # other loads complain about masters, and so move segments
        self._no = 0

    async def inject(self, scene: Scene) -> None:
        """Cut the link, and remember which segment is open."""
        self._no = (await scene.open_segment()).no
        await super().inject(scene)

    async def hold(self, scene: Scene) -> None:
        """Check that messages are accepted, and in the same segment."""
        await super().hold(scene)
        now = await scene.open_segment()
        if now.no != self._no:
            raise NotStruckError(f"segment {now.no} was opened though the master hears all slaves")


_LINKS: Final[tuple[tuple[End, End], ...]] = (
    ("master", "slave"),
    ("master", "coordinator"),
    ("slave", "coordinator"),
    ("master", "clients"),
    ("slave", "clients"),
    ("master", "others"),
    ("master", "all"),
)


def all_cuts() -> list[Fault]:
    """Return for each link a cut of both directions, and a cut of each direction."""
    cuts: list[Fault] = [CutBetweenSlaves()]
    for left, right in _LINKS:
        cuts += [Cut(left, right), Cut(left, right, one_way=True), Cut(right, left, one_way=True)]
    return cuts
