"""The status of a consumer group: whether it has its place and settings, and its figures in wide steps.

The steps are wide, and a figure that falls stays on its step until half of it is left. So a moving figure is seldom
written. Whether a figure is 0 is always shown at once, because administrators wait for that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from ..plan.consumer_groups import ConsumerGroupFinding, ConsumerGroupView, parked_partitions
from ..spec.base import Condition
from ..spec.consumer_group import ConsumerGroup, ConsumerGroupState, ConsumerGroupStatus
from .conditions import Fact, settle
from .reasons import CONSUMER_GROUP

LAG_STEPS: Final = (100, 10_000, 1_000_000)
"""Upper limits of the lag's steps, in messages. The steps are wide, so that a moving lag is seldom written."""

LAG_BUCKETS: Final = (*(f"<={step}" for step in LAG_STEPS), f">{LAG_STEPS[-1]}")
BEHIND: Final = LAG_BUCKETS[2:]
"""With a lag in these steps (more than 10,000 messages) a consumer group that consumes is `Behind`."""

AGE_STEPS_S: Final = (60, 600, 3_600, 86_400)
AGE_BUCKETS: Final = ("<=1m", "<=10m", "<=1h", "<=1d", ">1d")
COUNT_STEPS: Final = (0, 10, 100, 1_000)
COUNT_BUCKETS: Final = ("0", "<=10", "<=100", "<=1000", ">1000")
"""Of keys and of consumers."""

PARTITIONS_NAMED_MAX: Final = 8
"""Partitions that a message names."""

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
    settings = view.settings[0] if view.settings else None
    retry = settings.retry if settings is not None else None
    return ConsumerGroupStatus(
        observed_generation=generation,
        conditions=conditions,
        group_name=item.group_name,
        state=_state(view, bucket),
        lag_bucket=bucket,
        oldest_bucket=_oldest_bucket(view, before.oldest_bucket),
        consumers=count_bucket(view.consumer_count, before.consumers),
        parked_keys=count_bucket(sum(view.parked.values()), before.parked_keys)
        if not view.untold
        else before.parked_keys,
        parked_partitions=parked_partitions(item, view),
        delayed_keys=count_bucket(view.delayed_keys, before.delayed_keys) if not view.untold else before.delayed_keys,
        mode=settings.mode if settings is not None else "",
        delivery=("AtMostOnce" if settings.at_most_once else "AtLeastOnce") if settings is not None else "",
        policy=retry.text if retry is not None else "",
        dead_letter_topic=retry.dead_letter_topic if retry is not None else "",
        paused=bool(view.paused_count),
        rewind=finding.rewind or before.rewind,
    )


def lag_bucket(lag: int | None, before: str) -> str:
    """The step of a lag.

    A lag that falls stays on its former step while double of it is there. So a lag near an edge does not go to and
    fro, and is never above its step.

    Args:
        lag: In messages; None if it is not known, which keeps the former step.
        before: The step that was reported last; empty if there is none.
    """
    return before if lag is None else _bucket(lag, before, LAG_STEPS, LAG_BUCKETS)


def count_bucket(count: int, before: str) -> str:
    """The step of a number of keys or consumers, in the same way. 0 has a step of its own, which is never late."""
    if count == 0 or before == COUNT_BUCKETS[0]:
        before = ""
    return _bucket(count, before, COUNT_STEPS, COUNT_BUCKETS)


def _oldest_bucket(view: ConsumerGroupView, before: str) -> str:
    if view.oldest_s is None:
        return "" if view.lag == 0 else before
    return _bucket(int(view.oldest_s), before, AGE_STEPS_S, AGE_BUCKETS)


def _bucket(figure: int, before: str, steps: Sequence[int], buckets: Sequence[str]) -> str:
    true = bisect_left(steps, figure)
    if before in buckets and true <= buckets.index(before) <= bisect_left(steps, figure * 2):
        return before
    return buckets[true]


def _state(view: ConsumerGroupView, bucket: str) -> ConsumerGroupState:
    if not view.is_consumed:
        return "Idle"
    return "Behind" if bucket in BEHIND else "Active"


def _settled(item: ConsumerGroup, finding: ConsumerGroupFinding, now_s: float) -> tuple[Condition, ...]:
    if finding.reason == "Placed":
        ready = Fact("Ready", "True", finding.reason, finding.message)
    elif finding.reason in _UNKNOWN_REASONS:
        ready = Fact("Ready", "Unknown", finding.reason, finding.message)
    else:
        ready = Fact("Ready", "False", finding.reason, finding.message)
    before, view = item.status.conditions, finding.view
    if view is not None:
        facts = [ready, _parked_fact(item, view), _dead_letter_fact(item, finding, view)]
    elif finding.keeps_status:
        facts = [ready, *(Fact(c.type, c.status, c.reason, c.message) for c in before if c.type != "Ready")]
    else:
        facts = [ready, Fact("KeysParked", "Unknown", "NotTold"), Fact("DeadLettering", "Unknown", "NotTold")]
    return settle(before, facts, CONSUMER_GROUP, generation=item.metadata.generation, now_s=now_s)


def _parked_fact(item: ConsumerGroup, view: ConsumerGroupView) -> Fact:
    """Whether keys are parked. The message has no number of keys, because a changed number would be another write."""
    numbers = parked_partitions(item, view)
    if not numbers:
        return Fact("KeysParked", "False", "NoneParked")
    where = ", ".join(map(str, numbers[:PARTITIONS_NAMED_MAX])) + (", …" if len(numbers) > PARTITIONS_NAMED_MAX else "")
    text = (
        f"messages of keys wait for an administrator on partitions {where}: see "
        f"`seriatim group parked {item.spec.topic} {item.group_name}`"
    )
    return Fact("KeysParked", "True", "KeysWait", text)


def _dead_letter_fact(item: ConsumerGroup, finding: ConsumerGroupFinding, view: ConsumerGroupView) -> Fact:
    topics = {one.retry.dead_letter_topic for one in view.settings if one.retry and one.retry.dead_letter_topic}
    if finding.reason.startswith("DeadLetterTopic"):
        return Fact("DeadLettering", "False", finding.reason, finding.message)
    if not topics:
        return Fact("DeadLettering", "False", "NotAsked", "no message goes to a dead-letter topic")
    name = ", ".join(sorted(topics))
    if view.is_forwarding_late:
        text = f"messages wait for topic {name}, which takes none: their keys wait too, and other keys continue"
        return Fact("DeadLettering", "False", "HeldUp", text)
    return Fact("DeadLettering", "True", "Forwarding", f"messages go to topic {name} after their last attempt")
