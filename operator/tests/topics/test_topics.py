"""Topics from object to brokers and back: the whole topic side, over brokers and an API in memory."""

from __future__ import annotations

import pytest
from seriatim_api.errors import BadRequestError, StaleOperatorError
from seriatim_api.ids import make_offset
from seriatim_api.v1 import records_pb2
from seriatim_operator.cluster.kube import KubeError
from seriatim_operator.plan.topics import TOPIC_FINALIZER
from seriatim_operator.reconcile.topic_pass import EVENTS_PER_MINUTE_MAX

from ..spec.objects import good
from .doubles import MemoryBrokers, default_settings
from .world import ALL_LIVE, World


async def test_an_object_becomes_a_topic_with_one_write(world: World) -> None:
    await world.with_topic(partitions=3)
    assert world.brokers.calls == ["create events 3"]
    assert world.reasons() == {"Ready": ("True", "Accepting"), "ChainHealthy": ("True", "TwoCopies")}
    status = world.the_topic().status
    assert (status.topic_name, status.partitions, status.segments, status.state) == ("events", 3, 3, "Healthy")
    assert status.groups == ("g0", "g1")
    assert [chain.master for chain in status.chains] == ["g0-0", "g1-0", "g0-0"]
    assert world.writes == 1
    assert world.told() == ["TopicCreated"]


async def test_settings_arrive_in_the_brokers_units(world: World) -> None:
    await world.with_topic(
        durability="Replicated", retention="1d", batchSizeBytesMax=2048, messageSizeBytesMax=100, chainWidth=3,
        delayMax="1d12h", delayedPendingMax=7, exclusiveOnly=True,
    )  # fmt: skip
    assert world.brokers.topics["events"].topic.settings == records_pb2.TopicSettings(
        flush=False,
        retention_ms=86_400_000,
        batch_size_bytes_max=2048,
        message_size_bytes_max=100,
        chain_width=3,
        delay_max_ms=36 * 3_600_000,
        delayed_pending_max=7,
        exclusive_only=True,
    )


async def test_limits_of_delays_are_those_of_the_object(world: World) -> None:
    await world.with_topic()
    settings = world.brokers.topics["events"].topic.settings
    for name in ("delay_max_ms", "delayed_pending_max"):
        settings.ClearField(name)  # as an earlier version stored it
    world.brokers.tell("events")
    await world.settle()
    assert world.brokers.calls == ["create events 1"], "the defaults count in both"
    world.api.change("Topic", "events", delayMax="0s")
    await world.settle()
    assert world.brokers.calls[1:] == ["update events 0 delay_max_ms"]
    assert (settings.HasField("delay_max_ms"), settings.delay_max_ms) == (True, 0)
    settings.delayed_pending_max = 5
    world.brokers.tell("events")
    await world.settle()
    assert (settings.delay_max_ms, settings.delayed_pending_max) == (0, 10_000_000)
    assert world.told() == ["TopicCreated", "TopicUpdated", "DriftReverted"]


async def test_the_brokers_name_may_be_another_one(world: World) -> None:
    await world.with_topic(name="Order_Events")
    assert "Order_Events" in world.brokers.topics
    assert world.the_topic().status.topic_name == "Order_Events"


# ---- growth, settings, drift ----


async def test_growth_and_settings_reach_the_brokers(world: World) -> None:
    await world.with_topic()
    world.api.change("Topic", "events", partitions=4, retention="Forever")
    await world.settle()
    assert world.brokers.calls[1:] == ["update events 4 retention_ms"]
    assert world.brokers.topics["events"].topic.settings.retention_ms == 0
    assert world.the_topic().status.partitions == 4
    assert world.the_topic().status.observed_generation == 2
    assert world.told() == ["TopicCreated", "TopicUpdated"]


async def test_all_that_an_object_says_of_retention_reaches_the_brokers(world: World) -> None:
    await world.with_topic(retention="1d", retentionSize="10Gi", retainUnread=True, unreadMax="7d", unreadSizeMax="50G")
    made = world.brokers.topics["events"].topic.settings
    assert (made.retention_ms, made.retention_bytes) == (86_400_000, 10 << 30)
    assert (made.retain_unread, made.unread_ms_max, made.unread_bytes_max) == (True, 7 * 86_400_000, 50_000_000_000)
    assert world.brokers.calls[1:] == [], "what was made is what was asked for"
    world.api.change("Topic", "events", retentionSize="20Gi")
    await world.settle()
    assert world.brokers.calls[1:] == ["update events 0 retention_bytes"]


