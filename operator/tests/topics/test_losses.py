"""The coordinator lost topics and consumer groups: nothing is made again that a rebuild brings back."""

from __future__ import annotations

import pytest
from seriatim_api.errors import BadRequestError, CoordinatorBehindError, UnavailableError
from seriatim_operator.resources.names import LABEL_CLUSTER, LABEL_GROUP

from .world import World

LOST = "whether there is a topic is not known: the coordinator has lost decisions: its revision is 3"


def add_broker(world: World, group: str, ip: str) -> None:
    """A broker of that group, with its pod."""
    labels = {LABEL_CLUSTER: "orders", LABEL_GROUP: group}
    metadata = {"namespace": "default", "name": f"orders-{group}-0-x", "labels": labels, "uid": f"{group}-{ip}"}
    world.cache.put("Broker", {"kind": "Broker", "metadata": metadata, "spec": {"group": group, "slot": 0}})
    world.cache.put("Pod", {"kind": "Pod", "metadata": metadata, "status": {"podIP": ip}})


async def test_a_topic_that_the_coordinator_lost_is_not_made_again(world: World) -> None:
    await world.with_topic()
    before = world.the_topic().status
    world.brokers.losses = {"10.0.0.1:7100": "", "10.0.0.2:7100": LOST}
    world.brokers.drop("events")
    await world.settle(60)
    assert world.brokers.calls == ["create events 1"]
    after = world.the_topic().status
    assert world.reasons() == {"Ready": ("False", "CoordinatorBehind"), "ChainHealthy": ("Unknown", "NotTold")}
    ready = after.condition("Ready")
    assert ready is not None
    assert "run seriatim coordinator rebuild: runbook coordinator-behind" in ready.message
    assert (after.incarnation, after.topic_name) == (before.incarnation, "events")
    assert world.told() == ["TopicCreated", "CoordinatorBehind"], "one Event, not one for each look"


async def test_a_topic_that_a_rebuild_brings_back_is_accepted_at_once(world: World) -> None:
    await world.with_topic()
    summary = world.brokers.topics["events"]
    world.brokers.losses = {"10.0.0.1:7100": LOST}
    world.brokers.drop("events")
    await world.settle(30)
    world.brokers.losses = {"10.0.0.1:7100": ""}
    world.brokers.topics["events"] = summary
    world.brokers.tell("events")
    await world.settle(2)
    assert world.reasons()["Ready"] == ("True", "Accepting")
    assert world.brokers.calls == ["create events 1"]


async def test_brokers_that_notice_a_loss_late_are_waited_for(world: World) -> None:
    await world.with_topic()
    world.brokers.drop("events")
    await world.settle(9)
    assert world.reasons()["Ready"] == ("False", "Unconfirmed")
    world.brokers.losses = {"10.0.0.1:7100": LOST}
    await world.settle(30)
    assert world.brokers.calls == ["create events 1"]
    assert world.reasons()["Ready"] == ("False", "CoordinatorBehind")


async def test_a_topic_is_not_made_again_while_a_broker_group_says_nothing(world: World) -> None:
    add_broker(world, "g0", "10.0.0.1")
    add_broker(world, "g1", "10.0.0.2")
    await world.with_topic()
    world.brokers.drop("events")
    await world.settle(60)
    ready = world.the_topic().status.condition("Ready")
    assert ready is not None
    assert ready.reason == "Unconfirmed"
    assert "no broker of group g1 says" in ready.message
    assert world.brokers.calls == ["create events 1"]
    world.brokers.losses = {"10.0.0.1:7100": "", "10.0.0.2:7100": ""}
    await world.settle(20)
    assert world.brokers.calls == ["create events 1"] * 2
    assert world.told() == ["TopicCreated", "TopicRecreated"]


async def test_a_loss_that_ended_counts_anew(world: World) -> None:
    await world.with_topic()
    world.brokers.losses = {"10.0.0.1:7100": LOST}
    world.brokers.drop("events")
    await world.settle(30)
    world.brokers.losses = {"10.0.0.1:7100": ""}
    await world.settle(8)
    assert world.brokers.calls == ["create events 1"], "a rebuild writes record after record"
    await world.settle(20)
    assert world.brokers.calls == ["create events 1"] * 2


