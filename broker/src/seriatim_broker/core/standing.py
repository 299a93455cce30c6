"""Standing: what a member says of its copies, so that another one can be stopped without leaving anything on one disk.

Whoever wants to know asks the members themselves: the record in the coordinator says who should hold a segment, not
whether it does. What is not answered is not known, and what is not known is not safe.
"""

from __future__ import annotations

from collections.abc import Mapping

from seriatim_api.ids import MemberId, PartitionId

from . import candidates
from .chain import Chain
from .effects import CopiesTold
from .events import AskCopies
from .messages import CopiesAnswer, CopiesQuestion, CopyReport, Standing
from .outbox import Outbox
from .partition import Partition
from .replica import SegmentLog

NOT_KNOWN = CopyReport(Standing.UNKNOWN, 0, 0)


def ask(outbox: Outbox, event: AskCopies) -> None:
    """Put the question to the member; without a link to it nobody answers."""
    for request in [request for request in outbox.copies_asked if request <= event.request - REQUESTS_KEPT]:
        del outbox.copies_asked[request]  # never answered
    outbox.copies_asked[event.request] = (event.member, len(event.segments))
    outbox.send(event.member, CopiesQuestion(event.request, event.without, event.segments))


REQUESTS_KEPT = 1000
"""Numbers of requests after which a question that was never answered is forgotten."""


def on_answer(outbox: Outbox, sender: MemberId, message: CopiesAnswer) -> None:
    """Pass the answer on to whoever asked, if it is that member's, and whole."""
    if outbox.copies_asked.get(message.serial) == (sender, len(message.reports)):
        del outbox.copies_asked[message.serial]
        outbox.emit(CopiesTold(message.serial, message.reports))


def reports(
    outbox: Outbox, partitions: Mapping[PartitionId, Partition], question: CopiesQuestion
) -> tuple[CopyReport, ...]:
    """What is here of each segment, in the order of the question."""
    return tuple(
        _report(outbox, partitions.get(partition), no, question.without) for partition, no in question.segments
    )


def _report(outbox: Outbox, partition: Partition | None, no: int, without: MemberId) -> CopyReport:
    log = partition.logs.get(no) if partition is not None else None
    if partition is None or partition.chain is None or log is None:
        return NOT_KNOWN
    epoch = partition.chain.epoch
    if log.record.sealed_len is not None:
        whole = log.is_whole and log.durable >= log.tail and no not in partition.repairs
        return CopyReport(Standing.WHOLE if whole else Standing.PARTIAL, log.tail, epoch)
    if partition.chain.open_segment.no == no and log.active and log.unbroken:
        return CopyReport(_of_open(outbox, partition.chain, log, without), log.commit, epoch)
    return CopyReport(Standing.PARTIAL, log.commit, epoch)


def _of_open(outbox: Outbox, chain: Chain, log: SegmentLog, without: MemberId) -> Standing:
    for follower in log.followers:
        held = follower.durable if log.record.flush else follower.received
        if not outbox.is_linked(follower.member) or not follower.in_step or held < log.commit:
            return Standing.OUT_OF_STEP
    return Standing.IN_STEP if candidates.has_place(outbox, chain, without) else Standing.NOWHERE_TO_GO
