"""Requests about keys that wait: what is not set is not the same as what is empty."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from seriatim_api.key_names import name_of_key
from seriatim_api.v1 import broker_pb2
from seriatim_broker.core.values.effects import KeysListed
from seriatim_broker.core.values.events import ListKeys
from seriatim_broker.core.values.keyed import KeyPhase, WaitingKey
from seriatim_broker.rpc.servicers.consumer_group_keys import ConsumerGroupKeys

LONG = b"x" * 1_025


async def listed(request: broker_pb2.ListGroupKeysRequest) -> tuple[ListKeys, broker_pb2.ListGroupKeysResponse]:
    """What the core is asked, and the answer about two keys: the empty one, and a message without one."""
    asked: list[ListKeys] = []

    async def ask_core(make: Any, _deadline_s: float) -> KeysListed:
        asked.append(make(1))
        keys = (WaitingKey(name, KeyPhase.PARKED, 1, 0, 1, 1, 0, "no", 1) for name in (b"k", b"o" + bytes(8)))
        return KeysListed(1, tuple(keys), False, None)

    async def at_server(_method: str, _request: Any, here: Any, _context: Any) -> Any:
        return await here(SimpleNamespace(partition=1), 1.0)

    keys: Any = ConsumerGroupKeys.__new__(ConsumerGroupKeys)
    keys._services = SimpleNamespace(ask_core=ask_core)
    keys._at_server = at_server
    # As it comes over the network: an empty field that is set is on the wire.
    answer = await keys.ListGroupKeys(broker_pb2.ListGroupKeysRequest.FromString(request.SerializeToString()), None)
    return asked[0], answer


@pytest.mark.parametrize(
    ("key", "name"), [(None, None), (b"", b"k"), (b"a", b"ka"), (LONG, name_of_key(LONG))], ids=str
)
async def test_the_empty_key_is_asked_for_as_itself(key: bytes | None, name: bytes | None) -> None:
    event, _ = await listed(broker_pb2.ListGroupKeysRequest(topic="t", group="g", key=key))
    assert event.name == name


async def test_a_message_without_a_key_has_no_empty_key() -> None:
    _, answer = await listed(broker_pb2.ListGroupKeysRequest(topic="t", group="g"))
    assert [key.HasField("key") for key in answer.keys] == [True, False]
