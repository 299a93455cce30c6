"""Candidates: the broker groups on which a switch could open the next segment, best first.

"Group" means a broker group in this module. Whole groups come before those that lost a member. A group that failed is
passed over for `flapping_us` (5 s), doubling up to 5 minutes, while another complete group is there. A group that is
cordoned or draining, or that has a full disk, is passed over while any other complete group is there, even the old
segment's own. It still comes before a group that is not complete.

Groups outside the send chain come after those in it. So a chain can always leave a cordoned group, and a switch can use
a group that was added after the chain was made (`send_chain`).
"""

from __future__ import annotations

from seriatim_api.ids import MemberId, PartitionId

from ..state.broker import BrokerState
from ..values.chain import Chain
from ..values.placement import DEFAULT_SPEC, Intent, order, placeable, weights_of
from ..values.segment import Segment
from . import disks


def in_order(broker: BrokerState, chain: Chain) -> list[str]:
    """Groups to try, best first: whole ones in the order of the send chain, then flapping ones, then the rest."""
    current, *rest = chain.send_chain
    outside = [group for group in _wanting(broker, chain) if group not in chain.send_chain]
    ranked = [*rest, *outside, current]
    linked = [group for group in ranked if is_whole(broker, group)]
    open_ones = [group for group in linked if group != current and not _is_left(broker, group)]
    steady = [group for group in open_ones if not _is_flapping(broker, group)]
    flapping = [group for group in open_ones if group not in steady]
    closed = [group for group in linked if group != current and _is_left(broker, group)]
    possible = [group for group in ranked if group not in linked and usable_members(broker, group)]
    own = [current] if current in linked else []
    before_closed = own if closed and not _is_left(broker, current) else []
    others = [group for group in possible if group in rest]
    own_members = [group for group in possible if group == current]
    found = [*steady, *flapping, *before_closed, *closed, *others, *own, *own_members, *possible]
    return list(dict.fromkeys(found))


def open_target(broker: BrokerState, chain: Chain) -> str:
    """The group to which an open segment should move from a group that it has to leave; empty if there is none now.

    If there is none, this broker connects to the groups that could be one, so a later call may find them.
    """
    own = chain.open_segment.broker_group
    for group in in_order(broker, chain):
        if group != own and is_whole(broker, group) and not _is_left(broker, group):
            return group
    for group in _wanting(broker, chain)[: chain.width]:
        for member in broker.directory.broker_groups.get(group, ()):
            broker.connect(member.broker)
    return ""


def send_chain(broker: BrokerState, chain: Chain, group: str) -> tuple[str, ...]:
    """The send chain after the open segment has moved to `group`: the group that had it goes to the end.

    Groups that do not exist any more, or that are draining, leave it. The active groups that rank highest for the
    partition take free places, before the old group. All other groups keep their order.
    """
    old = chain.open_segment.broker_group
    stay = [name for name in chain.send_chain if name not in (old, group) and _stays(broker, name)]
    tail = [old] if old != group and _stays(broker, old) else []
    room = chain.width - 1 - len(stay) - len(tail)
    new = [name for name in _wanting(broker, chain) if name not in (*chain.send_chain, group)]
    if room < 0:  # the new group comes from outside the send chain: the group farthest from its turn makes room
        tail = tail if len(stay) < chain.width - 1 else []
        stay = stay[: chain.width - 1 - len(tail)]
    return (group, *stay, *new[: max(room, 0)], *tail)


def has_place(broker: BrokerState, chain: Chain, without: MemberId) -> bool:
    """Whether the open segment can move to some group if `without` is stopped; it needs `min_copies` members there."""
    for group in in_order(broker, chain):
        members = broker.directory.broker_groups.get(group, ())
        left = [member for member in members if member != without and is_there(broker, member)]
        whole = without in members or len(left) == len(members)
        if whole and len(left) >= broker.config.min_copies:
            return True
    return False


