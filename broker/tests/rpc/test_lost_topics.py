"""A topic that the coordinator has lost is not said to be deleted: the programs of a deleted topic end."""

from __future__ import annotations

import pytest
from seriatim_api.errors import CoordinatorBehindError, UnknownTopicError
from seriatim_api.v1 import records_pb2
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.rpc.services import Services
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

from .test_producing import QuietCore, make_services

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
