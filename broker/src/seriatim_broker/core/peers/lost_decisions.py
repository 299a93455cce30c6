"""Behind: the coordinator has lost decisions that this broker knows of, because an older copy of it was restored.

A broker keeps the newest chain record of each of its partitions on its disk. A linearizable read proves a loss if it
gives an older record, another segment under the same number, or no record although the partition was not deleted. The
broker then fences the segments that are open on it, and writes nothing to the coordinator until its reads give what it
knows.

Rule `older-believed` (I7): a record that is older than the known one decides nothing. Without it:

  1. Segment 1 is sealed, segment 2 is open on broker group B, and messages are acknowledged there.
  2. The coordinator is restored as it was while segment 1 was open.
  3. B keeps acknowledging in segment 2, to which no reader is ever sent.
  4. A switcher reads that segment 1 is open, and opens segment 2 on broker group C: the number is used twice. New
     consumer groups get C's segment 2, and never the messages that B acknowledged (I1).

An administrator ends this with `seriatim coordinator rebuild`, which writes the newest records that the brokers know.
"""

from __future__ import annotations

from seriatim_api.ids import PartitionId

from ..state.broker import BrokerState
from ..state.partition import NO_FLOOR, Partition
from ..values.chain import Chain
from ..values.kinds import TimerKind
from ..values.segment import Segment

OWN_RECORD = PartitionId(0)
"""Stands for the broker's own member record, where a partition is expected."""

WRITERS = PartitionId(-1)
"""Stands for the records of writers, where a partition is expected. It ends with a rebuild."""


def problem(broker: BrokerState, partition: Partition, chain: Chain | None) -> str:
    """What a linearizable read lacks of the decisions that this broker knew when the read began; empty if nothing.

    Args:
        broker: This broker.
        partition: Its `read_floor` is still the one of this read.
        chain: The record that was read; None if there is none, although the partition was not deleted.
    """
    floor = partition.read_floor or NO_FLOOR
    known = partition.decided
    if known is None or (not floor.epoch and partition.id not in broker.coordinator.behind):
        return ""
    name = known.name
    if chain is None:
        return f"it has no record of {name}, of which this broker knows epoch {known.epoch}" if floor.epoch else ""
    # Rule `told-floor` (I7): a record that a member reported before the read began counts, even if its changes could
    # not be applied here. Without it:
    #   1. Segment 4 is opened. Every other broker is sent changes that it cannot apply, and reads the coordinator.
    #   2. An older copy is restored before the answers arrive. These brokers believe what they read.
    #   3. They open segment 4 again, while the one broker that has the record says that it was lost.
    if chain.epoch < floor.epoch:
        return f"its record of {name} has epoch {chain.epoch}, this broker knows {floor.epoch}"
    if chain.open_segment.no < floor.open_no:
        return f"its record of {name} ends with segment {chain.open_segment.no}, this broker knows of {floor.open_no}"
    _, open_no = broker.coordinator.behind.get(partition.id, ("", 0))
    if chain.open_segment.no < open_no:
        return f"its record of {name} ends with segment {chain.open_segment.no}, a broker has segment {open_no}"
    return contradiction(known, chain)


def _is_another(known: Chain, chain: Chain) -> bool:
    """Whether two records of the same chain epoch differ."""
    # Rule `same-revision` (I7): they may differ although their revisions are equal. Without it:
    #   1. Segment 3 is open. A member was added to an older segment, at chain epoch 4 and revision 32.
    #   2. The coordinator is restored as it was at chain epoch 3 and revision 29, and counts on from there.
    #   3. A switcher that does not know chain epoch 4 seals segment 3 and opens segment 4, at epoch 4, revision 32.
    #   4. Another member writes its record, in which segment 3 is open, and compares revision 32: it is carried out.
    #
    # Rule `same-record` (I13): records with equal content are the same, although their revisions differ. Without it:
    #   1. The coordinator is restored. A broker repeats a write that got no answer before, with the same content.
    #   2. A member that learned of the first write waits until a rebuild mends the record.
    #   3. There is nothing to mend, so it waits for ever.
    return chain.segments != known.segments