async def test_attributes_of_an_object_are_those_of_its_topic(world: World) -> None:
    await world.with_topic(attributes={"owner": "payments", "a/b": ""})
    settings = world.brokers.topics["events"].topic.settings
    assert dict(settings.attributes) == {"owner": "payments", "a/b": ""}
    assert world.brokers.calls[1:] == [], "what was made is what was asked for"
    world.api.change("Topic", "events", attributes={"owner": "billing"})
    await world.settle()
    assert world.brokers.calls[1:] == ["update events 0 attributes"]
    assert dict(settings.attributes) == {"owner": "billing"}
    settings.attributes["other"] = "x"
    world.brokers.tell("events")
    await world.settle()
    assert dict(settings.attributes) == {"owner": "billing"}
    assert world.told() == ["TopicCreated", "TopicUpdated", "DriftReverted"]
    world.api.change("Topic", "events", attributes={})
    await world.settle()
    assert dict(settings.attributes) == {}


async def test_attributes_of_which_an_object_says_nothing_stay(world: World) -> None:
    await world.with_topic()
    settings = world.brokers.topics["events"].topic.settings
    settings.attributes["owner"] = "payments"
    world.brokers.tell("events")
    await world.settle()
    world.api.change("Topic", "events", retention="Forever")
    await world.settle()
    assert world.brokers.calls[1:] == ["update events 0 retention_ms"]
    assert dict(settings.attributes) == {"owner": "payments"}


async def test_the_status_shows_from_where_on_messages_are_kept_and_is_not_written_for_it(world: World) -> None:
    await world.with_topic()
    chain = world.brokers.topics["events"].chains[0]
    chain.first_offset, chain.dropped_messages = make_offset(3, 1200), 5000
    world.brokers.tell("events")
    await world.settle()
    assert world.writes == 1
    world.brokers.switch("events", 0, "g7")
    await world.settle()
    assert world.writes == 2
    shown = world.the_topic().status.chains[0]
    assert (shown.kept_from, shown.dropped_messages) == ("3:1200", 5000)


async def test_what_was_changed_behind_the_operator_is_changed_back(world: World) -> None:
    await world.with_topic()
    world.brokers.topics["events"].topic.settings.retention_ms = 5
    world.brokers.tell("events")
    await world.settle()
    assert world.brokers.topics["events"].topic.settings.retention_ms == 72 * 3_600_000
    assert world.told() == ["TopicCreated", "DriftReverted"]


async def test_partitions_added_behind_the_operator_stay_and_are_told(world: World) -> None:
    await world.with_topic()
    world.brokers._grow(world.brokers.topics["events"], 8)
    world.brokers.tell("events")
    await world.settle()
    assert world.reasons()["Ready"] == ("False", "MorePartitions")
    assert "write partitions: 8" in world.the_topic().status.condition("Ready").message  # type: ignore[union-attr]
    world.api.change("Topic", "events", partitions=8)
    await world.settle()
    assert world.reasons()["Ready"] == ("True", "Accepting")


async def test_a_topic_deleted_behind_the_operator_is_made_again_as_another_one(world: World) -> None:
    await world.with_topic()
    first = world.the_topic().status.incarnation
    world.brokers.drop("events")
    await world.settle(12)
    second = world.the_topic().status.incarnation
    assert first != second == world.brokers.topics["events"].topic.incarnation
    assert world.told() == ["TopicCreated", "TopicRecreated"]


async def test_a_topic_replaced_behind_the_operator_is_taken_over(world: World) -> None:
    await world.with_topic()
    world.brokers.drop("events")
    made = world.brokers.put("events", 1)
    await world.settle()
    assert world.the_topic().status.incarnation == made.topic.incarnation
    assert world.told() == ["TopicCreated", "TopicReplaced"]


# ---- adoption ----


