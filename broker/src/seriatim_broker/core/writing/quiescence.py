"""Coming to rest: a master holds back new batches before a planned switch.

New batches wait in order until the switch is done or given up. The master refuses none of them meanwhile. The plan has
a deadline, `planned_switch_us` (200 ms). So a planner that falls silent costs at most a pause of that length.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import SegmentLog
from ..state.writing import Quiescence
from ..values.kinds import TimerKind
from ..values.messages import QuiesceAnswer, QuiesceRequest
from . import appending


def on_quiesce(broker: BrokerState, partition: Partition, sender: MemberId, message: QuiesceRequest) -> None:
    """A planner asks the master to rest: hold back new batches, and tell the planner when commit = tail."""
    log = partition.logs.get(message.segment_no)
    if log is None or not log.active or not log.unbroken or partition.quiescence is not None:
        broker.send(sender, QuiesceAnswer(partition.id, message.segment_no, message.switch, quiet=False))
        return
    deadline_us = broker.now.mono_us + broker.config.planned_switch_us
    partition.quiescence = Quiescence(sender.broker, message.switch, deadline_us)
    broker.wake(deadline_us, TimerKind.QUIESCE, partition.id)
    report_quiet(broker, partition, log)


def report_quiet(broker: BrokerState, partition: Partition, log: SegmentLog) -> None:
    """Notify the planner, once, when commit = tail."""
    quiescence = partition.quiescence
    assert quiescence is not None
    if log.commit == log.tail and not quiescence.reported:
        quiescence.reported = True
        answer = QuiesceAnswer(partition.id, log.no, quiescence.switch, quiet=True)
        broker.send_broker(quiescence.asked_by, answer)


def on_deadline(broker: BrokerState, partition: Partition) -> None:
    """The deadline has passed without a fence: drop the plan, and take the batches that were held back."""
    quiescence = partition.quiescence
    if quiescence is None or broker.now.mono_us < quiescence.deadline_us:
        return
    log = partition.open_log()
    if log is not None and log.active:
        answer = QuiesceAnswer(partition.id, log.no, quiescence.switch, quiet=False)
        broker.send_broker(quiescence.asked_by, answer)
        end(broker, partition)
    # a fenced log keeps the batches until the chain record says where they should go


def end(broker: BrokerState, partition: Partition) -> None:
    """Take the batches that were held back, or refuse them with the new route if the log is no longer active."""
    quiescence = partition.quiescence
    if quiescence is None:
        return
    partition.quiescence = None
    for event in quiescence.queued:
        appending.on_append(broker, partition, event)
