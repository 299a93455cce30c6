"""Worlds in which several features meet: what they are made of."""

from __future__ import annotations

import pytest
from seriatim_api.errors import UnavailableError
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.effects import Resolved
from seriatim_broker.core.values.events import CreatePartition, Event
from seriatim_broker.core.values.keyed import ConsumerMode, WantedSettings

from sim.basics.distances import CLIENTS, Distances
from sim.cores.brokers import Process
from sim.cores.kind import CORES
from sim.faults import Options
from sim.world import World


def test_a_link_is_as_long_in_both_directions_and_stays_so() -> None:
    far, near = Options(far_us_max=200_000), Options()
    drawn = {number: Distances(number, far).us(CLIENTS, "b") for number in range(200)}
    assert min(drawn.values()) >= 100
    assert max(drawn.values()) <= 200_000
    assert sum(us < 4_500 for us in drawn.values()) in range(60, 140), "as many are short as are long"
    assert all(Distances(number, far).us("b", CLIENTS) == us for number, us in drawn.items())
    assert max(Distances(number, far).us("a", "b") for number in range(200)) in range(50_000, 100_001)
    assert Distances(3, near).us("a", "b") == 0


def test_consumer_of_another_mode_begins_again_only_after_people_changed_it() -> None:
    world = World(0, CORES, profile="crossings")
    partition, own = world.setting.partitions[0], WantedSettings(ConsumerMode.KEY_ORDERED)
    assert not world.clients.other_mode("early", partition), "no administrator changed it: the judge calls it a fault"
    assert not world.people.is_busy
    world.people._own["early"] = own
    assert world.clients.other_mode("early", partition)
    assert [(wish.partition, wish.group, wish.wanted) for wish in world.people._waiting] == [(partition, "early", own)]


def test_partition_is_asked_for_again_if_its_members_were_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0, CORES)
    refused: list[PartitionId] = []
    for broker in world.cluster.first_brokers():
        broker.start()
    deliver = Process.deliver

    def refuse_first(process: Process, event: Event) -> None:
        if isinstance(event, CreatePartition) and not refused:
            refused.append(event.partition)
            world.clients.answer(process, event.request, Resolved(event.request, None, UnavailableError("too slow")))
        else:
            deliver(process, event)

    monkeypatch.setattr(Process, "deliver", refuse_first)
    world.cluster.create()
    assert refused == world.setting.partitions[:1]
    assert world.copies.chain(refused[0]).partition == refused[0]
