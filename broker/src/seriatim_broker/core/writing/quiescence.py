"""Coming to rest before a planned switch: what the master does when a planner asks for it.

New batches wait, in order, until the switch has happened or is given up; nothing is refused in between, and the plan
has a deadline of its own, so a planner that falls silent costs a pause.
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
    """Queue new batches and report when commit = tail."""
    log = partition.logs.get(message.segment_no)
    if log is None or not log.active or not log.unbroken or partition.quiescence is not None:
        broker.send(sender, QuiesceAnswer(partition.id, message.segment_no, message.switch, quiet=False))
        return
    deadline_us = broker.now.mono_us + broker.config.planned_switch_us
    partition.quiescence = Quiescence(sender.broker, message.switch, deadline_us)
    broker.wake(deadline_us, TimerKind.QUIESCE, partition.id)
    report_quiet(broker, partition, log)


def report_quiet(broker: BrokerState, partition: Partition, log: SegmentLog) -> None:
    """Tell the planner, once, when commit = tail."""
    quiescence = partition.quiescence
    assert quiescence is not None
    if log.commit == log.tail and not quiescence.reported:
        quiescence.reported = True
        answer = QuiesceAnswer(partition.id, log.no, quiescence.switch, quiet=True)
        broker.send_broker(quiescence.asked_by, answer)


def on_deadline(broker: BrokerState, partition: Partition) -> None:
    """The plan took too long, or its planner is silent: go on accepting."""
    quiescence = partition.quiescence
    if quiescence is None or broker.now.mono_us < quiescence.deadline_us:
        return
    log = partition.open_log()
    if log is not None and log.active:
        answer = QuiesceAnswer(partition.id, log.no, quiescence.switch, quiet=False)
        broker.send_broker(quiescence.asked_by, answer)
        end(broker, partition)
    # a fenced log keeps its queue until the chain says where the batches should go


def end(broker: BrokerState, partition: Partition) -> None:
    """Give the queued batches back: to the log if it is still active, else to their senders with the new route."""
    quiescence = partition.quiescence
    if quiescence is None:
        return
    partition.quiescence = None
    for event in quiescence.queued:
        appending.on_append(broker, partition, event)
