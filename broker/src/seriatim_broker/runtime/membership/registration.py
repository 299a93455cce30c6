"""How a broker joins its cluster: its identity, its disk, and its member run.

    1  The cluster's record is read. The first broker writes it.
    2  The disk is opened and compared with the slot's record. A foreign disk, an older copy and an emptied disk are
       refused.
    3  The address in the record is asked. If a process answers as the newest run of this disk, this start is refused.
       If the disk ends below its watermark, it is an older copy, and refused too.
    4  The run number is raised in the directory, then in the coordinator, with a nonce of this start.
    5  Earlier runs of this disk get their death certificates, because this run knows that they have ended.

The broker answers no request before all five steps are done. The controller admits it afterwards.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog
from seriatim_api.errors import (
    CoordinatorUnavailableError,
    DirectoryInUseError,
    ForeignDiskError,
    LostDiskError,
    NewerFormatError,
    NotServingError,
    OlderFormatError,
    PreconditionError,
    WipedDiskError,
)
from seriatim_api.ids import MemberId, RunId
from seriatim_api.protocol import PROTOCOL
from seriatim_api.v1 import records_pb2

from ...core.values.messages import FORMS
from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator, Get, KeyValue, Put, absent, mod_revision_is
from ...interfaces.link import Dialer, PeerRefusedError, PeerSilentError
from ..coordinator.keys import Keys
from ..coordinator.operator_lease import Guard, unguarded
from ..coordinator.records import member_from_record, member_to_record
from . import watermarks

FORMAT_LEVEL = 4
"""The level of the records in the coordinator. It is raised when older code would read them wrongly: code that knows a
lower level does not join (docs/contributing/formats.md). The controller writes it when all brokers read all forms.

1, 2   before any release
3      what records must say: sizes and first append times of segments, layouts of publications, digests of pages
4      delayed messages may wait in segments (form `FORM_DELAYED`)
"""

FORMAT_LEVEL_MIN = 3
"""The lowest level that this code reads. A cluster below it is refused."""

ISSUER_LATER_RUN = "later-run"
CERTIFIED_RUNS_MAX = 1000
"""Maximum number of earlier runs that are certified at a start. Those runs have certified still older ones."""

RETRY_S = 0.2

RUNNING_DEADLINE_S = 1.0
"""How long a start waits for an answer of its disk's last member run. If that machine is gone, no answer comes."""

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a disk keeps of the coordinator, to recognise an older copy of it that was restored.

    Attributes:
        registered_run: The newest run of the disk that the coordinator confirmed.
        revision: The highest revision that was seen since the last rebuild, as it was last noted.
        rebuilt_at_ms: The time of the last rebuild (`ClusterRecord.rebuilt_at_ms`); 0: never rebuilt.
    """

    registered_run: int = 0
    revision: int = 0
    rebuilt_at_ms: int = 0

    def is_ahead_of(self, cluster: records_pb2.ClusterRecord, member: records_pb2.MemberRecord) -> bool:
        """Whether the coordinator once confirmed a later run than its record has, and was not rebuilt since."""
        return cluster.rebuilt_at_ms <= self.rebuilt_at_ms and member.run < self.registered_run


NEVER_SEEN = Seen()
"""The value for a new disk."""


class Disk(Protocol):
    """The data directory with its identity file, locked and checked."""

    @property
    def member(self) -> MemberId:
        """The member that the disk belongs to."""

    @property
    def run(self) -> int:
        """The number of the last run that began on it; 0 for a new one."""

    @property
    def suspect_before_run(self) -> int:
        """The number of the run after the last one that did not end cleanly; 0: all ended cleanly."""

    @property
    def has_data(self) -> bool:
        """Whether a broker ever opened its storage there."""

    @property
    def seen(self) -> Seen:
        """What it keeps of the coordinator."""

    def log_end(self, enough: int) -> int:
        """Up to which sequence number the disk has writes; a lower bound, if that is at least `enough`. Blocks.

        Raises:
            StorageError: The disk cannot be read.
        """

    def raise_run(self) -> int:
        """Begin a run: write the next number durably, without the clean mark. Returns the number."""

    def note_seen(self, seen: Seen) -> None:
        """Write `seen` durably."""


@dataclass(frozen=True, slots=True)
class KnownDisk:
    """The disk that the cluster has in a slot, and its newest run."""

    incarnation: str
    run: int


@dataclass(frozen=True, slots=True)
class Place:
    """What is reported to a broker about itself.

    Attributes:
        advertise: The address at which clients reach it. Peers use it too, unless they have maps of their own.
        link_address: The address at which peers link with it.
        stream_port: Where it takes streams of clients over TCP, at the host of `advertise`; 0: clients ask it.
        replace_disk: An empty directory may take the slot of any disk.
        replace_disk_of: An empty directory may take the slot of only this disk. So it does no harm if a start that was
            meant to happen once is repeated.
    """

    cluster: str
    group: str
    slot: int
    advertise: str
    replace_disk: bool = False
    replace_disk_of: str = ""
    link_address: str = ""
    stream_port: int = 0

    @property
    def broker(self) -> str:
        """The broker's name."""
        return f"{self.group}-{self.slot}"

    def may_replace(self, known: KnownDisk | None) -> bool:
        """Whether an empty directory may take the slot of that disk."""
        is_meant = known is not None and known.incarnation == self.replace_disk_of
        return self.replace_disk or is_meant


