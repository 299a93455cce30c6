"""Quarantine: what a member keeps when the chain contradicts its disk.

The chain can say that a segment ends below what this member knows to be committed there. Then another disk decided the
length that had forgotten something: an older copy of a disk from within its run came back first, after both members had
died. This member is right, but the record does not change any more (I5), and groups may have read on behind it.

So the member keeps what it has, as it is: the log is fenced and marked, durably, and nothing of it is cut, copied over,
served or counted as a copy. The member says so (a note, `/readyz`, a metric) and goes on with everything else. What to
do with the messages is for a person to decide: see ADR 0030.
"""

from __future__ import annotations

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import SegmentLog
from ..writing import appending


def contradicts(log: SegmentLog, sealed_len: int) -> bool:
    """Whether the chain's length of a sealed segment cannot be true, as far as this member knows.

    Rule `contradicted`: a length below the commit would cut messages that were acknowledged (I1).
    """
    return sealed_len < log.commit


def begin(broker: BrokerState, partition: Partition, log: SegmentLog, sealed_len: int) -> None:
    """Keep the log as it is, and say so."""
    log.quarantine(broker)
    appending.abandon_waiting(broker, log, partition.route())
    note(broker, log)
    broker.out.note(
        "disk_contradicts_chain",
        partition.id,
        segment=log.no,
        sealed_len=sealed_len,
        commit=log.commit,
        tail=log.tail,
    )


def note(broker: BrokerState, log: SegmentLog) -> None:
    """Remember, for people, that this log is quarantined."""
    broker.disk.quarantined[log.partition, log.no] = log.tail


def is_quarantined(partition: Partition, no: int) -> bool:
    """Whether this member keeps the segment for a person to look at."""
    log = partition.logs.get(no)
    return log is not None and log.record.quarantined
