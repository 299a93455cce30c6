"""The address for clients outside: from a file into the broker's record, without a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import MemberId
from seriatim_api.v1 import records_pb2
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.process.settings import load
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.membership.external_address import ExternalAddress
from seriatim_broker.runtime.membership.registration import Identity
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

KEYS = Keys("c")
MINE = Identity("id", MemberId("g0-0", "disk"), "g0", 0, 3, 0)
FLAGS = {
    "cluster": "c",
    "group": "g0",
    "slot": 0,
    "data": "d",
    "listen": "10.0.0.1:7100",
    "coordinator": "10.0.0.9:2379",
}


def settings(**flags: Any) -> Any:
    return load({**FLAGS, **flags}, None, {})


class Registered:
    """A coordinator with the broker's record, and a file with its address."""

    def __init__(self, file: Path, run: int = 3) -> None:
        self.file = file
        self.coordinator = MemoryCoordinator(MemoryStore())
        self.run = run
        known = settings(external_listen="0.0.0.0:7102", external_advertise_file=file)
        self.mirrored = ""  # what this broker's mirror of the record has
        self.keeper = ExternalAddress(self.coordinator, KEYS, MINE, known.external_address, lambda: self.mirrored)

    async def write(self) -> None:
        record = records_pb2.MemberRecord(group="g0", run=self.run, address="10.0.0.1:7100")
        record.member.broker, record.member.incarnation = "g0-0", "disk"
        await self.coordinator.txn((), [Put(KEYS.member("g0-0"), record.SerializeToString())])

    async def told(self) -> tuple[str, int]:
        item = await self.coordinator.get(KEYS.member("g0-0"))
        assert item is not None
        record = records_pb2.MemberRecord.FromString(item.value)
        assert record.address == "10.0.0.1:7100", "the rest of the record stays"
        return record.external_address, record.external_run


async def test_the_record_follows_the_file(tmp_path: Path) -> None:
    place = Registered(tmp_path / "address")
    await place.write()
    await place.keeper.look()
    assert await place.told() == ("", 3), "no file: there is no address yet"
    for text in ("203.0.113.1:31000\n", "203.0.113.2:31000", ""):
        place.file.write_text(text)
        await place.keeper.look()
        assert await place.told() == (text.strip(), 3)


async def test_an_address_that_a_rebuild_took_out_of_the_record_is_registered_again(tmp_path: Path) -> None:
    place = Registered(tmp_path / "address")
    await place.write()
    place.file.write_text("203.0.113.1:31000")
    await place.keeper.look()
    place.mirrored = "203.0.113.1:31000"
    await place.write()  # a rebuild rewrites the record, from what the broker reports
    await place.keeper.look()
    assert await place.told() == ("", 0), "the broker does not know it yet, and reads nothing"
    place.mirrored = ""
    await place.keeper.look()
    assert await place.told() == ("203.0.113.1:31000", 3)


async def test_a_spoilt_file_changes_nothing(tmp_path: Path) -> None:
    place = Registered(tmp_path / "address")
    await place.write()
    place.file.write_text("203.0.113.1:31000")
    await place.keeper.look()
    for text in (b"203.0.113.1", b"203.0.113.1:99999", b"\xff\xfe"):
        place.file.write_bytes(text)
        await place.keeper.look()
        assert await place.told() == ("203.0.113.1:31000", 3)


async def test_the_record_of_a_later_run_is_left_alone(tmp_path: Path) -> None:
    place = Registered(tmp_path / "address", run=4)
    await place.write()
    place.file.write_text("203.0.113.1:31000")
    await place.keeper.look()
    assert await place.told() == ("", 0)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"external_listen": "0.0.0.0:7102"}, "external_listen needs external_advertise"),
        ({"external_advertise": "b.example:7102"}, "need external_listen"),
        ({"external_listen": "10.0.0.1:7100", "external_advertise": "b.example:7102"}, "a port of its own"),
        (
            {"external_listen": "0.0.0.0:7102", "external_advertise": "b:1", "external_advertise_file": "f"},
            "give one of them",
        ),
        ({"external_listen": "0.0.0.0:7102", "external_advertise": "b"}, "host:port"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags: dict[str, str], problem: str) -> None:
    with pytest.raises(BadRequestError, match=problem):
        settings(**flags)
