"""Updates: telling another member what the chain says now (`record` hears it).

A short record travels whole. Of a long one only the newest changes do: an update says since which epoch they are all
there. Whoever knows the record of that epoch, or a later one, has the new record then, because records form one line.
Whoever does not, reads the coordinator. So an update may be lost, late, older or come twice, as a whole record may.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import MemberId

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.chain import Chain
from ..values.messages import FORM_CHAIN_CHANGES, ChainChanges, ChainUpdate


def tell(broker: BrokerState, partition: Partition, name: str, *must: int) -> None:
    """Send the record, or what changed in it lately, to whoever holds that slot now.

    Args:
        broker: For the message.
        partition: Its chain must be known, be it from the disk only.
        name: To whom.
        must: Numbers of segments that it must hear of, even if they changed long ago.
    """
    chain = partition.decided
    assert chain is not None
    link = broker.links.by_broker.get(name)
    reads = link.forms & FORM_CHAIN_CHANGES if link is not None else 0
    if reads and len(chain.segments) > broker.config.whole_chain_segments_max:
        broker.send_broker(name, _newest(broker, partition, chain, must))
    else:
        broker.send_broker(name, ChainUpdate(chain, partition.revision))


def tell_member(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """`tell`, unless the slot has another disk."""
    if broker.is_linked(member):
        tell(broker, partition, member.broker)
    else:
        broker.connect(member.broker)


def _newest(broker: BrokerState, partition: Partition, chain: Chain, must: tuple[int, ...]) -> ChainChanges:
    """The newest changes: as many epochs as fit."""
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
