"""Rules of moving a head to a chosen place, removed one at a time: worlds that are balanced must find each of them."""

from __future__ import annotations

from typing import Any

from seriatim_broker.core import fencing
from seriatim_broker.core.messages import FenceAnswer, FenceRequest
from seriatim_broker.core.outbox import Outbox
from seriatim_broker.core.partition import Partition
from seriatim_broker.core.replica import SegmentLog
from seriatim_broker.core.switch import Switch

from .mutation import LOSS, Mutation, Patch


def _rest_is_enough() -> list[Patch]:
    """A master that rests answers as if it were fenced, and goes on when the plan takes too long."""
    strict = fencing.fence_and_answer

    def answer(outbox: Outbox, partition: Partition, log: SegmentLog, message: FenceRequest) -> FenceAnswer:
        if partition.quiescence is None:
            return strict(outbox, partition, log, message)
        return fencing.fence_answer(outbox, log, message)

    return [(fencing, "fence_and_answer", answer)]


def _chosen_master_alone() -> list[Patch]:
    """The next segment is opened as soon as the chosen master is prepared, and on it alone."""
    on_answer = Switch.on_prepare_answer

    def alone(self: Switch, outbox: Outbox, partition: Partition, sender: Any, message: Any) -> None:
        if self.target_group and self.members and sender == self.members[0]:
            self.members = self.members[:1]
        on_answer(self, outbox, partition, sender, message)

    return [(Switch, "on_prepare_answer", alone)]


MUTATIONS: dict[str, Mutation] = {
    "rest-is-enough": Mutation(
        "a planned switch fences, though the master rests",
        _rest_is_enough,
        LOSS,
        "balance",
        world="brokers",
        batch_count=150,
    ),
    "chosen-alone": Mutation(
        "a chosen place has all its members",
        _chosen_master_alone,
        LOSS,
        "balance",
        world="brokers",
        batch_count=150,
    ),
}
"""By name."""
