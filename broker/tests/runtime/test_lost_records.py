"""Looking back: what proves that the coordinator went back in time, and what ends the alarm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from seriatim_api.errors import CoordinatorUnavailableError, StorageError
from seriatim_api.ids import MemberId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.events import CompareChains, CoordinatorRebuilt, Event, OwnRecordSeen
from seriatim_broker.interfaces.coordinator import Delete, Put
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import member_to_record
from seriatim_broker.runtime.membership.lost_records import NOTE_LOOKS, LostRecords
from seriatim_broker.runtime.membership.registration import Identity, Seen
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

pytestmark = pytest.mark.asyncio

KEYS = Keys("c")
ME = MemberId("g0-0", "a" * 32)


class Bench:
    """A broker in run 3, and a coordinator that has its record."""

    def __init__(self, seen: Seen = Seen(3)) -> None:  # noqa: B008 - it is frozen
        self.events: list[Event] = []
        self.kept: list[Seen] = []
        self.coordinator = MemoryCoordinator(MemoryStore())
        self.disk_is_full = False
        identity = Identity("id", ME, "g0", 0, 3, 0, seen)
        self.rebuilt_count = 0
        self.back = LostRecords(
            self.coordinator, KEYS, identity, self.events.append, self._remember, self._count_rebuild
        )  # fmt: skip

    def _count_rebuild(self) -> None:
        self.rebuilt_count += 1

    async def _remember(self, seen: Seen) -> None:
        if self.disk_is_full:
            raise StorageError("no space")
        self.kept.append(seen)

    async def write(self, run: int = 3, rebuilt_at_ms: int = 0) -> int:
        """The broker's record and the cluster's; returns the revision."""
        mine = records_pb2.MemberRecord(member=member_to_record(ME), group="g0", run=run, admitted=True)
        cluster = records_pb2.ClusterRecord(cluster="c", id="id", rebuilt_at_ms=rebuilt_at_ms)
        puts = [Put(KEYS.member("g0-0"), mine.SerializeToString())]
        puts.append(Put(KEYS.cluster_record, cluster.SerializeToString()))
        return (await self.coordinator.txn((), puts)).revision

    async def look(self) -> list[Event]:
        self.events.clear()
        await self.back.look()
        return list(self.events)


def problem_in(events: list[Event]) -> str:
    (seen,) = [event for event in events if isinstance(event, OwnRecordSeen)]
    return seen.problem


async def test_a_revision_below_the_one_on_the_disk_is_an_alarm() -> None:
    bench = Bench(Seen(3, 500))
    revision = await bench.write()
    events = await bench.look()
    assert problem_in(events) == f"its revision is {revision}, and this broker has seen 500"
    assert CompareChains() in events
    assert await bench.look() == [], "said once"
    assert bench.kept == [], "the highest stays on the disk"


async def test_a_rebuild_ends_it_and_revisions_begin_anew() -> None:
    bench = Bench(Seen(3, 500))
    await bench.write()
    await bench.look()
    revision = await bench.write(rebuilt_at_ms=77)
    assert await bench.look() == [OwnRecordSeen(""), CoordinatorRebuilt()]
    assert bench.kept == [Seen(3, revision, 77)], "at once: else a restart would raise the alarm again"


async def test_a_rebuild_is_told_once_also_where_no_loss_was_noticed() -> None:
    bench = Bench()
    await bench.write(rebuilt_at_ms=77)
    assert await bench.look() == [CoordinatorRebuilt()]
    assert await bench.look() == []
    assert bench.rebuilt_count == 1


async def test_a_copy_from_before_a_rebuild_is_an_alarm_whatever_its_revision() -> None:
    bench = Bench(Seen(3, 0, 77))
    await bench.write(rebuilt_at_ms=0)
    assert problem_in(await bench.look()) == "it is a copy from before it was rebuilt"


async def test_a_rebuild_does_not_excuse_a_record_below_the_run() -> None:
    bench = Bench(Seen(3, 500))
    await bench.write(run=2, rebuilt_at_ms=77)
    assert problem_in(await bench.look()) == "it knows run 2 of g0-0, which is in run 3"
    assert bench.rebuilt_count == 0


async def test_the_highest_revision_is_noted_once_a_minute_and_only_if_it_grew() -> None:
    bench = Bench()
    for _ in range(2 * NOTE_LOOKS):
        await bench.write()
        assert await bench.look() == []
    assert [seen.revision for seen in bench.kept] == [2, NOTE_LOOKS + 2]
    for _ in range(2 * NOTE_LOOKS):
        await bench.look()
    assert len(bench.kept) == 3


async def test_the_revision_of_a_decision_is_noted_at_once() -> None:
    bench = Bench()
    await bench.write()
    await bench.look()
    await bench.back.note(40)
    assert bench.kept[-1].revision == 40
    await bench.back.note(30)
    assert [seen.revision for seen in bench.kept][1:] == [40], "it never falls, and nothing is written twice"
    assert problem_in(await bench.look()).endswith("this broker has seen 40"), "an older copy"


async def test_a_read_that_began_before_a_decision_is_no_older_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.write()
    await bench.look()
    read = bench.coordinator.txn

    async def slow(*arguments: Any, **options: Any) -> Any:
        result = await read(*arguments, **options)
        monkeypatch.setattr(bench.coordinator, "txn", read)
        await bench.back.note(await bench.write())
        return result

    monkeypatch.setattr(bench.coordinator, "txn", slow)
    assert await bench.look() == []
    assert await bench.look() == []


async def test_a_disk_that_takes_no_note_ends_nothing() -> None:
    bench = Bench()
    bench.disk_is_full = True
    await bench.write()
    assert await bench.look() == []
    assert bench.kept == []


async def test_an_identity_file_is_ahead_only_of_a_coordinator_that_had_confirmed_it() -> None:
    cluster, record = records_pb2.ClusterRecord(rebuilt_at_ms=5), records_pb2.MemberRecord(run=3)
    assert Seen(4, 0, 5).is_ahead_of(cluster, record)
    assert not Seen(3, 0, 5).is_ahead_of(cluster, record)
    assert not Seen(4, 0, 4).is_ahead_of(cluster, record), "it was rebuilt since"
    never = replace(Seen(4, 0, 5), registered_run=0)
    assert not never.is_ahead_of(cluster, record), "the coordinator never confirmed a run"


async def test_a_look_before_an_answer_says_what_is_lost_at_that_moment() -> None:
    bench = Bench()
    await bench.write()
    assert await bench.back.lost() == ""
    await bench.coordinator.txn((), [Delete(KEYS.member("g0-0"))])
    assert await bench.back.lost() == "it has no record of g0-0, which is registered and runs"
    await bench.coordinator.close()
    with pytest.raises(CoordinatorUnavailableError):
        await bench.back.lost()