@dataclass(frozen=True, slots=True)
class Identity:
    """What a broker knows about itself when it has joined."""

    cluster_id: str
    member: MemberId
    group: str
    slot: int
    run: int
    suspect_before_run: int
    seen: Seen = NEVER_SEEN

    @property
    def run_id(self) -> RunId:
        """This run."""
        return RunId(self.member, self.run)


OpenDisk = Callable[[str, KnownDisk | None, bool], Disk]
"""`open(cluster_id, known, may_replace)`: the directory of this broker, or a `StorageError` that says why not.

An empty directory becomes a new disk if the slot is not known, or if an administrator said that it may replace the
known disk.
"""


IsRunning = Callable[[str, str, RunId], Awaitable[bool]]
"""`is_running(cluster_id, address, run)`: whether a process at the address answers that it is that run."""


async def _nothing_runs(_cluster_id: str, _address: str, _run: RunId) -> bool:
    return False


async def join(
    coordinator: Coordinator,
    keys: Keys,
    place: Place,
    open_disk: OpenDisk,
    boot_id: str,
    clock: Clock,
    *,
    deadline_s: float,
    is_running: IsRunning = _nothing_runs,
) -> Identity:
    """Join the cluster.

    If the call is cancelled or fails, the run number may be raised already. The next start raises it again.

    Raises:
        DirectoryInUseError: Another process runs, or starts, with a copy of this directory.
        StorageError: The disk cannot be used; subclass and text say why, and what to do.
        PreconditionError: Another broker registered in this slot at the same time. Start again.
        TimeoutError: No answer within the deadline.
    """
    async with asyncio.timeout(deadline_s):
        cluster = await _insist(lambda: _read_or_write_cluster(coordinator, keys))
        cluster_id = cluster.id
        key = keys.member(place.broker)
        item = await _insist(lambda: coordinator.get(key))
        record = records_pb2.MemberRecord.FromString(item.value) if item else None
        known = KnownDisk(record.member.incarnation, record.run) if record else None
        disk = _open_as(place, cluster_id, known, open_disk)
        if record is None and disk.has_data:
            raise ForeignDiskError(
                f"the cluster does not know {place.broker}, but the directory has had {disk.run} runs. Remedy: if the "
                "coordinator lost its data, restore it, or run seriatim coordinator rebuild while the other brokers "
                "run; else start with the coordinator that the directory belongs to"
            )
        lost = await _insist(lambda: coordinator.get(keys.lost_disk(disk.member)))
        if lost is not None:
            raise LostDiskError(
                f"the disk {disk.member} was declared lost, and its segments gaps: it must not come back. Remedy: "
                "start once with a new, empty directory and --replace-disk",
                member=str(disk.member),
            )
        if record is not None:
            await _refuse_a_copy(coordinator, keys, cluster_id, record, disk.member, is_running)
            noted = await _insist(lambda: coordinator.get(keys.watermark(place.broker)))
            watermarks.check(noted, disk.member, disk.log_end)
        # Rule `run-raised` (I6, ALARM): each start is a new member run. Without it:
        # 1. A master of segment 1 restarts in the run that the record names.
        # 2. It continues with segment 1, although it has lost what it had not flushed.
        # 3. No certificate can ever tell this process from the one before it.
        run = disk.raise_run()
        is_same = record is not None and record.member.incarnation == disk.member.incarnation
        mine = _make_record(record, disk.member, place, run, boot_id)
        seen = disk.seen if is_same else NEVER_SEEN
        if await _insist(lambda: _register(coordinator, keys, item, mine, seen)):
            is_rebuilt = cluster.rebuilt_at_ms > disk.seen.rebuilt_at_ms
            revision = 0 if is_rebuilt or not is_same else disk.seen.revision
            disk.note_seen(Seen(run, revision, max(cluster.rebuilt_at_ms, disk.seen.rebuilt_at_ms)))
        await _insist(lambda: _certify_earlier_runs(coordinator, keys, RunId(disk.member, run), clock))
        if record is not None and record.member.incarnation != disk.member.incarnation:
            # an administrator started this disk with the explicit setting, and so vouches that the old process has
            # ended
            old = RunId(member_from_record(record.member), record.run)
            evidence = "its slot was given to another disk"
            await _insist(lambda: certify_death(coordinator, keys, old, "replaced", evidence, clock.wall_ms()))
    identity = Identity(cluster_id, disk.member, place.group, place.slot, run, disk.suspect_before_run, disk.seen)
    _log.info(
        "joined", cluster=place.cluster, member=str(identity.member), run=run, suspect_before=disk.suspect_before_run
    )
    return identity


