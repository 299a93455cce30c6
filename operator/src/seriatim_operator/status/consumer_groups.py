"""What is reported of a consumer group: whether it has its place, and how far behind it is, in steps."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from ..plan.consumer_groups import GroupFinding, GroupView
from ..spec.base import Condition
from ..spec.consumer_group import ConsumerGroup, ConsumerGroupState, ConsumerGroupStatus
from .conditions import Fact, settle

LAG_STEPS: Final = (100, 10_000, 1_000_000)
"""Wide steps: a lag is written when it is of another kind, not when it is another number."""

LAG_BUCKETS: Final = (*(f"<={step}" for step in LAG_STEPS), f">{LAG_STEPS[-1]}")
BEHIND: Final = LAG_BUCKETS[2:]
"""A group that consumes, with so much before it, is behind: more than 10,000 messages."""

_UNKNOWN_REASONS: Final = frozenset({"BrokersSilent", "Paused"})


def consumer_group_status(item: ConsumerGroup, finding: GroupFinding, now_s: float) -> ConsumerGroupStatus:
    """What is true of the group, as far as is known now."""
    before, view = item.status, finding.view
    conditions = _settled(item, finding, now_s)
    if finding.keeps_status:
        return before.model_copy(update={"conditions": conditions})
    generation = item.metadata.generation
    if view is None:
        return ConsumerGroupStatus(
            observed_generation=generation,
            conditions=conditions,
            group_name=before.group_name,
            rewind=before.rewind,
        )
    bucket = lag_bucket(view.lag, before.lag_bucket)
    return ConsumerGroupStatus(
        observed_generation=generation,
        conditions=conditions,
        group_name=item.group_name,
        state=_state(view, bucket),
        lag_bucket=bucket,
        paused=bool(view.paused_count),
        rewind=finding.rewind or before.rewind,
    )


def lag_bucket(lag: int | None, before: str) -> str:
    """The step that a lag lies on.

    A lag whose half or double still lies on the step before stays there, so that one near an edge does not flap.
    """
    if lag is None:
        return before
    if before in LAG_BUCKETS and _step(lag // 2) <= LAG_BUCKETS.index(before) <= _step(lag * 2):
        return before
    return LAG_BUCKETS[_step(lag)]


def _step(lag: int) -> int:
    return bisect_left(LAG_STEPS, lag)


def _state(view: GroupView, bucket: str) -> ConsumerGroupState:
    if not view.is_consumed:
        return "Idle"
    return "Behind" if bucket in BEHIND else "Active"


def _settled(item: ConsumerGroup, finding: GroupFinding, now_s: float) -> tuple[Condition, ...]:
    if finding.reason == "Placed":
        fact = Fact("Ready", "True", finding.reason, finding.message)
    elif finding.reason in _UNKNOWN_REASONS:
        fact = Fact("Ready", "Unknown", finding.reason, finding.message)
    else:
        fact = Fact("Ready", "False", finding.reason, finding.message)
    return settle(item.status.conditions, [fact], generation=item.metadata.generation, now_s=now_s)
