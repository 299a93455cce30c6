"""Leaving: a broker group that is cordoned gets rid of its heads, one that is drained also of its copies.

The controller says what should leave; whoever is asked looks again for itself, and does nothing unless it is safe as
far as it knows. Heads leave by planned switches. Copies of a sealed segment leave its record by a transaction of the
segment's server, only while `min_copies` whole copies stay whose holders it can reach; a server that must leave itself
hands the right to one of them first, which waits as any new server does.
"""

from __future__ import annotations

from collections.abc import Collection

from seriatim_api.ids import MemberId

from . import candidates, right, switch
from .chain import Chain, Segment, SegmentState, change_server, remove_copies
from .outbox import Outbox
from .partition import Partition


def move_head(outbox: Outbox, partition: Partition, no: int) -> None:
    """Begin a planned switch of the open segment, if this is its master and there is a group to go to."""
    chain = partition.chain
    log = partition.open_log()
    if chain is None or log is None or chain.open_segment.no != no or not log.active or not log.unbroken:
        return
    if partition.switch is None and candidates.open_target(outbox, chain):
        switch.begin_move(outbox, partition)


def release(outbox: Outbox, partition: Partition, no: int, leaving: Collection[MemberId]) -> None:
    """Have members leave the record of a sealed segment; or, if nobody serves it, take the right to do so."""
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    if chain is None or segment is None:
        partition.read_chain(outbox)  # the controller asks again
        return
    if segment.state is not SegmentState.SEALED or partition.is_writing("right", no):
        return
    staying = staying_copies(outbox, segment, leaving)
    if len(staying) < outbox.config.min_copies:
        return
    if segment.server != outbox.member:
        right.take_over(outbox, partition, no, segment.server_epoch)
        return
    partition.write_chain(outbox, "right", _without(outbox, chain, segment, leaving, staying), no)


def staying_copies(outbox: Outbox, segment: Segment, leaving: Collection[MemberId]) -> list[MemberId]:
    """Eligible members (they hold the whole segment and its control records) that do not leave and can be reached."""
    return [member for member in segment.eligible if member not in leaving and outbox.is_linked(member)]


def _without(
    outbox: Outbox, chain: Chain, segment: Segment, leaving: Collection[MemberId], staying: list[MemberId]
) -> Chain:
    if outbox.member in leaving:
        return change_server(chain, segment.no, staying[0], ())
    return remove_copies(chain, segment.no, leaving)