async def _refuse_a_copy(
    coordinator: Coordinator,
    keys: Keys,
    cluster_id: str,
    record: records_pb2.MemberRecord,
    member: MemberId,
    is_running: IsRunning,
) -> None:
    """Refuse to start with a copy of a directory whose process lives.

    Rule `ask-the-address` (CERT, I1): the lock of a directory does not keep out a copy of it, and a copy that was made
    within a run has the run's number. Without it:
      1. g0-0 is in run 7. Its directory is copied, and a second process starts with the copy.
      2. The second process raises the number to 8, registers, and certifies that run 7 has ended. Run 7 keeps
         acknowledging.
      3. A switcher that reaches no member opens over run 7's segment. Messages that run 7 acknowledges then are lost.

    A process that is frozen or cut off does not answer. It ends when it reads the later run in its own record (rule
    `later-run` in the core).
    """
    run = RunId(member_from_record(record.member), record.run)
    if run.member != member or record.clean_shutdown:
        return
    if await _insist(lambda: coordinator.get(keys.certificate(run))) is not None:
        return
    if await is_running(cluster_id, record.link_address, run):
        raise DirectoryInUseError(
            f"run {run.run} of {run.member} answers at {record.link_address}: this directory is a copy of the one that "
            "it uses. Nothing was changed. Remedy: leave that process running and give this one its own, empty "
            "directory; or end that process first, and start with its directory",
            member=str(run.member),
            run=run.run,
        )


def _open_as(place: Place, cluster_id: str, known: KnownDisk | None, open_disk: OpenDisk) -> Disk:
    try:
        return open_disk(cluster_id, known, place.may_replace(known))
    except WipedDiskError as exc:
        if not place.replace_disk_of or known is None:
            raise
        raise WipedDiskError(
            f"the directory is empty, and may take the place of the disk {place.replace_disk_of} only, but the slot of "
            f"{place.broker} belongs to the disk {known.incarnation} by now. Remedy: bring that disk back, or name it",
            expected=known.incarnation,
        ) from exc


async def _insist(ask: Callable[[], Awaitable[_T]]) -> _T:
    """Ask until the coordinator answers; the caller's deadline ends it. So a request may be carried out twice."""
    while True:
        try:
            return await ask()
        except CoordinatorUnavailableError as exc:
            _log.info("coordinator_awaited", error=str(exc))
        await asyncio.sleep(RETRY_S)


async def mark_clean(coordinator: Coordinator, keys: Keys, run: RunId, durable_sequence: int, now_ms: int) -> None:
    """Write into the member's record that this run ended cleanly, and note the disk's watermark.

    Args:
        coordinator: The coordinator.
        keys: Its keys.
        run: The run that ended.
        durable_sequence: How far its disk is durable, now that the storage is closed.
        now_ms: The time, by the wall clock.
    """
    key = keys.member(run.member.broker)
    item = await coordinator.get(key, deadline_s=1.0)
    if item is None:
        return
    record = records_pb2.MemberRecord.FromString(item.value)
    if not watermarks.is_record_of(item, run):
        return
    record.clean_shutdown = True
    puts = [Put(key, record.SerializeToString())]
    if durable_sequence:
        puts.append(watermarks.watermark(keys, run.member, durable_sequence, now_ms))
    await coordinator.txn([mod_revision_is(key, item.mod_revision)], puts, deadline_s=1.0)


