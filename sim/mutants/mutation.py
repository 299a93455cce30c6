"""A planted bug, and how it is switched on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from seriatim_broker.core.dispatch import handlers

Patch = tuple[object, str, Any]
"""Whose attribute, which one, and what takes its place."""

LOSS = ("I1", "I2", "I5", "I6", "I10", "I12", "TABLE", "COPY", "CORE")
"""What a bug about writing may break first."""


@dataclass(frozen=True)
class Mutation:
    """A removed rule.

    Attributes:
        rule: The rule that holds without the mutant.
        patches: Makes the replacements, anew for each run.
        breaks: The promises that may be reported first.
        layer: Where the bug is: `core`, `client`, `runtime` or `storage`.
        profile: In which worlds it shows soon: a name of `faults.PROFILES`, or empty for any.
        world: A name of `run.WORLDS`.
        batch_count: Batches of a run of whole brokers; 0: drawn.
    """

    rule: str
    patches: Callable[[], list[Patch]]
    breaks: tuple[str, ...]
    profile: str = "anything"
    world: str = "cores"
    layer: str = "core"
    batch_count: int = 0


@contextmanager
def applied(mutation: Mutation | None) -> Iterator[None]:
    """Run with one rule removed; with None, no rule is removed."""
    patches = mutation.patches() if mutation is not None else []
    before = [(owner, attribute, vars(owner)[attribute]) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


def nothing(*_arguments: Any) -> None:
    """A step that is not taken."""


def with_event(event: type, handler: Any) -> Patch:
    """Another handler for an event of one partition that the broker knows."""
    return handlers, "EVENTS", {**handlers.EVENTS, event: handlers.at_known(handler)}


def with_handler(message: type, handler: Any) -> Patch:
    """Another handler for a message between brokers."""
    return handlers, "MESSAGES", {**handlers.MESSAGES, message: handler}
