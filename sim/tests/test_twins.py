"""Copies and freezes of complete broker cores in the middle of a run: a twin does what the original does, and alone."""

from __future__ import annotations

import pytest
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.values.effects import Effect
from seriatim_broker.core.values.events import Event, Moment

from sim.world import World

EVERY = 23
"""Of this many steps one is taken by a twin first: freezing a whole core costs as much as a hundred steps."""

NIGHT = (pytest.mark.slow, pytest.mark.night)


class Watched(BrokerCore):
    """A core that checks itself against a copy from time to time."""

    __slots__ = ("steps", "twins")

    def step(self, event: Event, now: Moment) -> list[Effect]:
        steps = getattr(self, "steps", 0) + 1
        self.steps = steps
        self.twins = getattr(self, "twins", 0)
        if steps % EVERY:
            return super().step(event, now)
        self.twins += 1
        before = self.freeze()
        twin = self.copy()
        assert twin.freeze() == before
        hash(before)
        of_twin = BrokerCore.step(twin, event, now)
        assert self.freeze() == before, "the twin's step changed the original"
        effects = super().step(event, now)
        assert repr(effects) == repr(of_twin)  # errors are compared by what they say
        assert twin.freeze() == self.freeze()
        return effects


@pytest.mark.parametrize("seed", [pytest.param(2, marks=NIGHT), 5, pytest.param(9, marks=NIGHT)])
def test_a_twin_of_a_core_does_the_same_and_leaves_it_alone(seed: int) -> None:
    world = World(seed, core_kind=Watched)
    result = world.run()
    assert not result.violation
    processes = [broker.process for broker in world.cluster.brokers.values() if broker.process is not None]
    cores = [process.watched.core for process in processes if process.watched is not None]
    assert sum(core.twins for core in cores if isinstance(core, Watched)) > 10
