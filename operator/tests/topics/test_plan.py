"""The plan alone: it comes to rest in every world, and never takes away what the object does not own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seriatim_operator.plan.topics import (
    TOPIC_FINALIZER,
    ChainView,
    CreateTopic,
    DeleteTopic,
    HoldObject,
    ReleaseObject,
    Surroundings,
    TopicSettings,
    TopicView,
    UpdateTopic,
    incarnation_of,
    owns,
    plan_topics,
)
from seriatim_operator.spec.topic import Topic
from seriatim_operator.status.reasons import TOPIC
from seriatim_operator.status.topics import is_news, topic_status

from ..spec.objects import good

NAMES = ("a", "b")

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""What an example takes says how busy the machine is, and nothing about the plan."""
NOW_S = 1_800_000_000.0
LIVE = frozenset({"g0-0", "g0-1"})


def settings_of(spec: Mapping[str, Any]) -> TopicSettings:
    manifest = good("Topic")
    manifest["spec"].update(spec)
    return TopicSettings.of(Topic.from_manifest(manifest).spec)


@st.composite
def objects(draw: st.DrawFn) -> list[Topic]:
    """Some objects that claim few names, in all states."""
    made = []
    for number in range(draw(st.integers(0, 4))):
        manifest = good("Topic", f"object-{number}")
        manifest["spec"] |= {
            "name": draw(st.sampled_from(NAMES)),
            "partitions": draw(st.integers(1, 3)),
            "durability": draw(st.sampled_from(["Flushed", "Replicated"])),
            "retention": draw(st.sampled_from(["1h", "Forever"])),
            "deletionPolicy": draw(st.sampled_from(["Retain", "Delete"])),
        }
        metadata = manifest["metadata"]
        metadata |= {"namespace": "default", "uid": f"uid-{number}", "generation": draw(st.integers(1, 2))}
        metadata["creationTimestamp"] = f"2026-11-20T00:00:0{draw(st.integers(0, 2))}Z"
        metadata["finalizers"] = draw(st.sampled_from([[], [TOPIC_FINALIZER], ["other.dev/x"]]))
        if draw(st.booleans()):
            metadata["deletionTimestamp"] = "2026-11-20T01:00:00Z"
        if draw(st.booleans()):
            manifest["status"] = {"topicName": manifest["spec"]["name"], "incarnation": draw(st.sampled_from("xyz"))}
        made.append(Topic.from_manifest(manifest))
    return made + [namesake_of(item) for item in made if could_be_gone(item) and draw(st.booleans())]


def could_be_gone(item: Topic) -> bool:
    """Whether it looks as an object does that is gone, and whose last words are followed."""
    is_held = TOPIC_FINALIZER in item.metadata.finalizers
    return item.metadata.is_deleted and is_held and item.spec.deletion_policy == "Delete"


def namesake_of(item: Topic) -> Topic:
    """One that was made of the same manifest after the other was deleted."""
    manifest = item.to_manifest()
    manifest["metadata"] |= {"uid": f"{item.uid}-again", "finalizers": []}
    manifest["metadata"] |= {"deletionTimestamp": None, "creationTimestamp": "2026-11-20T02:00:00Z"}
    return Topic.from_manifest({**manifest, "status": {}})


@st.composite
def topics(draw: st.DrawFn) -> dict[str, TopicView]:
    """What the brokers have of these names."""
    found = {}
    for name in NAMES:
        if draw(st.booleans()):
            settings = settings_of({"durability": draw(st.sampled_from(["Flushed", "Replicated"]))})
            count = draw(st.integers(1, 4))
            phase: Any = draw(st.sampled_from(["READY", "READY", "CREATING", "DELETING"]))
            found[name] = whole(TopicView(name, draw(st.sampled_from("xyzw")), phase, settings, count))
    return found


def whole(view: TopicView) -> TopicView:
    chains = {n: ChainView(n, 1, 0, "g0", "g0-0", 1) for n in range(view.partition_count)}
    return replace(view, chains=chains)


