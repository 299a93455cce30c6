"""Which brokers, disks and broker groups exist, as the coordinator says."""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim_api.ids import MemberId

from ..values.placement import BrokerGroupSpec
from ..values.states import State


@dataclass(slots=True, eq=False)
class BrokerDirectory(State):
    """What a broker has read in the coordinator about the other brokers."""

    broker_groups: dict[str, tuple[MemberId, ...]] = field(default_factory=dict)
    specs: dict[str, BrokerGroupSpec] = field(default_factory=dict)  # those that an administrator or the operator wrote
    member_runs: dict[MemberId, int] = field(default_factory=dict)  # member runs, as last registered
    # broker -> the disk that has its slot, as last registered
    holders: dict[str, MemberId] = field(default_factory=dict)
    # this member run saw them lose their slot to another disk
    former: dict[MemberId, None] = field(default_factory=dict)
    ended: dict[MemberId, int] = field(default_factory=dict)  # newest member run whose death certificate was seen
    forms_of_all: int = 0  # forms that every registered broker reads
    # broker group -> (passed over until, for how long)
    flapping: dict[str, tuple[int, int]] = field(default_factory=dict)

    def learn_holders(self, found: dict[str, MemberId]) -> None:
        """Note which disk has which slot now, and which disks have lost their slot.

        A disk that was never seen in the slot does not count as a former one. This broker may be cut off from the
        coordinator, so its view may be old, and that disk may have just taken the slot.
        """
        for broker, before in self.holders.items():
            if found.get(broker, before) != before:
                self.former[before] = None
        for member in found.values():
            self.former.pop(member, None)
        self.holders = {**self.holders, **found}

    def is_dismissed(self, member: MemberId, run: int) -> bool:
        """Whether that member run may not take part any more, although it may still be connected.

        It is dismissed if this broker saw a death certificate of it or of a later member run of its disk, or saw its
        slot go to another disk.
        """
        # Rule `dismissed-run` (I12): a broker believes nothing that a dismissed run says. Without it:
        #   1. A certificate is written for As's member run while As lives. Its directory is deleted.
        #   2. Am, the master, stays linked to As, and counts As's acknowledgement as that of a disk.
        #   3. Am answers the producer. Am's disk fails: no disk has the message (I1).
        #
        # Rule `dismissed-once` (I12): also if it connects again, because `links.on_up` asks this too. Without it, the
        # link to As is cut once, As connects again, and the story continues at step 2.
        return self.ended.get(member, 0) >= run or member in self.former

    def is_replaced(self, member: MemberId) -> bool:
        """Whether another disk has the member's slot now: then the member is refused and never serves again."""
        holders = [
            other for members in self.broker_groups.values() for other in members if other.broker == member.broker
        ]
        return bool(holders) and member not in holders
