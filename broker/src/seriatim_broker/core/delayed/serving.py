"""Who acts on delayed messages: the server of their segment, as soon as all segments before are settled."""

from __future__ import annotations

from typing import Final

from seriatim_api import errors

from ..peers import right
from ..state.broker import BrokerState
from ..state.delayed import Firing
from ..state.partition import Partition
from ..values.delayed_messages import DelayedCancelled, PendingFound
from ..values.kinds import TimerKind
from ..values.ledger_rows import LedgerRowError
from ..values.segment import Segment, SegmentState
from ..values.states import drop, put
from . import ledger, volley_fence

LOOK_US: Final = 60_000_000
"""A server looks again at the latest after this long: the wall clock may be set, or the ledger readable again."""

RETRY_AFTER_MS: Final = 20


def take_up(broker: BrokerState, partition: Partition, no: int) -> Firing | None:
    """What is delayed in the segment, if this member serves it and may act on it now; None if not.

    Rule `fire-unsettled` (D1): nothing is fired or cancelled from a segment before all segments before it are settled.
    Without it:
      1. d is in segment 1, which is opened over. Its producer sends d again, and segment 2 takes it.
      2. Segment 1 is settled with d in it.
      3. The servers of both segments fire d, under two producer ids, so that no table finds the repeat.
    """
    chain, log = partition.chain, partition.logs.get(no)
    segment = chain.segment(no) if chain is not None else None
    known = partition.firing.get(no)
    if log is None or not log.has_delayed or chain is None or segment is None or not is_server(broker, segment):
        if known is not None:
            stop(broker, partition, known)
        return None
    if known is not None and known.server_epoch != segment.server_epoch:
        stop(broker, partition, known)
    if not right.has_right(broker, partition, segment):
        broker.poll(broker.config.heartbeat_us, TimerKind.DELAYED, partition.id, no)
        return None
    if not chain.settled_before(no) or log.record.quarantined:
        return None  # a newer record wakes it
    # Rule `fire-in-sync` (D1, D3): a server whose copy is not complete waits until it is. Without it:
    #   1. The topic does not flush. The server of segment 1 loses power, and with it the end of its copy.
    #   2. It finds all rows passed, and writes that nothing is left.
    #   3. Its copy is completed. d is in the part that was missing, and is never fired.
    if segment.state is SegmentState.SEALED and not log.is_in_sync:
        broker.poll(broker.config.silence_us, TimerKind.DELAYED, partition.id, no)
        return None
    firing = partition.firing.get(no)
    if firing is None:
        try:
            firing = ledger.begin(broker, partition, segment)
        except LedgerRowError as exc:
            broker.out.note("delay_ledger_unreadable", partition.id, segment=no, error=str(exc))
            broker.poll(LOOK_US, TimerKind.DELAYED, partition.id, no)
            return None
        partition.firing = put(partition.firing, no, firing)
        log.take_fresh()  # the rows are on the disk
    if not ledger.is_common(firing, firing.begun):
        return None
    if not firing.fence.learns:
        return firing
    if not firing.fence.is_written and not firing.ledger.replications:
        ledger.write(broker, partition, segment, firing)
    if firing.fence.is_written and not firing.ledger.replications:
        volley_fence.look(broker, partition, firing)
    return None


def is_server(broker: BrokerState, segment: Segment) -> bool:
    """Whether this member serves the segment, as the chain record says."""
    return segment.server == broker.member and segment.state in (SegmentState.OPEN, SegmentState.SEALED)


def replace_missing(broker: BrokerState, partition: Partition, segment: Segment) -> None:
    """Another member serves delayed messages that this member has too. If it is not there, try to replace it.

    Rule `firing-goes-on` (I13): no client asks for that. Without it:
      1. The server of a sealed segment dies, in which d is delayed. No consumer reads that segment any more.
      2. No member takes the right, so d is never fired.
    """
    log = partition.logs.get(segment.no)
    is_here = segment.state is SegmentState.SEALED and broker.member in segment.eligible
    if not is_here or log is None or not log.has_delayed or ledger.is_done(partition, segment.no):
        return
    if not broker.is_linked(segment.server):
        right.want_another(broker, partition, segment)
        broker.poll(broker.config.silence_us, TimerKind.DELAYED, partition.id, segment.no)


def ask_for_server(broker: BrokerState, partition: Partition, segment: Segment) -> None:
    """A client asks about a segment that another member serves. If that one is not there, have it replaced.

    `replace_missing` leaves out segments of which nothing is left to be fired. Questions about them must be answered,
    too, and consumers who would ask for a server have all of them.
    """
    if segment.state is SegmentState.SEALED and not broker.is_linked(segment.server):
        right.want_another(broker, partition, segment)


def stop(broker: BrokerState, partition: Partition, firing: Firing) -> None:
    """Another member serves the segment, or it is gone."""
    partition.firing = drop(partition.firing, firing.no)
    broker.count_forwarding((partition.id, firing.name), 0)
    log = partition.logs.get(firing.no)
    if log is not None and log.delayed is not None:
        log.delayed.fresh = None
    for one in (*firing.cancels, *firing.reads.values()):
        try_again(broker, one.request, f"another broker serves segment {firing.no} now")
    for request in (*firing.retention.new, *(one.request for one in firing.retention.asked)):
        refuse_pending(broker, request, f"another broker serves segment {firing.no} now")


def try_again(broker: BrokerState, request: int, why: str) -> None:
    """Refuse a cancellation: the client sends it again."""
    broker.out.emit(DelayedCancelled(request, None, errors.NotServingError(why, retry_after_ms=RETRY_AFTER_MS)))


def refuse_pending(broker: BrokerState, request: int, why: str) -> None:
    """It is not known what is pending: retention passes nothing, and asks again."""
    broker.out.emit(PendingFound(request, 0, errors.NotServingError(why, retry_after_ms=RETRY_AFTER_MS)))
