"""Objects of the operator's own namespace: none is held, and what a watch reported of their end is followed
afterwards."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from seriatim_api.errors import BadRequestError
from seriatim_api.v1 import broker_pb2
from seriatim_operator.cluster.kinds import CONSUMER_GROUP, TOPIC
from seriatim_operator.plan.consumer_groups import (
    CONSUMER_GROUP_FINALIZER,
    NO_GROUP,
    ConsumerGroupView,
    plan_consumer_groups,
)
from seriatim_operator.plan.topics import TOPIC_FINALIZER, HoldObject, Surroundings
from seriatim_operator.reconcile import departed
from seriatim_operator.spec import ConsumerGroup

from ..spec.objects import good
from .world import World

EVENTS = ("Topic", "default", "events")


async def a_topic(world: World, **spec: object) -> dict[str, Any]:
    """A Topic with its topic; as the API has it."""
    await world.with_topic(deletionPolicy="Delete", **spec)
    return copy.deepcopy(world.api.objects[EVENTS])


# ---- what is done ----


async def test_no_object_is_held_and_one_that_was_is_let_go(home: World) -> None:
    held = good("Topic")
    held["metadata"]["finalizers"] = [TOPIC_FINALIZER, "other.dev/x"]
    home.api.put({**held, "spec": {**held["spec"], "deletionPolicy": "Delete"}})
    await home.with_topic("another", deletionPolicy="Delete")
    assert home.the_topic().metadata.finalizers == ("other.dev/x",)
    assert home.the_topic("another").metadata.finalizers == ()
    assert home.reasons("another")["Ready"] == ("True", "Accepting")


@pytest.mark.parametrize("trouble", ["refused", "conflict", "silent"])
async def test_an_object_in_trouble_is_let_go_too(home: World, trouble: str) -> None:
    await home.with_topic("old", age=60, name="events")
    if trouble == "silent":
        home.brokers.silence(are_silent=True)
    held = good("Topic", "mine")
    held["metadata"]["finalizers"] = [TOPIC_FINALIZER]
    held["spec"] |= {"deletionPolicy": "Delete", "name": "events" if trouble == "conflict" else "mine"}
    if trouble == "refused":
        home.brokers.put("mine", 9)
    home.api.put(held)
    await home.settle()
    assert home.the_topic("mine").metadata.finalizers == ()


async def test_a_deletion_that_was_told_takes_the_topic_with_it(home: World) -> None:
    await a_topic(home)
    home.api.remove("Topic", "events")
    assert not home.has("Topic", "events"), "nothing held it up"
    await home.settle()
    assert home.brokers.topics == {}
    assert home.brokers.calls == ["create events 1", "delete events"]
    assert home.told() == ["TopicCreated", "TopicDeleted"]
    writes = home.writes
    await home.settle(300)
    assert home.brokers.calls == ["create events 1", "delete events"], "once, and it is forgotten"
    assert home.writes == writes


async def test_a_whole_namespace_of_topics_goes(home: World) -> None:
    for number in range(50):
        home.topic(f"t{number}", deletionPolicy="Delete")
    await home.settle()
    for number in range(50):
        home.api.remove("Topic", f"t{number}")
    await home.settle()
    assert home.brokers.topics == {}


async def test_a_namesake_begins_anew_and_gets_no_message_of_the_one_before(home: World) -> None:
    await a_topic(home)
    before = home.the_topic().status.incarnation
    home.api.remove("Topic", "events")
    await home.with_topic(deletionPolicy="Delete")
    assert home.brokers.calls == ["create events 1", "delete events", "create events 1"]
    assert home.the_topic().status.incarnation != before
    assert home.reasons()["Ready"] == ("True", "Accepting")
    assert home.told() == ["TopicCreated", "TopicDeleted", "TopicCreated"]


async def test_a_namesake_waits_for_brokers_that_are_silent(home: World) -> None:
    await a_topic(home)
    home.brokers.silence(are_silent=True)
    home.api.remove("Topic", "events")
    home.topic(deletionPolicy="Delete")
    await home.settle(120)
    assert home.reasons()["Ready"] == ("Unknown", "BrokersSilent")
    home.brokers.silence(are_silent=False)
    await home.settle()
    assert home.brokers.calls[-2:] == ["delete events", "create events 1"]
    assert home.reasons()["Ready"] == ("True", "Accepting")


async def test_silent_brokers_are_waited_for(home: World) -> None:
    await a_topic(home)
    home.brokers.silence(are_silent=True)
    home.api.remove("Topic", "events")
    await home.settle(120)
    assert "events" in home.brokers.topics
    home.brokers.silence(are_silent=False)
    await home.settle()
    assert home.brokers.topics == {}


async def test_a_paused_cluster_is_waited_for(home: World) -> None:
    await a_topic(home)
    home.api.change("BrokerCluster", "orders", paused=True)
    home.api.remove("Topic", "events")
    await home.settle(120)
    assert home.brokers.calls == ["create events 1"]
    home.api.change("BrokerCluster", "orders", paused=False)
    await home.settle()
    assert home.brokers.topics == {}


async def test_what_the_brokers_refuse_is_tried_again(home: World) -> None:
    await a_topic(home)
    home.brokers.refusal = BadRequestError("not now")
    await home.without("Topic", "events")
    assert "events" in home.brokers.topics
    home.brokers.refusal = None
    await home.settle(120)
    assert home.brokers.topics == {}


async def test_a_topic_that_was_made_and_never_reported_goes_too(home: World) -> None:
    """The deletion overtakes the first report: the object says nothing of its topic."""
    last = await a_topic(home)
    home.hears_deletions = False
    home.api.remove("Topic", "events")
    del last["status"]
    home.reconciler.see_deleted(TOPIC, last)
    await home.settle()
    assert home.brokers.topics == {}


# ---- what is left alone ----


async def test_an_object_that_is_merely_missing_takes_nothing_with_it(home: World) -> None:
    await a_topic(home)
    home.hears_deletions = False
    home.api.remove("Topic", "events")
    await home.settle(300)
    assert home.brokers.calls == ["create events 1"]


async def test_the_policy_of_the_last_manifest_counts(home: World) -> None:
    await a_topic(home)
    home.api.change("Topic", "events", deletionPolicy="Retain")
    await home.without("Topic", "events")
    assert "events" in home.brokers.topics


async def test_an_object_that_is_there_after_all_keeps_its_topic(home: World) -> None:
    last = await a_topic(home)
    home.api.remove("Topic", "events")
    home.api.objects[EVENTS] = last  # restored, under the same UID
    await home.settle()
    assert home.brokers.calls == ["create events 1"]
    home.api.change("Topic", "events", partitions=2)
    await home.settle()
    assert home.reasons()["Ready"] == ("True", "Accepting"), "and it is looked after"
    assert home.brokers.calls == ["create events 1", "update events 2"]


async def test_another_object_that_wants_the_topic_gets_it_with_its_messages(home: World) -> None:
    home.topic("young", name="events")
    await a_topic(home, name="events")
    home.api.objects[EVENTS]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    home.api.change("Topic", "events")
    await home.settle()
    incarnation = home.brokers.topics["events"].topic.incarnation
    await home.without("Topic", "events")
    assert home.brokers.topics["events"].topic.incarnation == incarnation
    assert home.reasons("young")["Ready"] == ("True", "Accepting")
    assert "TopicKept" in home.told()


async def test_a_namesake_that_has_the_topic_already_keeps_it(home: World) -> None:
    """The news of its predecessor's end come late: by then producers may rely on the topic."""
    last = await a_topic(home)
    home.hears_deletions = False
    home.api.remove("Topic", "events")
    await home.with_topic(deletionPolicy="Delete")
    assert "TopicAdopted" in home.told()
    home.reconciler.see_deleted(TOPIC, last)
    await home.settle()
    assert "delete events" not in home.brokers.calls
    assert home.told()[-1] == "TopicKept"


