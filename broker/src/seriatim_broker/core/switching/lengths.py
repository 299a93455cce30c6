"""What a switch seals: length, producer table and uncertain tail, derived from the members' answers to the fence."""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Switch
from ..values.chain import Seal
from ..values.log import TailCopy
from ..values.messages import FenceAnswer
from ..values.segment import Segment


def believed(broker: BrokerState, partition: Partition, switch: Switch) -> list[MemberId]:
    """The members whose answered length may decide. The log line `older_disk` names each member that is left out."""
    # Rule `known-elsewhere` (I1): a length below what another member knows to be committed does not count, because the
    # disk is an older copy. Without it:
    #   1. Am and As have a. Am knows that a is committed.
    #   2. Both restart, and As's directory is replaced by a copy from before a.
    #   3. As answers tail 0, which is shorter than Am's and decides. a is lost.
    answers = {member: answer for member, answer in switch.sealing.answers.items() if answer.length is not None}
    assert switch.chain is not None
    start = switch.chain.open_segment.start  # retention drops only what every member has flushed
    committed = max((answer.commit for answer in answers.values()), default=0)
    committed = max(committed, start)
    believed = [member for member, answer in answers.items() if (answer.length or 0) >= committed]
    for member in answers:
        if member not in believed:
            broker.out.note(
                "older_disk", partition.id, segment=switch.segment_no, member=str(member), committed=committed
            )
    return believed


def choose_source(switch: Switch, with_length: list[MemberId]) -> MemberId:
    """The member whose answer becomes the sealed length.

    1. An unbroken master, if one answered.
    2. Else the shortest tail of the members that did not restart. Any of their tails is safe, and with the shortest one
       the least must be copied.
    3. Else the longest tail of the disks that were just started.
    """
    # Rule `longest-of-started` (I1): of disks that were just started, the longest tail. Without it:
    #   1. Am and As have a, and a is acknowledged. Both restart; As's directory was replaced by an older copy.
    #   2. Am answers tail 1, As answers tail 0. Neither remembers that a was committed.
    #   3. The shorter tail, 0, decides. a is lost.
    unbroken = [member for member in with_length if switch.sealing.answers[member].unbroken]
    if unbroken:
        return unbroken[0]
    ran_on = [member for member in with_length if not switch.sealing.answers[member].from_disk]
    if ran_on:
        return min(ran_on, key=lambda member: switch.sealing.answers[member].length or 0)
    return max(with_length, key=lambda member: switch.sealing.answers[member].length or 0)


def uncertain_tail(switch: Switch) -> TailCopy | None:
    """The uncertain tail: sealed batches that are perhaps on one disk only."""
    # Rule `tail-copy` (I12): all members of the next segment write it before the transaction. Without it:
    #   1. a reached Am only. Am restarts and is fenced with tail 1. The switcher seals at 1.
    #   2. P resends a. It is in the producer table, so the new master answers ok. One disk has a.
    #   3. Am's disk dies. a is gone for every consumer group that has not read it.
    if switch.sealing.source is None:
        return None
    answer = switch.sealing.answers[switch.sealing.source]
    if not answer.tail:
        return None
    assert answer.length is not None
    return TailCopy(switch.segment_no, answer.commit, answer.length, answer.tail)


def append_floor_ms(partition: Partition, switch: Switch) -> int:
    """The append time at which the next segment begins, in ms.

    If the sealed segment has a batch, this is the append time of the last one. Else it is the newest append time in the
    record and in the answers without a length. A member answers no length if it is a suspect, or if its table is too
    large. Such a member may know a newer or an older append time than the record; 0 if it restarted and has no batch.
    """
    # Rule `append-time-chain` (TIME): the append time of the last sealed batch goes into the next segment's record.
    # Without it:
    #   1. Am's clock is 20 s ahead of Bm's. Am appends a at 12:00:20.
    #   2. The switcher opens the next segment on Bm, whose clock says 12:00:01.
    #   3. Bm appends b at 12:00:01: append time goes back.
    #
    # The last sealed batch counts even if its time is below the floor before, because the master set append time back
    # (`append-time-believed`). Without it:
    #   1. The floor is a day ahead, from a master whose clock was wrong. The next master sets append time back.
    #   2. After the next switch, append time is a day ahead again.
    #   3. Who reads from a time on misses what was sent today, and retention keeps it for a day longer.
    #
    # A batch above the sealed length does not count: it is gone.
    sealed = switch.sealing.answers[switch.sealing.source] if switch.sealing.source is not None else None
    if sealed is not None and sealed.length:
        return sealed.last_append_ms
    floor_ms = partition.chain.open_segment.append_floor_ms if partition.chain is not None else 0
    no_length_ms = [answer.last_append_ms for answer in switch.sealing.answers.values() if answer.length is None]
    return max((floor_ms, *no_length_ms))


def seal(switch: Switch, old: Segment) -> Seal:
    """The seal that the transaction writes into the record of the old segment."""
    assert switch.sealing.source is not None
    answer = switch.sealing.answers[switch.sealing.source]
    # Rule `known-commit` (I6): the length is the answered tail, not the commit that the answering member knew.
    # Without it:
    #   1. Am and As have a. Am acknowledges a and dies before it sends As the new commit.
    #   2. As answers tail 1, and that it knows commit 0.
    #   3. The switcher seals at 0. a is lost (I1).
    length = answer.length
    assert length is not None
    assert answer.size_bytes is not None
    # Rule `eligible-stay` (I14): only members that answered a length, and that have all messages below the sealed
    # length, are eligible. Without it:
    #   1. As restarts with tail 3, while Am is sealed at 5. As stays eligible.
    #   2. Am becomes silent, and As takes the serving right.
    #   3. As serves a segment of which it lacks two messages.
    holders = [
        member for member, other in switch.sealing.answers.items() if other.length is not None and _has(other, length)
    ]
    server = old.server if old.server in holders else switch.sealing.source
    tail = uncertain_tail(switch)
    return Seal(
        length=length,
        checksum=answer.checksum,
        server=server,
        eligible=tuple(sorted(holders, key=old.members.index)),
        tail_from=tail.from_index if tail is not None else None,
        tail_copies=switch.opening.members if tail is not None else (),
        size_bytes=answer.size_bytes,
        delayed_until_ms=answer.delayed_until_ms,
    )


def _has(answer: FenceAnswer, length: int) -> bool:
    """Whether the member has all messages below `length`. An unbroken master answers only its commit."""
    return answer.length is not None and answer.length >= length
