"""What the operator takes for a deletion: the word of a watch, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from seriatim_operator import handlers
from seriatim_operator.cluster.kinds import TOPIC, Kind
from seriatim_operator.handlers import Operator
from seriatim_operator.settings import OperatorSettings

from ..spec.objects import good


class Listing:
    """An API that has some Topics."""

    def __init__(self, **_: Any) -> None:
        self.topics: list[dict[str, Any]] = []

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[dict[str, Any]]:
        return copy.deepcopy(self.topics) if kind == TOPIC else []

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        return next((topic for topic in self.topics if topic["metadata"]["name"] == name), None)


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Operator:
    """One that lives in the namespace `shop`, and does not run."""
    monkeypatch.setattr(handlers, "Kube", Listing)
    return Operator(OperatorSettings(namespace="shop"), lambda: None)


def topic(namespace: str = "shop") -> dict[str, Any]:
    made = good("Topic")
    made["metadata"] |= {"namespace": namespace, "uid": "u1", "resourceVersion": "5"}
    made["spec"]["deletionPolicy"] = "Delete"
    return made


def followed(operator: Operator) -> list[str]:
    """UIDs of those whose last words are to be followed."""
    departed = operator._topics._departed
    return [each["metadata"]["uid"] for place in ("shop", "else") for each in departed.of("Topic", place)]


async def test_an_object_that_a_listing_lacks_is_only_missing(operator: Operator) -> None:
    operator._kube.topics = [topic()]  # type: ignore[attr-defined]
    await operator._list_all()
    assert operator.cache.count("Topic") == 1
    operator._kube.topics = []  # type: ignore[attr-defined]
    await operator._list_all()
    assert operator.cache.count("Topic") == 0
    assert followed(operator) == []


@pytest.mark.parametrize("event_type", [None, "ADDED", "MODIFIED"])
def test_an_object_that_is_told_otherwise_is_there(operator: Operator, event_type: str | None) -> None:
    told = topic()
    told["metadata"]["deletionTimestamp"] = "2026-11-20T00:00:00Z"
    operator._take_event(TOPIC, event_type, told)
    assert operator.cache.count("Topic") == 1
    assert followed(operator) == []


def test_a_deletion_that_a_watch_tells_is_followed(operator: Operator) -> None:
    operator._take_event(TOPIC, "ADDED", topic())
    operator._take_event(TOPIC, "DELETED", topic())
    assert operator.cache.count("Topic") == 0
    assert followed(operator) == ["u1"]


def test_elsewhere_finalizers_do_that(operator: Operator) -> None:
    operator._take_event(TOPIC, "ADDED", topic("else"))
    operator._take_event(TOPIC, "DELETED", topic("else"))
    assert operator.cache.count("Topic") == 0
    assert followed(operator) == []