async def test_a_topic_that_was_there_is_adopted(world: World) -> None:
    made = world.brokers.put("events", 2)
    await world.with_topic(partitions=4)
    assert world.brokers.calls == ["update events 4"]
    assert world.the_topic().status.incarnation == made.topic.incarnation
    assert world.reasons()["Ready"] == ("True", "Accepting")
    assert world.told().count("TopicAdopted") == 1


async def test_a_topic_of_another_durability_is_not_adopted(world: World) -> None:
    settings = default_settings()
    settings.flush = False
    world.brokers.put("events", 1, settings)
    await world.with_topic(deletionPolicy="Delete")
    assert world.reasons()["Ready"] == ("False", "OtherDurability")
    assert world.the_topic().status.incarnation == ""
    await world.without("Topic", "events")
    assert "events" in world.brokers.topics, "it never was the object's"
    assert not world.has("Topic", "events")


async def test_a_lost_answer_of_a_creation_makes_no_second_topic(world: World) -> None:
    """The first operator made the topic and died before it wrote anything down."""
    await world.with_topic()
    status = world.api.objects["Topic", "default", "events"].pop("status")
    incarnation = world.brokers.topics["events"].topic.incarnation
    world.api.put(world.api.objects["Topic", "default", "events"])
    await world.restart()
    await world.settle()
    assert world.the_topic().status.incarnation == incarnation == status["incarnation"]
    assert world.brokers.calls == ["create events 1"]
    assert "TopicAdopted" not in world.told()


# ---- deletion ----


async def test_deleting_the_object_keeps_the_topic_by_default(world: World) -> None:
    await world.with_topic()
    assert world.the_topic().metadata.finalizers == ()
    await world.without("Topic", "events")
    assert not world.has("Topic", "events")
    assert "events" in world.brokers.topics


async def test_deleting_the_object_deletes_the_topic_where_it_says_so(world: World) -> None:
    await world.with_topic(deletionPolicy="Delete")
    assert world.the_topic().metadata.finalizers == (TOPIC_FINALIZER,)
    await world.without("Topic", "events")
    assert not world.has("Topic", "events")
    assert world.brokers.topics == {}
    assert world.brokers.calls == ["create events 1", "delete events"]
    assert world.told() == ["TopicCreated", "TopicDeleted"]


async def test_the_finalizer_follows_the_policy(world: World) -> None:
    await world.with_topic()
    world.api.change("Topic", "events", deletionPolicy="Delete")
    await world.settle()
    assert world.the_topic().metadata.finalizers == (TOPIC_FINALIZER,)
    world.api.change("Topic", "events", deletionPolicy="Retain")
    await world.settle()
    assert world.the_topic().metadata.finalizers == ()


async def test_a_topic_that_took_the_name_since_is_kept(world: World) -> None:
    """The object and its topic go while no operator looks. Then another administrator makes a topic of that name."""
    await world.with_topic(deletionPolicy="Delete")
    await world.reconciler.close()
    world.brokers.drop("events")
    world.brokers.put("events", 1)
    world.api.remove("Topic", "events")
    await world.restart()
    await world.settle()
    assert "events" in world.brokers.topics
    assert not world.has("Topic", "events")
    assert world.told()[-1] == "TopicKept"


async def test_nothing_is_deleted_if_the_api_does_not_say_so_any_more(world: World) -> None:
    """The cache is behind: the object was recreated, and only its predecessor was deleted."""
    await world.with_topic(deletionPolicy="Delete")
    key = ("Topic", "default", "events")
    stale = {**world.api.objects[key]}
    stale["metadata"] = {**stale["metadata"], "deletionTimestamp": "2026-11-20T00:00:00Z", "resourceVersion": "999999"}
    world.cache.put("Topic", stale)
    await world.settle()
    assert "events" in world.brokers.topics
    assert "delete events" not in world.brokers.calls


async def test_an_object_of_a_cluster_that_is_gone_goes_without_its_topic(world: World) -> None:
    await world.with_topic(deletionPolicy="Delete")
    world.api.remove("BrokerCluster", "orders")
    await world.without("Topic", "events")
    assert not world.has("Topic", "events")
    assert "events" in world.brokers.topics


async def test_a_cluster_that_is_only_missing_from_the_cache_lets_nothing_go(world: World) -> None:
    await world.with_topic(deletionPolicy="Delete")
    world.cache.drop("BrokerCluster", world.api.objects["BrokerCluster", "default", "orders"])
    await world.without("Topic", "events")
    assert world.has("Topic", "events"), "its topic is still to be deleted"