async def declare_lost_disks(
    coordinator: Coordinator, keys: Keys, members: Sequence[MemberId], issuer: str, evidence: str, now_ms: int
) -> None:
    """Refuse these disks for ever. The caller knows that they are gone and that no process runs on them."""
    for member in members:
        record = records_pb2.LostDiskRecord(
            member=member_to_record(member),
            issuer=issuer,
            declared_at_ms=now_ms,
            evidence=evidence,
        )
        await coordinator.txn((), [Put(keys.lost_disk(member), record.SerializeToString())], deadline_s=2.0)


async def certify_death(
    coordinator: Coordinator,
    keys: Keys,
    run: RunId,
    issuer: str,
    evidence: str,
    now_ms: int,
    *,
    guard: Guard = unguarded,
    deadline_s: float = 2.0,
) -> bool:
    """Write a death certificate. Returns False if there is one already. The caller knows that the run has ended.

    Raises:
        StaleOperatorError: From `guard`: a newer operator was seen. Nothing was written.
        NotServingError: The record that `guard` compares was changed at the same time. Nothing was written.
    """
    record = records_pb2.DeathCertificate(
        member=member_to_record(run.member),
        run=run.run,
        issuer=issuer,
        issued_at_ms=now_ms,
        evidence=evidence,
    )
    key = keys.certificate(run)
    result = await coordinator.txn(
        [*await guard(), absent(key)], [Put(key, record.SerializeToString())], [Get(key)], deadline_s=deadline_s
    )
    if not result.succeeded and result.responses[0].item is None:
        raise NotServingError("a newer operator came at the same time: no certificate was written", retry_after_ms=50)
    return result.succeeded


async def _read_or_write_cluster(coordinator: Coordinator, keys: Keys) -> records_pb2.ClusterRecord:
    key = keys.cluster_record
    while True:
        item = await coordinator.get(key)
        if item is not None:
            record = records_pb2.ClusterRecord.FromString(item.value)
            if record.cluster != keys.cluster:
                raise PreconditionError(f"the record of cluster {keys.cluster!r} names {record.cluster!r}")
            if record.format_level > FORMAT_LEVEL:
                raise NewerFormatError(
                    f"the cluster is at format level {record.format_level}, and this version knows up to "
                    f"{FORMAT_LEVEL}. Remedy: start the newer version; nothing was changed",
                    found=record.format_level,
                    known=FORMAT_LEVEL,
                )
            if record.format_level < FORMAT_LEVEL_MIN:
                raise OlderFormatError(
                    f"the cluster is at format level {record.format_level}, and this version reads {FORMAT_LEVEL_MIN} "
                    "and above. Remedy: start the version that made the cluster, or make a new cluster with another "
                    "name and empty directories; nothing was changed",
                    found=record.format_level,
                    known=FORMAT_LEVEL_MIN,
                )
            return record
        record = records_pb2.ClusterRecord(cluster=keys.cluster, id=uuid.uuid4().hex, format_level=FORMAT_LEVEL)
        await coordinator.txn([absent(key)], [Put(key, record.SerializeToString())])


def describe(record: records_pb2.MemberRecord, member: MemberId, place: Place, run: int) -> None:
    """Write into a member's record what a member run says of itself, when it starts and when it reports to a rebuild.

    What else the record has stays: fields of a newer version too.
    """
    record.member.CopyFrom(member_to_record(member))
    record.group = place.group
    record.slot = place.slot
    record.run = run
    record.address = place.advertise
    record.protocol_min = record.protocol_max = PROTOCOL
    record.forms = FORMS
    record.forms_run = run
    record.link_address = place.link_address
    record.stream_port = place.stream_port


def _make_record(
    record: records_pb2.MemberRecord | None, member: MemberId, place: Place, run: int, boot_id: str
) -> records_pb2.MemberRecord:
    written = records_pb2.MemberRecord()
    if record is not None:
        written.CopyFrom(record)  # fields of a newer version stay
    is_same = record is not None and record.member.incarnation == member.incarnation
    describe(written, member, place, run)
    written.admitted = is_same and record is not None and record.admitted
    written.boot_id = boot_id
    written.clean_shutdown = False
    written.join_nonce = uuid.uuid4().bytes
    return written


