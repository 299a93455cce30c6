# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Bugs in shared and at-most-once groups, and where partitions are spread over consumers."""

from __future__ import annotations

from typing import Any

from seriatim_broker.core.consumers import cursors, delivery, granting, serving, yielding

from .mutation import Mutation, Patch

M = ("O1", "O2", "S1", "S2", "S3", "I13", "CORE")
"""What a bug about these groups may break first."""


def _given_at_once() -> list[Patch]:
    real = granting._acknowledge_first

    def acknowledge_first(broker: Any, of: Any, consumer_group: Any, unsent: Any) -> None:
        """What is acknowledged here is given, and the other members hear of it some time."""
        unsent.is_durable = True
        real(broker, of, consumer_group, unsent)

    def is_acknowledged_first(broker: Any, of: Any, consumer_group: Any, end: int) -> bool:
        if consumer_group.is_at_most_once and consumer_group.ledger.acknowledge(end):
            cursors.replicate(broker, of, consumer_group)
        return True

    return [
        (granting, "_acknowledge_first", acknowledge_first),
        (delivery, "_is_acknowledged_first", is_acknowledged_first),
    ]


def _doubt_begins_anew() -> list[Patch]:
    return [(serving, "_skip_what_may_have_been_given", lambda *_: None)]


def _yields_at_once() -> list[Patch]:
    return [(yielding, "_is_done", lambda _ledger, _below: True)]


def _any_answer() -> list[Patch]:
    return [(yielding, "_is_answer", lambda asked, _event: asked.number > 0)]


MUTATIONS: dict[str, Mutation] = {
    "acknowledged-first": Mutation(
        "at most once: a message is given when every eligible member has its acknowledgement",
        _given_at_once,
        M,
        "modes",
    ),
    "at-most-once-doubt": Mutation(
        "at most once: what may have been given, and no member knows, does not come again",
        _doubt_begins_anew,
        M,
        "modes-blind",
    ),
    "yields-when-done": Mutation(
        "another consumer reads a partition when all that the one before was given is acknowledged",
        _yields_at_once,
        ("I9",),
        "yields",
    ),
    "only-the-asked": Mutation(
        "only the answer to the last question to yield counts",
        _any_answer,
        ("I9", "CORE"),
        "yields",
    ),
}
"""By name."""
