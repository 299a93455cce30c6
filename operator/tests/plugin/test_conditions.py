"""Conditions that are not as they should be: doctor reports each, also of objects that no pass has looked at yet."""

from __future__ import annotations

import pytest
from seriatim_operator.plugin.condition_checks import WELL, check_conditions
from seriatim_operator.plugin.findings import Level
from seriatim_operator.spec import KINDS

from .objects import broker, cluster, condition, consumer_group, group, healthy, topic

NEW = ("Unknown", "NotReconciled", "Waiting for the operator")


def test_a_healthy_cluster_has_no_such_condition() -> None:
    [finding] = check_conditions(healthy())
    assert finding.level is Level.WELL


UNSEEN = {"conditions": [condition("Ready", *NEW)]}
UNPLACED = {"conditions": [condition("Scheduled", "False", "NoNode")]}


@pytest.mark.parametrize(
    ("kind", "type_", "changes"),
    [
        ("Topic", "Ready", {"topics": (topic("events", **UNSEEN),)}),
        ("ConsumerGroup", "Ready", {"consumer_groups": (consumer_group("bills", "Idle", **UNSEEN),)}),
        ("BrokerCluster", "Ready", {"cluster": cluster(status=UNSEEN)}),
        ("BrokerGroup", "Whole", {"groups": (group("g0", whole=False),)}),
        ("Broker", "Scheduled", {"brokers": (broker("g0", 0, **UNPLACED),)}),
    ],
)
def test_a_condition_that_is_not_true_is_told(kind: str, type_: str, changes: dict[str, object]) -> None:
    [finding] = check_conditions(healthy(**changes))
    assert finding.about == f"{kind} {type_}"
    assert finding.level in (Level.BAD, Level.WARNING)
    assert "kubectl " in finding.remedy


def test_each_condition_of_a_kind_is_read_here_or_by_another_check() -> None:
    elsewhere = {"Degraded", "Progressing", "Quiesced", "Drained", "KeysParked", "DeadLettering"}
    found = {name for kind in KINDS for name in kind.model_fields["status"].annotation.CONDITIONS}  # type: ignore[union-attr]
    assert found == WELL | elsewhere, "is it a condition that should be True?"


def test_many_objects_with_one_reason_are_one_finding() -> None:
    topics = tuple(topic(f"t{n}", conditions=[condition("Ready", *NEW)]) for n in range(23))
    [finding] = check_conditions(healthy(topics=topics))
    assert "NotReconciled) for t0, t1, t2, t3, t4 and 18 more: Waiting for the operator" in finding.text
