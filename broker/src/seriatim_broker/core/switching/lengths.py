"""What a switch seals: the length, the table and the tail that follow from what the members answered."""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Switch
from ..values.chain import Seal, Segment
from ..values.log import TailCopy
from ..values.messages import FenceAnswer


def believed(broker: BrokerState, partition: Partition, switch: Switch) -> list[MemberId]:
    """The members whose answered length may decide: not below what another one knows to be committed.

    Rule `known-elsewhere` (I1): a disk with less than that has forgotten something. It is an older copy.
    """
    answers = {member: answer for member, answer in switch.sealing.answers.items() if answer.length is not None}
    assert switch.chain is not None
    start = switch.chain.open_segment.start  # every member had flushed what retention dropped
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
    """Whose answer becomes the sealed length.

    Of members that ran on the shortest tail, because it copies least. Of disks that were just started the longest:
    rule `longest-of-started` (I1). One of them may be an older copy, and what is missing on that one was perhaps
    acknowledged.
    """
    unbroken = [member for member in with_length if switch.sealing.answers[member].unbroken]
    if unbroken:
        return unbroken[0]
    ran_on = [member for member in with_length if not switch.sealing.answers[member].from_disk]
    if ran_on:
        return min(ran_on, key=lambda member: switch.sealing.answers[member].length or 0)
    return max(with_length, key=lambda member: switch.sealing.answers[member].length or 0)


def uncertain_tail(switch: Switch) -> TailCopy | None:
    """The uncertain tail: sealed in, perhaps on one disk only."""
    if switch.sealing.source is None:
        return None
    answer = switch.sealing.answers[switch.sealing.source]
    if not answer.tail:
        return None
    assert answer.length is not None
    return TailCopy(switch.segment_no, answer.commit, answer.length, answer.tail)


def append_floor_ms(partition: Partition, switch: Switch) -> int:
    """The append time at which the next segment begins: what was appended last goes on in the chain.

    Where what is sealed has a batch, the time of its last one counts even if it is lower than the floor before: the
    master set append time back. With the older floor, producers that sent a moment ago would seem idle for as long
    as the clocks differ, be forgotten, and store a batch twice that they resend (I9). A batch above the sealed
    length sets nothing back: it is gone.

    A member that tells no length (it is suspect, or its table is too large) may know more than the record, or less:
    it answers 0 if it restarted and has no batch. So the newest of both counts.
    """
    sealed = switch.sealing.answers[switch.sealing.source] if switch.sealing.source is not None else None
    if sealed is not None and sealed.length:
        return sealed.last_append_ms
    floor_ms = partition.chain.open_segment.append_floor_ms if partition.chain is not None else 0
    no_length_ms = [answer.last_append_ms for answer in switch.sealing.answers.values() if answer.length is None]
    return max((floor_ms, *no_length_ms))


def seal(switch: Switch, old: Segment) -> Seal:
    assert switch.sealing.source is not None
    answer = switch.sealing.answers[switch.sealing.source]
    length = answer.length
    assert length is not None
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
    )


def _has(answer: FenceAnswer, length: int) -> bool:
    """Whether the member holds all below `length`: an unbroken master at least up to its commit."""
    return answer.length is not None and answer.length >= length
