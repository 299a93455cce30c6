"""Behind: the coordinator has lost decisions that this broker knows of, because an older copy of it was restored.

A broker keeps the newest chain record of each of its partitions on its disk. A linearizable read that gives an older
one, another one under the same segment number, or none at all though nothing was deleted, is proof. Then this broker
fences what is open here, and holds back all its writes to the coordinator, until reads give what it knows again. What
would happen without it:

    1  Segment 1 is sealed, segment 2 is open on group B, and messages are acknowledged there.
    2  The coordinator is restored as it was while segment 1 was open.
    3  B goes on acknowledging in segment 2, which no reader is ever sent to. Or: a switcher reads "segment 1 is open",
       prepares segment 2 on group C, and the number 2 is used twice. New consumer groups get C's segment 2, and never
       what was acknowledged in B's.

A person ends this by rebuilding the coordinator from what the brokers know.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import PartitionId

from ..state.broker import BrokerState
from ..state.partition import NO_FLOOR, Partition
from ..values.chain import Chain, Segment
from ..values.kinds import TimerKind

OWN_RECORD = PartitionId(0)
"""In the place of a partition: the broker's own member record."""


def problem(broker: BrokerState, partition: Partition, chain: Chain | None, deleted: bool) -> str:
    """What a linearizable read lacks of what this broker knew when the read began; empty if nothing.

    Args:
        broker: Of this broker.
        partition: Its `read_floor` is still that of the read.
        chain: What was read.
        deleted: Whether there is a tombstone in place of the record.
    """
    floor = partition.read_floor or NO_FLOOR
    known = partition.decided
    if deleted or known is None or (not floor.epoch and partition.id not in broker.coordinator.behind):
        return ""
    name = f"partition {partition.id} ({known.topic} {known.number})"
    if chain is None:
        return f"it has no record of {name}, of which this broker knows epoch {known.epoch}" if floor.epoch else ""
    # Rule `told-floor`: what a member told before the read began counts, also if it could not be taken up.
    #   1  Segment 4 is opened. Every other broker hears of changes that do not fit what it knows, and reads.
    #   2  An older copy is restored before the answers. Without the rule they all believe what they read.
    #   3  They open segment 4 again (I7), while the one broker that has the record says that it was lost.
    if chain.epoch < floor.epoch:
        return f"its record of {name} has epoch {chain.epoch}, this broker knows {floor.epoch}"
    if chain.open_segment.no < floor.open_no:
        return f"its record of {name} ends with segment {chain.open_segment.no}, this broker knows of {floor.open_no}"
    if chain.epoch == known.epoch and _is_another(known, chain):
        return f"its record of {name} at epoch {chain.epoch} is another one than this broker knows"
    _, open_no = broker.coordinator.behind.get(partition.id, ("", 0))
    if chain.open_segment.no < open_no:
        return f"its record of {name} ends with segment {chain.open_segment.no}, a broker has segment {open_no}"
    return contradiction(known, chain)


def _is_another(known: Chain, chain: Chain) -> bool:
    """Whether two records of one epoch differ.

    Rule `same-revision` (I7): also under one revision. Without it:
      1. Segment 3 is open; a member was added to an older one, at epoch 4 and revision 32.
      2. The coordinator is restored as it was at epoch 3 and revision 29, and counts on from there.
      3. A switcher that knows nothing of epoch 4 seals segment 3 and opens segment 4, at epoch 4 and revision 32.
      4. A member compares its next write, in which segment 3 is still open, with revision 32, and it is carried out.

    Rule `same-record` (I13): what was lost, and decided once more with the same words, is the same record under another
    revision. Without it: (1) a write without an answer is repeated after the restore; (2) whoever learned of the first
    one waits until the rebuild mends the record; (3) there is nothing to mend.
    """
    return chain.segments != known.segments and _without_floors(chain) != _without_floors(known)


def _without_floors(chain: Chain) -> list[Segment]:
    """The segments as a broker of version 0.2.0 tells them: it does not know where append time begins in them."""
    return [replace(segment, append_floor_ms=0) for segment in chain.segments]


