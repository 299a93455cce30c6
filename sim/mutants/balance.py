"""Rules of moving an open segment to a chosen place, removed one at a time: balanced worlds must find each of them."""

from __future__ import annotations

from typing import Any

from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.partition import Partition
from seriatim_broker.core.state.segment_log import SegmentLog
from seriatim_broker.core.switching import fencing, switch
from seriatim_broker.core.values.messages import FenceAnswer, FenceRequest, PrepareAnswer

from .mutation import LOSS, Mutation, Patch, with_handler


def _rest_is_enough() -> list[Patch]:
    """A master that rests answers as if it were fenced, and goes on when the plan takes too long."""
    strict = fencing.fence_and_answer

    def answer(broker: BrokerState, partition: Partition, log: SegmentLog, message: FenceRequest) -> FenceAnswer:
        if partition.quiescence is None:
            return strict(broker, partition, log, message)
        return fencing.fence_answer(broker, log, message)

    return [(fencing, "fence_and_answer", answer)]


def _chosen_master_alone() -> list[Patch]:
    """The next segment is opened as soon as the chosen master is prepared, and on it alone."""
    on_answer = switch.on_prepare_answer

    def alone(broker: BrokerState, partition: Partition, sender: Any, message: Any) -> None:
        running = partition.switch
        if running is not None and running.target_broker_group and running.opening.members[:1] == (sender,):
            running.opening.members = running.opening.members[:1]
        on_answer(broker, partition, sender, message)

    return [with_handler(PrepareAnswer, alone)]


MUTATIONS: dict[str, Mutation] = {
    "rest-is-enough": Mutation(
        "a planned switch fences, even if the master rests",
        _rest_is_enough,
        LOSS,
        "balance",
        world="brokers",
        batch_count=150,
    ),
    "chosen-alone": Mutation(
        "a chosen broker group takes the segment with all its members",
        _chosen_master_alone,
        LOSS,
        "balance",
        world="brokers",
        batch_count=150,
    ),
}
"""By name."""
