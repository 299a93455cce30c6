"""Joining a cluster over a real coordinator: identities, runs, certificates, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from seriatim_api.errors import (
    CoordinatorUnavailableError,
    DirectoryInUseError,
    ForeignDiskError,
    NewerFormatError,
    OlderFormatError,
    WipedDiskError,
)
from seriatim_api.ids import MemberId, RunId
from seriatim_api.v1 import records_pb2
from seriatim_broker.adapters.system_clock import SystemClock
from seriatim_broker.core.values.deleted import NONE_DELETED
from seriatim_broker.core.values.effects import ReadCertificate, ReadChain, WriteChain
from seriatim_broker.core.values.events import (
    CertificateRead,
    CertificateSeen,
    ChainRead,
    ChainWritten,
    DirectoryChanged,
    DropDeleted,
    DropPartitionData,
    Event,
    WriteOutcome,
)
from seriatim_broker.core.values.messages import FORMS
from seriatim_broker.interfaces.coordinator import Coordinator, Delete, KeyValue, Put
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import chain_to_record, put_deleted_partitions
from seriatim_broker.runtime.driver.coordinator_requests import CoordinatorRequests
from seriatim_broker.runtime.membership import registration
from seriatim_broker.runtime.membership.directory import Directory
from seriatim_broker.runtime.membership.lease import LeaseKeeper
from seriatim_broker.runtime.membership.registration import (
    NEVER_SEEN,
    Identity,
    KnownDisk,
    Place,
    Seen,
    certify_death,
    join,
    mark_clean,
)

from .test_planning import CHAIN

KEYS = Keys("c")
NOW_MS = 1_700_000_000_000


@dataclass
class FakeDisk:
    """A disk without a disk."""

    member: MemberId
    run: int = 0
    suspect_before_run: int = 0
    ended_early: bool = False
    seen: Seen = NEVER_SEEN
    sequence: int = 0

    def log_end(self, _enough: int) -> int:
        return self.sequence

    @property
    def has_data(self) -> bool:
        return self.run > 0 and not self.ended_early

    def raise_run(self) -> int:
        self.run += 1
        return self.run

    def note_seen(self, seen: Seen) -> None:
        self.seen = seen


class Stuttering:
    """A coordinator that carries out each first call of a kind for a key, and whose answer to it is lost."""

    def __init__(self, inner: Coordinator) -> None:
        self._inner = inner
        self._called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            answer = await getattr(self._inner, name)(*arguments, **options)
            what = f"{name} {arguments}"
            if what not in self._called:
                self._called.add(what)
                raise CoordinatorUnavailableError("no answer")
            return answer

        return call


class GoingBack:
    """A coordinator of which an older copy is restored just before the next transaction."""

    def __init__(self, inner: Coordinator, copy: KeyValue) -> None:
        self._inner = inner
        self._copy: KeyValue | None = copy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def txn(self, *arguments: Any, **options: Any) -> Any:
        copy, self._copy = self._copy, None
        if copy is not None:
            await self._inner.txn((), [Put(copy.key, copy.value)])
        return await self._inner.txn(*arguments, **options)


async def joined(coordinator: Coordinator, disk: FakeDisk, *, slot: int = 0) -> tuple[Identity, KnownDisk | None]:
    seen: list[KnownDisk | None] = []

    def open_disk(_cluster_id: str, known: KnownDisk | None, _may_replace: bool) -> FakeDisk:
        seen.append(known)
        return disk

    place = Place("c", "g0", slot, f"127.0.0.1:{7000 + slot}", link_address=f"127.0.0.1:{7200 + slot}")
    identity = await join(coordinator, KEYS, place, open_disk, "boot", SystemClock(), deadline_s=10)
    return identity, seen[0]


async def record_of(coordinator: Coordinator, broker: str) -> records_pb2.MemberRecord:
    item = await coordinator.get(KEYS.member(broker))
    assert item is not None
    return records_pb2.MemberRecord.FromString(item.value)


async def test_the_first_broker_makes_the_cluster_and_runs_are_counted(coordinator: Coordinator) -> None:
    disk = FakeDisk(MemberId("g0-0", "disk-a"))
    (first, known), (second, _) = await asyncio.gather(
        joined(coordinator, disk), joined(coordinator, FakeDisk(MemberId("g0-1", "disk-b")), slot=1)
    )
    assert first.cluster_id == second.cluster_id
    assert (first.run, known) == (1, None)
    record = await record_of(coordinator, "g0-0")
    assert (record.run, record.admitted, record.address) == (1, False, "127.0.0.1:7000")
    await mark_clean(coordinator, KEYS, first.run_id, 0, NOW_MS)
    assert (await record_of(coordinator, "g0-0")).clean_shutdown
    again, known = await joined(coordinator, disk)
    assert (again.run, known) == (2, KnownDisk("disk-a", 1))
    assert not (await record_of(coordinator, "g0-0")).clean_shutdown
    assert await coordinator.get(KEYS.certificate(first.run_id)) is not None
    assert await coordinator.get(KEYS.certificate(again.run_id)) is None


async def test_an_admission_survives_a_restart_and_not_a_new_disk(coordinator: Coordinator) -> None:
    disk = FakeDisk(MemberId("g0-0", "disk-a"))
    await joined(coordinator, disk)
    record = await record_of(coordinator, "g0-0")
    record.admitted = True
    await coordinator.txn((), [Put(KEYS.member("g0-0"), record.SerializeToString())])
    await joined(coordinator, disk)
    assert (await record_of(coordinator, "g0-0")).admitted
    await joined(coordinator, FakeDisk(MemberId("g0-0", "disk-new")))
    assert not (await record_of(coordinator, "g0-0")).admitted


async def test_a_used_disk_that_the_cluster_does_not_know_is_refused(coordinator: Coordinator) -> None:
    with pytest.raises(ForeignDiskError, match="had 5 runs"):
        await joined(coordinator, FakeDisk(MemberId("g0-0", "disk-a"), run=5))


async def test_a_newer_cluster_is_refused(coordinator: Coordinator) -> None:
    record = records_pb2.ClusterRecord(cluster="c", id="x", format_level=99)
    await coordinator.txn((), [Put(KEYS.cluster_record, record.SerializeToString())])
    with pytest.raises(NewerFormatError):
        await joined(coordinator, FakeDisk(MemberId("g0-0", "disk-a")))


async def test_a_new_cluster_refuses_code_of_the_last_level(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with an empty disk, which no identity file refuses (rule `level-refuses`)."""
    await joined(coordinator, FakeDisk(MemberId("g0-0", "disk-a")))
    monkeypatch.setattr(registration, "FORMAT_LEVEL", registration.FORMAT_LEVEL - 1)
    with pytest.raises(NewerFormatError, match="start the newer version"):
        await joined(coordinator, FakeDisk(MemberId("g0-1", "disk-b")))