async def test_a_topic_that_took_the_name_since_is_kept(home: World) -> None:
    await a_topic(home)
    home.brokers.silence(are_silent=True)
    await home.without("Topic", "events")
    del home.brokers.topics["events"]
    home.brokers.put("events", 1)
    home.brokers.silence(are_silent=False)
    await home.settle()
    assert "events" in home.brokers.topics
    assert home.told()[-1] == "TopicKept"


async def test_with_its_cluster_an_object_is_forgotten(home: World) -> None:
    await a_topic(home)
    home.api.remove("Topic", "events")
    await home.without("BrokerCluster", "orders")
    home.api.put(good("BrokerCluster"))
    await home.settle(120)
    assert home.brokers.calls == ["create events 1"]


async def test_a_cluster_that_is_only_missing_from_the_cache_lets_nothing_be_forgotten(home: World) -> None:
    await a_topic(home)
    there = home.api.objects["BrokerCluster", "default", "orders"]
    home.cache.drop("BrokerCluster", there)
    await home.without("Topic", "events")
    assert "events" in home.brokers.topics
    home.cache.put("BrokerCluster", there)
    await home.settle()
    assert home.brokers.topics == {}


async def test_what_nobody_told_this_operator_stays(home: World) -> None:
    await a_topic(home)
    home.brokers.silence(are_silent=True)
    await home.without("Topic", "events")
    await home.restart()
    home.brokers.silence(are_silent=False)
    await home.settle(120)
    assert home.brokers.calls == ["create events 1"]


