"""Settling: a member that is back gives an UNSETTLED segment its length.

A trusted member fences itself. Its length follows as in a switch: an unbroken master gives its commit, any other member
its tail. The messages above the commit that it knew may be on its disk alone. So it copies them to another disk first.
Then one transaction seals the segment. Nothing that a producer says can settle a segment, because consumers may have
been given more than the producer knows.

A suspect is a member whose last member run ended badly, in a topic that does not flush before commit. It waits for a
member that is not a suspect. If all members are back and fenced, and all are suspects, they tell one another where
their logs end. The one with the longest log settles. The event `settled_by_suspect` says that acknowledged messages may
be missing. No member waits for a member whose slot has another disk, because that one never comes back.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..peers import right
from ..state.broker import BrokerState
from ..state.copies import Settlement
from ..state.partition import Partition
from ..values.chain import Chain, Seal, settle
from ..values.effects import Send
from ..values.events import WriteOutcome
from ..values.kinds import StoredFor, TimerKind, WriteOwner
from ..values.log import PutTailCopy, TailCopy, merge_tails
from ..values.messages import StoreTail, SuspectTail, TailStored
from ..values.segment import SegmentState
from ..values.segments import Changes
from ..values.states import drop, put


def on_learned(broker: BrokerState, partition: Partition, chain: Chain, changes: Changes) -> None:
    """The chain record changed: begin to settle each UNSETTLED segment of this member, and end what is settled."""
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
    """The fence is durable: copy the tail to a second disk, then write. A suspect compares tails first."""
    settlement = partition.settling.get(no)
    if settlement is None:
        return
    settlement.fenced = True
    if partition.logs[no].suspect or _may_be_older(partition, no):
        for member in _others(broker, partition, no):
            broker.send(member, _own_tail(partition, no))
    _go_on(broker, partition, no, settlement)


def on_directory(broker: BrokerState, partition: Partition) -> None:
    """Members or disks have changed: a member that a settlement waits for may have another disk now."""
    for no, settlement in list(partition.settling.items()):
        _go_on(broker, partition, no, settlement)


def _others(broker: BrokerState, partition: Partition, no: int) -> list[MemberId]:
    """The other members, without those whose disks were replaced: the replaced ones never come back."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    members = segment.members if segment is not None else ()
    return [member for member in members if member != broker.member and not broker.directory.is_replaced(member)]


def _may_be_older(partition: Partition, no: int) -> bool:
    """Whether this log may be an older copy: it flushes, and a start found it. (Others are compared as suspects.)"""
    log = partition.logs[no]
    return log.record.flush and log.is_from_disk


def _own_tail(partition: Partition, no: int) -> SuspectTail:
    log = partition.logs[no]
    return SuspectTail(
        partition.id, no, length_of(partition, no), log.record.flush, log.commit if log.record.flush else 0
    )


def _waits_for_second(broker: BrokerState, partition: Partition, no: int, settlement: Settlement) -> bool:
    """Whether another member has more, or may still say within `second_member_us` (3 s) that it has more.

    Rules `second-member` and `longest-of-started` (I1, I6), as in a switch. Without them:
      1. Both members of a topic that flushes go down. The disk of As is replaced by an older copy of itself, made
         within its last member run.
      2. As comes back first, and settles the segment at its tail.
      3. Am comes back with acknowledged messages above that length.
    """
    if not _may_be_older(partition, no):
        return False
    others = _others(broker, partition, no)  # a member whose disk was replaced has no tail any more
    longest = max((settlement.tails[member] for member in others if member in settlement.tails), default=0)
    if longest > length_of(partition, no):
        settlement.is_behind = True
        _pause(broker, partition, no, settlement)  # it settles, and may not be able to say so: read again later
        return True
    until_us = settlement.began_us + broker.config.second_member_us
    missing = [member for member in others if member not in settlement.tails]
    if not missing or broker.now.mono_us >= until_us:
        return False
    settlement.wake_us = until_us
    broker.wake(until_us, TimerKind.SETTLE, partition.id, no)
    return True


def on_suspect_tail(broker: BrokerState, partition: Partition, sender: MemberId, message: SuspectTail) -> None:
    """Another member says where its log ends: it may be a suspect, or it may have an older copy of its disk."""
    no = message.segment_no
    settlement = partition.settling.get(no)
    if settlement is not None and message.compares and sender in _others(broker, partition, no):
        settlement.tails[sender] = message.length
        if message.commit > length_of(partition, no):
            broker.out.note("older_disk", partition.id, segment=no, member=str(broker.member), committed=message.commit)
        if partition.logs[no].record.flush:
            _answer(broker, partition, no, settlement, sender)
        _go_on(broker, partition, no, settlement)
        return
    if settlement is None or not partition.logs[no].suspect or sender not in _others(broker, partition, no):
        return
    settlement.suspects[sender] = message.length
    _answer(broker, partition, no, settlement, sender)
    _go_on(broker, partition, no, settlement)


