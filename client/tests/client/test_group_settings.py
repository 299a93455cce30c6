"""Settings of consumer groups that the client refuses before it asks a broker, and before it makes a topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim import Admin, GroupSettings, MovePlan, PlannedMove, RetryPolicy
from seriatim._recorder import Recorder
from seriatim._values.consumer_group_settings import settings_of, settings_to_proto
from seriatim.history import MemoryHistory
from seriatim_api.errors import BadRequestError, DeadlineExceededError, PreconditionError, UnknownTopicError
from seriatim_api.v1 import broker_pb2, common_pb2, records_pb2

POLICIES = (
    RetryPolicy(3),
    RetryPolicy(back_off="fixed", delays_ms=(5,)),
    RetryPolicy(jitter_percent=0),
    RetryPolicy(2, exhausted="dead_letter"),
)


@pytest.mark.parametrize("policy", POLICIES)
def test_at_most_once_takes_no_retries(policy: RetryPolicy) -> None:
    with pytest.raises(BadRequestError, match="at-most-once delivery has no retry"):
        GroupSettings("shared", policy, at_most_once=True)


def test_at_most_once_takes_the_time_of_a_grant() -> None:
    settings = GroupSettings("shared", RetryPolicy(grant_ms=60_000), at_most_once=True)
    assert settings_of(settings_to_proto("shared", settings.retry, at_most_once=True)) == settings


def test_retries_that_a_broker_keeps_beside_at_most_once_are_not_shown() -> None:
    """They would mean nothing."""
    told = settings_of(settings_to_proto("shared", RetryPolicy(3, grant_ms=9_000), at_most_once=True))
    assert told == GroupSettings("shared", RetryPolicy(grant_ms=9_000), at_most_once=True)


def test_spread_is_one_of_exclusive_groups() -> None:
    settings = GroupSettings("exclusive", spread="none")
    assert settings_of(settings_to_proto("exclusive", None, None, "none")) == settings
    with pytest.raises(BadRequestError, match="has no spread"):
        GroupSettings("shared", spread="none")
    with pytest.raises(BadRequestError, match="it is even or none"):
        GroupSettings(spread=cast(Any, "odd"))


async def test_spread_alone_is_changed_alone() -> None:
    sent: list[Any] = []

    async def operate(_method: str, request: Any, _deadline_s: float) -> Any:
        sent.append(request.settings)
        return broker_pb2.OperateGroupResponse(results=[broker_pb2.OperatedGroup(partition=0)])

    admin = Admin(cast(Any, SimpleNamespace(admin=operate)), cast(Any, None))

    async def rows(*_of: Any) -> Any:
        return [broker_pb2.OperatedPartition(partition=0)]

    admin._rows_of = rows  # type: ignore[method-assign]
    await admin.configure_group("t", "g", spread="none")
    assert sent == [records_pb2.GroupSettings(spread=records_pb2.SPREAD_NONE)]


async def test_a_group_that_is_at_most_once_gets_no_dead_letter_topic() -> None:
    admin = Admin(cast(Any, SimpleNamespace()), cast(Any, None))

    async def described(_topic: str, _group: str) -> Any:
        return SimpleNamespace(settings=GroupSettings("shared", at_most_once=True))

    admin.describe_group = described  # type: ignore[method-assign,assignment]
    letters = RetryPolicy(3, exhausted="dead_letter")
    for more in ({}, {"at_most_once": True}, {"mode": "key_ordered", "at_most_once": True}):
        with pytest.raises(BadRequestError, match="no retry"):  # any call of the network would be another error
            await admin.configure_group("t", "g", retry=letters, **cast(Any, more))


async def test_a_move_of_a_group_is_in_the_history_before_it_is_asked_for_and_when_it_is_done() -> None:
    history = MemoryHistory("test")
    asked: list[int] = []

    async def operate(_method: str, request: Any, _deadline_s: float) -> Any:
        asked.append(len(history.events))
        refused = common_pb2.Error(number=PreconditionError.number, message="keys are parked")
        rows = {0: broker_pb2.OperatedGroup(partition=0), 1: broker_pb2.OperatedGroup(partition=1, error=refused)}
        return broker_pb2.OperateGroupResponse(results=[rows[row.partition] for row in request.partitions])

    admin = Admin(cast(Any, SimpleNamespace(admin=operate)), cast(Any, None), Recorder(history, bytes.decode))
    groups = [
        cast(Any, SimpleNamespace(partition=partition, group_epoch=1, segment=1, acked_index=5)) for partition in (0, 1)
    ]

    def told() -> list[tuple[Any, ...]]:
        events, history.events[:] = list(history.events), []
        assert {event["x"] for event in events} == {"move"}
        return [tuple(event.get(name, 0) for name in ("q", "d", "o", "z", "done")) for event in events]

    await admin.move_group(MovePlan("t", "g", tuple(PlannedMove(at, "skip", 2 << 40, 1, None) for at in groups)))
    assert asked == [2]
    assert told() == [(0, "skip", "1:5", "2:0", 0), (1, "skip", "1:5", "2:0", 0), (0, "skip", "1:5", "2:0", 1)]
    await admin.move_group(MovePlan("t", "g", (PlannedMove(groups[0], "rewind", 1 << 40, 5, None),)))
    assert told() == [(0, "rewind", "1:0", 0, 0), (0, "rewind", "1:0", 0, 1)]

    async def rows_of(*_arguments: object) -> list[Any]:
        return [broker_pb2.OperatedPartition(partition=partition) for partition in (0, 1)]

    admin._rows_of = rows_of  # type: ignore[method-assign]
    await admin.configure_group("t", "g", mode="shared", at_most_once=False)
    assert told() == [(0, "mode", 0, 0, 0), (1, "mode", 0, 0, 0), (0, "mode", 0, 0, 1)]


def test_no_shared_group_parks_keys() -> None:
    with pytest.raises(BadRequestError, match="parks no key"):
        GroupSettings("shared", RetryPolicy(3, exhausted="park_key"))


class Slow:
    """A cluster in which the making of a topic takes longer than the call."""

    def __init__(self, partition_count: int | None) -> None:
        self.admin = Admin(cast(Any, SimpleNamespace()), cast(Any, None))
        self.admin.describe_topic = self._describe  # type: ignore[method-assign,assignment]
        self.admin.create_topic = self._create  # type: ignore[method-assign,assignment]
        self.count = partition_count

    async def _describe(self, name: str) -> Any:
        count = 3 if name == "t" else self.count
        if count is None:
            raise UnknownTopicError("there is no such topic")
        return SimpleNamespace(topic=SimpleNamespace(partition_ids=range(count)))

    async def _create(self, *_arguments: Any) -> Any:
        raise DeadlineExceededError("it may have been done")


async def test_a_dead_letter_topic_that_is_made_slowly_is_waited_for() -> None:
    letters = RetryPolicy(3, exhausted="dead_letter")
    policy = await Slow(3).admin._with_dead_letter_topic("t", "g", letters)
    assert policy is not None
    assert policy.dead_letter_topic == "t.g.dead"
    with pytest.raises(PreconditionError, match="2 of 3"):
        await Slow(2).admin._with_dead_letter_topic("t", "g", letters)
    with pytest.raises(DeadlineExceededError):
        await Slow(None).admin._with_dead_letter_topic("t", "g", letters)
