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

from ..peers import right
from ..state.broker import BrokerState
from ..state.copies import Settlement
from ..state.partition import Partition
from ..values.chain import Chain, Seal, SegmentState, settle
from ..values.effects import Send
from ..values.events import WriteOutcome
from ..values.kinds import StoredFor, TimerKind, WriteOwner
from ..values.log import PutTailCopy, TailCopy, merge_tails
from ..values.messages import StoreTail, SuspectTail, TailStored
from ..values.segments import Changes
from ..values.states import drop, put


def on_learned(broker: BrokerState, partition: Partition, chain: Chain, changes: Changes) -> None:
    """Begin with what this member can settle, end what is settled."""
    for segment in changes.changed:
        if segment.state is not SegmentState.UNSETTLED:
            partition.settling = drop(partition.settling, segment.no)
        elif segment.no not in partition.settling and segment.no in partition.logs and broker.member in segment.members:
            settlement = Settlement()
            settlement.id = broker.new_id()
            settlement.began_us = broker.now.mono_us
            partition.settling = put(partition.settling, segment.no, settlement)
            partition.logs[segment.no].fence(broker)
            right.refuse_server(broker, partition, segment.no)
            broker.out.when_stored(partition.id, StoredFor.SETTLE, segment.no)
    for no in changes.gone:
        partition.settling = drop(partition.settling, no)


def on_fenced(broker: BrokerState, partition: Partition, no: int) -> None:
    """The fence is durable: get the tail on a second disk, then write; a suspect compares with the others first."""
    settlement = partition.settling.get(no)
    if settlement is None:
        return
    settlement.fenced = True
    if partition.logs[no].suspect or _may_be_older(partition, no):
        for member in _others(broker, partition, no):
            broker.send(member, _own_tail(partition, no))
    _go_on(broker, partition, no, settlement)


def on_directory(broker: BrokerState, partition: Partition) -> None:
    """A disk that somebody waited for may have been replaced."""
    for no, settlement in list(partition.settling.items()):
        _go_on(broker, partition, no, settlement)


def _others(broker: BrokerState, partition: Partition, no: int) -> list[MemberId]:
    """The other members that may come back."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    members = segment.members if segment is not None else ()
    return [member for member in members if member != broker.member and not broker.directory.is_replaced(member)]


def _may_be_older(partition: Partition, no: int) -> bool:
    """Whether this log may be an older copy: a restart found it. (What does not flush is compared as suspects are.)"""
    log = partition.logs[no]
    return log.record.flush and log.is_from_disk


def _own_tail(partition: Partition, no: int) -> SuspectTail:
    log = partition.logs[no]
    return SuspectTail(
        partition.id, no, length_of(partition, no), log.record.flush, log.commit if log.record.flush else 0
    )


def _waits_for_second(broker: BrokerState, partition: Partition, no: int, settlement: Settlement) -> bool:
    """Whether another member has more, or the others get some more time to say what they have.

    Rules `second-member` and `longest-of-started`, as in a switch: see `Switch`.
    """
    if not _may_be_older(partition, no):
        return False
    others = _others(broker, partition, no)  # without members whose disk was replaced: they have nothing any more
    longest = max((settlement.tails[member] for member in others if member in settlement.tails), default=0)
    if longest > length_of(partition, no):
        settlement.is_behind = True
        _pause(broker, partition, no, settlement)  # the other one settles, and its word may not come: look again
        return True
    until_us = settlement.began_us + broker.config.second_member_us
    missing = [member for member in others if member not in settlement.tails]
    if not missing or broker.now.mono_us >= until_us:
        return False
    settlement.wake_us = until_us
    broker.wake(until_us, TimerKind.SETTLE, partition.id, no)
    return True


def on_suspect_tail(broker: BrokerState, partition: Partition, sender: MemberId, message: SuspectTail) -> None:
    """Another member is a suspect too, and says what it has."""
    no = message.segment_no
    settlement = partition.settling.get(no)
    if settlement is not None and message.compares and sender in _others(broker, partition, no):
        is_news = sender not in settlement.tails
        settlement.tails[sender] = message.length
        if message.commit > length_of(partition, no):
            broker.out.note("older_disk", partition.id, segment=no, member=str(broker.member), committed=message.commit)
        if is_news and settlement.fenced and partition.logs[no].record.flush:
            broker.send(sender, _own_tail(partition, no))
        _go_on(broker, partition, no, settlement)
        return
    if settlement is None or not partition.logs[no].suspect or sender not in _others(broker, partition, no):
        return
    is_news = sender not in settlement.suspects
    settlement.suspects[sender] = message.length
    if is_news and settlement.fenced:  # it may not have been listening when this one told
        broker.send(sender, _own_tail(partition, no))
    _go_on(broker, partition, no, settlement)


def _may_speak(broker: BrokerState, partition: Partition, no: int, settlement: Settlement) -> bool:
    """Whether this member's tail may become the length: it is trusted, or the longest where nobody is."""
    if not partition.logs[no].suspect:
        return True
    others = _others(broker, partition, no)
    if any(member not in settlement.suspects for member in others):
        return False
    segment = partition.chain.segment(no) if partition.chain is not None else None
    assert segment is not None
    tails = {member: settlement.suspects[member] for member in others}
    tails[broker.member] = length_of(partition, no)
    speakers = [member for member in segment.members if member in tails]
    return max(speakers, key=lambda member: tails[member]) == broker.member  # of equals the first


