"""Settling: giving an UNSETTLED segment its length when one of its members is back.

A trusted member fences itself; its length follows as in a switch (an unbroken master's commit, else its tail). What
lies above the commit it knew may be on its disk alone, so it is copied to another disk first. Then one transaction.
Nothing that a producer says can settle a segment: consumers may have been given more than the producer knows.

A suspect (its run ended badly, and the topic does not flush before commit) waits for a member that is none. If all
members are back, fenced, and suspects, the longest of their tails is the best there is: they tell one another, whoever
has it settles, and an event says so, for messages that were acknowledged may be missing. Nobody waits for a member
whose slot was given to another disk: it never comes back.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from . import right
from .chain import Chain, Seal, SegmentState, settle
from .effects import Send
from .events import WriteOutcome
from .log import PutTailCopy, TailCopy, merge_tails
from .messages import StoreTail, SuspectTail, TailStored
from .outbox import Outbox
from .partition import Partition
from .state import State, drop, put


class Settlement(State):
    """One segment that this member is settling."""

    __slots__ = ("asked", "fenced", "id", "pause_us", "stored", "suspects", "wake_us", "writing")

    def __init__(self) -> None:
        self.id = b""
        self.fenced = False  # durably, with all that lies below the tail
        self.asked: tuple[MemberId, ...] = ()
        self.stored: dict[MemberId, None] = {}
        self.suspects: dict[MemberId, int] = {}  # the tails of other members that are suspects as well
        self.pause_us = 0
        self.wake_us = 0
        self.writing = False


def on_learned(outbox: Outbox, partition: Partition, chain: Chain) -> None:
    """Begin with what this member can settle, end what is settled."""
    for segment in chain.segments:
        if segment.state is not SegmentState.UNSETTLED:
            partition.settling = drop(partition.settling, segment.no)
        elif segment.no not in partition.settling and segment.no in partition.logs and outbox.member in segment.members:
            settlement = Settlement()
            settlement.id = outbox.new_id()
            partition.settling = put(partition.settling, segment.no, settlement)
            partition.logs[segment.no].fence(outbox)
            right.refuse_server(outbox, partition, segment.no)
            outbox.when_stored(partition.id, "settle", segment.no)
    for no in [no for no in partition.settling if chain.segment(no) is None]:
        partition.settling = drop(partition.settling, no)


def on_fenced(outbox: Outbox, partition: Partition, no: int) -> None:
    """The fence is durable: get the tail on a second disk, then write; a suspect compares with the others first."""
    settlement = partition.settling.get(no)
    if settlement is None:
        return
    settlement.fenced = True
    if partition.logs[no].suspect:
        for member in _others(outbox, partition, no):
            outbox.send(member, SuspectTail(partition.id, no, length_of(partition, no)))
    _go_on(outbox, partition, no, settlement)


def on_directory(outbox: Outbox, partition: Partition) -> None:
    """A disk that somebody waited for may have been replaced."""
    for no, settlement in list(partition.settling.items()):
        _go_on(outbox, partition, no, settlement)


def _others(outbox: Outbox, partition: Partition, no: int) -> list[MemberId]:
    """The other members that may come back."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    members = segment.members if segment is not None else ()
    return [member for member in members if member != outbox.member and not outbox.is_replaced(member)]


def on_suspect_tail(outbox: Outbox, partition: Partition, sender: MemberId, message: SuspectTail) -> None:
    """Another member is a suspect too, and says what it has."""
    no = message.segment_no
    settlement = partition.settling.get(no)
    if settlement is None or not partition.logs[no].suspect or sender not in _others(outbox, partition, no):
        return
    is_news = sender not in settlement.suspects
    settlement.suspects[sender] = message.length
    if is_news and settlement.fenced:  # it may not have been listening when this one told
        outbox.send(sender, SuspectTail(partition.id, no, length_of(partition, no)))
    _go_on(outbox, partition, no, settlement)


def _may_speak(outbox: Outbox, partition: Partition, no: int, settlement: Settlement) -> bool:
    """Whether this member's tail may become the length: it is trusted, or the longest where nobody is."""
    if not partition.logs[no].suspect:
        return True
    others = _others(outbox, partition, no)
    if any(member not in settlement.suspects for member in others):
        return False
    segment = partition.chain.segment(no) if partition.chain is not None else None
    assert segment is not None
    tails = {member: settlement.suspects[member] for member in others}
    tails[outbox.member] = length_of(partition, no)
    speakers = [member for member in segment.members if member in tails]
    return max(speakers, key=lambda member: tails[member]) == outbox.member  # of equals the first


