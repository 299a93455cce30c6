"""Quarantine: a member keeps its log of a segment if the chain contradicts its disk.

The chain may say that a segment ends below the commit that this member knows there. Then an older copy of a disk has
decided the length: both members had died, and the older copy, made within its last member run, came back first. This
member is right. But the record does not change any more (I5), and consumer groups may have read after it already.

So the member keeps its log as it is. It fences and marks the log durably. It does not cut the log, write over it, serve
it or count it as a copy. It says so in a note, at `/readyz` and in a metric, and everything else continues. An
administrator decides what to do with the messages: see ADR 0030.
"""

from __future__ import annotations

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import SegmentLog
from ..writing import appending


def contradicts(log: SegmentLog, sealed_len: int) -> bool:
    """Whether the length of a sealed segment in the chain is below the commit that this member knows.

    Rule `contradicted` (I1, KEPT): a disk that the chain contradicts keeps what it has. Without it:
      1. Am and As have a, and a is acknowledged. Both die, and the disk of As is replaced by an older copy of itself.
      2. As comes back first, and the segment is sealed at 0.
      3. Am comes back and truncates to 0. No disk has a any more, and no administrator is notified.
    """
    return sealed_len < log.commit


def begin(broker: BrokerState, partition: Partition, log: SegmentLog, sealed_len: int) -> None:
    """Keep the log as it is, and report it."""
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
    """Count this log as quarantined in what `/readyz` and the metrics show."""
    broker.disk.quarantined[log.partition, log.no] = log.tail