def run(
    items: list[Topic], found: dict[str, TopicView], *, holds: bool = True
) -> tuple[list[Topic], dict[str, TopicView], int]:
    """Do what the plan says, report, and let the brokers finish what they began; returns how many steps there were."""
    found, left, steps = dict(found), [], 0
    for plan in plan_topics(items, found, Surroundings.HERE, holds=holds):
        item: Topic | None = plan.topic
        for step in plan.steps:
            steps += not type(step).__name__.startswith("Tell")
            match step:
                case CreateTopic():
                    assert step.name not in found
                    view = TopicView(step.name, step.incarnation, "READY", step.settings, step.partitions)
                    found[step.name] = whole(view)
                case UpdateTopic():
                    view = found[step.name]
                    assert view.incarnation == step.incarnation
                    assert not step.partitions or step.partitions > view.partition_count
                    assert step.settings.flush == view.settings.flush
                    count = step.partitions or view.partition_count
                    found[step.name] = whole(replace(view, settings=step.settings, partition_count=count))
                case DeleteTopic():
                    assert plan.topic.metadata.is_deleted
                    assert plan.topic.spec.deletion_policy == "Delete"
                    assert owns(plan.topic, found[step.name])
                    alive = [o for o in items if o.topic_name == step.name and not o.metadata.is_deleted]
                    assert {o.name for o in alive} <= {plan.topic.name}, "an object still wants it"
                    assert not any(owns(o, found[step.name]) for o in alive), "an object owns it"
                    del found[step.name]
                case HoldObject() | ReleaseObject():
                    assert item is not None
                    assert holds or isinstance(step, ReleaseObject)
                    others = tuple(f for f in item.metadata.finalizers if f != TOPIC_FINALIZER)
                    held = (*others, TOPIC_FINALIZER) if isinstance(step, HoldObject) else others
                    metadata = item.metadata.model_copy(update={"finalizers": held})
                    item = item.model_copy(update={"metadata": metadata})
        assert item is not None
        if not plan.finding.is_passing and not plan.finding.keeps_status:
            item = item.model_copy(update={"status": topic_status(item, plan.finding, NOW_S, LIVE)})
        if not item.metadata.is_deleted or item.metadata.finalizers:
            left.append(item)
    for name, view in list(found.items()):
        if view.phase == "DELETING":
            del found[name]
        else:
            found[name] = whole(replace(view, phase="READY"))
    return left, found, steps


@patient
@given(objects(), topics(), st.booleans())
def test_the_plan_comes_to_rest(items: list[Topic], found: dict[str, TopicView], holds: bool) -> None:
    for _ in range(8):
        items, found, steps = run(items, found, holds=holds)
    assert steps == 0, "nothing is left to do"
    assert holds or not any(TOPIC_FINALIZER in item.metadata.finalizers for item in items)
    for plan in plan_topics(items, found, Surroundings.HERE, holds=holds):
        status = topic_status(plan.topic, plan.finding, NOW_S + 100, LIVE)
        assert plan.topic.metadata.is_deleted or not is_news(plan.topic.status, status), "and nothing to say"
        assert plan.finding.reason in TOPIC["Ready"]
    # Objects that are deleted and only ours to let go have gone.
    assert all(TOPIC_FINALIZER not in item.metadata.finalizers for item in items if item.metadata.is_deleted)
    ready = {
        p.topic.topic_name
        for p in plan_topics(items, found, Surroundings.HERE, holds=True)
        if p.finding.reason == "Accepting"
    }
    assert ready <= found.keys()


@patient
@given(
    objects(), topics(), st.sampled_from([Surroundings.SILENT, Surroundings.PAUSED, Surroundings.GONE]), st.booleans()
)
def test_brokers_are_asked_for_nothing_unless_they_are_there(
    items: list[Topic], found: dict[str, TopicView], surroundings: Surroundings, holds: bool
) -> None:
    for plan in plan_topics(items, found, surroundings, holds=holds):
        assert not any(isinstance(step, CreateTopic | UpdateTopic | DeleteTopic) for step in plan.steps)
        assert plan.finding.reason in TOPIC["Ready"]
        if surroundings is Surroundings.PAUSED:
            assert plan.steps == ()


@patient
@given(objects(), topics())
def test_a_namesake_never_takes_over_what_is_to_be_deleted(items: list[Topic], found: dict[str, TopicView]) -> None:
    gone = {(item.name, view.incarnation) for item in items if (view := its_own(item, found)) and could_be_gone(item)}
    owners = {item.name for item in items if not item.metadata.is_deleted and its_own(item, found)}
    for _ in range(8):
        items, found, _ = run(items, found, holds=False)
    now_has = {(item.name, view.incarnation) for item in items if (view := its_own(item, found))}
    assert not {(name, incarnation) for name, incarnation in gone & now_has if name not in owners}


def its_own(item: Topic, found: Mapping[str, TopicView]) -> TopicView | None:
    view = found.get(item.topic_name)
    return view if view is not None and owns(item, view) else None


@patient
@given(objects(), topics())
def test_no_partition_is_ever_taken_away(items: list[Topic], found: dict[str, TopicView]) -> None:
    after = dict(found)
    for _ in range(3):
        items, after, _ = run(items, after)
    for name, view in found.items():
        if name in after and after[name].incarnation == view.incarnation:
            assert after[name].partition_count >= view.partition_count


@patient
@given(objects(), topics())
def test_the_order_of_objects_does_not_matter(items: list[Topic], found: dict[str, TopicView]) -> None:
    one = {plan.topic.uid: plan for plan in plan_topics(items, found, Surroundings.HERE, holds=True)}
    other = {plan.topic.uid: plan for plan in plan_topics(items[::-1], found, Surroundings.HERE, holds=True)}
    assert one == other


def test_what_is_made_again_is_another_topic() -> None:
    manifest = good("Topic")
    manifest["metadata"]["uid"] = "u"
    first = Topic.from_manifest(manifest)
    manifest["status"] = {"incarnation": incarnation_of(first)}
    again = Topic.from_manifest(manifest)
    assert incarnation_of(first) == incarnation_of(first)
    assert incarnation_of(again) != incarnation_of(first)
    assert len(incarnation_of(again)) == 32