# ---- conflicts ----


async def test_the_oldest_of_two_objects_has_the_topic(world: World) -> None:
    world.topic("young", name="Events")
    await world.with_topic("old", name="Events", age=60)
    assert world.reasons("old")["Ready"] == ("True", "Accepting")
    assert world.reasons("young")["Ready"] == ("False", "ResourceConflict")
    assert "managed by default/old" in world.the_topic("young").status.condition("Ready").message  # type: ignore[union-attr]
    assert world.brokers.calls == ["create Events 1"]


async def test_when_the_owner_goes_the_other_one_has_the_topic_and_its_messages(world: World) -> None:
    world.topic("young", name="Events")
    await world.with_topic("old", name="Events", age=60, deletionPolicy="Delete")
    incarnation = world.brokers.topics["Events"].topic.incarnation
    await world.without("Topic", "old")
    assert not world.has("Topic", "old")
    assert world.brokers.topics["Events"].topic.incarnation == incarnation
    assert world.reasons("young")["Ready"] == ("True", "Accepting")


async def test_an_object_that_stood_for_another_topic_is_refused(world: World) -> None:
    await world.with_topic()
    world.api.change("Topic", "events", name="Other")  # the API server refuses this; a restored backup may not
    await world.settle()
    assert world.reasons()["Ready"] == ("False", "RenameRefused")
    assert list(world.brokers.topics) == ["events"]


# ---- what does not answer, and what refuses ----


async def test_what_the_brokers_refuse_is_reported_and_tried_again(world: World) -> None:
    world.brokers.refusal = BadRequestError("not that")
    await world.with_topic()
    assert world.reasons()["Ready"] == ("False", "Refused")
    world.brokers.refusal = None
    await world.settle(120)
    assert world.reasons()["Ready"] == ("True", "Accepting")


async def test_an_operator_that_is_too_old_ends(world: World) -> None:
    world.brokers.refusal = StaleOperatorError("a newer operator acts")
    world.topic()
    with pytest.raises(StaleOperatorError):
        await world.settle()


async def test_short_silence_writes_nothing_and_long_silence_once(world: World) -> None:
    await world.with_topic()
    world.brokers.silence(are_silent=True)
    await world.settle(30)
    assert world.writes == 1
    await world.settle(60)
    assert world.reasons() == {"Ready": ("Unknown", "BrokersSilent"), "ChainHealthy": ("Unknown", "NotTold")}
    assert world.the_topic().status.state == "Unknown"
    assert world.the_topic().status.partitions == 1, "what was known stays"
    await world.settle(600)
    assert world.writes == 2
    world.brokers.silence(are_silent=False)
    await world.settle()
    assert world.reasons()["Ready"] == ("True", "Accepting")
    assert world.writes == 3


async def test_an_object_applied_while_nobody_answers_is_told_so_and_served_later(world: World) -> None:
    world.brokers.silence(are_silent=True)
    await world.with_topic()
    assert world.reasons()["Ready"] == ("Unknown", "BrokersSilent")
    assert world.the_topic().status.observed_generation == 0
    world.brokers.silence(are_silent=False)
    await world.settle()
    assert world.reasons()["Ready"] == ("True", "Accepting")


async def test_a_paused_cluster_is_left_alone(world: World) -> None:
    await world.with_topic()
    world.api.change("BrokerCluster", "orders", paused=True)
    world.api.change("Topic", "events", partitions=4)
    await world.with_topic("later", deletionPolicy="Delete")
    assert world.brokers.calls == ["create events 1"]
    assert world.reasons("later")["Ready"] == ("Unknown", "Paused")
    world.api.change("BrokerCluster", "orders", paused=False)
    await world.settle()
    assert world.brokers.calls == ["create events 1", "update events 4", "create later 1"]


async def test_an_object_without_a_cluster_waits_for_one(world: World) -> None:
    world.api.remove("BrokerCluster", "orders")
    await world.with_topic()
    assert world.reasons()["Ready"] == ("False", "ClusterNotFound")
    world.api.put(good("BrokerCluster"))
    await world.settle()
    assert world.reasons()["Ready"] == ("True", "Accepting")


