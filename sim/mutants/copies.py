"""Rules of the core about copies of sealed segments: where they come from, and which member lists them."""

from __future__ import annotations

from types import SimpleNamespace

from seriatim_broker.core.copies import copying, producer_tables

from .mutation import Mutation, Patch, nothing


def _own_tail_is_overlooked() -> list[Patch]:
    return [(copying, "_took_own_tail", lambda *_arguments: False)]


def _nobody_misses_a_server() -> list[Patch]:
    blind = SimpleNamespace(want_another=nothing)
    return [(producer_tables, "right", blind), (copying, "right", blind)]


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
}
"""By name."""
