"""Rules of the core about copies of sealed segments: where they come from, and which member lists them."""

from __future__ import annotations

from types import SimpleNamespace

from seriatim_broker.core.copies import copying, producer_tables
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.partition import Partition
from seriatim_broker.core.values.kinds import WriteOwner
from seriatim_broker.core.values.states import NOTHING, put

from .mutation import Mutation, Patch, nothing


def _own_tail_is_overlooked() -> list[Patch]:
    return [(copying, "_took_own_tail", lambda *_arguments: False)]


def _nobody_misses_a_server() -> list[Patch]:
    blind = SimpleNamespace(want_another=nothing)
    return [(producer_tables, "right", blind), (copying, "right", blind)]


def _each_copy_alone() -> list[Patch]:
    """Each copy is listed by a transaction of its own as soon as it is whole."""
    real = copying.list_whole

    def list_whole(broker: BrokerState, of: Partition) -> None:
        copies, known = of.copies, of.chain
        sent = [chain.changes_since(known) for owner, _, chain in of.writes.values() if owner is WriteOwner.COPY]
        under_way = {segment.no for changes in sent for segment in changes.changed}
        for no, one in copies.items():
            if no not in under_way:
                of.copies = put(NOTHING, no, one)
                real(broker, of)
        of.copies = copies

    def may_amend(self: Partition, broker: BrokerState) -> bool:
        return not self.write_wait_us(broker)

    return [(copying, "list_whole", list_whole), (Partition, "may_amend", may_amend)]


MUTATIONS: dict[str, Mutation] = {
    "own-tail-overlooked": Mutation(
        "a member that copies uses the tail that it keeps itself", _own_tail_is_overlooked, ("I13",), "servers-lost"
    ),
    "server-unmissed": Mutation(
        "a member that needs a server that is gone asks for another one",
        _nobody_misses_a_server,
        ("I13",),
        "servers-lost",
    ),
    "amends-together": Mutation(
        "changes of sealed segments that wait go together, one transaction at a time",
        _each_copy_alone,
        ("LIMIT", "I13"),
        "thousands",
    ),
}
"""By name."""
