"""Keys that wait, as the client asks for them: the empty key is a key, and a broker that lists others is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim import Admin, GroupKey
from seriatim._recorder import Recorder
from seriatim.history import MemoryHistory
from seriatim_api.errors import BadRequestError, CorruptionError
from seriatim_api.key_names import name_of_key
from seriatim_api.v1 import broker_pb2

KEYLESS = b"o" + (1 << 40).to_bytes(8, "big")
LONG = b"x" * 1_025
ALL = (name_of_key(LONG), b"k", b"ka", KEYLESS)


class Broker:
    """Answers lists of keys, two on a page."""

    def __init__(self, group_epoch: int = 1) -> None:
        self.group_epoch = group_epoch
        self.asked: list[broker_pb2.ListGroupKeysRequest] = []

    async def admin(self, method: str, request: Any, _deadline_s: float) -> Any:
        """Answer as a broker does."""
        assert method == "ListGroupKeys"
        asked = broker_pb2.ListGroupKeysRequest.FromString(request.SerializeToString())
        self.asked.append(asked)
        is_one = asked.HasField("key")
        names = [name for name in ALL if name > asked.after and (not is_one or name == name_of_key(asked.key))]
        keys = [
            broker_pb2.GroupKey(name=name, first_offset=1, messages=1, state=cast(Any, 2), group_epoch=self.group_epoch)
            for name in names[:2]
        ]
        return broker_pb2.ListGroupKeysResponse(keys=keys, next=names[1] if len(names) > 2 else b"")


async def listed(broker: Broker, **options: Any) -> list[GroupKey]:
    admin = Admin(cast(Any, broker), cast(Any, SimpleNamespace()))
    return [key async for key in admin.group_keys("t", "g", partition=0, **options)]


async def test_a_key_is_listed_alone() -> None:
    assert [key.name for key in await listed(Broker())] == list(ALL)
    assert [key.name for key in await listed(Broker(), key=b"a")] == [b"ka"]
    assert [key.name for key in await listed(Broker(), key=LONG)] == [name_of_key(LONG)]
    assert await listed(Broker(), key=b"b") == []


async def test_a_key_without_its_group_epoch_is_damage() -> None:
    with pytest.raises(CorruptionError, match="group epoch of key"):
        await listed(Broker(group_epoch=0))


async def test_the_empty_key_is_listed_alone() -> None:
    assert [key.name for key in await listed(Broker(), key=b"")] == [b"k"]


async def test_a_key_is_told_by_its_name() -> None:
    found = await listed(Broker())
    assert [key.key for key in found] == [None, b"", b"a", None]
    assert [key.shown for key in found][1:] == ["%empty", "a", "%message:1:0"]


async def test_the_empty_list_of_states_is_not_all_states() -> None:
    broker = Broker()
    with pytest.raises(BadRequestError, match="names no state"):
        await listed(broker, states=())
    assert broker.asked == []


async def test_a_history_tells_the_empty_key_from_none() -> None:
    history = MemoryHistory("p")
    admin = Admin(cast(Any, Broker()), cast(Any, SimpleNamespace()), Recorder(history, lambda headers, value: None))
    assert [key.key async for key in admin.group_keys("t", "g", partition=0)] == [None, b"", b"a", None]
    assert [event.get("y") for event in history.events if event["k"] == "parked"] == [None, "%empty", "a", None]
