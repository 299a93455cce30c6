"""Members of a group that are live and have no link: they say so, and their group is not complete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from seriatim_api.v1 import records_pb2
from seriatim_broker.runtime import assembly
from seriatim_broker.runtime.assembly import UNLINKED_S

from sim.whole.cluster import WholeCluster
from sim.whole.kinds import BROKERS
from sim.world import World

SECOND = 1_000_000


@pytest.fixture
def cluster() -> Iterator[WholeCluster]:
    """Brokers that are not started, and nothing to do for them."""
    made = World(1, BROKERS).cluster
    assert isinstance(made, WholeCluster)
    with made.running():
        yield made


def _pass_time(cluster: WholeCluster, seconds: float) -> None:
    schedule = cluster.setting.schedule
    assert schedule.run_until(schedule.now_us + int(seconds * SECOND), 2_000_000)


def _told(cluster: WholeCluster, broker: str) -> list[str]:
    """What the live record of a broker names."""
    item = cluster.coordinator.store.items.get(cluster.coordinator.keys.live(broker))
    assert item is not None, "it is live"
    return list(records_pb2.LiveRecord.FromString(item.value).unlinked)


def _clock(cluster: WholeCluster, broker: str) -> int:
    """The wall clock that a broker reported last, in milliseconds."""
    item = cluster.coordinator.store.items[cluster.coordinator.keys.live(broker)]
    return records_pb2.LiveRecord.FromString(item.value).wall_ms


def _missing(cluster: WholeCluster, broker: str) -> str:
    process = cluster.brokers[broker].process
    assert process is not None
    runtime = process.simulated.runtime
    return runtime.missing_link() if runtime is not None else "not begun"


def _cut(cluster: WholeCluster, heal: bool = False) -> None:
    change = cluster.network.heal if heal else cluster.network.cut
    for pair in (("g0-0", "g0-1"), ("g0-1", "g0-0")):
        change(*pair)


def test_members_of_an_idle_group_are_linked_and_ready(cluster: WholeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.start()
    _pass_time(cluster, 3)
    assert [_missing(cluster, name) for name in sorted(cluster.brokers)] == [""] * len(cluster.brokers)
    assert not any(_told(cluster, name) for name in cluster.brokers)


def test_a_member_that_reaches_nobody_of_its_group_is_not_ready_and_both_say_so_until_it_does(
    cluster: WholeCluster,
) -> None:
    _cut(cluster)
    for broker in cluster.brokers.values():
        broker.start()
    _pass_time(cluster, 3)
    assert (_missing(cluster, "g0-0"), _missing(cluster, "g0-1"), _missing(cluster, "g1-0")) == ("g0-1", "g0-0", "")
    _pass_time(cluster, UNLINKED_S + 2)
    assert (_told(cluster, "g0-0"), _told(cluster, "g0-1"), _told(cluster, "g1-0")) == (["g0-1"], ["g0-0"], [])
    _cut(cluster, heal=True)
    _pass_time(cluster, 6)
    assert not any(_told(cluster, name) or _missing(cluster, name) for name in cluster.brokers)


def test_a_link_that_breaks_later_is_told_and_takes_nobodys_readiness(cluster: WholeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.start()
    _pass_time(cluster, 3)
    _cut(cluster)
    _pass_time(cluster, UNLINKED_S + 4)
    assert (_told(cluster, "g0-0"), _told(cluster, "g0-1")) == (["g0-1"], ["g0-0"])
    assert not any(_missing(cluster, name) for name in cluster.brokers)


def test_a_live_record_tells_its_clock_again_and_again(cluster: WholeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "TOLD_S", 2.0)
    for broker in cluster.brokers.values():
        broker.start()
    _pass_time(cluster, 3)
    first = _clock(cluster, "g0-0")
    _pass_time(cluster, 3)
    assert 1_500 < _clock(cluster, "g0-0") - first < 5_000