def length_of(partition: Partition, no: int) -> int:
    """The length that this member gives the segment."""
    log = partition.logs[no]
    return log.commit if log.unbroken else log.tail


def _tail(partition: Partition, no: int) -> TailCopy:
    return partition.logs[no].tail_copy(length_of(partition, no))


def _go_on(broker: BrokerState, partition: Partition, no: int, settlement: Settlement) -> None:
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    if chain is None or segment is None or not settlement.fenced or settlement.writing:
        return
    if not _may_speak(broker, partition, no, settlement):
        if settlement.suspects and settlement.wake_us <= broker.now.mono_us:
            _pause(broker, partition, no, settlement)  # another one settles, and its word may not come: look again
        return
    if _waits_for_second(broker, partition, no, settlement):
        return
    tail = _tail(partition, no)
    if tail.batches and not settlement.stored:
        following = chain.after(no)
        assert following is not None
        others = [member for member in (*following.members, *segment.members) if member != broker.member]
        settlement.asked = tuple(dict.fromkeys(others))
        for member in settlement.asked:
            broker.send(member, StoreTail(partition.id, settlement.id, tail))
        _pause(broker, partition, no, settlement)
        return
    if partition.write_wait_us(broker):
        _pause(broker, partition, no, settlement)
        return
    trusted = broker.member in segment.eligible  # else others have acknowledgements that this member never saw
    seal = Seal(
        length=tail.length,
        checksum=partition.logs[no].checksum_at(tail.length),
        server=broker.member if trusted else segment.server,
        eligible=(broker.member,) if trusted else segment.eligible,
        tail_from=tail.from_index if settlement.stored else None,
        tail_copies=tuple(settlement.stored),
        size_bytes=partition.logs[no].size_at(tail.length),
    )
    settlement.writing = True
    if partition.logs[no].suspect:
        broker.out.note("settled_by_suspect", partition.id, segment=no, length=tail.length)
    partition.write_chain(broker, WriteOwner.SETTLE, settle(chain, no, seal), no)


def on_tail_stored(broker: BrokerState, partition: Partition, sender: MemberId, message: TailStored) -> None:
    """A second disk has the tail."""
    settlement = partition.settling.get(message.segment_no)
    if settlement is None or settlement.id != message.settle or sender not in settlement.asked:
        return
    settlement.stored[sender] = None
    _go_on(broker, partition, message.segment_no, settlement)


def on_written(broker: BrokerState, partition: Partition, no: int, outcome: WriteOutcome) -> None:
    """Lost or not known: the chain is being read; try again after it."""
    settlement = partition.settling.get(no)
    if settlement is not None:
        settlement.writing = False
        if outcome is not WriteOutcome.DONE:
            _pause(broker, partition, no, settlement)


def _pause(broker: BrokerState, partition: Partition, no: int, settlement: Settlement) -> None:
    config = broker.config
    settlement.pause_us = min(max(2 * settlement.pause_us, config.retry_us), config.retry_us_max)
    settlement.wake_us = broker.now.mono_us + settlement.pause_us
    broker.wake(settlement.wake_us, TimerKind.SETTLE, partition.id, no)


def on_timer(broker: BrokerState, partition: Partition, no: int) -> None:
    """Try again; who leaves it to another suspect asks whether that one has settled."""
    settlement = partition.settling.get(no)
    if settlement is not None and broker.now.mono_us >= settlement.wake_us:
        if settlement.is_behind or not _may_speak(broker, partition, no, settlement):
            partition.read_chain(broker)
        _go_on(broker, partition, no, settlement)


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """Somebody who could store the tail is there, or whose tail is to be compared with."""
    for no, settlement in list(partition.settling.items()):
        compares = partition.logs[no].suspect or _may_be_older(partition, no)
        if settlement.fenced and compares and member in _others(broker, partition, no):
            broker.send(member, _own_tail(partition, no))
        if member in settlement.asked and member not in settlement.stored:
            broker.send(member, StoreTail(partition.id, settlement.id, _tail(partition, no)))


# ---- for another settler --------------------------------------------------------------------------------


def on_store_tail(broker: BrokerState, partition: Partition, sender: MemberId, message: StoreTail) -> None:
    """Keep a second copy of an uncertain tail for a settler.

    Each member of the segment has one tail, and any of them may settle. So a tail that does not touch the others is
    kept beside them: a row has at most as many places as the segment has members.
    """
    no = message.tail.segment_no
    row = partition.tail_copies.get(no, ())
    place, merged = len(row), message.tail
    for number, known in enumerate(row):
        both = merge_tails(known, message.tail)
        if both is not None:
            place, merged = number, both
            break
    if row[place : place + 1] != (merged,):
        partition.tail_copies = put(partition.tail_copies, no, (*row[:place], merged, *row[place + 1 :]))
        broker.out.write(PutTailCopy(partition.id, merged, place))
    stored = TailStored(partition.id, message.tail.segment_no, message.settle)
    broker.out.when_durable(Send(sender.broker, stored))