def contradiction(known: Chain, other: Chain) -> str:
    """How a record that is not older than the known one cannot have followed it; empty if it can."""
    last = min(known.open_segment.no, other.open_segment.no)
    if known.is_folded(last) and other.epoch >= known.epoch:
        what = f"partition {known.partition} ({known.topic} {known.number})"
        return f"its record of {what} ends with segment {last}, which was empty and is past, as this broker knows"
    if other.is_folded(last):
        return _folded_contradiction(known, other, last)
    mine, theirs = known.segment(last), other.segment(last)
    if mine is None or theirs is None:
        return ""
    if other.epoch > known.epoch and (other.open_segment.no < known.open_segment.no or _is_undone(mine, theirs)):
        what = f"partition {known.partition} ({known.topic} {known.number})"
        return f"its record of {what} ends with segment {other.open_segment.no}, as before what this broker knows"
    name = f"segment {last} of partition {known.partition} ({known.topic} {known.number})"
    if mine.attempt != theirs.attempt:
        return f"{name} was opened twice: on {mine.group} and on {theirs.group}"
    if None not in (mine.sealed_len, theirs.sealed_len) and mine.sealed_len != theirs.sealed_len:
        return f"{name} was sealed twice: at {mine.sealed_len} and at {theirs.sealed_len}"
    return ""


def _folded_contradiction(known: Chain, other: Chain, last: int) -> str:
    """`contradiction` where the last common number is folded in the other record: it says that nothing is in it.

    A member that has committed messages of that segment sees it when it takes the record up (`folding`).
    """
    mine = known.segment(last)
    if mine is not None and mine.sealed_len:
        return f"segment {last} of partition {known.partition} was sealed twice: at {mine.sealed_len} and as empty"
    return ""


def _is_undone(mine: Segment, theirs: Segment) -> bool:
    return mine.is_settled and not theirs.is_settled


def hear(broker: BrokerState, partition: Partition, told: Chain, sender: str) -> None:
    """Another member tells a record. One that is not newer than the known one, but has a later segment, is proof.

    Rule `later-segment-told`: each transition raises the epoch, so within one line of records a later segment is never
    under the same epoch or a lower one. Without it:
      1. All brokers restart while the coordinator is down, and it comes back as it was before segment 4 was opened.
      2. C, who never knew of segment 4, changes something in the older record, under the same epoch as the lost one.
      3. C switches away from segment 3. Its members answer with the record that has segment 4; C takes it for one of
         the same age, goes on without them by their certificates, and opens segment 4 again on another group (I7).
    """
    known = partition.chain or partition.decided
    if known is None or told.epoch > known.epoch or told.open_segment.no <= known.open_segment.no:
        return
    no = told.open_segment.no
    why = (
        f"{sender} knows segment {no} of partition {partition.id} (epoch {told.epoch}), which its record does not have"
    )
    begin(broker, partition.id, why, no)


def begin(broker: BrokerState, partition: PartitionId, why: str, open_no: int = 0) -> None:
    """Decisions were lost. Until a read shows the segment `open_no` again, nothing is written or opened."""
    if partition not in broker.coordinator.behind:
        broker.out.note("coordinator_behind", partition, why=why)
    _, before = broker.coordinator.behind.get(partition, ("", 0))
    broker.coordinator.behind[partition] = (why, max(open_no, before))
    if partition != OWN_RECORD:
        broker.poll(broker.config.behind_read_us, TimerKind.READ, partition)


def end(broker: BrokerState, partition: PartitionId) -> None:
    """A read shows what this broker knows."""
    if broker.coordinator.behind.pop(partition, None) is not None:
        broker.out.note("coordinator_caught_up", partition)


def reason(broker: BrokerState) -> str:
    """For people; empty if the coordinator has all that this broker knows."""
    if not broker.coordinator.behind:
        return ""
    why, _ = next(iter(broker.coordinator.behind.values()))
    more = f" (and {len(broker.coordinator.behind) - 1} more)" if len(broker.coordinator.behind) > 1 else ""
    return (
        f"the coordinator has lost decisions: {why}{more}. What was acknowledged is on the brokers' disks. Nothing is "
        "accepted. Remedy: change nothing else, and run seriatim coordinator rebuild"
    )
