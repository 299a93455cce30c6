"""Delivery attempts: how often this server gave a message to a consumer of the consumer group.

A grant gives everything from the first message that is not acknowledged up to some end. So the delivery attempt of a
message is one more than the number of earlier grants that ended above it, and the server keeps only these ends. It
keeps them when the only consumer leaves, although it forgets the other state of the consumer group then.

The count is in the memory of this server, and is not replicated. After a change of server, a restart or a rewind it
begins at 1 again. Messages that another server may have delivered are flagged `maybe_repeated` instead.
"""

from __future__ import annotations

from typing import Final

from ...state.consumers import ConsumerGroup, Served
from ...state.dispatcher import Given
from ...state.partition import Partition
from ...values.states import drop, put

ENDS_MAX: Final = 64
"""Maximum number of different ends that are kept for a consumer group. If there are more, the two highest become one,
at the lower of the two. So the newest messages may show a delivery attempt that is too low, but never one that is too
high."""


def take_up(partition: Partition, consumer_group: ConsumerGroup) -> None:
    """This server begins to serve the consumer group: use the ends that it kept for this segment and group epoch."""
    known = partition.given.get(consumer_group.name)
    if known is None or (known.segment_no, known.group_epoch) != (
        consumer_group.segment_no,
        consumer_group.group_epoch,
    ):
        known = Given(consumer_group.segment_no, consumer_group.group_epoch)
        partition.given = put(partition.given, consumer_group.name, known)
    consumer_group.dispatcher.given = known


def begin_grant(served: Served) -> None:
    """A new grant begins: keep the end of the grant before, if messages below it are not acknowledged."""
    given = served.dispatcher.given
    ends = dict(given.ends)
    if given.below:
        ends[given.below] = ends.get(given.below, 0) + 1
    kept = sorted((end, count) for end, count in ends.items() if end > served.ledger.acked)
    while len(kept) > ENDS_MAX:
        (lower, count), (_, more) = kept[-2:]
        kept[-2:] = [(lower, count + more)]
    given.ends = tuple(kept)
    given.below = 0


def delivery_attempt_of(served: Served, end_index: int) -> int:
    """The delivery attempt of a batch whose messages are below `end_index`, if it is delivered now."""
    return 1 + sum(count for end, count in served.dispatcher.given.ends if end >= end_index)


def works(served: Served, below: int) -> bool:
    """Whether the active consumer was sent messages below an index that are not safely acknowledged."""
    dispatcher = served.dispatcher
    return dispatcher.active is not None and served.ledger.safe_acked < min(dispatcher.given.sent_below, below)


def forget(partition: Partition, group: str) -> None:
    """Forget the ends: the consumer group has left the segment, or another member serves it."""
    partition.given = drop(partition.given, group)