def contradiction(known: Chain, other: Chain) -> str:
    """Why the other record, which is not older, cannot have followed the known one; empty if it can have followed."""
    if other.epoch == known.epoch and _is_another(known, other):
        return f"its record of {known.name} at epoch {other.epoch} is another one than this broker knows"
    last = min(known.open_segment.no, other.open_segment.no)
    if known.is_folded(last) and other.epoch >= known.epoch:
        what = known.name
        return f"its record of {what} ends with segment {last}, but this broker knows that it was empty and left behind"
    if other.is_folded(last):
        return _folded_contradiction(known, other, last)
    mine, theirs = known.segment(last), other.segment(last)
    if mine is None or theirs is None:
        return ""
    if other.epoch > known.epoch and (other.open_segment.no < known.open_segment.no or _is_undone(mine, theirs)):
        what = known.name
        return f"its record of {what} ends with segment {other.open_segment.no}, but this broker knows of a later state"
    name = f"segment {last} of {known.name}"
    if mine.switch_attempt != theirs.switch_attempt:
        return f"{name} was opened twice: on {mine.broker_group} and on {theirs.broker_group}"
    if None not in (mine.sealed_len, theirs.sealed_len) and mine.sealed_len != theirs.sealed_len:
        return f"{name} was sealed twice: at {mine.sealed_len} and at {theirs.sealed_len}"
    return ""


def _folded_contradiction(known: Chain, other: Chain, last: int) -> str:
    """`contradiction` if the last common segment is folded in the other record, which means that it was empty.

    A member that has committed messages of that segment notices it when it takes up the record (`folded_segments`).
    """
    mine = known.segment(last)
    if mine is not None and mine.sealed_len:
        return f"segment {last} of {known.name} was sealed twice: at {mine.sealed_len} and as empty"
    return ""


def _is_undone(mine: Segment, theirs: Segment) -> bool:
    return mine.is_settled and not theirs.is_settled


def hear(broker: BrokerState, partition: Partition, told: Chain, sender: str) -> None:
    """Another member reports its chain record: notice if it proves that the coordinator lost decisions."""
    # Rule `later-segment-told` (I7): a record that is not newer, but has a later segment, is proof of a loss. Each
    # transition raises the chain epoch, so one line of records cannot have both. Without it:
    #   1. All brokers restart while the coordinator is down. It comes back as it was before segment 4 was opened.
    #   2. C never knew of segment 4. It changes the older record, and so uses the chain epoch of the lost record.
    #   3. C switches away from segment 3. Its members answer with the record that has segment 4, and C ignores it,
    #      because its chain epoch is not newer.
    #   4. C continues without these members, by their death certificates, and opens segment 4 again elsewhere.
    known = partition.chain or partition.decided
    if known is None or told.epoch > known.epoch or told.open_segment.no <= known.open_segment.no:
        return
    no = told.open_segment.no
    why = f"{sender} knows segment {no} of {partition.name} (epoch {told.epoch}), which its record does not have"
    begin(broker, partition.id, why, no)


def begin(broker: BrokerState, partition: PartitionId, why: str, open_no: int = 0) -> None:
    """The coordinator lost decisions: write and open nothing until a read shows what this broker knows.

    Args:
        broker: This broker.
        partition: The partition whose record proves it, or `OWN_RECORD`, or `WRITERS`.
        why: For humans: what is missing.
        open_no: The number of the segment that the record must have again; 0 if another check decides.
    """
    if partition not in broker.coordinator.behind:
        broker.out.note("coordinator_behind", max(partition, OWN_RECORD), why=why)
    _, before = broker.coordinator.behind.get(partition, ("", 0))
    broker.coordinator.behind[partition] = (why, max(open_no, before))
    if partition not in (OWN_RECORD, WRITERS):
        broker.poll(broker.config.behind_read_us, TimerKind.READ, partition)


def end(broker: BrokerState, partition: PartitionId) -> None:
    """A read shows all that this broker knows of the partition."""
    if broker.coordinator.behind.pop(partition, None) is not None:
        broker.out.note("coordinator_caught_up", max(partition, OWN_RECORD))


def reason(broker: BrokerState) -> str:
    """The human-readable text, with the remedy; empty if the coordinator has all that this broker knows."""
    if not broker.coordinator.behind:
        return ""
    why, _ = next(iter(broker.coordinator.behind.values()))
    more = f" (and {len(broker.coordinator.behind) - 1} more)" if len(broker.coordinator.behind) > 1 else ""
    return told(why + more)


def told(why: str) -> str:
    """The human-readable text that says what the coordinator has lost, with the remedy."""
    return (
        f"the coordinator has lost decisions: {why}. Acknowledged messages are on the brokers' disks. This "
        "broker accepts no new ones. Remedy: change nothing else, and run seriatim coordinator rebuild"
    )
