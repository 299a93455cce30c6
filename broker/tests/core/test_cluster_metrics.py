"""The state of the whole cluster in metrics: copies that can be reached, and who shows them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api.ids import MemberId
from seriatim_broker.metrics import cluster
from seriatim_broker.metrics.cluster import UNREAD_S, ClusterMeter, broker_figures, partition_figures
from seriatim_broker.runtime.coordinator.topic_feed import Copies, Standing

A0, A1, B0, B1 = (MemberId(name, name[0] * 32) for name in ("a-0", "a-1", "b-0", "b-1"))
BOTH_A, BOTH_B = (Copies(frozenset(both), frozenset(both)) for both in ((A0, A1), (B0, B1)))


def standing(head: tuple[MemberId, ...], *copies: Copies, **flags: bool) -> Standing:
    """A standing of partitions that are not lost and not unsettled."""
    return Standing(head, frozenset(copies), flags.get("is_unsettled", False), flags.get("is_lost", False))


def figures(standings: dict[Standing, int], *away: MemberId, copies: int = 2) -> dict[str, int]:
    """The figures that are not 0, while these members are away."""
    found = partition_figures(standings, lambda member: member not in away, copies)
    if copies == 2:  # it says what `one_copy` and `no_copy` say
        del found["partitions_fewer_copies"]
    return {name.removeprefix("partitions_"): value for name, value in found.items() if value}


def test_a_copy_on_a_broker_that_does_not_run_is_no_copy() -> None:
    moved = {standing((B0, B1), BOTH_A, BOTH_B): 7, standing((B0, B1), BOTH_B): 2}
    assert figures(moved) == {"partitions": 9}
    assert figures(moved, A0) == {"partitions": 9, "one_copy": 7}
    assert figures(moved, A0, A1) == {"partitions": 9, "no_copy": 7}
    assert figures(moved, B1) == {"partitions": 9, "one_copy": 9, "without_head": 9}


def test_copies_are_counted_up_to_the_size_of_the_groups() -> None:
    three = Copies(frozenset({A0, A1, B0}), frozenset({A0, A1, B0}))
    held = {standing((A0, A1, B0), three): 4}
    assert figures(held, copies=3) == {"partitions": 4}
    assert figures(held, B0, copies=3) == {"partitions": 4, "without_head": 4, "fewer_copies": 4}
    assert figures(held, A1, B0, copies=3)["one_copy"] == 4


def test_a_copy_that_is_not_listed_is_no_copy() -> None:
    alone = Copies(frozenset({A0}), frozenset({A0}))
    assert figures({standing((B0, B1), alone, BOTH_B): 3}) == {"partitions": 3, "one_copy": 3}


def test_a_member_that_lacks_the_end_of_a_segment_is_no_second_copy_and_better_than_none() -> None:
    came_back = {standing((B0, B1), Copies(frozenset({A0, A1}), frozenset({A0})), BOTH_B): 3}
    assert figures(came_back) == {"partitions": 3, "one_copy": 3}
    assert figures(came_back, A0) == {"partitions": 3, "one_copy": 3}
    assert figures(came_back, A0, A1) == {"partitions": 3, "no_copy": 3}


def test_lost_and_unsettled_partitions_are_counted() -> None:
    found = figures({standing((B0, B1), is_lost=True): 1, standing((B0, B1), is_unsettled=True): 2})
    assert found == {"partitions": 3, "lost": 1, "unsettled": 2}


def members(*away: MemberId, unlinked: dict[str, tuple[str, ...]] | None = None) -> dict[str, int]:
    """The figures of two broker groups of two."""
    known: Any = SimpleNamespace(
        broker_groups=lambda: {"a": (A0, A1), "b": (B0, B1), "alone": (MemberId("c-0", "c" * 32),)},
        unlinked=lambda broker: (unlinked or {}).get(broker, ()),
    )
    return broker_figures(known, lambda member: member not in away)


def test_a_group_is_whole_if_two_members_run_and_are_linked() -> None:
    assert members() == {"broker_groups": 3, "broker_groups_not_whole": 1, "brokers": 5, "brokers_away": 0}
    assert members(A0, A1, B0)["broker_groups_not_whole"] == 3
    assert members(A0, A1, B0)["brokers_away"] == 3
    assert members(unlinked={"a-0": ("a-1",)})["broker_groups_not_whole"] == 2


class Feed:
    """Has one mirror, and knows whether it is followed."""

    def __init__(self) -> None:
        self.is_followed = False
        self.changed = asyncio.Event()
        self.mirror = SimpleNamespace(is_listed=True, topic_count=1, standings=Counter({standing((A0, A1), BOTH_A): 4}))

    @contextlib.asynccontextmanager
    async def follow(self) -> AsyncIterator[Any]:
        """As the feed does."""
        self.is_followed = True
        self.changed.set()
        yield self.mirror
        self.is_followed = False
        self.changed.set()


class Shown:
    """A meter, the world that it sees, and a clock."""

    def __init__(self) -> None:
        self.feed = Feed()
        self.is_controller = True
        self.now_us = 0
        clock: Any = SimpleNamespace(monotonic_us=lambda: self.now_us)
        no_brokers: Any = SimpleNamespace(broker_groups=dict)
        self.meter = ClusterMeter(
            "a-0", cast(Any, self.feed), no_brokers, lambda member: True, lambda: self.is_controller, lambda: 3, clock
        )

    def page(self) -> dict[str, float]:
        """All samples."""
        return {sample.name: sample.value for family in self.meter.collect() for sample in family.samples}

    async def until_followed(self, wanted: bool) -> None:
        """Wait until the feed is followed, or is not any more."""
        async with asyncio.timeout(10):
            while self.feed.is_followed is not wanted:
                self.feed.changed.clear()
                await self.feed.changed.wait()


@pytest.fixture
async def shown(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shown]:
    """A meter that runs."""
    monkeypatch.setattr(cluster, "LOOK_S", 0)
    found = Shown()
    running = asyncio.create_task(found.meter.run())
    yield found
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_only_the_controller_has_values_and_only_while_its_page_is_read(shown: Shown) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    assert not shown.feed.is_followed, "nothing reads the page"
    assert shown.page() == {}
    await shown.until_followed(True)
    assert shown.page()["seriatim_cluster_partitions"] == 4
    assert shown.page()["seriatim_cluster_partitions_fewer_copies"] == 4, "the controller has three made"
    shown.is_controller = False
    await shown.until_followed(False)
    assert shown.page() == {}
    shown.is_controller = True
    await shown.until_followed(True)
    shown.now_us = round(UNREAD_S * 1e6)
    await shown.until_followed(False)


async def test_before_everything_is_listed_there_are_no_values(shown: Shown) -> None:
    shown.feed.mirror.is_listed = False
    shown.page()
    await shown.until_followed(True)
    assert shown.page() == {}
