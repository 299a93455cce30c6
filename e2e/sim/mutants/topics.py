"""Rules about deleted topics, removed one at a time: worlds in which topics are made again must find each."""

from __future__ import annotations

from seriatim_broker.core import dropping
from seriatim_broker.core.log import DropPartition, Write
from seriatim_broker.core.outbox import Outbox

from .mutation import Mutation, Patch, nothing


def _data_stays() -> list[Patch]:
    write = Outbox.write

    def kept(self: Outbox, one: Write) -> None:
        if not isinstance(one, DropPartition):
            write(self, one)

    return [(Outbox, "write", kept)]


MUTATIONS: dict[str, Mutation] = {
    "deleted-unanswered": Mutation(
        "who waits for something of a deleted topic is answered",
        lambda: [(dropping, "answer_all", nothing)],
        ("GONE",),
        "topics-again",
        world="brokers",
        batch_count=100,
    ),
    "deleted-kept": Mutation(
        "what brokers store of a deleted topic is dropped",
        _data_stays,
        ("GONE",),
        "topics-again",
        world="brokers",
        batch_count=100,
    ),
}
"""By name."""
