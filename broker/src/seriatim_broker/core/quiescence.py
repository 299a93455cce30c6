"""Coming to rest before a planned switch: what the master does when a planner asks for it.

New batches wait, in order, until the switch has happened or is given up; nothing is refused in between, and the plan
has a deadline of its own, so a planner that falls silent costs a pause.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.ids import MemberId

from . import appending
from .events import Append
from .messages import QuiesceAnswer, QuiesceRequest
from .outbox import Outbox
from .partition import Partition
from .replica import SegmentLog
from .state import State


class Quiescence(State):
    """A planned switch is near: new batches wait, in order, until it has happened or is given up."""

    __slots__ = ("asked_by", "deadline_us", "queued", "reported", "switch")

    def __init__(self, asked_by: str, switch_id: bytes, deadline_us: int) -> None:
        self.asked_by = asked_by
        self.switch = switch_id
        self.deadline_us = deadline_us
        self.queued: list[Append] = []
        self.reported = False

    def hold(self, outbox: Outbox, event: Append) -> None:
        """Keep a batch until the plan is over; one too many is kept as a refusal, in its place in the run."""
        if len(self.queued) >= outbox.config.queued_appends_max:
            overload = errors.OverloadedError("a planned switch is near", retry_after_ms=50)
            event = replace(event, body=b"", refuse=overload)
        self.queued.append(event)


def on_quiesce(outbox: Outbox, partition: Partition, sender: MemberId, message: QuiesceRequest) -> None:
    """Queue new batches and report when commit = tail."""
    log = partition.logs.get(message.segment_no)
    if log is None or not log.active or not log.unbroken or partition.quiescence is not None:
        outbox.send(sender, QuiesceAnswer(partition.id, message.segment_no, message.switch, quiet=False))
        return
    deadline_us = outbox.now.mono_us + outbox.config.planned_switch_us
    partition.quiescence = Quiescence(sender.broker, message.switch, deadline_us)
    outbox.wake(deadline_us, "quiesce", partition.id)
    report_quiet(outbox, partition, log)


def report_quiet(outbox: Outbox, partition: Partition, log: SegmentLog) -> None:
    """Tell the planner, once, when commit = tail."""
    quiescence = partition.quiescence
    assert quiescence is not None
    if log.commit == log.tail and not quiescence.reported:
        quiescence.reported = True
        answer = QuiesceAnswer(partition.id, log.no, quiescence.switch, quiet=True)
        outbox.send_broker(quiescence.asked_by, answer)


def on_deadline(outbox: Outbox, partition: Partition) -> None:
    """The plan took too long, or its planner is silent: go on accepting."""
    quiescence = partition.quiescence
    if quiescence is None or outbox.now.mono_us < quiescence.deadline_us:
        return
    log = partition.open_log()
    if log is not None and log.active:
        answer = QuiesceAnswer(partition.id, log.no, quiescence.switch, quiet=False)
        outbox.send_broker(quiescence.asked_by, answer)
        end(outbox, partition)
    # a fenced log keeps its queue until the chain says where the batches should go


def end(outbox: Outbox, partition: Partition) -> None:
    """Give the queued batches back: to the log if it is still active, else to their senders with the new route."""
    quiescence = partition.quiescence
    if quiescence is None:
        return
    partition.quiescence = None
    for event in quiescence.queued:
        appending.on_append(outbox, partition, event)
