"""Delivery attempts: how often this server gave a message to a consumer of the group.

A grant gives everything from the first message that is not acknowledged up to some end. So the attempt of a message is
one more than the number of earlier grants whose end lies above it: only these ends are kept. They outlive the group's
head, because a group whose only consumer leaves is forgotten, and comes again.

The count is this server's alone, and is not replicated. After a change of server, a restart or a rewind it begins at 1
again; what another server may have delivered is flagged `maybe_repeated` instead.
"""

from __future__ import annotations

from typing import Final

from ..state.consumers import Given, GroupHead
from ..state.partition import Partition
from ..values.states import drop, put

ENDS_MAX: Final = 64
"""Different ends that are kept for a group. Above it the two highest are taken for one, the lower: the newest messages
may show a lower attempt than theirs, never a higher one."""


def take_up(partition: Partition, head: GroupHead) -> None:
    """This server begins to serve the group: go on with what is known of the same segment and group epoch."""
    known = partition.given.get(head.group)
    if known is None or (known.segment_no, known.group_epoch) != (head.segment_no, head.group_epoch):
        known = Given(head.segment_no, head.group_epoch)
        partition.given = put(partition.given, head.group, known)
    head.given = known


def begin_grant(head: GroupHead) -> None:
    """The grant before is over: what it gave and was not acknowledged has been given once more."""
    given = head.given
    assert given is not None
    ends = dict(given.ends)
    if given.below:
        ends[given.below] = ends.get(given.below, 0) + 1
    kept = sorted((end, count) for end, count in ends.items() if end > head.acked)
    while len(kept) > ENDS_MAX:
        (lower, count), (_, more) = kept[-2:]
        kept[-2:] = [(lower, count + more)]
    given.ends = tuple(kept)
    given.below = 0


def attempt_of(head: GroupHead, end_index: int) -> int:
    """The attempt of a batch that ends before `end_index`, if it is delivered now."""
    assert head.given is not None
    return 1 + sum(count for end, count in head.given.ends if end >= end_index)


def forget(partition: Partition, group: str) -> None:
    """The group has left the segment, or another member serves it."""
    partition.given = drop(partition.given, group)
