"""Updates: sending another member the newest chain record (`dispatch.record` receives it).

A record of up to `whole_chain_segments_max` (64) segments travels in full. Of a longer one only the newest changes
travel, with the chain epoch from which on they are complete. A member that knows the record of that chain epoch, or of
a later one, can apply them, because each record is made from the one before it. Any other member reads the coordinator.
So, like a whole record, an update may be lost, late or old, or arrive twice, without harm.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import MemberId

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.chain import Chain
from ..values.messages import ChainChanges, ChainUpdate


def tell(broker: BrokerState, partition: Partition, name: str, *must: int) -> None:
    """Send the record, or its newest changes, to the broker of that name, whatever disk it has now.

    If no link to it is up, open a link and send nothing.

    Args:
        broker: This broker.
        partition: Its chain record must be known, from this member run or from the disk.
        name: The name of the broker to notify.
        must: Numbers of segments to include, even if they changed long ago.
    """
    chain = partition.decided
    assert chain is not None
    if len(chain.segments) > broker.config.whole_chain_segments_max:
        broker.send_broker(name, _newest(broker, partition, chain, must))
    else:
        broker.send_broker(name, ChainUpdate(chain, partition.revision))


def tell_member(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """As `tell`, but only to exactly this member: if its slot has another disk, send nothing."""
    if broker.is_linked(member):
        tell(broker, partition, member.broker)
    else:
        broker.connect(member.broker)


def _newest(broker: BrokerState, partition: Partition, chain: Chain, must: tuple[int, ...]) -> ChainChanges:
    """The changes of the newest chain epochs, as many as fit into `told_segments_max` (16) segments.

    The last two segments, and those in `must`, are always added.
    """
    numbers: set[int] = set()
    gone: set[int] = set()
    since = chain.epoch
    for step in reversed(partition.steps):
        if len(numbers) + len(gone) + len(step.changed) + len(step.gone) > broker.config.told_segments_max:
            break
        numbers.update(step.changed)
        gone.update(step.gone)
        since = step.before
    numbers.update(segment.no for segment in chain.segments[-2:])
    numbers.update(must)
    told = tuple(segment for no in sorted(numbers) if (segment := chain.segment(no)) is not None)
    digest = chain.parts.digest
    return ChainChanges(replace(chain, segments=told), partition.revision, since, tuple(sorted(gone)), digest)
