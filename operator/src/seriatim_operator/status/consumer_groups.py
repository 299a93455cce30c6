"""The status of a consumer group: whether it has its place, and its lag in wide steps."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from ..plan.consumer_groups import ConsumerGroupFinding, ConsumerGroupView
from ..spec.base import Condition
from ..spec.consumer_group import ConsumerGroup, ConsumerGroupState, ConsumerGroupStatus
from .conditions import Fact, settle

LAG_STEPS: Final = (100, 10_000, 1_000_000)
"""Upper limits of the lag's steps, in messages. The steps are wide, so that a moving lag is seldom written."""

LAG_BUCKETS: Final = (*(f"<={step}" for step in LAG_STEPS), f">{LAG_STEPS[-1]}")
BEHIND: Final = LAG_BUCKETS[2:]
"""With a lag in these steps (more than 10,000 messages) a consumer group that consumes is `Behind`."""

_UNKNOWN_REASONS: Final = frozenset({"BrokersSilent", "Paused"})


def consumer_group_status(item: ConsumerGroup, finding: ConsumerGroupFinding, now_s: float) -> ConsumerGroupStatus:
    """The status of the consumer group, from what the operator knows now."""
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
    """The step of a lag.

    The lag stays on its former step if half or double of it is still there. So a lag near an edge does not go to and
    fro.

    Args:
        lag: In messages; None if it is not known, which keeps the former step.
        before: The step that was reported last; empty if there is none.
    """
    if lag is None:
        return before
    if before in LAG_BUCKETS and _step(lag // 2) <= LAG_BUCKETS.index(before) <= _step(lag * 2):
        return before
    return LAG_BUCKETS[_step(lag)]


def _step(lag: int) -> int:
    return bisect_left(LAG_STEPS, lag)


def _state(view: ConsumerGroupView, bucket: str) -> ConsumerGroupState:
    if not view.is_consumed:
        return "Idle"
    return "Behind" if bucket in BEHIND else "Active"


def _settled(item: ConsumerGroup, finding: ConsumerGroupFinding, now_s: float) -> tuple[Condition, ...]:
    if finding.reason == "Placed":
        fact = Fact("Ready", "True", finding.reason, finding.message)
    elif finding.reason in _UNKNOWN_REASONS:
        fact = Fact("Ready", "Unknown", finding.reason, finding.message)
    else:
        fact = Fact("Ready", "False", finding.reason, finding.message)
    return settle(item.status.conditions, [fact], generation=item.metadata.generation, now_s=now_s)
