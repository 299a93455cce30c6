"""Consumer groups from object to brokers and back."""

from __future__ import annotations

import asyncio

import pytest
from seriatim_api.errors import OffsetOutOfRangeError, UnavailableError
from seriatim_api.v1 import broker_pb2
from seriatim_operator.plan.consumer_groups import CONSUMER_GROUP_FINALIZER
from seriatim_operator.reconcile.dispatch import ConsumerGroupsKey, TopicsKey
from seriatim_operator.status.consumer_groups import LAG_BUCKETS, lag_bucket

from .world import World


def at(world: World, lag: int, *, consumer: str = "") -> None:
    """Move the group to so far before the end."""
    for row in world.brokers.groups.setdefault(("events", "billing"), [broker_pb2.GroupPartition(has_cursor=True)]):
        row.position, row.end_position, row.active_consumer = 100, 100 + lag, consumer


def ready(world: World, name: str = "billing") -> tuple[str, str]:
    condition = world.the_group(name).status.condition("Ready")
    assert condition is not None
    return condition.status, condition.reason


async def test_a_group_gets_its_place(world: World) -> None:
    await world.with_group(start="Latest")
    assert "create group events billing START_POSITION_LATEST" in world.brokers.calls
    assert ready(world) == ("True", "Placed")
    status = world.the_group().status
    assert (status.group_name, status.state, status.lag_bucket) == ("billing", "Idle", "<=100")
    assert "GroupCreated" in world.told()


async def test_a_group_waits_for_its_topic_and_no_longer(world: World) -> None:
    world.consumer_group()
    await world.settle()
    assert ready(world) == ("False", "TopicNotFound")
    world.brokers.put("events", 1)
    await world.settle(0.5)
    assert ready(world) == ("True", "Placed")


async def test_state_and_lag_are_told_in_steps(world: World) -> None:
    await world.with_group()
    writes = world.writes
    at(world, 90)
    await world.settle(60)
    assert world.writes == writes, "the same step"
    at(world, 5_000, consumer="c1")
    await world.settle(60)
    assert (world.the_group().status.state, world.the_group().status.lag_bucket) == ("Active", "<=10000")
    at(world, 50_000, consumer="c1")
    await world.settle(60)
    assert world.the_group().status.state == "Behind"
    at(world, 50_000)
    await world.settle(60)
    assert world.the_group().status.state == "Idle"
    assert world.writes == writes + 3


async def test_messages_of_parked_keys_are_lag_and_those_that_were_acknowledged_one_by_one_are_not(
    world: World,
) -> None:
    await world.with_group()
    at(world, 200_000)
    for row in world.brokers.groups["events", "billing"]:
        row.passed_messages = 199_990
    await world.settle(60)
    assert world.the_group().status.lag_bucket == "<=100"
    for row in world.brokers.groups["events", "billing"]:
        row.aside_messages, row.end_position, row.passed_messages = 30_000, row.position, 0
    await world.settle(60)
    assert world.the_group().status.lag_bucket == "<=1000000"


async def test_a_lag_that_nobody_knows_leaves_the_step(world: World) -> None:
    world.topic()
    world.consumer_group()
    at(world, 5_000)
    await world.settle()
    (row,) = world.brokers.groups["events", "billing"]
    row.error.number = 600
    await world.settle(60)
    assert world.the_group().status.lag_bucket == "<=10000"


async def test_a_group_deleted_behind_the_operator_is_made_again(world: World) -> None:
    await world.with_group()
    del world.brokers.groups["events", "billing"]
    await world.settle(60)
    assert ("events", "billing") in world.brokers.groups
    assert "GroupRecreated" in world.told()


async def test_deleting_the_object_keeps_the_place_by_default(world: World) -> None:
    await world.with_group()
    await world.without("ConsumerGroup", "billing")
    assert not world.has("ConsumerGroup", "billing")
    assert ("events", "billing") in world.brokers.groups


async def test_deleting_the_object_forgets_the_place_where_it_says_so_and_nobody_consumes(world: World) -> None:
    await world.with_group(deletionPolicy="Delete")
    assert world.the_group().metadata.finalizers == (CONSUMER_GROUP_FINALIZER,)
    at(world, 1, consumer="c1")
    await world.without("ConsumerGroup", "billing")
    assert ready(world) == ("False", "Refused")
    at(world, 1)
    await world.settle(60)
    assert not world.has("ConsumerGroup", "billing")
    assert world.brokers.groups == {}


async def test_deleting_the_object_after_its_topic_is_no_trouble(world: World) -> None:
    world.brokers.put("events", 1)
    world.consumer_group(deletionPolicy="Delete")
    await world.settle()
    world.brokers.drop("events")
    await world.without("ConsumerGroup", "billing")
    assert not world.has("ConsumerGroup", "billing")


async def test_the_oldest_of_two_objects_has_the_group(world: World) -> None:
    world.topic()
    world.consumer_group("young", group="Billing")
    world.consumer_group("old", group="Billing", age=60)
    await world.settle()
    assert ready(world, "old") == ("True", "Placed")
    assert ready(world, "young") == ("False", "ResourceConflict")


async def test_silence_is_told_when_it_lasts(world: World) -> None:
    await world.with_group()
    world.brokers.silence(are_silent=True)
    await world.settle(30)
    assert ready(world) == ("True", "Placed")
    await world.settle(60)
    assert ready(world) == ("Unknown", "BrokersSilent")
    world.brokers.silence(are_silent=False)
    await world.settle()
    assert ready(world) == ("True", "Placed")