async def test_cluster_of_an_older_level_is_refused_and_stays(coordinator: Coordinator) -> None:
    record = records_pb2.ClusterRecord(cluster="c", id="x", format_level=2).SerializeToString()
    await coordinator.txn((), [Put(KEYS.cluster_record, record)])
    with pytest.raises(OlderFormatError, match="start the version that made the cluster, or make a new cluster"):
        await joined(coordinator, FakeDisk(MemberId("g0-0", "disk-a")))
    listing = await coordinator.list(KEYS.prefix)
    assert [(item.key, item.value) for item in listing.items] == [(KEYS.cluster_record, record)]


class Taker:
    """Collects events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.arrived = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.arrived.set()

    async def until(self, holds: Callable[[Event], bool]) -> None:
        async with asyncio.timeout(60):
            while not any(map(holds, self.events)):
                self.arrived.clear()
                await self.arrived.wait()

    async def until_count(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.events) < count:
                self.arrived.clear()
                await self.arrived.wait()


async def test_the_directory_tells_what_every_registered_broker_reads(coordinator: Coordinator) -> None:
    """Not admitted ones count too. A run that did not say what it reads leaves the fields of the run before."""
    taker = Taker()
    directory = Directory("g0-0", KEYS, {}, taker)
    await joined(coordinator, FakeDisk(MemberId("g0-0", "disk-a")))
    await joined(coordinator, FakeDisk(MemberId("g0-1", "disk-b")), slot=1)
    following = asyncio.create_task(directory.run(coordinator))
    try:
        await taker.until(lambda event: isinstance(event, DirectoryChanged) and len(event.member_runs) == 2)
        record = await record_of(coordinator, "g0-1")
        assert (record.forms, record.forms_run) == (FORMS, record.run)
        both = await record_of(coordinator, "g0-0")
        for one, forms in ((both, 6), (record, 3)):
            one.forms = forms
            await coordinator.txn((), [Put(KEYS.member(one.member.broker), one.SerializeToString())])
        await taker.until(lambda event: isinstance(event, DirectoryChanged) and event.forms == 2)
        record.run += 1
        await coordinator.txn((), [Put(KEYS.member("g0-1"), record.SerializeToString())])
        await taker.until(lambda event: isinstance(event, DirectoryChanged) and event.member_runs[-1][1] == 2)
        told = [event.forms for event in taker.events if isinstance(event, DirectoryChanged) and event.member_runs]
        assert told[-2:] == [2, 0]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_the_directory_tells_the_core_who_is_admitted(coordinator: Coordinator) -> None:
    taker = Taker()
    directory = Directory("g0-0", KEYS, {"g9-0": "proxy:1"}, taker)
    following = asyncio.create_task(directory.run(coordinator))
    try:
        await taker.until_count(1)
        assert taker.events == [DirectoryChanged(())]
        identity, _ = await joined(coordinator, FakeDisk(MemberId("g0-1", "disk-b")), slot=1)
        record = await record_of(coordinator, "g0-1")
        record.admitted = True
        await coordinator.txn((), [Put(KEYS.member("g0-1"), record.SerializeToString())])
        await taker.until_count(3)
        runs = ((identity.member, 1),)
        assert taker.events[1:3] == [
            DirectoryChanged((), runs, forms=FORMS),
            DirectoryChanged((("g0", (identity.member,)),), runs, forms=FORMS),
        ]
        assert directory.peer_address("g0-1") == "127.0.0.1:7001"
        assert directory.peer_address("g9-0") == "proxy:1"
        assert directory.peer_address("g9-1") is None
        assert directory.link_address("g0-1") == "127.0.0.1:7201"
        await certify_death(coordinator, KEYS, identity.run_id, "test", "it says so", NOW_MS)
        await taker.until_count(4)
        assert taker.events[3] == CertificateSeen(identity.run_id)
        await coordinator.txn((), [Put(KEYS.tombstone(CHAIN.partition), b"")])
        await taker.until_count(5)
        assert taker.events[4] == DropPartitionData(CHAIN.partition)
        deleted = NONE_DELETED.with_ids([CHAIN.partition])
        await coordinator.txn((), [Delete(KEYS.tombstone(CHAIN.partition)), put_deleted_partitions(KEYS, deleted)])
        await taker.until_count(6)
        assert taker.events[5] == DropDeleted(deleted)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_chains_are_compared_and_swapped(coordinator: Coordinator) -> None:
    chain, taker = replace(CHAIN, epoch=1), Taker()
    work = CoordinatorRequests(coordinator, KEYS, taker)
    work.read_chain(ReadChain(chain.partition))
    await taker.until_count(1)
    assert taker.events[0] == ChainRead(chain.partition, None, 0)
    work.write_chain(WriteChain(chain.partition, 1, chain, 0, None))
    await taker.until_count(2)
    written = taker.events[1]
    assert isinstance(written, ChainWritten)
    assert written.outcome is WriteOutcome.DONE
    work.write_chain(WriteChain(chain.partition, 2, chain, 0, None))
    await taker.until_count(3)
    assert taker.events[2] == ChainWritten(chain.partition, 2, WriteOutcome.CONFLICT, 0)
    dead = RunId(chain.segments[0].members[0], 4)
    later = replace(chain, epoch=chain.epoch + 1)
    work.write_chain(WriteChain(chain.partition, 3, later, written.revision, dead))
    await taker.until_count(4)
    assert taker.events[3] == ChainWritten(chain.partition, 3, WriteOutcome.CONFLICT, 0)
    await certify_death(coordinator, KEYS, dead, "test", "it says so", NOW_MS)
    work.read_certificate(ReadCertificate(chain.partition, dead))
    work.read_chain(ReadChain(chain.partition))
    await taker.until_count(6)
    assert taker.events[4:] == [
        CertificateRead(chain.partition, dead, True),
        ChainRead(chain.partition, chain, written.revision),
    ]
    work.write_chain(WriteChain(chain.partition, 4, later, written.revision, dead))
    await taker.until_count(7)
    assert taker.events[6].outcome is WriteOutcome.DONE  # type: ignore[union-attr]
    await work.close()


async def test_fields_of_a_newer_version_survive_a_write_of_what_a_peer_told(coordinator: Coordinator) -> None:
    unknown = b"\xc2\x3e\x05newer"  # field 1000, length-delimited
    key = KEYS.chain(CHAIN.partition)
    put = await coordinator.txn((), [Put(key, chain_to_record(CHAIN).SerializeToString() + unknown)])
    taker = Taker()
    work = CoordinatorRequests(coordinator, KEYS, taker)
    later = replace(CHAIN, epoch=CHAIN.epoch + 1)
    work.write_chain(WriteChain(CHAIN.partition, 1, later, put.revision, None))  # never read by this broker
    await taker.until_count(1)
    item = await coordinator.get(key)
    assert item is not None
    assert item.mod_revision > put.revision
    assert unknown in item.value
    await work.close()


async def test_a_start_that_ended_before_it_was_registered_is_no_foreign_disk(coordinator: Coordinator) -> None:
    await joined(coordinator, FakeDisk(MemberId("g0-0", "first")), slot=0)
    new = FakeDisk(MemberId("g0-1", "new"), run=1, ended_early=True)
    identity, _ = await joined(coordinator, new, slot=1)
    assert identity.run == 2


async def test_joining_waits_for_a_coordinator_that_does_not_answer_and_takes_its_lost_answers(
    coordinator: Coordinator,
) -> None:
    disk = FakeDisk(MemberId("g0-0", "disk"))
    for run in (1, 2):
        identity, _ = await joined(cast("Coordinator", Stuttering(coordinator)), disk)
        assert identity.run == disk.run == run


async def test_an_answer_that_does_not_come_is_unknown(coordinator: Coordinator) -> None:
    taker = Taker()
    work = CoordinatorRequests(coordinator, KEYS, taker)
    await coordinator.close()
    work.read_chain(ReadChain(CHAIN.partition))
    work.write_chain(WriteChain(CHAIN.partition, 1, CHAIN, 0, None))
    await taker.until_count(2)
    assert ChainRead(CHAIN.partition, None, 0, failed=True) in taker.events
    assert ChainWritten(CHAIN.partition, 1, WriteOutcome.UNKNOWN, 0) in taker.events
    await work.close()


async def test_a_lease_is_held_and_given_back(coordinator: Coordinator) -> None:
    keeper = LeaseKeeper(coordinator, SystemClock())
    granted = asyncio.Event()
    keeper.on_change(lambda _lease: granted.set())
    task = asyncio.create_task(keeper.run())
    await asyncio.wait_for(granted.wait(), 60)
    assert keeper.is_held
    await coordinator.txn((), [Put("/mine", b"x", keeper.id)])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await keeper.revoke()
    assert not keeper.is_held
    assert await coordinator.get("/mine") is None


async def replaced_by(coordinator: Coordinator, disk: FakeDisk, of: str) -> Identity:
    """A broker starts with an empty directory that may take the place of one disk."""

    def open_disk(_cluster_id: str, known: KnownDisk | None, may_replace: bool) -> FakeDisk:
        if known is not None and known.incarnation != disk.member.incarnation and not may_replace:
            raise WipedDiskError("the directory is empty", expected=known.incarnation)
        return disk

    place = Place("c", "g0", 0, "127.0.0.1:7000", replace_disk_of=of)
    return await join(coordinator, KEYS, place, open_disk, "boot", SystemClock(), deadline_s=10)


async def test_a_disk_takes_the_place_of_the_one_that_is_named_and_of_no_other(coordinator: Coordinator) -> None:
    old, new, newest = (FakeDisk(MemberId("g0-0", name)) for name in ("disk-a", "disk-b", "disk-c"))
    first, _ = await joined(coordinator, old)
    with pytest.raises(WipedDiskError, match="disk-x only, but the slot of g0-0 belongs to the disk disk-a"):
        await replaced_by(coordinator, new, "disk-x")
    taken = await replaced_by(coordinator, new, "disk-a")
    assert (taken.member.incarnation, taken.run) == ("disk-b", 1)
    assert await coordinator.get(KEYS.certificate(first.run_id)) is not None
    again = await replaced_by(coordinator, new, "disk-a")  # the same start once more: the slot is its own by now
    assert (again.member.incarnation, again.run) == ("disk-b", 2)
    with pytest.raises(WipedDiskError, match="belongs to the disk disk-b by now"):
        await replaced_by(coordinator, newest, "disk-a")  # this one was lost, too, and no call said so
    empty = FakeDisk(MemberId("g0-1", "disk-d"))
    place = Place("c", "g0", 1, "127.0.0.1:7001", replace_disk_of="disk-of-nobody")
    identity = await join(coordinator, KEYS, place, lambda *_: empty, "boot", SystemClock(), deadline_s=10)
    assert identity.run == 1, "a slot without a disk needs no permission"


# ---- the same directory twice ---------------------------------------------------------------------------


async def test_of_two_copies_of_a_directory_that_start_at_once_one_is_refused(coordinator: Coordinator) -> None:
    member = MemberId("g0-0", "disk-a")
    await joined(coordinator, FakeDisk(member))
    starts = (joined(coordinator, FakeDisk(member, run=1)) for _ in range(2))
    ended = await asyncio.gather(*starts, return_exceptions=True)
    refused = [end for end in ended if isinstance(end, DirectoryInUseError)]
    assert len(refused) == 1
    assert (await record_of(coordinator, "g0-0")).run == 2


async def test_a_copy_of_the_directory_of_a_living_run_is_refused_and_changes_nothing(coordinator: Coordinator) -> None:
    member = MemberId("g0-0", "disk-a")
    living, _ = await joined(coordinator, FakeDisk(member))
    before = await record_of(coordinator, "g0-0")
    copy = FakeDisk(member, run=1)
    asked: list[tuple[str, RunId]] = []

    async def is_running(_cluster_id: str, address: str, run: RunId) -> bool:
        asked.append((address, run))
        return True

    place = Place("c", "g0", 0, "127.0.0.1:7009")
    with pytest.raises(DirectoryInUseError, match="answers at"):
        await join(
            coordinator, KEYS, place, lambda *_: copy, "boot", SystemClock(), deadline_s=10, is_running=is_running
        )
    assert asked == [("127.0.0.1:7200", living.run_id)]
    assert copy.run == 1
    assert await record_of(coordinator, "g0-0") == before
    assert await coordinator.get(KEYS.certificate(living.run_id)) is None


@pytest.mark.parametrize("how", ["clean", "certified"])
async def test_a_run_that_is_known_to_have_ended_is_not_asked(coordinator: Coordinator, how: str) -> None:
    member = MemberId("g0-0", "disk-a")
    before, _ = await joined(coordinator, FakeDisk(member))
    if how == "clean":
        await mark_clean(coordinator, KEYS, before.run_id, 0, NOW_MS)
    else:
        await certify_death(coordinator, KEYS, before.run_id, "runner", "reaped", NOW_MS)

    async def is_running(_cluster_id: str, _address: str, _run: RunId) -> bool:
        raise AssertionError("asked")

    place, disk = Place("c", "g0", 0, "127.0.0.1:7000"), FakeDisk(member, run=1)
    identity = await join(
        coordinator, KEYS, place, lambda *_: disk, "boot", SystemClock(), deadline_s=10, is_running=is_running
    )
    assert identity.run == 2


async def test_an_identity_file_ahead_of_what_the_coordinator_confirmed_is_not_registered_again(
    coordinator: Coordinator,
) -> None:
    disk = FakeDisk(MemberId("g0-0", "a" * 32))
    place = Place("c", "g0", 0, "host:1")
    start = lambda: join(coordinator, KEYS, place, lambda *_: disk, "boot", SystemClock(), deadline_s=10)  # noqa: E731
    await start()
    copy = await coordinator.get(KEYS.member("g0-0"))
    cluster = await coordinator.get(KEYS.cluster_record)
    assert copy is not None
    assert cluster is not None
    await start()
    assert disk.seen.registered_run == 2
    await coordinator.txn((), [Put(copy.key, copy.value)])  # an older copy of the coordinator is restored
    for run in (3, 4):
        assert (await start()).run == run
        kept = await coordinator.get(copy.key)
        assert kept is not None
        assert kept.value == copy.value, "the proof stays until a rebuild"
    rebuilt = records_pb2.ClusterRecord.FromString(cluster.value)
    rebuilt.rebuilt_at_ms = 77
    await coordinator.txn((), [Put(cluster.key, rebuilt.SerializeToString())])
    assert (await start()).seen == Seen(5, 0, 77)
    kept = await coordinator.get(copy.key)
    assert kept is not None
    assert records_pb2.MemberRecord.FromString(kept.value).run == 5


async def test_an_older_copy_that_comes_back_between_the_read_and_the_registration_stays_the_proof(
    coordinator: Coordinator,
) -> None:
    disk = FakeDisk(MemberId("g0-0", "a" * 32))
    await joined(coordinator, disk)
    copy = await coordinator.get(KEYS.member("g0-0"))
    assert copy is not None
    await joined(coordinator, disk)
    identity, _ = await joined(cast(Coordinator, GoingBack(coordinator, copy)), disk)
    assert identity.run == 3
    kept = await coordinator.get(copy.key)
    assert kept is not None
    assert kept.value == copy.value
    assert disk.seen.registered_run == 2


async def test_starts_that_were_never_confirmed_are_no_proof(coordinator: Coordinator) -> None:
    disk = FakeDisk(MemberId("g0-0", "a" * 32))
    place = Place("c", "g0", 0, "host:1")
    await join(coordinator, KEYS, place, lambda *_: disk, "boot", SystemClock(), deadline_s=10)
    disk.run += 5  # the coordinator did not answer five starts
    await join(coordinator, KEYS, place, lambda *_: disk, "boot", SystemClock(), deadline_s=10)
    item = await coordinator.get(KEYS.member("g0-0"))
    assert item is not None
    assert records_pb2.MemberRecord.FromString(item.value).run == disk.run == 7