def is_closed(broker: BrokerState, group: str) -> bool:
    """Whether no open segment should be on the group, because it is cordoned or draining."""
    return broker.directory.specs.get(group, DEFAULT_SPEC).intent is not Intent.ACTIVE


def _is_left(broker: BrokerState, group: str) -> bool:
    """Whether open segments should leave the group for another complete one: it is closed, or a disk of it is full."""
    return (
        is_closed(broker, group) or disks.full_member(broker, broker.directory.broker_groups.get(group, ())) is not None
    )


def _stays(broker: BrokerState, group: str) -> bool:
    """Whether the group stays in send chains: it exists and is not draining."""
    return (
        group in broker.directory.broker_groups
        and broker.directory.specs.get(group, DEFAULT_SPEC).intent is not Intent.DRAINING
    )


def _wanting(broker: BrokerState, chain: Chain) -> list[str]:
    """The active groups, the one that ranks highest for the partition first (`placement.order`)."""
    return order(
        placeable(broker.directory.broker_groups, broker.directory.specs),
        chain.partition,
        weights_of(broker.directory.specs),
    )


def usable_members(broker: BrokerState, group: str) -> tuple[MemberId, ...]:
    """The members of a group that a segment could be opened on; empty if they are too few."""
    members = [
        member
        for member in broker.directory.broker_groups.get(group, ())
        if not broker.is_gone(member) and not disks.is_hung(broker, member)
    ]
    if len(members) < broker.config.min_copies:
        return ()
    linked = [member for member in members if broker.is_linked(member)]
    return tuple(linked if len(linked) >= broker.config.min_copies else members)


def is_whole(broker: BrokerState, group: str) -> bool:
    """Whether all members of a group are there, and they are at least `min_copies`."""
    members = broker.directory.broker_groups.get(group, ())
    return len(members) >= broker.config.min_copies and all(is_there(broker, member) for member in members)


def next_master(broker: BrokerState, partition: PartitionId, segment: Segment) -> MemberId | None:
    """The master of the next segment if the segment lacks members of its group and all of them are there; else None.

    None also while the group is passed over because it failed, as far as this broker knows.

    Rule `masters-by-turn` (I13): masters are spread over a group, also by growing. All members take turns. If it is the
    turn of the old master, which a planned switch cannot choose, another member that the segment has takes it. Without
    it:
      1. In the only group, m0 restarts. All segments move to m1 and m2.
      2. m0 is back, and becomes the master of each segment that grows. So after a restart of all, the last one to
         come back sends all messages of the group.
    """
    group = segment.broker_group
    if _is_flapping(broker, group) or not is_whole(broker, group):
        return None
    members = broker.directory.broker_groups[group]
    if all(member in segment.members for member in members):
        return None
    turn = (partition + segment.no) % len(members)
    first, *others = members[turn:] + members[:turn]
    if first != segment.master:
        return first
    return min(others, key=lambda member: member not in segment.members)


def is_there(broker: BrokerState, member: MemberId) -> bool:
    """Whether the member can be reached and its disk completes writes, as far as this broker knows."""
    return broker.is_linked(member) and not disks.is_hung(broker, member)


def _is_flapping(broker: BrokerState, group: str) -> bool:
    until_us, _ = broker.directory.flapping.get(group, (0, 0))
    return broker.now.mono_us < until_us


def note_failure(broker: BrokerState, group: str) -> None:
    """A group failed and lost its open segment: pass it over for `flapping_us`.

    Each further failure doubles the time, up to 60 times `flapping_us` (5 minutes). If the group does not fail for 10
    times `flapping_us` after that, the time starts over.
    """
    until_us, for_us = broker.directory.flapping.get(group, (0, 0))
    quiet = broker.now.mono_us > until_us + 10 * broker.config.flapping_us
    for_us = broker.config.flapping_us if quiet or not for_us else min(2 * for_us, 60 * broker.config.flapping_us)
    broker.directory.flapping[group] = (broker.now.mono_us + for_us, for_us)
