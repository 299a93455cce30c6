"""Dropping: the topic was deleted, and everybody who waits for something of its partition here is answered.

Without it a producer's batches would keep their share of the broker's memory until the producer's stream ends.
"""

from __future__ import annotations

from seriatim_api import errors

from ..consumers import ranges, serving
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.effects import AppendRefused, Resolved
from ..writing import appending, carrying


def answer_all(broker: BrokerState, partition: Partition) -> None:
    """Refuse what waits.

    A batch that is in the log may have been given to consumers before the topic was deleted: what became of it is
    unknown. A batch that a planned switch held back was never stored.
    """
    deleted = errors.UnknownTopicError(f"the topic of partition {partition.id} was deleted")
    if partition.quiescence is not None:
        for event in partition.quiescence.queued:
            broker.out.emit(AppendRefused(event.request, deleted, None))
        partition.quiescence = None
    for log in partition.logs.values():
        unknown = errors.OutcomeUnknownError(f"the topic was deleted while segment {log.no} held this batch")
        appending.refuse_waiting(broker, log, unknown, None)
    requests = [waiter.request for waiter in partition.waiters]
    requests += partition.gaps.values()
    if partition.switch is not None and partition.switch.request is not None:
        requests.append(partition.switch.request)
    for request in requests:
        broker.out.emit(Resolved(request, None, deleted))
    ranges.fail_all(broker, partition, deleted)
    carrying.fail_all(broker, partition, deleted)
    serving.on_no_partition(broker, partition)