async def test_an_object_that_cannot_be_read_is_told_so_once_and_holds_up_nobody(world: World) -> None:
    world.topic("broken", partitions="many")
    await world.with_topic()
    assert world.reasons()["Ready"] == ("True", "Accepting")
    broken = world.api.objects["Topic", "default", "broken"]
    assert broken["status"]["conditions"][0]["reason"] == "InvalidSpec"
    assert "spec.partitions" in broken["status"]["conditions"][0]["message"]
    await world.settle(300)
    assert [status["metadata"]["name"] for status in world.api.statuses].count("broken") == 1


async def test_a_topic_that_could_not_be_read_for_a_while_is_still_the_one_it_was(world: World) -> None:
    await world.with_topic()
    incarnation = world.the_topic().status.incarnation
    world.api.change("Topic", "events", partitions="many")
    await world.settle()
    status = world.api.objects["Topic", "default", "events"]["status"]
    assert [condition["reason"] for condition in status["conditions"]] == ["InvalidSpec"]
    assert status["incarnation"] == incarnation
    world.api.change("Topic", "events", partitions=3)
    await world.settle()
    assert world.reasons()["Ready"] == ("True", "Accepting")
    assert world.told() == ["TopicCreated", "TopicUpdated"], "and not adopted again"


@pytest.mark.parametrize("status", [0, 409, 500])
async def test_a_write_that_fails_comes_again(status: int, world: World) -> None:
    failures = [KubeError(status, "Failed", "not now")] * 3
    world.api.refuse = lambda call, _kind: failures.pop() if failures and call != "get" else None
    world.topic(deletionPolicy="Delete")
    await world.settle(10)
    assert world.reasons()["Ready"] == ("True", "Accepting")
    assert world.brokers.calls == ["create events 1"]
    assert failures == []


# ---- the status is written on transitions only ----


async def test_a_switch_is_a_transition_and_a_count_of_messages_is_none(world: World) -> None:
    await world.with_topic()
    world.brokers.topics["events"].chains[0].sealed_messages = 5
    world.brokers.tell("events")
    await world.settle()
    assert world.writes == 1
    world.brokers.switch("events", 0, "g7")
    await world.settle()
    assert world.writes == 2
    status = world.the_topic().status
    assert (status.segments, status.groups, status.sealed_messages) == (2, ("g7",), 5)


async def test_many_changes_at_once_are_one_write(world: World) -> None:
    await world.with_topic(partitions=50)
    for partition in range(50):
        world.brokers.switch("events", partition, "g3")
    await world.settle()
    assert world.writes == 2


@pytest.mark.parametrize(
    ("count", "state", "reason"),
    [
        ("one_copy_count", "OneCopy", ("False", "OneCopy")),
        ("unsettled_count", "Unsettled", ("False", "Unsettled")),
        ("lost_count", "Lost", ("False", "Lost")),
    ],
)
async def test_what_is_wrong_with_a_chain_is_told_until_it_is_repaired(
    count: str, state: str, reason: tuple[str, str], world: World
) -> None:
    await world.with_topic(partitions=3)
    chain = world.brokers.topics["events"].chains[1]
    setattr(chain, count, 1)
    world.brokers.tell("events")
    await world.settle()
    assert world.the_topic().status.state == state
    assert world.reasons()["ChainHealthy"] == reason
    assert world.reasons()["Ready"] == ("True", "Accepting"), "it keeps accepting"
    setattr(chain, count, 0)
    world.brokers.tell("events")
    await world.settle()
    assert world.the_topic().status.state == "Healthy"


def copies(world: World, *brokers: tuple[str, ...], whole: tuple[str, ...] = ()) -> None:
    """The first partition's segments are on these brokers; the first one is complete only on those of `whole`."""
    chain = world.brokers.topics["events"].chains[0]
    del chain.copies[:]
    for number, names in enumerate(brokers):
        chain.copies.add(brokers=names, segment_count=1, in_sync=whole if whole and number == 0 else names)
    world.brokers.tell("events")


async def away(world: World, *brokers: str) -> None:
    """These brokers do not answer, and the others do."""
    world.known.note_live("default", "orders", ALL_LIVE - set(brokers))
    await world.settle()


