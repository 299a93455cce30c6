"""Conditions: how a list of facts becomes what stands in a status, and changes only when something did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from ..spec.base import Condition

MESSAGE_LENGTH_MAX = 1024


@dataclass(frozen=True, slots=True)
class Fact:
    """One condition as it is now; `reason` is a word of the kind's closed list."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""

    @classmethod
    def of(cls, type_: str, is_true: bool, reason: str, message: str = "") -> Fact:
        """A fact that is true or false."""
        return cls(type_, "True" if is_true else "False", reason, message)


def settle(
    before: Iterable[Condition], facts: Iterable[Fact], *, generation: int, now_s: float
) -> tuple[Condition, ...]:
    """The conditions to report: the facts, each with the time since when it stands.

    The time is kept while status and reason are the same (the API's convention asks for the status only; a reason that
    a decision waits for, such as a node that is gone, must not inherit the time of another one).
    """
    known = {condition.type: condition for condition in before}
    now = datetime.fromtimestamp(int(now_s), UTC)
    settled: list[Condition] = []
    for fact in facts:
        old = known.get(fact.type)
        same = old is not None and (old.status, old.reason) == (fact.status, fact.reason)
        settled.append(
            Condition(
                type=fact.type,
                status=fact.status,
                reason=fact.reason,
                message=fact.message[:MESSAGE_LENGTH_MAX],
                last_transition_time=old.last_transition_time if old is not None and same else now,
                observed_generation=generation,
            )
        )
    return tuple(settled)
