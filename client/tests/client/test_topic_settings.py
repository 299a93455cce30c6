"""What the client says of a topic's settings, and what it refuses before it asks a broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from seriatim import Admin, TopicSettings
from seriatim._values.topics import topic_of
from seriatim_api.errors import BadRequestError
from seriatim_api.v1 import broker_pb2, records_pb2


class Recorded:
    """A caller that keeps what it was asked, and answers with the settings that it was given."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def admin(self, _method: str, request: Any, _timeout_s: float) -> records_pb2.TopicRecord:
        self.requests.append(request)
        return records_pb2.TopicRecord(name=request.name, settings=request.settings)


@pytest.fixture
def caller() -> Recorded:
    return Recorded()


@pytest.fixture
def admin(caller: Recorded) -> Admin:
    return Admin(caller)  # type: ignore[arg-type]


async def test_who_says_nothing_of_retention_gets_the_default_of_the_cluster(admin: Admin, caller: Recorded) -> None:
    await admin.create_topic("t")
    await admin.create_topic("t", settings=TopicSettings(retention_bytes=1 << 30))
    await admin.create_topic("t", settings=TopicSettings(retention_ms=0))
    await admin.create_topic("t", settings=TopicSettings(retention_ms=5000))
    assert [(r.default_retention, r.settings.retention_ms) for r in caller.requests] == [
        (True, 0), (True, 0), (False, 0), (False, 5000),
    ]  # fmt: skip


async def test_all_settings_reach_the_brokers_and_come_back(admin: Admin, caller: Recorded) -> None:
    asked = TopicSettings(True, 1, 2, 3000, 4, 5 << 20, True, 7000, 8 << 20, {"owner": "a", "b": ""}, 0, 9, True)
    made = await admin.create_topic("t", settings=asked)
    assert made.settings == replace(asked)
    assert type(made.settings.attributes) is dict
    assert len({made, replace(made)}) == 1, "topics can be kept in a set"


async def test_a_change_names_what_it_changes_zeros_too(admin: Admin, caller: Recorded) -> None:
    await admin.update_topic("t", retention_ms=0, retain_unread=False, unread_bytes_max=1 << 30)
    await admin.update_topic("t", delay_max_ms=0, delayed_pending_max=5, exclusive_only=False)
    request, delays = caller.requests
    assert isinstance(request, broker_pb2.UpdateTopicRequest)
    assert set(request.settings_mask) == {"retention_ms", "retain_unread", "unread_bytes_max"}
    assert request.settings == records_pb2.TopicSettings(unread_bytes_max=1 << 30)
    assert set(delays.settings_mask) == {"delay_max_ms", "delayed_pending_max", "exclusive_only"}
    assert delays.settings == records_pb2.TopicSettings(delay_max_ms=0, delayed_pending_max=5)


async def test_a_topic_of_an_earlier_version_has_the_default_limits_of_delays() -> None:
    settings = topic_of(records_pb2.TopicRecord(name="t")).settings
    assert (settings.delay_max_ms, settings.delayed_pending_max) == (40 * 86_400_000, 10_000_000)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"delay_max_ms": 366 * 86_400_000 + 1}, "delay_max_ms is 31622400001: it is 0 .the topic takes no delayed"),
        ({"delay_max_ms": 1.5}, "delay_max_ms is a whole number, not 1.5"),
        ({"delayed_pending_max": 0}, "delayed_pending_max is 0: it is at least 1 message"),
    ],
)
async def test_limits_of_delays_that_no_topic_can_have_are_refused(
    admin: Admin, caller: Recorded, wrong: dict[str, Any], text: str
) -> None:
    with pytest.raises(BadRequestError, match=text):
        await admin.create_topic("t", settings=TopicSettings(**wrong))
    with pytest.raises(BadRequestError, match=text):
        await admin.update_topic("t", **wrong)
    assert caller.requests == []


@pytest.mark.parametrize(
    "wrong", [{"retention_ms": -1}, {"retention_bytes": 1 << 63}, {"unread_ms_max": -5}, {"chain_width": 1 << 32}]
)
async def test_numbers_that_no_record_holds_are_refused(admin: Admin, caller: Recorded, wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(BadRequestError, match=f"{name} is .*: it is 0 or more, and below"):
        await admin.create_topic("t", settings=TopicSettings(**wrong))  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match=f"{name} is "):
        await admin.update_topic("t", **wrong)  # type: ignore[arg-type]
    assert caller.requests == []


async def test_attributes_replace_all_and_changes_of_them_name_each(admin: Admin, caller: Recorded) -> None:
    await admin.update_topic("t", attributes={"owner": "a"})
    await admin.update_topic("t", attributes={})
    await admin.update_topic("t", attribute_changes={"owner": "a", "ticket": None})
    await admin.update_topic("t", retention_ms=0)
    assert [(r.name, list(r.settings_mask), dict(r.settings.attributes)) for r in caller.requests] == [
        ("t", ["attributes"], {"owner": "a"}),
        ("t", ["attributes"], {}),
        ("t", ["attributes.owner", "attributes.ticket"], {"owner": "a"}),
        ("t", ["retention_ms"], {}),
    ]


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({f"a{number}": "" for number in range(65)}, "at most 64 attributes, not 65"),
        ({"a": "x" * 4096}, "at most 4,096 bytes together, not 4,097"),
        ({"": "x"}, "'' cannot name an attribute"),
        ({"seriatim.x": "x"}, "names that begin with seriatim. are taken"),
        ({"a": 7}, "the attribute a is a text, not 7"),
        ({"a": "\ud800"}, "the attribute a is a text, not"),
    ],
)
async def test_attributes_that_no_topic_can_have_are_refused(
    admin: Admin, caller: Recorded, attributes: Any, text: str
) -> None:
    with pytest.raises(BadRequestError, match=text):
        await admin.create_topic("t", settings=TopicSettings(attributes=attributes))
    for name in ("attributes", "attribute_changes"):
        with pytest.raises(BadRequestError, match=text):
            await admin.update_topic("t", **{name: attributes})
    assert caller.requests == []


async def test_changes_of_attributes_that_mean_nothing_are_refused(admin: Admin, caller: Recorded) -> None:
    with pytest.raises(BadRequestError, match="either attributes, which replace all, or attribute_changes"):
        await admin.update_topic("t", attributes={}, attribute_changes={})
    with pytest.raises(BadRequestError, match="attribute_changes is a map of names to texts or None, not"):
        await admin.update_topic("t", attribute_changes=["a"])  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match="'a b' cannot name an attribute"):
        await admin.update_topic("t", attribute_changes={"a b": None})
    assert caller.requests == []
