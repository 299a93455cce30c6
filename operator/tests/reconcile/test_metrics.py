"""What Prometheus reads from the operator: passes, errors, and the conditions of objects."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from seriatim_operator import metrics
from seriatim_operator.metrics import GOOD, KINDS, OperatorMetrics
from seriatim_operator.reconcile.cache import Cache
from seriatim_operator.reconcile.dispatch import ClusterKey
from seriatim_operator.reconcile.queue import WorkQueue
from seriatim_operator.spec.broker import BrokerStatus
from seriatim_operator.spec.cluster import BrokerClusterStatus
from seriatim_operator.spec.consumer_group import ConsumerGroupStatus
from seriatim_operator.spec.group import BrokerGroupStatus
from seriatim_operator.spec.topic import TopicStatus

Labels = tuple[str, ...]


async def nothing(_key: object) -> float | None:
    """A pass that does nothing."""
    return None


class World:
    """An operator with objects, and its page."""

    def __init__(self, queue: WorkQueue | None = None) -> None:
        self.cache = Cache()
        self.lease = SimpleNamespace(is_held=True, epoch=3)
        self.metrics = OperatorMetrics(queue or WorkQueue(nothing), cast(Any, self.lease), self.cache)

    def put(self, kind: str, name: str, cluster: str = "", **conditions: str) -> None:
        """An object whose conditions have these statuses, each with the reason `Why`."""
        found = [{"type": type_, "status": status, "reason": "Why"} for type_, status in conditions.items()]
        spec = {"cluster": cluster} if cluster else {}
        metadata = {"namespace": "shop", "name": name, "uid": name}
        self.cache.put(kind, {"metadata": metadata, "spec": spec, "status": {"conditions": found}})

    def read(self, sample: str, *labels: str) -> dict[Labels, float]:
        """The values of one sample, by these labels."""
        return {
            tuple(one.labels[label] for label in labels): one.value
            for family in text_string_to_metric_families(self.metrics.page().decode())
            for one in family.samples
            if one.name == sample
        }


def test_each_condition_of_a_cluster_is_shown_and_of_a_topic_only_what_is_wrong() -> None:
    world = World()
    world.put("BrokerCluster", "orders", Ready="True", Degraded="True", Progressing="False")
    world.put("Topic", "good", "orders", Ready="True", ChainHealthy="True")
    world.put("Topic", "bad", "orders", Ready="False", ChainHealthy="Unknown")
    world.put("ConsumerGroup", "parked", "orders", Ready="True", KeysParked="True", DeadLettering="False")
    labels = ("kind", "namespace", "name", "seriatim_cluster", "condition", "status", "reason")
    assert set(world.read("seriatim_operator_condition", *labels)) == {
        ("BrokerCluster", "shop", "orders", "orders", "Ready", "True", "Why"),
        ("BrokerCluster", "shop", "orders", "orders", "Degraded", "True", "Why"),
        ("BrokerCluster", "shop", "orders", "orders", "Progressing", "False", "Why"),
        ("Topic", "shop", "bad", "orders", "Ready", "False", "Why"),
        ("Topic", "shop", "bad", "orders", "ChainHealthy", "Unknown", "Why"),
        ("ConsumerGroup", "shop", "parked", "orders", "KeysParked", "True", "Why"),
    }
    counted = world.read("seriatim_operator_conditions", "kind", "condition", "status")
    assert counted["Topic", "Ready", "True"] == counted["Topic", "Ready", "False"] == 1


def test_the_series_of_conditions_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CONDITION_SERIES_MAX", 3)
    world = World()
    for number in range(5):
        world.put("Topic", f"t{number}", "orders", Ready="False")
    world.put("BrokerCluster", "orders", Ready="True")
    shown = world.read("seriatim_operator_condition", "kind", "name")
    assert len(shown) == 3
    assert ("BrokerCluster", "orders") in shown
    assert world.read("seriatim_operator_conditions_left_out") == {(): 3}
    assert world.read("seriatim_operator_conditions", "kind", "condition") == {
        ("BrokerCluster", "Ready"): 1,
        ("Topic", "Ready"): 5,
    }


def test_an_operator_that_stands_by_shows_no_conditions() -> None:
    world = World()
    world.put("BrokerCluster", "orders", Ready="True")
    world.lease.is_held = False
    assert world.read("seriatim_operator_condition") == {}
    assert world.read("seriatim_operator_leader") == {(): 0}


async def test_passes_and_their_errors_are_counted() -> None:
    ended = asyncio.Event()

    async def work(key: object) -> float | None:
        if key == ClusterKey("shop", "broken"):
            raise LookupError("no such thing")
        ended.set()
        return None

    queue = WorkQueue(work)
    world = World(queue)
    running = asyncio.create_task(queue.run())
    queue.add(ClusterKey("shop", "broken"))
    queue.add(ClusterKey("shop", "orders"))
    await asyncio.wait_for(ended.wait(), 10)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert world.read("seriatim_operator_pass_errors_total", "part", "error") == {("cluster", "LookupError"): 1}
    assert world.read("seriatim_operator_pass_seconds_count", "part") == {("cluster",): 2}


def test_it_is_said_of_each_type_of_condition_how_it_should_be() -> None:
    tells = {"Progressing", "Drained", "DeadLettering", "AuthoritySettled"}
    statuses = (BrokerClusterStatus, BrokerGroupStatus, BrokerStatus, TopicStatus, ConsumerGroupStatus)
    assert len(statuses) == len(KINDS)
    types = {type_ for status in statuses for type_ in status.CONDITIONS}
    assert types == {*GOOD, *tells}
