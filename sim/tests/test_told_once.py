"""TOLD: what the judge finds if an offset is reported as gone twice, and what it allows."""

from __future__ import annotations

import pytest
from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values.effects import DeliveryEvent, Dropped, Gap, Joined
from seriatim_broker.core.values.keyed import ConsumerMode

from sim.basics.schedule import Schedule, Violation
from sim.judge import Judge

P = PartitionId(1)
LOST = Gap(2, 0, "declared lost")
DROPPED = Dropped(make_offset(1, 8), 3, 0, 45)
"""Around the lost segment."""


def told_to(mode: ConsumerMode, *events: DeliveryEvent) -> None:
    """A broker says this to a subscription."""
    rule = Judge(Schedule(0), {}).rules.told_once
    joined = Joined(True, 3, 0, 0, 1, 5, mode=mode)
    for event in (joined, *events):
        rule.sent("g0-0", 3, 1, joined if isinstance(event, Joined) else event)


@pytest.mark.parametrize(
    ("mode", "events"),
    [
        (ConsumerMode.KEY_ORDERED, (LOST, LOST)),
        (ConsumerMode.EXCLUSIVE, (LOST, LOST)),
        (ConsumerMode.KEY_ORDERED, (LOST, DROPPED)),
        (ConsumerMode.KEY_ORDERED, (Dropped(make_offset(2, 0), 2, 18, 18), Dropped(make_offset(2, 12), 2, 13, 1))),
        (ConsumerMode.KEY_ORDERED, (Gap(2, 4, "declared lost"), LOST)),
    ],
    ids=["loss", "loss, exclusive", "drop around a loss", "list", "loss that grows"],
)  # fmt: skip
def test_offset_that_a_broker_tells_twice_is_found(mode: ConsumerMode, events: tuple[DeliveryEvent, ...]) -> None:
    with pytest.raises(Violation, match="TOLD"):
        told_to(mode, *events)


@pytest.mark.parametrize(
    ("mode", "events"),
    [
        (ConsumerMode.KEY_ORDERED, (LOST, Joined(True, 3, 0, 0, 1, 5), LOST)),
        (ConsumerMode.EXCLUSIVE, (LOST, DROPPED)),
        (ConsumerMode.KEY_ORDERED, (Gap(2, 4, "declared lost"), Gap(2, 0, "declared lost", 4))),
    ],
    ids=["joined again", "exclusive", "only what is new"],
)
def test_other_news_of_a_broker_are_allowed(mode: ConsumerMode, events: tuple[DeliveryEvent, ...]) -> None:
    told_to(mode, *events)


@pytest.mark.parametrize(
    ("what", "epoch", "begin", "is_found"),
    [
        ("moved", 2, (3, 0), True),
        ("moved", 2, (2, 0), False),
        ("moved", 3, (3, 0), False),
        ("rewind", 2, (3, 0), False),
    ],
    ids=["continues after it", "reads it again", "an epoch was missed", "an administrator moved it"],
)
def test_offset_that_an_application_is_told_twice(
    what: str, epoch: int, begin: tuple[int, int], is_found: bool
) -> None:
    rule = Judge(Schedule(0), {}).rules.told_once
    rule.begins("c", P)
    rule.joined("c", P, 1)
    rule.told("c", P, make_offset(2, 0), make_offset(3, 0))
    rule.moved("c", P, what, epoch, make_offset(*begin))
    if is_found:
        with pytest.raises(Violation, match="TOLD"):
            rule.told("c", P, make_offset(2, 5), make_offset(3, 0))
    else:
        rule.told("c", P, make_offset(2, 5), make_offset(3, 0))
    rule.begins("c", P)
    rule.told("c", P, make_offset(2, 0), make_offset(3, 0))
