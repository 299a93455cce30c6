"""Candidates: the groups that a switch could open the next segment on, best first.

Whole groups come before those that lost a member, and a group that failed is passed over for a while, longer each time,
while another will do.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from .chain import Chain
from .outbox import Outbox


def in_order(outbox: Outbox, chain: Chain) -> list[str]:
    """Groups to try, best first: whole ones in the order of the send chain, then flapping ones, then the rest."""
    head, *rest = chain.send_chain
    order = [*rest, head]
    linked = [group for group in order if _is_whole(outbox, group)]
    steady = [group for group in linked if group != head and not _is_flapping(outbox, group)]
    others = [group for group in linked if group not in steady and group != head]
    possible = [group for group in order if group not in linked and usable_members(outbox, group)]
    own = [head] if head in linked else []
    return [*steady, *others, *[g for g in possible if g != head], *own, *[g for g in possible if g == head]]


def usable_members(outbox: Outbox, group: str) -> tuple[MemberId, ...]:
    """The members of a group that a segment could be opened on; empty if they are too few."""
    members = [member for member in outbox.groups.get(group, ()) if not outbox.is_gone(member)]
    if len(members) < outbox.config.min_copies:
        return ()
    linked = [member for member in members if outbox.is_linked(member)]
    return tuple(linked if len(linked) >= outbox.config.min_copies else members)


def _is_whole(outbox: Outbox, group: str) -> bool:
    members = outbox.groups.get(group, ())
    return len(members) >= outbox.config.min_copies and all(outbox.is_linked(member) for member in members)


def _is_flapping(outbox: Outbox, group: str) -> bool:
    until_us, _ = outbox.flapping.get(group, (0, 0))
    return outbox.now.mono_us < until_us


def note_failure(outbox: Outbox, group: str) -> None:
    """A group lost its segment: it is passed over for a while, longer each time."""
    until_us, for_us = outbox.flapping.get(group, (0, 0))
    quiet = outbox.now.mono_us > until_us + 10 * outbox.config.flapping_us
    for_us = outbox.config.flapping_us if quiet or not for_us else min(2 * for_us, 60 * outbox.config.flapping_us)
    outbox.flapping[group] = (outbox.now.mono_us + for_us, for_us)
