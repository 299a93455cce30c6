"""Modes, retry policies, parked keys and dead letters of consumer groups, from object to brokers and back."""

from __future__ import annotations

import time

import pytest
from seriatim_api.errors import PreconditionError, UnavailableError
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_operator.plan.consumer_group_settings import ConsumerGroupSettings, RetrySettings
from seriatim_operator.reconcile.consumer_group_settings import settings_from_message, settings_message
from seriatim_operator.status.consumer_groups import AGE_BUCKETS, COUNT_BUCKETS, count_bucket

from .world import World

PARKING = {"attempts": 5, "whenExhausted": "ParkKey"}
FORWARDING = {"attempts": 3, "whenExhausted": "DeadLetter"}


def rows(world: World) -> list[broker_pb2.GroupPartition]:
    """The consumer group as the brokers have it."""
    return world.brokers.groups["events", "billing"]


def condition(world: World, kind: str = "Ready") -> tuple[str, str]:
    """Status and reason of a condition."""
    found = world.the_group().status.condition(kind)
    assert found is not None
    return found.status, found.reason


async def placed(world: World, **spec: object) -> None:
    """Apply a topic and a consumer group, and let the operator make both."""
    world.topic()
    world.consumer_group(**spec)
    await world.settle(60)
    assert condition(world) == ("True", "Placed")


# ---- settings ---------------------------------------------------------------------------------------------


async def test_a_group_is_made_with_its_settings(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry={**PARKING, "backOff": "List", "delays": ["1s", "1m30s"]})
    (row,) = rows(world)
    assert row.settings.mode == records_pb2.CONSUMER_MODE_KEY_ORDERED
    assert (row.settings.retry.attempts_max, list(row.settings.retry.delays_ms)) == (5, [1_000, 90_000])
    assert row.settings.retry.exhausted == records_pb2.EXHAUSTED_PARK_KEY
    status = world.the_group().status
    assert (status.mode, status.delivery) == ("KeyOrdered", "AtLeastOnce")
    assert status.policy == "5 attempts, then ParkKey; List 1s 1m30s"
    assert "GroupConfigured" not in world.told()


async def test_a_changed_policy_takes_effect_at_once(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=PARKING)
    world.api.change("ConsumerGroup", "billing", retry={**PARKING, "attempts": 9})
    await world.settle(2)
    assert rows(world)[0].settings.retry.attempts_max == 9
    assert "configure events billing retry" in world.brokers.calls
    assert condition(world) == ("True", "Placed")
    assert world.the_group().status.policy.startswith("9 attempts")
    assert world.told().count("GroupConfigured") == 1


async def test_a_policy_that_the_object_does_not_have_is_left_to_people(world: World) -> None:
    await placed(world, mode="KeyOrdered")
    rows(world)[0].settings.retry.attempts_max = 7
    await world.settle(120)
    assert rows(world)[0].settings.retry.attempts_max == 7
    assert world.the_group().status.policy.startswith("7 attempts")


async def test_a_policy_that_others_changed_is_changed_back_and_never_in_a_hurry(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=PARKING)
    rows(world)[0].settings.retry.attempts_max = 7
    await world.settle(60)
    assert rows(world)[0].settings.retry.attempts_max == 5
    assert world.told().count("DriftReverted") == 1
    world.brokers.ignore_configure = True
    rows(world)[0].settings.retry.attempts_max = 7
    calls = world.brokers.calls.count("configure events billing retry")
    await world.settle(120)
    assert world.brokers.calls.count("configure events billing retry") - calls <= 10


async def test_another_mode_waits_until_no_consumer_is_connected(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=PARKING)
    rows(world)[0].consumers.append("c1")
    world.api.change("ConsumerGroup", "billing", mode="Shared", retry={**PARKING, "attempts": 2})
    await world.settle(60)
    assert condition(world) == ("False", "ConsumersConnected")
    assert rows(world)[0].settings.mode == records_pb2.CONSUMER_MODE_KEY_ORDERED
    assert rows(world)[0].settings.retry.attempts_max == 2, "the policy does not wait"
    writes = world.writes
    await world.settle(120)
    assert world.writes == writes
    del rows(world)[0].consumers[:]
    await world.settle(60)
    assert rows(world)[0].settings.mode == records_pb2.CONSUMER_MODE_SHARED
    assert condition(world) == ("True", "Placed")


async def test_another_mode_drops_no_message_of_a_parked_key(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=PARKING)
    rows(world)[0].parked_keys, rows(world)[0].aside_messages = 1, 3
    world.api.change("ConsumerGroup", "billing", mode="Shared")
    await world.settle(60)
    assert condition(world) == ("False", "MessagesAside")
    assert rows(world)[0].settings.mode == records_pb2.CONSUMER_MODE_KEY_ORDERED
    rows(world)[0].parked_keys = rows(world)[0].aside_messages = 0
    await world.settle(60)
    assert condition(world) == ("True", "Placed")


