"""Declaring a gap: a person says that no disk will ever give a segment back, and the order goes on behind it.

One transaction on the chain record makes the segment LOST. It counts as settled with an empty producer table; groups
whose cursor stands in it move on in a new epoch, and their consumers are told. The act itself is refused while a member
that may hold the segment is linked; that the others are gone for good is the word of whoever asks.
"""

from __future__ import annotations

from seriatim_api import errors

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.chain import Chain, SegmentState, declare_lost
from ..values.effects import Resolved
from ..values.events import DeclareGap, WriteOutcome
from ..values.kinds import WriteOwner
from ..values.states import drop, put


def declare(broker: BrokerState, partition: Partition, event: DeclareGap) -> None:
    """Look at the record first: what is known here may be old."""
    if event.segment_no in partition.gaps:
        error = errors.UnavailableError("the same gap is being declared already")
        broker.out.emit(Resolved(event.request, partition.route(), error))
        return
    partition.gaps = put(partition.gaps, event.segment_no, event.request)
    partition.read_chain(broker)


def on_chain_read(broker: BrokerState, partition: Partition, failed: bool) -> None:
    """Refuse, or write."""
    for no in list(partition.gaps):
        if partition.is_writing(WriteOwner.GAP, no):
            continue
        chain = partition.chain
        if failed:
            _answer(broker, partition, no, errors.CoordinatorUnavailableError("the chain could not be read in time"))
        elif chain is None:
            _answer(broker, partition, no, errors.UnknownTopicError(f"there is no partition {partition.id}"))
        elif (refusal := _refusal(broker, chain, no)) is not None:
            _answer(broker, partition, no, refusal)
        elif chain.segment(no).state is SegmentState.LOST:  # type: ignore[union-attr]
            _answer(broker, partition, no, None)  # asked again after an answer was lost
        else:
            partition.write_chain(broker, WriteOwner.GAP, declare_lost(chain, no), no)


def _refusal(broker: BrokerState, chain: Chain, no: int) -> errors.SeriatimError | None:
    segment = chain.segment(no)
    if segment is None:
        return errors.BadRequestError(f"partition {chain.number} has no segment {no}", segment=no)
    if segment.state is SegmentState.OPEN:
        return errors.PreconditionError(f"segment {no} is open: it is not lost, a switch will leave it")
    if segment.state is SegmentState.LOST:
        return None
    for member in segment.members:
        if member == broker.member or broker.is_linked(member):
            return errors.PreconditionError(
                f"{member.broker} runs with a disk that has segment {no}: it is not lost", broker=member.broker
            )
    return None


def on_written(broker: BrokerState, partition: Partition, no: int, outcome: WriteOutcome) -> None:
    """The transaction ended."""
    if outcome is WriteOutcome.DONE:
        broker.out.note("gap_declared", partition.id, segment=no)
        _answer(broker, partition, no, None)
    elif outcome is WriteOutcome.REFUSED:
        text = (
            "the coordinator refused to write, see the broker's log; the gap is not declared unless it took the write"
        )
        _answer(broker, partition, no, errors.CoordinatorRefusedError(text))
    else:
        _answer(broker, partition, no, errors.UnavailableError("the chain changed meanwhile; ask again"))


def _answer(broker: BrokerState, partition: Partition, no: int, error: errors.SeriatimError | None) -> None:
    request = partition.gaps[no]
    partition.gaps = drop(partition.gaps, no)
    broker.out.emit(Resolved(request, partition.route(), error))