def events(world: World) -> list[tuple[str, str]]:
    return [(reason, note) for _, _, reason, note in world.api.events if reason != "TopicCreated"]


async def test_two_listed_copies_are_two_only_while_their_brokers_answer(world: World) -> None:
    await world.with_topic(partitions=2)
    copies(world, ("g0-0", "g0-1"), ("g1-0", "g1-1"))
    await world.settle()
    assert world.reasons()["ChainHealthy"] == ("True", "TwoCopies")
    await away(world, "g1-1")
    assert world.reasons()["ChainHealthy"] == ("False", "CopyAway")
    assert world.the_topic().status.state == "CopyAway"
    await away(world, "g1-0", "g1-1")
    assert world.reasons()["ChainHealthy"] == ("False", "Unreachable")
    assert world.reasons()["Ready"] == ("True", "Accepting"), "the open segment is elsewhere"
    await away(world)
    assert world.reasons()["ChainHealthy"] == ("True", "TwoCopies")
    assert [reason for reason, _ in events(world)] == ["CopyAway", "Unreachable", "CopiesBack"]


async def test_a_copy_that_lacks_the_end_of_its_segment_is_no_second_copy(world: World) -> None:
    await world.with_topic(partitions=2)
    copies(world, ("g0-0", "g0-1"), ("g1-0", "g1-1"))
    await away(world, "g0-1")
    copies(world, ("g0-0", "g0-1"), ("g1-0", "g1-1"), whole=("g0-0",))
    await world.settle()
    assert world.reasons()["ChainHealthy"] == ("False", "CopyAway")
    await away(world)
    assert world.reasons()["ChainHealthy"] == ("False", "CatchingUp"), "it is back, and still copies"
    assert world.the_topic().status.state == "CatchingUp"
    told = world.known.chains("default", "orders")
    assert told is not None
    assert told.troubles == {"CatchingUp": 1}
    copies(world, ("g0-0", "g0-1"), ("g1-0", "g1-1"))
    await world.settle()
    assert world.reasons()["ChainHealthy"] == ("True", "TwoCopies")
    assert [reason for reason, _ in events(world)] == ["CopyAway", "CopiesBack"], "to catch up is better, not worse"


async def test_that_copies_are_back_is_news_only_after_a_warning(world: World) -> None:
    await world.with_topic(partitions=2)
    for whole in (("g0-0",), ("g0-0", "g0-1")):
        copies(world, ("g0-0", "g0-1"), ("g1-0", "g1-1"), whole=whole)
        await world.settle()
    assert world.reasons()["ChainHealthy"] == ("True", "TwoCopies")
    assert events(world) == [], "it only caught up, as after each switch"


async def test_a_new_operator_tells_that_copies_are_back_of_which_the_one_before_warned(world: World) -> None:
    await world.with_topic(partitions=2)
    copies(world, ("g0-0", "g0-1"), ("g1-0", "g1-1"))
    await away(world, "g1-1")
    await world.restart()
    await away(world)
    assert [reason for reason, _ in events(world)] == ["CopyAway", "CopiesBack"]


async def test_a_broker_with_a_new_disk_has_no_copy_of_what_was_on_the_old_one(world: World) -> None:
    await world.with_topic(partitions=2)
    copies(world, ("g0-0", "g0-1"), ("g1-0", "g1-1"), whole=("g0-0#a", "g0-1#b"))
    world.known.note_live("default", "orders", ALL_LIVE | {"g0-0#a", "g0-1#b"})
    await world.settle()
    assert world.reasons()["ChainHealthy"] == ("True", "TwoCopies")
    world.known.note_live("default", "orders", ALL_LIVE | {"g0-0#a", "g0-1#new"})
    await world.settle()
    assert world.reasons()["ChainHealthy"] == ("False", "CatchingUp"), "the chain has not changed, and one disk has it"
    copies(world, ("g0-0", "g0-1"), ("g1-0", "g1-1"), whole=("g0-0#a", "g0-1#new"))
    await world.settle()
    assert world.reasons()["ChainHealthy"] == ("True", "TwoCopies")


async def test_nothing_is_called_healthy_before_it_is_known_who_answers(world: World) -> None:
    world.known.forget("default", "orders")
    await world.with_topic()
    assert world.reasons()["ChainHealthy"] == ("Unknown", "NotTold")
    await away(world)
    assert world.reasons()["ChainHealthy"] == ("True", "TwoCopies")


