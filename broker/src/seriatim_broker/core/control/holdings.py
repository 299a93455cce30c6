"""Standing: what a member says of its copies before another member is stopped.

The gate asks the members themselves, because the record in the coordinator says which members should hold a segment,
and not whether they do. If a member does not answer, nothing is known of its copies, and that counts as not safe.
"""

from __future__ import annotations

from collections.abc import Mapping

from seriatim_api.ids import MemberId, PartitionId

from ..peers import candidates
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import SegmentLog
from ..values.chain import Chain
from ..values.effects import CopiesTold
from ..values.events import AskCopies
from ..values.messages import CopiesAnswer, CopiesQuestion, CopyReport, Standing

NOT_KNOWN = CopyReport(Standing.UNKNOWN, 0, 0)


def ask(broker: BrokerState, event: AskCopies) -> None:
    """Send the question to the member. If it is not linked, no answer comes."""
    for request in [request for request in broker.copies_asked if request <= event.request - REQUESTS_KEPT]:
        del broker.copies_asked[request]  # never answered
    broker.copies_asked[event.request] = (event.member, len(event.segments))
    broker.send(event.member, CopiesQuestion(event.request, event.without, event.segments))


REQUESTS_KEPT = 1000
"""A question that was never answered is forgotten this many requests later."""


def on_answer(broker: BrokerState, sender: MemberId, message: CopiesAnswer) -> None:
    """Pass the answer on to the request, if it comes from the asked member and has a report for each segment."""
    if broker.copies_asked.get(message.serial) == (sender, len(message.reports)):
        del broker.copies_asked[message.serial]
        broker.out.emit(CopiesTold(message.serial, message.reports))


def reports(
    broker: BrokerState, partitions: Mapping[PartitionId, Partition], question: CopiesQuestion
) -> tuple[CopyReport, ...]:
    """What this member has of each segment, in the order of the question."""
    return tuple(
        _report(broker, partitions.get(partition), no, question.without) for partition, no in question.segments
    )


def _report(broker: BrokerState, partition: Partition | None, no: int, without: MemberId) -> CopyReport:
    log = partition.logs.get(no) if partition is not None else None
    if partition is None or partition.chain is None or log is None:
        return NOT_KNOWN
    epoch = partition.chain.epoch
    if log.record.sealed_len is not None:
        in_sync = log.is_in_sync and log.durable >= log.tail and no not in partition.repairs
        return CopyReport(Standing.IN_SYNC if in_sync else Standing.PARTIAL, log.tail, epoch)
    if partition.chain.open_segment.no == no and log.active and log.unbroken:
        return CopyReport(_of_open(broker, partition.chain, log, without), log.commit, epoch)
    return CopyReport(Standing.PARTIAL, log.commit, epoch)


def _of_open(broker: BrokerState, chain: Chain, log: SegmentLog, without: MemberId) -> Standing:
    for follower in log.followers:
        held = follower.durable if log.record.flush else follower.received
        if not broker.is_linked(follower.member) or not follower.in_step or held < log.commit:
            return Standing.OUT_OF_STEP
    return Standing.IN_STEP if candidates.has_place(broker, chain, without) else Standing.NOWHERE_TO_GO