async def test_groups_whose_brokers_take_long_hold_up_no_topic(world: World) -> None:
    world.topic("first")
    world.consumer_group(topic="first")
    await world.settle()
    world.brokers.describes.clear()
    world.topic("second")
    world.now_s += 60
    asking = asyncio.create_task(world.reconciler.reconcile(ConsumerGroupsKey("default", "orders")))
    for _ in range(20):
        await world.reconciler.reconcile(TopicsKey("default", "orders"))
        await asyncio.sleep(0)
    assert world.reasons("second")["Ready"] == ("True", "Accepting")
    assert not asking.done()
    world.brokers.describes.set()
    await asking


async def test_a_cluster_that_is_gone_holds_up_no_object(world: World) -> None:
    await world.with_group(deletionPolicy="Delete")
    await world.without("BrokerCluster", "orders")
    assert ready(world) == ("False", "ClusterNotFound")
    await world.without("ConsumerGroup", "billing")
    assert not world.has("ConsumerGroup", "billing")


@pytest.mark.parametrize(
    ("lag", "before", "bucket"),
    [
        (0, "", "<=100"),
        (100, "", "<=100"),
        (101, "", "<=10000"),
        (101, "<=100", "<=10000"),
        (60, "<=10000", "<=10000"),
        (51, "<=10000", "<=10000"),
        (50, "<=10000", "<=100"),
        (10**9, "<=100", ">1000000"),
        (None, "<=100", "<=100"),
        (5, "nonsense", "<=100"),
    ],
)
def test_a_lag_is_never_above_its_step_and_stays_there_while_it_falls_to_the_half(
    lag: int | None, before: str, bucket: str
) -> None:
    assert lag_bucket(lag, before) == bucket
    assert bucket in LAG_BUCKETS


# ---- paused, rewound ----------------------------------------------------------------------------------------


async def test_a_group_is_paused_and_resumed_as_the_object_says(world: World) -> None:
    world.topic()
    world.consumer_group(paused=True)
    await world.settle(60)
    assert world.brokers.groups["events", "billing"][0].paused
    assert world.the_group().status.paused
    calls = world.brokers.calls.count("pause group events billing")
    await world.settle(60)
    assert world.brokers.calls.count("pause group events billing") == calls == 1, "and not again and again"
    world.api.change("ConsumerGroup", "billing", paused=False)
    await world.settle(60)
    assert not world.brokers.groups["events", "billing"][0].paused
    assert not world.the_group().status.paused
    assert {"GroupPaused", "GroupResumed"} <= set(world.told())


async def test_what_the_object_does_not_say_is_left_as_people_have_it(world: World) -> None:
    await world.with_group()
    world.brokers.groups["events", "billing"][0].paused = True
    await world.settle(60)
    assert world.brokers.groups["events", "billing"][0].paused
    assert world.the_group().status.paused


async def test_a_rewind_is_carried_out_once_for_each_request(world: World) -> None:
    await world.with_group()
    world.api.change("ConsumerGroup", "billing", rewind={"to": "2026-01-31T08:00:00Z", "requestId": "again-1"})
    await world.settle(60)
    assert world.brokers.calls.count("move group events billing 1769846400000") == 1
    done = world.the_group().status.rewind
    assert done is not None
    assert (done.request_id, done.state) == ("again-1", "Done")
    await world.settle(120)
    assert len(world.brokers.moves) == 1
    world.api.change("ConsumerGroup", "billing", rewind={"to": "Earliest", "requestId": "again-2"})
    await world.settle(60)
    assert len(world.brokers.moves) == 2
    assert world.told().count("GroupRewound") == 2


async def test_a_rewind_whose_end_was_not_written_is_asked_for_under_the_same_id(world: World) -> None:
    await world.with_group()
    world.brokers.refuse_moves = UnavailableError("no answer says what became of it")
    world.api.change("ConsumerGroup", "billing", rewind={"to": "Latest", "requestId": "r"})
    await world.settle(60)
    assert world.the_group().status.rewind is None
    world.brokers.refuse_moves = None
    await world.settle(60)
    done = world.the_group().status.rewind
    assert done is not None
    assert done.state == "Done"
    assert len(world.brokers.moves) == 1


async def test_a_rewind_to_nowhere_is_refused_once(world: World) -> None:
    await world.with_group()
    world.brokers.refuse_moves = OffsetOutOfRangeError("the time lies in the future")
    world.api.change("ConsumerGroup", "billing", rewind={"to": "2099-01-01T00:00:00Z", "requestId": "r"})
    await world.settle(120)
    refused = world.the_group().status.rewind
    assert refused is not None
    assert (refused.state, refused.message) == ("Refused", "[125] the time lies in the future")
    assert ready(world) == ("True", "Placed"), "the group is where it was"
    assert len([call for call in world.brokers.calls if call.startswith("move")]) == 1


async def test_a_group_may_begin_at_a_time(world: World) -> None:
    await world.with_group(start="2026-01-31T09:00:00+01:00")
    assert "create group events billing 1769846400000" in world.brokers.calls


async def test_a_day_that_no_calendar_has_is_refused(world: World) -> None:
    await world.with_group()
    world.api.change("ConsumerGroup", "billing", rewind={"to": "2026-02-31T00:00:00Z", "requestId": "r"})
    await world.settle(60)
    refused = world.the_group().status.rewind
    assert refused is not None
    assert refused.state == "Refused"
    assert "is not a time" in refused.message