async def test_partitions_that_the_coordinator_lost_are_not_added_again(world: World) -> None:
    await world.with_topic(partitions=4)
    world.brokers.losses = {"10.0.0.1:7100": LOST}
    summary = world.brokers.topics["events"]
    del summary.topic.partition_ids[2:], summary.chains[2:]
    world.brokers.tell("events")
    await world.settle(30)
    assert world.brokers.calls == ["create events 4"]
    assert world.reasons()["Ready"] == ("False", "CoordinatorBehind")
    assert world.the_topic().status.partitions == 4


async def test_partitions_that_are_new_are_added_at_once(world: World) -> None:
    await world.with_topic()
    world.api.change("Topic", "events", partitions=4)
    await world.settle(1)
    assert world.brokers.calls[1:] == ["update events 4"]


async def test_a_first_topic_that_a_broker_refuses_for_a_loss_says_so(world: World) -> None:
    world.brokers.refusal = CoordinatorBehindError(
        "topic 'events' is not made, because the coordinator may have lost it"
    )
    await world.with_topic()
    assert world.reasons()["Ready"] == ("False", "CoordinatorBehind")
    world.brokers.refusal = None
    await world.settle(10)
    assert world.reasons()["Ready"] == ("True", "Accepting")


async def test_a_topic_keeps_its_incarnation_while_a_step_is_refused(world: World) -> None:
    await world.with_topic()
    first = world.the_topic().status.incarnation
    world.brokers.refusal = BadRequestError("there is no room")
    world.brokers.drop("events")
    await world.settle(30)
    world.brokers.refusal = None
    await world.settle(120)
    assert world.the_topic().status.incarnation not in ("", first), "the lost topic has the first one"


async def test_a_renamed_object_never_gets_another_topic(world: World) -> None:
    await world.with_topic()
    world.api.change("Topic", "events", name="Other")
    await world.settle()
    world.api.change("Topic", "events", retention="1d")
    await world.settle(30)
    assert list(world.brokers.topics) == ["events"]


async def test_a_consumer_group_that_the_coordinator_lost_gets_no_new_place(world: World) -> None:
    await world.with_group()
    world.brokers.losses = {"10.0.0.1:7100": LOST}
    del world.brokers.groups["events", "billing"]
    await world.settle(60)
    ready = world.the_group().status.condition("Ready")
    assert ready is not None
    assert ready.reason == "CoordinatorBehind"
    assert "runbook coordinator-behind" in ready.message
    assert world.told().count("CoordinatorBehind") == 1
    assert ("events", "billing") not in world.brokers.groups


async def test_a_consumer_group_of_a_lost_topic_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.with_group()

    async def behind(*_: object) -> list[object]:
        raise CoordinatorBehindError(LOST)

    monkeypatch.setattr(world.brokers, "describe_consumer_group", behind)
    await world.settle(60)
    ready = world.the_group().status.condition("Ready")
    assert ready is not None
    assert ready.reason == "CoordinatorBehind"
    assert world.the_group().status.group_name == "billing"


async def test_dead_letters_of_a_lost_topic_get_no_other_topic(world: World) -> None:
    world.topic()
    world.consumer_group(mode="KeyOrdered", retry={"delays": ["1s"], "whenExhausted": "DeadLetter"})
    await world.settle(60)
    name = world.the_group().status.dead_letter_topic
    assert name in world.brokers.topics
    world.brokers.losses = {"10.0.0.1:7100": LOST}
    world.brokers.drop(name)
    await world.settle(60)
    assert name not in world.brokers.topics
    ready = world.the_group().status.condition("Ready")
    assert ready is not None
    assert ready.reason == "CoordinatorBehind"


async def test_a_hundred_missing_topics_cost_one_question_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        world.topic(f"t{number}")
    await world.settle()
    asked = 0

    async def ask() -> dict[str, str]:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise UnavailableError("the connection was closed")
        return {"10.0.0.1:7100": LOST}

    monkeypatch.setattr(world.brokers, "ask_for_losses", ask)
    for number in range(100):
        world.brokers.drop(f"t{number}")
    await world.settle(30)
    assert asked <= 32
    assert len(world.brokers.calls) == 100
