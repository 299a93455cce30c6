"""A planted bug, and how it is switched on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Patch = tuple[object, str, Any]
"""Whose attribute, which one, and what takes its place."""

LOSS = ("I1", "I2", "I5", "I6", "I10", "I12", "TABLE", "COPY", "CORE")
"""What a bug about writing may break first."""


@dataclass(frozen=True)
class Mutation:
    """A removed rule.

    Attributes:
        rule: The rule that holds without the mutant.
        patches: Makes the replacements, again for each run.
        breaks: The promises that may be reported first.
        layer: Where the bug is: `core`, `client`, `runtime` or `storage`.
        profile: In which worlds it shows soon: a name of `faults.profiles.PROFILES`, or empty for any.
        world: A name of `run.WORLDS`.
        batch_count: Batches of a run of complete brokers; 0: drawn.
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
    before = [(owner, attribute, _raw(owner, attribute)) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


def _raw(owner: object, attribute: str) -> Any:
    """The attribute as its owner has it: a property or a class method is not called."""
    return getattr(owner, attribute) if attribute == "__code__" else vars(owner)[attribute]