async def test_what_the_brokers_refuse_is_told(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=PARKING)
    world.brokers.refusal = PreconditionError("not now")
    world.api.change("ConsumerGroup", "billing", retry={**PARKING, "attempts": 9})
    await world.settle(60)
    assert condition(world) == ("False", "Refused")
    world.brokers.refusal = None
    await world.settle(60)
    assert condition(world) == ("True", "Placed")


async def test_at_most_once_is_set_with_the_mode(world: World) -> None:
    await placed(world, mode="Shared")
    world.api.change("ConsumerGroup", "billing", delivery="AtMostOnce")
    await world.settle(60)
    assert rows(world)[0].settings.at_most_once
    assert world.the_group().status.delivery == "AtMostOnce"


async def test_retries_wait_until_at_most_once_has_ended(world: World) -> None:
    await placed(world, mode="KeyOrdered", delivery="AtMostOnce")
    rows(world)[0].consumers.append("c1")
    world.api.change("ConsumerGroup", "billing", mode="Shared", delivery="AtLeastOnce", retry=PARKING)
    await world.settle(60)
    assert condition(world) == ("False", "ConsumersConnected")
    assert not [call for call in world.brokers.calls if call.startswith("configure")], "the brokers would refuse them"


async def test_spread_is_changed_while_consumers_are_connected(world: World) -> None:
    await placed(world)
    assert condition(world) == ("True", "Placed")
    rows(world)[0].consumers.append("c1")
    world.api.change("ConsumerGroup", "billing", spread="None")
    await world.settle(60)
    assert rows(world)[0].settings.spread == records_pb2.SPREAD_NONE
    assert condition(world) == ("True", "Placed")


def test_spread_of_an_exclusive_group_comes_back() -> None:
    wanted = ConsumerGroupSettings("Exclusive", at_most_once=False, retry=None, spread="None")
    assert settings_from_message(settings_message(wanted, ("mode", "spread"))) == wanted


def test_settings_that_go_to_the_brokers_come_back_as_they_were() -> None:
    retry = RetrySettings(3, "Fixed", (5_000,), 0, "DeadLetter", "letters", 60_000)
    wanted = ConsumerGroupSettings("Shared", at_most_once=True, retry=retry)
    assert settings_from_message(settings_message(wanted, ("mode", "delivery", "retry"))) == wanted


# ---- parked keys ------------------------------------------------------------------------------------------


async def test_a_parked_key_is_told_once_and_its_release_too(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=PARKING)
    assert condition(world, "KeysParked") == ("False", "NoneParked")
    (row,) = rows(world)
    row.partition, row.parked_keys = 3, 1
    world.brokers.keys["events", "billing", 3] = [broker_pb2.GroupKey(key=b"order-7", error="ValueError: no price")]
    await world.settle(60)
    assert condition(world, "KeysParked") == ("True", "KeysWait")
    status = world.the_group().status
    assert (status.parked_keys, status.parked_partitions) == ("<=10", (3,))
    notes = [note for _, _, reason, note in world.api.events if reason == "KeyParked"]
    assert notes == ["key order-7 parked on partition 3: ValueError: no price"]
    writes = world.writes
    row.parked_keys = 4
    await world.settle(120)
    assert world.writes == writes, "another number of parked keys is no news"
    row.parked_keys = 0
    await world.settle(60)
    assert condition(world, "KeysParked") == ("False", "NoneParked")
    assert world.the_group().status.parked_keys == "0"
    assert world.told().count("KeyParked") == world.told().count("KeysReleased") == 1


async def test_parked_keys_on_many_partitions_are_told_in_few_events(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=PARKING)
    first = rows(world)[0]
    for number in range(1, 20):
        row = broker_pb2.GroupPartition(has_cursor=True, partition=number, parked_keys=1)
        row.settings.CopyFrom(first.settings)
        rows(world).append(row)
    await world.settle(60)
    assert world.told().count("KeyParked") == 5
    assert world.the_group().status.parked_partitions == tuple(range(1, 20))


async def test_a_partition_whose_server_is_away_stays_as_it_was(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=PARKING)
    rows(world)[0].parked_keys = 1
    await world.settle(60)
    writes, told = world.writes, len(world.told())
    rows(world)[0].parked_keys = 0
    rows(world)[0].error.number = 600
    await world.settle(60)
    assert condition(world, "KeysParked") == ("True", "KeysWait")
    assert (world.writes, len(world.told())) == (writes, told)


async def test_an_event_does_not_wait_for_the_error_of_a_key(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=PARKING)
    rows(world)[0].parked_keys = 2

    async def no_answer(*_: object) -> list[broker_pb2.GroupKey]:
        raise UnavailableError("no broker answers")

    world.brokers.parked_keys = no_answer  # type: ignore[method-assign]
    await world.settle(60)
    assert [note for _, _, reason, note in world.api.events if reason == "KeyParked"] == [
        "a key and 1 more parked on partition 0"
    ]