async def _register(
    coordinator: Coordinator, keys: Keys, item: KeyValue | None, record: records_pb2.MemberRecord, seen: Seen
) -> bool:
    """Write the record in place of the one that was read. Returns False, and writes nothing, if that one proves a loss.

    Rule `not-registered-again` (ALARM). Without it:
      1. An older copy of the coordinator is restored. It has this disk in run 3, and run 5 was confirmed.
      2. The broker starts and writes its record with run 6.
      3. The only proof that the coordinator has lost decisions is gone, and no broker raises the alarm.

    `lost_records` reports the loss until a rebuild asks the broker and writes its record. The record is judged before
    each try, because an older copy may come back between the read and the write.
    """
    key = keys.member(record.member.broker)
    below = records_pb2.MemberRecord.FromString(item.value) if item else None
    if below is not None and seen.is_ahead_of(await _read_or_write_cluster(coordinator, keys), below):
        _log.error("coordinator_behind", knows_run=below.run, registered_run=seen.registered_run)
        return False
    revision = item.mod_revision if item else 0
    result = await coordinator.txn([mod_revision_is(key, revision)], [Put(key, record.SerializeToString())])
    if result.succeeded:
        return True
    current = await coordinator.get(key)
    theirs = records_pb2.MemberRecord.FromString(current.value) if current else records_pb2.MemberRecord()
    if (theirs.member.incarnation, theirs.run) == (record.member.incarnation, record.run):
        # Rule `join-nonce` (TWO): two starts with copies of one directory raise it to the same run. Without it: 1. Each
        # of them reads its own incarnation and run in the record. 2. Both believe that they wrote it, and join.
        if theirs.join_nonce == record.join_nonce:
            return True  # our own write, whose answer was lost
        raise DirectoryInUseError(
            f"another process has just registered as run {record.run} of {record.member.broker}, with a copy of this "
            "directory. Remedy: find out which of the two directories is the original; start no process with the other",
            run=record.run,
        )
    if theirs.member.incarnation == record.member.incarnation and theirs.run < record.run:
        record.admitted = theirs.admitted  # only the admission was written, or an older copy is back: judged again
        return await _register(coordinator, keys, current, record, seen)
    raise PreconditionError(f"another broker registered as {record.member.broker} at the same time: start again")


async def _certify_earlier_runs(coordinator: Coordinator, keys: Keys, run: RunId, clock: Clock) -> None:
    """Certify the earlier runs of this disk. As a rule only the last one lacks a certificate.

    A run that is older than the newest certificate needs none, because that one says that all runs before it have
    ended.

    Rule `own-certificate` (CERT): a start certifies the runs before it, not its own. Without it: 1. The certificate
    names this run, which acknowledges. 2. A switcher that reaches no member opens over its segment. 3. Messages that
    this run acknowledges then are lost (I1).
    """
    listing = await coordinator.list(keys.certificates_of(run.member))
    newest = max((int(item.key.rpartition("/")[2]) for item in listing.items), default=0)
    for earlier in range(max(1, newest + 1, run.run - CERTIFIED_RUNS_MAX), run.run):
        evidence = f"run {run.run} has begun"
        await certify_death(coordinator, keys, RunId(run.member, earlier), ISSUER_LATER_RUN, evidence, clock.wall_ms())


def live_record(identity: Identity, wall_ms: int, unlinked: Sequence[str] = ()) -> bytes:
    """The value of a broker's live key. `unlinked`: live members of its broker group to which it has no link."""
    record = records_pb2.LiveRecord(
        member=member_to_record(identity.member), run=identity.run, wall_ms=wall_ms, unlinked=unlinked
    )
    return record.SerializeToString()


async def is_running(dialer: Dialer, address: str, run: RunId) -> bool:
    """Whether a process at this address answers that it is this member run."""
    try:
        connection = await dialer.dial(address, RUNNING_DEADLINE_S)
    except (PeerRefusedError, PeerSilentError):
        return False
    await connection.abandon("it was only asked who it is")
    return (connection.peer.member, connection.peer.member_run) == (run.member, run.run)
