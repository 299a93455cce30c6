"""Topics that were made for objects and have no object now: reported once, and only those."""

from __future__ import annotations

import uuid

import pytest
from seriatim_api.v1 import records_pb2

from .world import World


def unclaimed(world: World) -> list[str]:
    """What was reported of such topics."""
    return [note for *about, note in world.api.events if about == ["orders", "Warning", "TopicUnclaimed"]]


async def left_behind(home: World, *names: str) -> None:
    """Topics whose objects go while no operator runs; another operator begins then."""
    for name in names:
        home.topic(name, deletionPolicy="Delete")
    await home.settle()
    await home.reconciler.close()
    home.hears_deletions = False
    for name in names:
        home.api.remove("Topic", name)
    await home.restart()
    await home.settle()


async def test_what_was_left_behind_is_told_once_though_no_object_is_left(home: World) -> None:
    await left_behind(home, "events")
    assert len(unclaimed(home)) == 1
    assert "events. Apply a Topic of that name" in unclaimed(home)[0]
    home.api.change("BrokerCluster", "orders", paused=False)
    await home.settle(300)
    assert len(unclaimed(home)) == 1
    assert list(home.brokers.topics) == ["events"], "and it stays"


async def test_beside_others_too_and_only_five_are_named(home: World) -> None:
    home.topic("claimed")
    await left_behind(home, *"abcdefg")
    assert len(unclaimed(home)) == 1
    assert "kept: a, b, c, d, e and 2 more." in unclaimed(home)[0]


async def test_an_object_takes_one_over_again(home: World) -> None:
    await left_behind(home, "events")
    await home.with_topic(deletionPolicy="Delete")
    assert home.reasons()["Ready"] == ("True", "Accepting")
    await home.without("Topic", "events")
    assert home.brokers.topics == {}
    assert len(unclaimed(home)) == 1


async def test_brokers_that_are_silent_are_waited_for(home: World) -> None:
    await home.with_topic(deletionPolicy="Delete")
    home.brokers.silence(are_silent=True)
    home.hears_deletions = False
    home.api.remove("Topic", "events")
    await home.restart()
    await home.settle(60)
    assert unclaimed(home) == []
    home.brokers.silence(are_silent=False)
    await home.settle()
    assert len(unclaimed(home)) == 1


async def test_an_object_that_goes_missing_is_told_of_though_it_was_the_last(home: World) -> None:
    await home.with_topic(deletionPolicy="Delete")
    home.hears_deletions = False
    await home.without("Topic", "events")
    assert len(unclaimed(home)) == 1


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
async def test_what_was_deleted_before_our_eyes_is_no_news(home: World, policy: str) -> None:
    home.topic(deletionPolicy=policy)
    await home.with_topic("another")
    home.api.remove("Topic", "events")
    await home.settle(60)
    assert ("events" in home.brokers.topics) is (policy == "Retain")
    assert unclaimed(home) == []


async def test_one_whose_last_words_are_yet_to_be_followed_is_claimed(home: World) -> None:
    await home.with_topic(deletionPolicy="Delete")
    home.api.change("BrokerCluster", "orders", paused=True)
    await home.without("Topic", "events")
    home.api.change("BrokerCluster", "orders", paused=False)
    await home.settle()
    assert unclaimed(home) == []
    assert home.brokers.topics == {}


async def test_topics_that_others_made_are_theirs(world: World) -> None:
    world.brokers.put("legacy", 1)
    world.brokers.put("legacy-2", 1, incarnation="9b2d6c1de0374f0a8f0e6a1f6b1f2c3d")  # a random UUID
    await world.settle()
    assert unclaimed(world) == []


async def test_one_that_is_being_deleted_needs_nobody(world: World) -> None:
    made = world.brokers.put("events", 1, incarnation=uuid.uuid5(uuid.NAMESPACE_DNS, "somebody").hex)
    made.topic.state = records_pb2.TOPIC_STATE_DELETING
    await world.settle()
    assert unclaimed(world) == []


async def test_brokers_without_objects_are_listened_to_on_one_stream(world: World) -> None:
    await world.settle(60)
    assert (world.brokers.watches, world.brokers.watchers) == (1, 1)
    world.api.change("BrokerCluster", "orders", paused=False)
    await world.settle(60)
    assert (world.brokers.watches, world.brokers.watchers) == (1, 1)
    await world.with_topic()
    assert world.reasons()["Ready"] == ("True", "Accepting")
