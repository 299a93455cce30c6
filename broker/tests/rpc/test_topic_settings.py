"""What a topic may be made with, and changed to: each refusal says what is possible."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from seriatim_api.delay_limits import DelayLimits, delay_limits_of
from seriatim_api.errors import BadRequestError, PreconditionError
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_broker.core.values.messages import FORM_EXCLUSIVE
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.rpc.servicers import topic_admin
from seriatim_broker.rpc.servicers.topic_admin import RETENTION_BYTES_MIN, RETENTION_MS_MIN
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"retention_ms": RETENTION_MS_MIN - 1}, "retention_ms is 999: it is 0 .no limit. or at least 1000 ms"),
        ({"unread_ms_max": 5}, "unread_ms_max is 5: it is 0 .no limit. or at least 1000 ms"),
        ({"retention_bytes": RETENTION_BYTES_MIN - 1}, "retention_bytes is 1048575: it is 0 .no limit. or at least"),
        ({"unread_bytes_max": 1}, "unread_bytes_max is 1: it is 0 .no limit. or at least 1048576 bytes"),
        ({"retention_ms": 2 * DAY_MS, "unread_ms_max": DAY_MS}, "the first limit cannot be below the second"),
        ({"retention_bytes": 2 << 20, "unread_bytes_max": 1 << 20}, "the first limit cannot be below the second"),
        ({"delay_max_ms": 366 * DAY_MS + 1}, "delay_max_ms is 31622400001: it is 0 .the topic takes no delayed"),
        ({"delayed_pending_max": 0}, "delayed_pending_max is 0: it is at least 1 message"),
        ({"delayed_pending_max": 1 << 63}, "delayed_pending_max is 9223372036854775808: it is at least 1 message"),
    ],
)
def test_what_no_broker_could_keep_is_refused(settings: dict[str, int], text: str) -> None:
    with pytest.raises(BadRequestError, match=text):
        topic_admin._complete(records_pb2.TopicSettings(**settings))  # type: ignore[arg-type]
    request = broker_pb2.UpdateTopicRequest(settings=records_pb2.TopicSettings(**settings))  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match=text):
        topic_admin._change_of(request)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"retention_ms": RETENTION_MS_MIN, "retention_bytes": RETENTION_BYTES_MIN},
        {"retention_ms": (1 << 64) - 1},
        {"unread_ms_max": DAY_MS},
        {"retention_ms": DAY_MS, "unread_ms_max": DAY_MS},
        {"retention_bytes": 1 << 30, "unread_bytes_max": 0},
        {"delay_max_ms": 0, "delayed_pending_max": 1},
        {"delay_max_ms": 366 * DAY_MS, "delayed_pending_max": (1 << 63) - 1},
    ],
)
def test_what_can_be_kept_is_taken(settings: dict[str, int]) -> None:
    topic_admin._complete(records_pb2.TopicSettings(**settings))  # type: ignore[arg-type]


def test_a_limit_that_is_raised_above_the_cap_that_the_topic_has_is_refused() -> None:
    settings = records_pb2.TopicSettings(retention_ms=DAY_MS, retain_unread=True, unread_ms_max=7 * DAY_MS)
    change = topic_admin._change_of(
        broker_pb2.UpdateTopicRequest(settings=records_pb2.TopicSettings(retention_ms=8 * DAY_MS))
    )
    with pytest.raises(BadRequestError, match="the first limit cannot be below the second"):
        change(settings)


@pytest.mark.parametrize(
    ("change", "mask", "result"),
    [
        ({}, [], DelayLimits(5, 6)),
        ({"delay_max_ms": 0}, [], DelayLimits(0, 6)),
        ({"delay_max_ms": 0, "delayed_pending_max": 7}, ["delay_max_ms"], DelayLimits(0, 7)),
        ({}, ["delay_max_ms", "delayed_pending_max"], DelayLimits()),
    ],
)
def test_limits_of_delays_stay_unless_a_request_names_them(
    change: dict[str, int], mask: list[str], result: DelayLimits
) -> None:
    settings = records_pb2.TopicSettings(delay_max_ms=5, delayed_pending_max=6)
    wanted = records_pb2.TopicSettings(**change)  # type: ignore[arg-type]
    topic_admin._change_of(broker_pb2.UpdateTopicRequest(settings=wanted, settings_mask=mask))(settings)
    assert delay_limits_of(settings) == result


def test_a_new_topic_has_the_default_limits_of_delays() -> None:
    settings = records_pb2.TopicSettings()
    topic_admin._complete(settings)
    assert (settings.delay_max_ms, settings.delayed_pending_max) == (40 * DAY_MS, 10_000_000)


def test_what_is_said_when_a_topic_is_made_stays() -> None:
    change = topic_admin._change_of(broker_pb2.UpdateTopicRequest(settings_mask=["flush"]))
    with pytest.raises(PreconditionError, match="make another topic"):
        change(records_pb2.TopicSettings(flush=True))


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({f"a{number}": "" for number in range(65)}, "at most 64 attributes, not 65"),
        ({"a": "x" * 4096}, "at most 4,096 bytes together, not 4,097"),
        ({"a b": "x"}, "'a b' cannot name an attribute"),
        ({"": "x"}, "'' cannot name an attribute"),
        ({"seriatim.x": "x"}, "names that begin with seriatim. are taken"),
    ],
)
def test_attributes_beyond_the_limits_are_refused(attributes: dict[str, str], text: str) -> None:
    with pytest.raises(BadRequestError, match=text):
        topic_admin._complete(records_pb2.TopicSettings(attributes=attributes))
    for mask in (["attributes"], [f"attributes.{name}" for name in attributes]):
        request = broker_pb2.UpdateTopicRequest(
            settings=records_pb2.TopicSettings(attributes=attributes), settings_mask=mask
        )
        with pytest.raises(BadRequestError, match=text):
            topic_admin._change_of(request)


@pytest.mark.parametrize(
    ("mask", "attributes", "result"),
    [
        ([], {"owner": "b"}, {"owner": "b"}),
        (["attributes"], {"owner": "b"}, {"owner": "b"}),
        (["attributes"], {}, {}),
        (["attributes.owner"], {"owner": "b"}, {"owner": "b", "a/b.c": "1"}),
        (["attributes.owner", "attributes.a/b.c", "attributes.new"], {"new": ""}, {"new": ""}),
        (["attributes.unknown"], {}, {"owner": "a", "a/b.c": "1"}),
        (["retention_ms"], {}, {"owner": "a", "a/b.c": "1"}),
    ],
)
def test_attributes_are_replaced_all_together_or_named_one_by_one(
    mask: list[str], attributes: dict[str, str], result: dict[str, str]
) -> None:
    settings = records_pb2.TopicSettings(retention_ms=DAY_MS, attributes={"owner": "a", "a/b.c": "1"})
    wanted = records_pb2.TopicSettings(retention_ms=DAY_MS, attributes=attributes)
    topic_admin._change_of(broker_pb2.UpdateTopicRequest(settings=wanted, settings_mask=mask))(settings)
    assert settings == records_pb2.TopicSettings(retention_ms=DAY_MS, attributes=result)


def test_attributes_that_are_too_many_together_with_those_of_the_topic_are_refused() -> None:
    settings = records_pb2.TopicSettings(attributes={f"a{number}": "" for number in range(64)})
    wanted = records_pb2.TopicSettings(attributes={"b": ""})
    change = topic_admin._change_of(broker_pb2.UpdateTopicRequest(settings=wanted, settings_mask=["attributes.b"]))
    with pytest.raises(BadRequestError, match="at most 64 attributes, not 65"):
        change(settings)


@pytest.mark.parametrize("mask", [["attributes", "attributes.a"], ["attributes.b"]])
def test_a_mask_that_does_not_say_which_attributes_count_is_refused(mask: list[str]) -> None:
    wanted = records_pb2.TopicSettings(attributes={"a": "1"})
    with pytest.raises(BadRequestError, match="name either `attributes` in the mask, or each attribute"):
        topic_admin._change_of(broker_pb2.UpdateTopicRequest(settings=wanted, settings_mask=mask))


@pytest.mark.parametrize("forms", [0, FORM_EXCLUSIVE])
async def test_a_topic_for_exclusive_producers_needs_brokers_that_know_them(forms: int) -> None:
    coordinator, keys, controller = MemoryCoordinator(MemoryStore()), Keys("c"), Mock()
    member = records_pb2.MemberRecord(run=1, forms=forms, forms_run=1)
    await coordinator.txn((), [Put(keys.member("g0-0"), member.SerializeToString())])
    services: Any = Mock(coordinator=coordinator, keys=keys)
    admin = topic_admin.TopicAdmin(services, controller, Mock(), Mock())
    context: Any = Mock(invocation_metadata=tuple)
    assert await admin._guard(records_pb2.TopicSettings(), context)() == ()
    guard = admin._guard(records_pb2.TopicSettings(exclusive_only=True), context)
    if forms:
        compares = await guard()
        assert (await coordinator.txn(compares, ())).succeeded
        await coordinator.txn((), [Put(keys.member("g0-1"), member.SerializeToString())])
        assert not (await coordinator.txn(compares, ())).succeeded, "a broker has registered meanwhile"
    else:
        with pytest.raises(PreconditionError, match="do not all know exclusive"):
            await guard()