def length_of(partition: Partition, no: int) -> int:
    """The length that this member gives the segment."""
    log = partition.logs[no]
    return log.commit if log.unbroken else log.tail


def _tail(partition: Partition, no: int) -> TailCopy:
    return partition.logs[no].tail_copy(length_of(partition, no))


def _go_on(outbox: Outbox, partition: Partition, no: int, settlement: Settlement) -> None:
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    if chain is None or segment is None or not settlement.fenced or settlement.writing:
        return
    if not _may_speak(outbox, partition, no, settlement):
        if settlement.suspects and settlement.wake_us <= outbox.now.mono_us:
            _pause(outbox, partition, no, settlement)  # another one settles, and its word may not come: look again
        return
    tail = _tail(partition, no)
    if tail.batches and not settlement.stored:
        following = chain.segment(no + 1)
        assert following is not None
        others = [member for member in (*following.members, *segment.members) if member != outbox.member]
        settlement.asked = tuple(dict.fromkeys(others))
        for member in settlement.asked:
            outbox.send(member, StoreTail(partition.id, settlement.id, tail))
        _pause(outbox, partition, no, settlement)
        return
    trusted = outbox.member in segment.eligible  # else others have acknowledgements that this member never saw
    seal = Seal(
        length=tail.length,
        checksum=partition.logs[no].checksum_at(tail.length),
        server=outbox.member if trusted else segment.server,
        eligible=(outbox.member,) if trusted else segment.eligible,
        tail_from=tail.from_index if settlement.stored else None,
        tail_copies=tuple(settlement.stored),
    )
    settlement.writing = True
    if partition.logs[no].suspect:
        outbox.note("settled_by_suspect", partition.id, segment=no, length=tail.length)
    partition.write_chain(outbox, "settle", settle(chain, no, seal), no)


def on_tail_stored(outbox: Outbox, partition: Partition, sender: MemberId, message: TailStored) -> None:
    """A second disk has the tail."""
    settlement = partition.settling.get(message.segment_no)
    if settlement is None or settlement.id != message.settle or sender not in settlement.asked:
        return
    settlement.stored[sender] = None
    _go_on(outbox, partition, message.segment_no, settlement)


def on_written(outbox: Outbox, partition: Partition, no: int, outcome: WriteOutcome) -> None:
    """Lost or not known: the chain is being read; try again after it."""
    settlement = partition.settling.get(no)
    if settlement is not None:
        settlement.writing = False
        if outcome is not WriteOutcome.DONE:
            _pause(outbox, partition, no, settlement)


def _pause(outbox: Outbox, partition: Partition, no: int, settlement: Settlement) -> None:
    config = outbox.config
    settlement.pause_us = min(max(2 * settlement.pause_us, config.retry_us), config.retry_us_max)
    settlement.wake_us = outbox.now.mono_us + settlement.pause_us
    outbox.wake(settlement.wake_us, "settle", partition.id, no)


def on_timer(outbox: Outbox, partition: Partition, no: int) -> None:
    """Try again; who leaves it to another suspect asks whether that one has settled."""
    settlement = partition.settling.get(no)
    if settlement is not None and outbox.now.mono_us >= settlement.wake_us:
        if not _may_speak(outbox, partition, no, settlement):
            partition.read_chain(outbox)
        _go_on(outbox, partition, no, settlement)


def on_link_up(outbox: Outbox, partition: Partition, member: MemberId) -> None:
    """Somebody who could store the tail is there, or whose tail is to be compared with."""
    for no, settlement in list(partition.settling.items()):
        if settlement.fenced and partition.logs[no].suspect and member in _others(outbox, partition, no):
            outbox.send(member, SuspectTail(partition.id, no, length_of(partition, no)))
        if member in settlement.asked and member not in settlement.stored:
            outbox.send(member, StoreTail(partition.id, settlement.id, _tail(partition, no)))


# ---- for another settler --------------------------------------------------------------------------------


def on_store_tail(outbox: Outbox, partition: Partition, sender: MemberId, message: StoreTail) -> None:
    """Keep a second copy of an uncertain tail for a settler."""
    known = partition.tail_copies.get(message.tail.segment_no)
    merged = message.tail if known is None else merge_tails(known, message.tail)
    if merged != known:
        partition.tail_copies = put(partition.tail_copies, merged.segment_no, merged)
        outbox.write(PutTailCopy(partition.id, merged))
    stored = TailStored(partition.id, message.tail.segment_no, message.settle)
    outbox.when_durable(Send(sender.broker, stored))
