"""Dropping: a topic was deleted, and this broker answers all requests that wait for one of its partitions.

Rule `deleted-unanswered` (GONE): a request that waits for a deleted topic is answered. Without it:
  1. A batch waits for the commit. Its topic is deleted, and the commit never moves again.
  2. The producer waits for ever, and the batch stays in the broker's memory until the producer's stream ends.
"""

from __future__ import annotations

from seriatim_api import errors

from ..consumers.groups import record_changes
from ..consumers.ranges import range_reads
from ..delayed import serving
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.effects import AppendRefused, Resolved
from ..writing import appending, publication_rows


def answer_all(broker: BrokerState, partition: Partition) -> None:
    """Answer all requests of the partition.

    The outcome of a batch in the log is unknown, because consumers may have been given it before the topic was deleted.
    A batch that a planned switch held back was never stored, so it is refused.
    """
    deleted = errors.UnknownTopicError(f"the topic of {partition.name} was deleted")
    if partition.quiescence is not None:
        for event in partition.quiescence.queued:
            broker.out.emit(AppendRefused(event.request, deleted, None))
        partition.quiescence = None
    for log in partition.logs.values():
        unknown = errors.OutcomeUnknownError(
            f"the topic was deleted while segment {log.no} had this batch: consumers may have got it or not"
        )
        appending.refuse_waiting(broker, log, unknown, None)
    requests = [waiter.request for waiter in partition.waiters]
    requests += partition.gaps.values()
    if partition.switch is not None and partition.switch.request is not None:
        requests.append(partition.switch.request)
    for request in requests:
        broker.out.emit(Resolved(request, None, deleted))
    range_reads.fail_all(broker, partition, deleted)
    for firing in list(partition.firing.values()):
        serving.stop(broker, partition, firing)
    publication_rows.fail_all(broker, partition, deleted)
    record_changes.on_no_partition(broker, partition)