def _answer(broker: BrokerState, partition: Partition, no: int, settlement: Settlement, member: MemberId) -> None:
    """Send a member the tail here, once on each link: it may not have settled yet when this member reported it.

    Rule `answered-anew` (I13): once on each link, and not once for ever. Without it:
      1. Am and As are suspects, and have reported each other where their logs end. As restarts.
      2. Am tells As when they are linked, and As drops that, because it has not read the chain record yet.
      3. As sends it to Am. Am knows that already, and does not answer. Each waits for the other, for ever.
    """
    if settlement.fenced and member not in settlement.answered:
        settlement.answered[member] = None
        broker.send(member, _own_tail(partition, no))


def _may_speak(broker: BrokerState, partition: Partition, no: int, settlement: Settlement) -> bool:
    """Whether this member's tail may become the length: it is trusted, or no member is and its tail is the longest."""
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
    return max(speakers, key=lambda member: tails[member]) == broker.member  # among equal tails the first member


def length_of(partition: Partition, no: int) -> int:
    """The length that this member gives the segment.

    Rule `settle-tail` (I6): a segment is settled at a fenced disk's tail, not at the commit that it knew. Without it:
      1. As has stored and flushed a, and Am has acknowledged it. As has not heard the new commit, 1, yet.
      2. Both members die. As comes back and settles at the commit that it knew, 0. The acknowledged a is gone.
    """
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
            _pause(broker, partition, no, settlement)  # another one settles, and may not be able to say so: read again
        return
    if _waits_for_second(broker, partition, no, settlement):
        return
    tail = _tail(partition, no)
    # Rule `settle-copy` (I12): the member that settles copies its tail before the transaction. Without it: 1. a reached
    # Am only, and both members died. 2. Am comes back and settles the segment with a in it. 3. The next switch merges
    # the producer tables. The producer resends a, and the next master answers ok. Only one disk has a.
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
    trusted = broker.member in segment.eligible  # else others have acks that this member never saw
    # Rule `settled-until` (D1): the record says until when something is delayed, as if it had been sealed. Without it:
    #   1. d is in segment 1, which is opened over, and is due in a day. Segment 1 is settled with d in it.
    #   2. Retention asks no server of a segment in which nothing is delayed, and drops segment 1. d is never fired.
    seal = Seal(
        length=tail.length,
        checksum=partition.logs[no].checksum_at(tail.length),
        server=broker.member if trusted else segment.server,
        eligible=(broker.member,) if trusted else segment.eligible,
        tail_from=tail.from_index if settlement.stored else None,
        tail_copies=tuple(settlement.stored),
        size_bytes=partition.logs[no].size_at(tail.length),
        delayed_until_ms=partition.logs[no].delayed_until_ms,
    )
    settlement.writing = True
    if partition.logs[no].suspect:
        broker.out.note("settled_by_suspect", partition.id, segment=no, length=tail.length)
    partition.write_chain(broker, WriteOwner.SETTLE, settle(chain, no, seal), no)


def on_tail_stored(broker: BrokerState, partition: Partition, sender: MemberId, message: TailStored) -> None:
    """A second disk has the tail: write the transaction."""
    settlement = partition.settling.get(message.segment_no)
    if settlement is None or settlement.id != message.settle or sender not in settlement.asked:
        return
    settlement.stored[sender] = None
    _go_on(broker, partition, message.segment_no, settlement)


def on_written(broker: BrokerState, partition: Partition, no: int, outcome: WriteOutcome) -> None:
    """The transaction ended. Unless it was done, the chain is being read: try again after a pause."""
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
    """The pause is over: try again. If another member is to settle, read whether it has."""
    settlement = partition.settling.get(no)
    if settlement is not None and broker.now.mono_us >= settlement.wake_us:
        if settlement.is_behind or not _may_speak(broker, partition, no, settlement):
            partition.read_chain(broker)
        _go_on(broker, partition, no, settlement)


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A member is linked: send it the tail here if tails are compared, and ask it again to store the tail copy."""
    for no, settlement in list(partition.settling.items()):
        settlement.answered.pop(member, None)
        compares = partition.logs[no].suspect or _may_be_older(partition, no)
        if settlement.fenced and compares and member in _others(broker, partition, no):
            broker.send(member, _own_tail(partition, no))
        if member in settlement.asked and member not in settlement.stored:
            broker.send(member, StoreTail(partition.id, settlement.id, _tail(partition, no)))


# ---- for another settler --------------------------------------------------------------------------------


def on_store_tail(broker: BrokerState, partition: Partition, sender: MemberId, message: StoreTail) -> None:
    """Keep a second copy of an uncertain tail for the member that settles.

    Each member of the segment has one tail, and any of them may settle. So a tail that does not touch the tails known
    before is kept beside them. A segment has at most as many tail copies here as it has members.

    If this member knows no record, it reads the coordinator, and so finds out whether the partition was deleted (rule
    `tombstone-read`). Otherwise it would keep the copy until its next start.
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
    if partition.chain is None:
        partition.read_chain(broker)
