"""Every reason of a condition that is not well has a remedy, in which there is a command that exists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from seriatim.cli import main as client_cli
from seriatim_operator.plugin.main import main as plugin_cli
from seriatim_operator.spec import KINDS
from seriatim_operator.spec.base import Condition, Resource
from seriatim_operator.status import reasons
from seriatim_operator.status.remedies import REMEDIES, WELL, remedy

from .objects import broker, cluster, condition, consumer_group, group, topic

RUNBOOKS = Path(__file__).parents[3] / "docs" / "operating" / "runbooks"
CATALOGUE: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "BrokerCluster": reasons.CLUSTER,
    "BrokerGroup": reasons.GROUP,
    "Broker": reasons.BROKER,
    "Topic": reasons.TOPIC,
    "ConsumerGroup": reasons.CONSUMER_GROUP,
}
ITEMS: Mapping[str, Resource] = {
    "BrokerCluster": cluster(),
    "BrokerGroup": group("g0"),
    "Broker": broker("g0", 0),
    "Topic": topic("events"),
    "ConsumerGroup": consumer_group("bill", "Active"),
}
VERBS = {"get", "describe", "edit", "patch", "logs", "apply", "uncordon", "annotate", "cordon"}
ROWS = [(kind, type_, reason) for kind, types in REMEDIES.items() for type_, found in types.items() for reason in found]


def _told(kind: str, type_: str, reason: str) -> str:
    return remedy(ITEMS[kind], Condition.model_validate(condition(type_, "False", reason)))


@pytest.mark.parametrize("kind", CATALOGUE)
def test_each_reason_is_well_or_has_a_remedy(kind: str) -> None:
    for type_, known in CATALOGUE[kind].items():
        well, remedied = set(WELL[kind].get(type_, ())), set(REMEDIES[kind].get(type_, {}))
        assert well | remedied == set(known), f"{kind} {type_}"
        assert not well & remedied, f"{kind} {type_}"


@pytest.mark.parametrize(("kind", "type_", "reason"), ROWS)
def test_each_remedy_has_a_command_that_exists(kind: str, type_: str, reason: str) -> None:
    text = _told(kind, type_, reason)
    assert not re.search(r"\{(ns|name|short|cluster|topic|group)\}", text), text
    commands = re.findall(r"\bkubectl (?:-n \S+ )?([a-z]+)", text)
    known = re.findall(r"(?<!kubectl )\bseriatim ((?:group|coordinator|operator|chain) [a-z]+)", text)
    assert commands or known, text
    plugin = re.findall(r"\bkubectl seriatim (?:-n \S+ )?([a-z]+)", text)
    assert set(commands) - {"seriatim"} <= VERBS, text
    assert set(plugin) <= set(plugin_cli.commands), text
    for name, sub in (words.split() for words in known):
        found = client_cli.get_command(click.Context(client_cli), name)
        assert isinstance(found, click.Group)
        assert sub in found.commands, text
    for runbook in re.findall(r"runbook ([a-z-]+)", text):
        assert (RUNBOOKS / f"{runbook}.md").is_file(), text
    short = {each.SHORT_NAME for each in KINDS}
    for word in re.findall(r"(?:get|describe|edit|patch) (s[a-z]+)", text):
        assert word in short | {"storageclass", "services", "secrets", "statefulsets"}, text


def test_a_reason_of_a_newer_operator_gets_the_general_answer() -> None:
    assert _told("Topic", "Ready", "Other") == "kubectl -n shop describe stopic events"


def test_a_remedy_names_the_object_and_its_cluster() -> None:
    assert _told("Broker", "Scheduled", "NoPod").startswith("kubectl seriatim -n shop plan orders")
    assert "kubectl -n shop edit stopic events" in _told("Topic", "Ready", "MorePartitions")
    assert "seriatim group parked " in _told("ConsumerGroup", "KeysParked", "KeysWait")
    assert '{"spec": {"paused": false}}' in _told("Topic", "Ready", "Paused")
