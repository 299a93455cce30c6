"""Declaring a gap: an administrator says that no disk will ever give a segment back, so that the partition continues
after it.

One transaction on the chain record makes the segment LOST. From then on it counts as settled with an empty producer
table. Consumer groups whose cursor is in it move to the next segment in a new group epoch, and their servers notify the
consumers. The broker refuses to declare the gap while a member that may hold the segment is linked. That the other
members are gone for good is the word of the administrator who asks.
"""

from __future__ import annotations

from seriatim_api import errors

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.chain import Chain, declare_lost
from ..values.effects import Resolved
from ..values.events import DeclareGap, WriteOutcome
from ..values.kinds import WriteOwner
from ..values.segment import SegmentState
from ..values.states import drop, put


def declare(broker: BrokerState, partition: Partition, event: DeclareGap) -> None:
    """An administrator declares a gap: read the chain record first, because the one that is known here may be old."""
    if event.segment_no in partition.gaps:
        error = errors.UnavailableError("another request declares the same gap now: wait for its answer")
        broker.out.emit(Resolved(event.request, partition.route(), error))
        return
    partition.gaps = put(partition.gaps, event.segment_no, event.request)
    partition.read_chain(broker)


def on_chain_read(broker: BrokerState, partition: Partition, failed: bool) -> None:
    """The chain was read: refuse each gap that waits for it, or write it."""
    for no in list(partition.gaps):
        if partition.is_writing(WriteOwner.GAP, no):
            continue
        chain = partition.chain
        if failed:
            _answer(broker, partition, no, errors.CoordinatorUnavailableError("the chain could not be read: ask again"))
        elif chain is None:
            _answer(broker, partition, no, errors.UnknownTopicError(f"there is no {partition.name}"))
        elif (refusal := _refusal(broker, chain, no)) is not None:
            _answer(broker, partition, no, refusal)
        elif chain.segment(no).state is SegmentState.LOST:  # type: ignore[union-attr]
            _answer(broker, partition, no, None)  # the administrator asks again because an answer was lost
        else:
            partition.write_chain(broker, WriteOwner.GAP, declare_lost(chain, no), no)


def _refusal(broker: BrokerState, chain: Chain, no: int) -> errors.SeriatimError | None:
    segment = chain.segment(no)
    if segment is None:
        return errors.BadRequestError(f"{chain.name} has no segment {no}", segment=no)
    if segment.state is SegmentState.OPEN:
        return errors.PreconditionError(f"segment {no} is open: it is not lost, and a switch will seal it")
    if segment.state is SegmentState.LOST:
        return None
    for member in segment.members:
        if member == broker.member or broker.is_linked(member):
            return errors.PreconditionError(
                f"{member.broker} runs with a disk that has segment {no}: it is not lost", broker=member.broker
            )
    return None


def on_written(broker: BrokerState, partition: Partition, no: int, outcome: WriteOutcome) -> None:
    """The transaction ended: answer the administrator."""
    if outcome is WriteOutcome.DONE:
        broker.out.note("gap_declared", partition.id, segment=no)
        _answer(broker, partition, no, None)
    elif outcome is WriteOutcome.REFUSED:
        text = (
            "the coordinator refused to write, and the broker's log says why; the gap is not declared unless the "
            "coordinator stored the write all the same; ask again when it takes writes"
        )
        _answer(broker, partition, no, errors.CoordinatorRefusedError(text))
    else:
        _answer(
            broker,
            partition,
            no,
            errors.UnavailableError(
                "another transaction on the chain came first, or the coordinator did not answer; it is not known "
                "whether the gap is declared; ask again"
            ),
        )


def _answer(broker: BrokerState, partition: Partition, no: int, error: errors.SeriatimError | None) -> None:
    request = partition.gaps[no]
    partition.gaps = drop(partition.gaps, no)
    broker.out.emit(Resolved(request, partition.route(), error))
