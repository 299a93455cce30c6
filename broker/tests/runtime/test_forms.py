"""How a form is added and dropped again, shown with one that does not exist (docs/contributing/formats.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from seriatim_api.errors import NewerFormatError, OlderFormatError
from seriatim_api.ids import MemberId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.events import DirectoryChanged
from seriatim_broker.interfaces.coordinator import Compare, Coordinator, Put, unchanged_under
from seriatim_broker.runtime.controller import cleanup
from seriatim_broker.runtime.coordinator import forms
from seriatim_broker.runtime.membership import registration
from seriatim_broker.runtime.membership.directory import Directory

from .test_cleanup import cleanup as cleanup_of
from .test_membership import KEYS, FakeDisk, Taker, joined, record_of

FORM_SYNTHETIC = 1
LEVEL = registration.FORMAT_LEVEL


class Version:
    """What the code of a version says of itself."""

    def __init__(self, patches: pytest.MonkeyPatch, *, reads: int, level: int, level_min: int = LEVEL) -> None:
        self._patches = patches
        self._numbers = {"FORMS": reads, "FORMAT_LEVEL": level, "FORMAT_LEVEL_MIN": level_min}

    async def starts(self, coordinator: Coordinator, slot: int) -> None:
        """A broker of this version starts on the disk of its slot, and what runs from here on is of this version."""
        for module in (registration, cleanup):
            for name, value in self._numbers.items():
                self._patches.setattr(module, name, value, raising=False)
        item = await coordinator.get(KEYS.member(f"g0-{slot}"))
        run = records_pb2.MemberRecord.FromString(item.value).run if item is not None else 0
        await joined(coordinator, FakeDisk(MemberId(f"g0-{slot}", f"disk-{slot}"), run=run), slot=slot)


async def level_of(coordinator: Any) -> int:
    """The cluster's format level after a pass of the controller."""
    await cleanup_of(coordinator).raise_level()
    found = await coordinator.get(KEYS.cluster_record)
    return records_pb2.ClusterRecord.FromString(found.value).format_level


async def all_read(coordinator: Coordinator) -> Compare | None:
    """What a transaction with a record in the new form compares."""
    return await forms.all_read(coordinator, KEYS, FORM_SYNTHETIC)


async def told(coordinator: Coordinator) -> int:
    """The forms that the core of a broker hears that all brokers read."""
    taker = Taker()
    following = asyncio.create_task(Directory("g0-0", KEYS, {}, taker).run(coordinator))
    try:
        await taker.until(lambda event: isinstance(event, DirectoryChanged) and len(event.member_runs) == 2)
        return [event.forms for event in taker.events if isinstance(event, DirectoryChanged)][-1]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_form_is_added_in_one_upgrade_and_dropped_in_the_next(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Version(monkeypatch, reads=0, level=LEVEL)
    adds = Version(monkeypatch, reads=FORM_SYNTHETIC, level=LEVEL + 1)
    drops = Version(monkeypatch, reads=0, level=LEVEL + 1, level_min=LEVEL + 1)

    await before.starts(coordinator, 0)
    await before.starts(coordinator, 1)
    assert (await told(coordinator), await all_read(coordinator)) == (0, None)

    # One broker is upgraded: nothing is written in the new form, and a broker of the version before may start again.
    await adds.starts(coordinator, 1)
    assert (await told(coordinator), await all_read(coordinator)) == (0, None)
    assert await level_of(coordinator) == LEVEL
    await before.starts(coordinator, 0)

    # So is the other one: from here on records may have the new form, and code that does not read it does not join.
    await adds.starts(coordinator, 0)
    compare = await all_read(coordinator)
    assert await told(coordinator) == FORM_SYNTHETIC
    assert compare is not None
    assert (await coordinator.txn([compare], [])).succeeded
    assert await level_of(coordinator) == LEVEL + 1
    with pytest.raises(NewerFormatError):
        await before.starts(coordinator, 1)

    # The next version asks for the form no more, and takes no cluster in which it may be missing.
    await drops.starts(coordinator, 0)
    assert await level_of(coordinator) == LEVEL + 1
    cluster = records_pb2.ClusterRecord(cluster="c", id="x", format_level=LEVEL).SerializeToString()
    await coordinator.txn((), [Put(KEYS.cluster_record, cluster)])
    with pytest.raises(OlderFormatError):
        await drops.starts(coordinator, 1)


async def test_broker_that_registers_meanwhile_stops_what_all_had_to_read(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    adds, before = (Version(monkeypatch, reads=forms, level=LEVEL + forms) for forms in (FORM_SYNTHETIC, 0))
    assert await all_read(coordinator) is None, "no broker has registered"
    await before.starts(coordinator, 0)
    await adds.starts(coordinator, 0)
    compare = await all_read(coordinator)
    assert compare is not None
    await before.starts(coordinator, 1)
    assert not (await coordinator.txn([compare], [])).succeeded
    await adds.starts(coordinator, 1)
    record = await record_of(coordinator, "g0-1")
    record.run += 1
    await coordinator.txn((), [Put(KEYS.member("g0-1"), record.SerializeToString())])
    assert await all_read(coordinator) is None, "this run did not say what it reads"
    listing = await coordinator.list(KEYS.members)
    assert compare != unchanged_under(KEYS.members, listing.revision)


async def test_level_of_a_newer_version_stays(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule `level-refuses`."""
    await Version(monkeypatch, reads=FORM_SYNTHETIC, level=LEVEL + 1).starts(coordinator, 0)
    item = await coordinator.get(KEYS.cluster_record)
    assert item is not None
    cluster = records_pb2.ClusterRecord.FromString(item.value)
    cluster.format_level, cluster.rebuilt_at_ms = LEVEL + 7, 5
    await coordinator.txn((), [Put(KEYS.cluster_record, cluster.SerializeToString())])
    assert await level_of(coordinator) == LEVEL + 7
