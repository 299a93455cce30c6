"""A topic that the coordinator has lost is not said to be deleted: the programs of a deleted topic end."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from seriatim_api.errors import CoordinatorBehindError, UnknownTopicError
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.rpc.calls.services import Services
from seriatim_broker.rpc.servicers.topic_admin import TopicAdmin
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

from .test_producing import QuietCore, make_services

pytestmark = pytest.mark.asyncio(loop_scope="session")


class RefusedError(Exception):
    """A call was ended with a status."""


class Context:
    """The context of a call without metadata."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> float:
        return 10.0

    async def abort(self, _code: Any, details: str, _trailing: Any = ()) -> NoReturn:
        raise RefusedError(details)


async def serving(lost: str) -> Services:
    """A broker whose coordinator has no topic, and has lost this; empty: nothing."""

    async def look() -> str:
        return lost

    services = await make_services(QuietCore())
    services.coordinator = MemoryCoordinator(MemoryStore())
    services.lost = look
    return services


async def test_a_topic_is_not_unknown_while_the_coordinator_lacks_decisions() -> None:
    services = await serving("the coordinator has lost decisions: its revision is 3")
    with pytest.raises(CoordinatorBehindError, match="whether there is a topic 'orders' is not known: the coordinator"):
        await services.topic("orders")
    services = await serving("")
    with pytest.raises(UnknownTopicError):
        await services.topic("orders")


async def test_a_topic_that_the_coordinator_says_is_being_deleted_is_unknown_all_the_same() -> None:
    services = await serving("the coordinator has lost decisions: its revision is 3")
    record = records_pb2.TopicRecord(name="orders", state=records_pb2.TOPIC_STATE_DELETING)
    await services.coordinator.txn((), [Put(services.keys.topic("orders"), record.SerializeToString())])
    with pytest.raises(UnknownTopicError):
        await services.topic("orders")


@pytest.mark.parametrize("lost", ["", "the coordinator has lost decisions: its revision is 3"])
async def test_nothing_is_made_while_the_coordinator_lacks_decisions(lost: str) -> None:
    services = await serving(lost)
    asked: list[str] = []

    async def make(name: str, *_: Any) -> records_pb2.TopicRecord:
        asked.append(name)
        return records_pb2.TopicRecord(name=name)

    topics = SimpleNamespace(create=make, update=make)
    controller = SimpleNamespace(election=SimpleNamespace(is_controller=True), topics=topics)
    admin = TopicAdmin(services, cast(Any, controller), cast(Any, None), cast(Any, None))
    context = Context()
    calls: list[Callable[[], Any]] = [
        lambda: admin.CreateTopic(broker_pb2.CreateTopicRequest(name="orders", partition_count=2), context),
        lambda: admin.UpdateTopic(broker_pb2.UpdateTopicRequest(name="orders", partition_count=4), context),
    ]
    for call in calls:
        if lost:
            with pytest.raises(RefusedError, match="is not made, because the coordinator may have lost it"):
                await call()
        else:
            await call()
    await admin.UpdateTopic(
        broker_pb2.UpdateTopicRequest(name="orders", settings=records_pb2.TopicSettings(retention_ms=5000)), context
    )
    assert asked == (["orders"] if lost else ["orders"] * 3), "other settings make nothing"