async def test_an_object_that_was_held_to_the_last_was_let_go_by_somebody(home: World) -> None:
    """So it is with every object of another namespace, and with one whose finalizer an administrator took off."""
    last = await a_topic(home)
    home.hears_deletions = False
    home.api.remove("Topic", "events")
    last["metadata"]["finalizers"] = [TOPIC_FINALIZER]
    home.reconciler.see_deleted(TOPIC, last)
    await home.settle()
    assert "events" in home.brokers.topics


async def test_elsewhere_only_the_finalizer_counts(world: World) -> None:
    last = await a_topic(world)
    await world.reconciler.close()  # no operator looks, and an administrator takes the finalizer off
    world.api.objects[EVENTS]["metadata"]["finalizers"] = []
    world.api.remove("Topic", "events")
    await world.restart()
    last["metadata"]["finalizers"] = []
    world.reconciler.see_deleted(TOPIC, last)
    await world.settle()
    assert "events" in world.brokers.topics


async def test_what_cannot_be_read_is_left_alone(home: World) -> None:
    last = await a_topic(home)
    home.hears_deletions = False
    home.api.remove("Topic", "events")
    last["spec"]["partitions"] = "many"
    home.reconciler.see_deleted(TOPIC, last)
    await home.settle()
    assert "events" in home.brokers.topics
    assert last not in home.reconciler._departed
    await home.with_topic()
    assert home.reasons()["Ready"] == ("True", "Accepting"), "and holds up no other object"


async def test_no_more_are_remembered_than_the_limit(home: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departed, "DEPARTED_MAX", 2)
    for name in "abc":
        home.topic(name, deletionPolicy="Delete")
    await home.settle()
    for name in "abc":
        home.api.remove("Topic", name)
    await home.settle()
    assert list(home.brokers.topics) == ["c"]


async def test_an_old_picture_of_an_object_makes_nothing(home: World) -> None:
    """A listing that was under way when the object went brings it back into the cache."""
    last = await a_topic(home)
    await home.without("Topic", "events")
    home.cache.put("Topic", last)
    await home.settle(60)
    assert home.brokers.topics == {}


# ---- consumer groups ----


async def test_a_group_goes_with_its_object(home: World) -> None:
    await home.with_group(deletionPolicy="Delete")
    assert home.the_group().metadata.finalizers == ()
    await home.without("ConsumerGroup", "billing")
    assert home.brokers.groups == {}
    assert home.brokers.calls[-1] == "delete group events billing"


@pytest.mark.parametrize("view", [None, NO_GROUP, ConsumerGroupView(is_placed=True)])
@pytest.mark.parametrize("surroundings", Surroundings)
def test_no_group_is_ever_held(view: ConsumerGroupView | None, surroundings: Surroundings) -> None:
    manifest = good("ConsumerGroup")
    manifest["spec"]["deletionPolicy"] = "Delete"
    (plan,) = plan_consumer_groups([ConsumerGroup.from_manifest(manifest)], view, surroundings, holds=False)
    assert not any(isinstance(step, HoldObject) for step in plan.steps)


async def test_a_group_that_was_held_is_let_go(home: World) -> None:
    home.topic()
    held = good("ConsumerGroup")
    held["metadata"]["finalizers"] = [CONSUMER_GROUP_FINALIZER]
    home.api.put({**held, "spec": {**held["spec"], "deletionPolicy": "Delete"}})
    await home.settle()
    assert home.the_group().metadata.finalizers == ()


async def test_a_group_goes_when_nobody_consumes_any_more(home: World) -> None:
    await home.with_group(deletionPolicy="Delete")
    row = broker_pb2.GroupPartition(has_cursor=True, active_consumer="c1")
    home.brokers.groups["events", "billing"] = [row]
    await home.without("ConsumerGroup", "billing")
    assert ("events", "billing") in home.brokers.groups
    home.brokers.groups["events", "billing"] = [broker_pb2.GroupPartition(has_cursor=True)]
    await home.settle(60)
    assert home.brokers.groups == {}


async def test_a_group_of_the_same_name_begins_anew(home: World) -> None:
    await home.with_group(deletionPolicy="Delete")
    home.api.remove("ConsumerGroup", "billing")
    home.consumer_group(deletionPolicy="Delete", start="Latest")
    await home.settle()
    assert home.brokers.calls[-2:] == [
        "delete group events billing",
        "create group events billing START_POSITION_LATEST",
    ]
    assert home.the_group().status.is_true("Ready")


async def test_a_group_whose_object_is_there_after_all_stays(home: World) -> None:
    await home.with_group(deletionPolicy="Delete")
    last = copy.deepcopy(home.api.objects["ConsumerGroup", "default", "billing"])
    home.reconciler.see_deleted(CONSUMER_GROUP, last)
    await home.settle(60)
    assert "delete group events billing" not in home.brokers.calls
    assert home.the_group().status.is_true("Ready")