async def test_the_age_of_the_oldest_message_is_told_in_steps(world: World) -> None:
    await placed(world, mode="KeyOrdered")
    (row,) = rows(world)
    row.end_position = 5
    for age_s, bucket in ((30, "<=1m"), (70, "<=10m"), (500, "<=10m"), (7200, "<=1d"), (200_000, ">1d")):
        row.oldest_append_ms = round((time.time() - age_s) * 1000)
        await world.settle(60)
        assert world.the_group().status.oldest_bucket == bucket
        assert bucket in AGE_BUCKETS
    row.end_position = row.oldest_append_ms = 0
    await world.settle(60)
    assert world.the_group().status.oldest_bucket == ""


@pytest.mark.parametrize(
    ("count", "before", "bucket"),
    [
        (0, "", "0"),
        (0, "<=10", "0"),
        (1, "0", "<=10"),
        (6, "<=100", "<=100"),
        (11, "<=10", "<=100"),
        (23, "<=10", "<=100"),
        (5_000, "<=10", ">1000"),
    ],
)
def test_zero_is_never_late(count: int, before: str, bucket: str) -> None:
    assert count_bucket(count, before) == bucket
    assert bucket in COUNT_BUCKETS


# ---- dead letters -----------------------------------------------------------------------------------------


async def test_the_topic_of_the_dead_letters_is_made_first(world: World) -> None:
    world.topic(partitions=4, durability="Replicated", retention="1h", attributes={"owner": "payments"})
    world.consumer_group(mode="KeyOrdered", retry=FORWARDING)
    await world.settle(60)
    letters = world.brokers.topics["events.billing.dead"]
    assert len(letters.topic.partition_ids) == 4
    assert not letters.topic.settings.flush
    assert not letters.topic.settings.attributes
    assert letters.topic.settings.retention_ms == 30 * 86_400_000
    order = [call.split()[0] + call.split()[1] for call in world.brokers.calls if call.startswith("create")]
    assert order == ["createevents", "createevents.billing.dead", "creategroup"]
    assert rows(world)[0].settings.retry.dead_letter_topic == "events.billing.dead"
    assert world.the_group().status.dead_letter_topic == "events.billing.dead"
    assert condition(world, "DeadLettering") == ("True", "Forwarding")
    assert "DeadLetterTopicCreated" in world.told()
    assert "TopicUnclaimed" not in world.told()


async def test_the_dead_letters_get_as_many_partitions_as_the_source(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=FORWARDING)
    world.api.change("Topic", "events", partitions=3)
    await world.settle(60)
    assert len(world.brokers.topics["events.billing.dead"].topic.partition_ids) == 3


async def test_a_topic_object_decides_about_its_topic(world: World) -> None:
    world.topic(partitions=2)
    world.topic("letters", partitions=1)
    world.consumer_group(mode="KeyOrdered", retry=FORWARDING, deadLetterTopic="letters")
    await world.settle(60)
    assert condition(world) == ("False", "DeadLetterTopicSmall")
    assert len(world.brokers.topics["letters"].topic.partition_ids) == 1
    world.api.change("Topic", "letters", partitions=2)
    await world.settle(60)
    assert condition(world) == ("True", "Placed")


async def test_a_topic_says_whose_dead_letters_it_takes(world: World) -> None:
    world.topic()
    await world.with_topic("letters")
    world.consumer_group(mode="KeyOrdered", retry=FORWARDING, deadLetterTopic="letters")
    await world.settle()
    assert world.the_topic("letters").status.dead_letters_of == ("events/billing",)
    assert world.the_topic().status.dead_letters_of is None
    writes = world.writes
    await world.settle(120)
    assert world.writes == writes
    world.api.change("ConsumerGroup", "billing", retry=PARKING, deadLetterTopic=None)
    await world.settle()
    assert world.the_topic("letters").status.dead_letters_of is None


async def test_a_topic_object_that_has_not_made_its_topic_is_waited_for(world: World) -> None:
    await world.with_topic()
    world.brokers.refusal = PreconditionError("not now")
    world.topic("letters")
    world.consumer_group(mode="KeyOrdered", retry=FORWARDING, deadLetterTopic="letters")
    await world.settle()
    assert condition(world) == ("False", "DeadLetterTopicMissing")
    world.brokers.refusal = None
    await world.settle(120)
    assert "DeadLetterTopicCreated" not in world.told()
    assert condition(world) == ("True", "Placed")
    assert "letters" in world.brokers.topics


async def test_deletion_keeps_the_dead_letters(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=FORWARDING, deletionPolicy="Delete")
    world.api.remove("ConsumerGroup", "billing")
    await world.settle(60)
    assert ("events", "billing") not in world.brokers.groups
    assert "events.billing.dead" in world.brokers.topics


async def test_dead_letters_that_are_held_up_are_told_when_it_lasts(world: World) -> None:
    await placed(world, mode="KeyOrdered", retry=FORWARDING)
    rows(world)[0].forwarding_keys = 1
    await world.settle(31)  # one look
    assert condition(world, "DeadLettering") == ("True", "Forwarding")
    await world.settle(90)
    assert condition(world, "DeadLettering") == ("False", "HeldUp")
    rows(world)[0].forwarding_keys = 0
    await world.settle(60)
    assert condition(world, "DeadLettering") == ("True", "Forwarding")
