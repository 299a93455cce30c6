"""Makes the conditions of a status from a list of facts. A condition changes only when its fact changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from ..spec.base import Condition

MESSAGE_LENGTH_MAX = 1024


@dataclass(frozen=True, slots=True)
class Fact:
    """One condition as it is now. `reason` is a word of the kind's closed list."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""

    @classmethod
    def of(cls, type_: str, is_true: bool, reason: str, message: str = "") -> Fact:
        """Make a fact that is True or False, never Unknown."""
        return cls(type_, "True" if is_true else "False", reason, message)


def settle(
    before: Iterable[Condition],
    facts: Iterable[Fact],
    reasons: Mapping[str, Mapping[str, str]],
    *,
    generation: int,
    now_s: float,
) -> tuple[Condition, ...]:
    """Make the conditions to report: each fact, with the time of its last change.

    The time stays while status and reason stay. The API's convention looks at the status only. But decisions measure
    how long a reason has lasted, such as a node that is gone, so another reason must not pass its time on.

    Args:
        before: The conditions that were reported last.
        facts: What is true now.
        reasons: What each reason means, for each condition of the kind. A fact without a message gets this text.
        generation: The generation of the object's spec for which the facts were decided.
        now_s: Unix time in seconds.
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
                message=(fact.message or reasons[fact.type].get(fact.reason, ""))[:MESSAGE_LENGTH_MAX],
                last_transition_time=old.last_transition_time if old is not None and same else now,
                observed_generation=generation,
            )
        )
    return tuple(settled)
