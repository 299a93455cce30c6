"""A pass over a large cluster: its work grows as the cluster does, and not faster."""

from __future__ import annotations

import cProfile
import pstats
from typing import Any

from seriatim_operator.plan.cluster import plan
from seriatim_operator.status.cluster import broker_group_status, broker_status, cluster_status

from .world import new_world


def _calls(groups: int) -> int:
    """How many functions are called to plan for and report on a cluster that runs."""
    world = new_world(groups=groups, nodes=6, spreadMending="Automatic")
    for _ in range(4):
        world.a_pass()
        world.settle(1)
    observed, make = world.observed(), world.make()
    assert len(observed.live_brokers) == 2 * groups
    profile = cProfile.Profile()
    with profile:
        steps = plan(observed, make)
        cluster_status(observed, steps, "", "")
        for group in observed.groups.values():
            broker_group_status(observed, group)
        for broker in observed.brokers.values():
            broker_status(observed, broker, steps)
    counted: Any = pstats.Stats(profile)
    return int(counted.total_calls)


def test_four_times_the_broker_groups_are_four_times_the_work() -> None:
    assert _calls(80) / _calls(20) < 4.4
