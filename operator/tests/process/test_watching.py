"""What the operator takes for a deletion: the word of a watch, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_operator import handlers
from seriatim_operator.cluster.kinds import TOPIC
from seriatim_operator.handlers import Operator
from seriatim_operator.settings import OperatorSettings

from ..memory_kube import MemoryKube
from ..spec.objects import good


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Operator:
    """One that lives in the namespace `shop`, and does not run."""
    monkeypatch.setattr(handlers, "Kube", lambda **_: MemoryKube())
    return Operator(OperatorSettings(namespace="shop"))


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
    operator._kube.put(topic())  # type: ignore[attr-defined]
    await operator._list_all()
    assert operator.cache.count("Topic") == 1
    operator._kube.objects.clear()  # type: ignore[attr-defined]
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