async def test_a_master_that_dies_is_an_event_on_the_topic(world: World) -> None:
    await world.with_topic(partitions=8)
    world.known.note_live("default", "orders", ALL_LIVE - {"g0-0"})
    for partition in range(0, 8, 2):
        world.brokers.switch("events", partition, "g1")
    await world.settle()
    assert ("MasterAway", "g0-0 does not answer: other brokers took over partition 0, 2, 4, 6") in events(world)


async def test_a_master_that_hands_over_is_no_event(world: World) -> None:
    await world.with_topic()
    world.brokers.switch("events", 0, "g1")
    await world.settle()
    assert events(world) == []


async def test_events_about_chains_have_a_limit(world: World) -> None:
    for number in range(EVENTS_PER_MINUTE_MAX + 30):
        world.topic(f"events-{number}")
    await world.settle()
    for number in range(EVENTS_PER_MINUTE_MAX + 30):
        world.brokers.topics[f"events-{number}"].chains[0].one_copy_count = 1
        world.brokers.tell(f"events-{number}")
    await world.settle()
    assert len(events(world)) == EVENTS_PER_MINUTE_MAX
    assert world.the_topic(f"events-{EVENTS_PER_MINUTE_MAX + 29}").status.state == "OneCopy", "the status is true"


async def test_the_cluster_is_told_what_chains_say(world: World) -> None:
    await world.with_topic(partitions=4)
    copies(world, ("g0-0", "g0-1"))
    await away(world, "g0-1")
    told = world.known.chains("default", "orders")
    assert told is not None
    assert told.troubles == {"CopyAway": 1}
    assert told.told("CopyAway") == "topic events"
    assert (told.open_segments, told.masters) == ({"g0": 2, "g1": 2}, {"g0-0": 2, "g1-0": 2})
    assert told.segments == {"g0-0": 1, "g0-1": 1}
    world.api.remove("Topic", "events")
    world.brokers.drop("events")
    await world.settle()
    told = world.known.chains("default", "orders")
    assert told is not None
    assert (told.troubles, told.open_segments, told.segments) == ({}, {}, {})


async def test_a_new_operator_over_many_topics_writes_nothing(world: World) -> None:
    for number in range(300):
        world.topic(f"events-{number}")
    await world.settle()
    assert world.writes == 300
    await world.restart()
    await world.settle()
    assert world.writes == 300
    assert len(world.brokers.calls) == 300


async def test_the_stream_breaks_and_what_happened_meanwhile_is_found(world: World) -> None:
    world.topic("a")
    await world.with_topic("b")
    world.brokers.silence(are_silent=True)
    world.brokers.switch("a", 0, "g9")
    world.brokers.drop("b")
    await world.settle(1)
    assert world.brokers.calls == ["create a 1", "create b 1"], "nothing is done on old knowledge"
    world.brokers.silence(are_silent=False)
    await world.settle(12)
    assert world.the_topic("a").status.groups == ("g9",)
    assert world.brokers.calls == ["create a 1", "create b 1", "create b 1"]


async def test_a_stream_that_a_newer_operator_overtook_ends_the_older_one(world: World) -> None:
    await world.with_topic()
    world.brokers.newer_epoch = 9
    world.brokers.silence(are_silent=True)
    world.brokers.silence(are_silent=False)
    with pytest.raises(StaleOperatorError):
        await world.settle()


async def test_topics_of_a_cluster_that_was_deleted_and_made_again_get_its_new_brokers(world: World) -> None:
    await world.with_topic()
    assert world.reasons()["Ready"] == ("True", "Accepting")
    old = world.brokers
    old.silence(are_silent=True)
    world.api.remove("BrokerCluster", "orders")
    world.brokers = MemoryBrokers()  # the passes over the cluster have closed the client, and make another one
    await world.settle()
    assert world.reasons()["Ready"] == ("False", "ClusterNotFound")
    world.api.put(good("BrokerCluster"))
    await world.settle()
    assert world.reasons()["Ready"] == ("True", "Accepting")
    assert list(world.brokers.topics) == ["events"]
    assert (old.watchers, world.brokers.watchers) == (0, 1)
