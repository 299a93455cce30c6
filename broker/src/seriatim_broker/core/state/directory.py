"""Which brokers, disks and broker groups there are, as the coordinator says."""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..values.placement import GroupSpec
from ..values.states import State


class BrokerDirectory(State):
    """What a broker knows of the others from the coordinator."""

    __slots__ = ("ended", "flapping", "former", "forms_of_all", "groups", "holders", "runs", "specs")

    def __init__(self) -> None:
        self.groups: dict[str, tuple[MemberId, ...]] = {}
        self.specs: dict[str, GroupSpec] = {}  # what is wanted of broker groups, if a person said anything
        self.runs: dict[MemberId, int] = {}  # as last registered
        self.holders: dict[str, MemberId] = {}  # broker -> the disk that its slot has, as last registered
        self.former: dict[MemberId, None] = {}  # held a slot, and were seen to lose it to another disk in this run
        self.ended: dict[MemberId, int] = {}  # newest run whose death certificate was seen
        self.forms_of_all = 0  # what every registered broker reads beyond 0.2.0
        self.flapping: dict[str, tuple[int, int]] = {}  # broker group -> (passed over until, for how long)

    def learn_holders(self, found: dict[str, MemberId]) -> None:
        """Note which disk has which slot now, and which disks have lost theirs.

        A disk that was never seen in the slot is not taken for a former one: this broker may be the one whose view is
        old, because it is cut off from the coordinator, and the disk the one that has just taken the slot.
        """
        for broker, before in self.holders.items():
            if found.get(broker, before) != before:
                self.former[before] = None
        for member in found.values():
            self.former.pop(member, None)
        self.holders = {**self.holders, **found}

    def is_dismissed(self, member: MemberId, run: int) -> bool:
        """Whether that run may not take part any more, although it may still be connected.

        It is dismissed if a death certificate of it (or of a later run of its disk) was seen, or if its slot was seen
        to go to another disk. A certificate can be false: the process lives on, its disk may be deleted already. A
        message that this process acknowledges would be on one disk only (I12), so no message of it is believed.
        """
        return self.ended.get(member, 0) >= run or member in self.former

    def is_replaced(self, member: MemberId) -> bool:
        """Whether the member's slot was given to another disk: the member will never serve again, and is refused."""
        holders = [other for members in self.groups.values() for other in members if other.broker == member.broker]
        return bool(holders) and member not in holders
