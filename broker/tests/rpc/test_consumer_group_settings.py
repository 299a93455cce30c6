"""Settings of consumer groups in requests: what is not specified, and what is illegal."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_api.errors import (
    BadRequestError,
    IllegalNameError,
    PreconditionError,
    UnknownTopicError,
    UnsupportedModeError,
)
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.keyed import (
    RETRY_DEFAULT,
    SETTINGS_DEFAULT,
    BackOff,
    ConsumerGroupSettings,
    ConsumerMode,
    Exhausted,
    RetryPolicy,
    WantedSettings,
)
from seriatim_broker.interfaces.settings_records import settings_to_proto
from seriatim_broker.rpc.servicers.consumer_group_settings import check_dead_letter_topic, settings_from, wanted_from

KEYED = records_pb2.CONSUMER_MODE_KEY_ORDERED


def policy(**fields: Any) -> records_pb2.RetryPolicy:
    return records_pb2.RetryPolicy(**fields)


def settings(**fields: Any) -> ConsumerGroupSettings:
    return settings_from(records_pb2.GroupSettings(**fields), "t", "g")


def test_what_is_not_specified_is_the_default() -> None:
    assert settings() == SETTINGS_DEFAULT
    assert settings(mode=KEYED) == ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, RETRY_DEFAULT)
    found = settings(mode=KEYED, retry=policy(attempts_max=3, exhausted=records_pb2.EXHAUSTED_PARK_KEY)).retry
    assert (found.attempts_max, found.back_off, found.exhausted) == (3, BackOff.EXPONENTIAL, Exhausted.PARK_KEY)
    assert found.grant_ms == RETRY_DEFAULT.grant_ms


def test_settings_go_there_and_back() -> None:
    for some in (
        SETTINGS_DEFAULT,
        ConsumerGroupSettings(
            ConsumerMode.KEY_ORDERED, RetryPolicy(2, BackOff.FIXED, (5,), 0, Exhausted.PARK_KEY, "", 1_000), False
        ),
        ConsumerGroupSettings(ConsumerMode.SHARED, RetryPolicy(grant_ms=1_000), True),
        ConsumerGroupSettings(is_spread=False),
    ):
        assert settings_from(settings_to_proto(some), "t", "g") == some


def test_a_change_names_only_what_changes() -> None:
    assert wanted_from(records_pb2.GroupSettings(), "t", "g") == WantedSettings()
    wanted = wanted_from(records_pb2.GroupSettings(retry=policy(attempts_max=3)), "t", "g")
    assert (wanted.mode, wanted.at_most_once) == (None, None)
    assert wanted.retry is not None
    assert wanted_from(records_pb2.GroupSettings(spread=records_pb2.SPREAD_EVEN), "t", "g").is_spread is True


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"mode": 9}, UnsupportedModeError),
        ({"mode": KEYED, "retry": policy(back_off=9)}, BadRequestError),
        ({"mode": KEYED, "retry": policy(exhausted=9)}, BadRequestError),
        ({"mode": KEYED, "retry": policy(attempts_max=1_001)}, BadRequestError),
        ({"mode": KEYED, "retry": policy(delays_ms=[1])}, BadRequestError),
        ({"mode": KEYED, "retry": policy(delays_ms=[1, 1 << 31])}, BadRequestError),
        ({"mode": KEYED, "retry": policy(grant_ms=1)}, BadRequestError),
        ({"mode": KEYED, "retry": policy(dead_letter_topic="d")}, BadRequestError),
        ({"mode": KEYED, "retry": policy(exhausted=3, dead_letter_topic="a b")}, IllegalNameError),
        ({"mode": KEYED, "retry": policy(exhausted=3, dead_letter_topic="t")}, BadRequestError),
        ({"retry": policy(attempts_max=3)}, BadRequestError),
        ({"mode": KEYED, "spread": records_pb2.SPREAD_NONE}, BadRequestError),
        ({"spread": 9}, BadRequestError),
        ({"mode": KEYED, "at_most_once": True, "retry": policy(attempts_max=3)}, BadRequestError),
        ({"mode": KEYED, "at_most_once": True, "retry": policy(delays_ms=[1, 2])}, BadRequestError),
        ({"mode": records_pb2.CONSUMER_MODE_SHARED, "retry": policy(exhausted=2, attempts_max=3)}, BadRequestError),
        ({"mode": records_pb2.CONSUMER_MODE_BROADCAST, "retry": policy(attempts_max=3)}, BadRequestError),
    ],
)
def test_what_no_broker_can_keep_is_refused(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        settings(**fields)


def test_dead_letters_have_a_topic() -> None:
    assert settings(mode=KEYED, retry=policy(attempts_max=1, exhausted=3)).retry.dead_letter_topic == "t.g.dead"


class Services:
    """Knows one topic with two partitions."""

    async def topic(self, name: str) -> records_pb2.TopicRecord:
        if name != "d":
            raise UnknownTopicError(name)
        return records_pb2.TopicRecord(name="d", partition_ids=[1, 2])


async def test_the_dead_letter_topic_is_there_and_has_as_many_partitions() -> None:
    services: Any = Services()
    dead = RetryPolicy(1, exhausted=Exhausted.DEAD_LETTER, dead_letter_topic="d")
    await check_dead_letter_topic(services, None, 9)
    await check_dead_letter_topic(services, RetryPolicy(), 9)
    await check_dead_letter_topic(services, dead, 2)
    with pytest.raises(PreconditionError, match="2 of 3 partitions"):
        await check_dead_letter_topic(services, dead, 3)
    with pytest.raises(UnknownTopicError):
        await check_dead_letter_topic(
            services, RetryPolicy(1, exhausted=Exhausted.DEAD_LETTER, dead_letter_topic="x"), 1
        )
