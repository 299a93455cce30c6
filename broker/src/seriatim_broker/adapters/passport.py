"""The passport of a data directory: whose disk this is, and which run of it this is.

A small file, written whole to a second name, synced and renamed, beside a lock file that keeps a second process out.
It is read before anything else: a disk of another cluster or member, or of a newer version, is refused before a byte
of it is touched. Whether a disk is an older copy or was wiped cannot be seen here: that takes the run number that the
cluster knows (`judge`).

    passport        "SQPASS01", CRC-32C of the rest (u32, little-endian), a StoredPassport
    lock            empty; held by `flock` while the process lives
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from google.protobuf.message import DecodeError
from seriatim_api.batch import Checksum
from seriatim_api.errors import (
    CorruptionError,
    ForeignDiskError,
    NewerFormatError,
    OldDiskError,
    StorageError,
    WipedDiskError,
)
from seriatim_api.ids import MemberId
from seriatim_api.v1 import storage_pb2

FORMAT_VERSION: Final = 2
"""Of everything in the directory; raised when an older version could not read it. Each start writes its own.

1   to version 0.2.0
2   append times in producers' windows, idle blocks, chains, bodies that stand apart from their batches
"""

_FILE: Final = "passport"
_TEMPORARY: Final = "passport.new"
_LOCK: Final = "lock"
_MAGIC: Final = b"SQPASS01"
_HEAD: Final = struct.Struct("<8sI")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_COPY_REMEDY: Final = "Remedy: give the slot a new, empty directory (a new incarnation); it is copied from the others"


@dataclass(frozen=True, slots=True)
class Passport:
    """Whose disk this is.

    `run` counts the starts. `boot_id` is the machine's at the last start, `clean_shutdown` whether the last run ended
    in good order. `suspect_before_run` is the run that followed the last one that did not (0: all did): what earlier
    runs took without a flush may be gone. A process that is killed loses it as a machine does that goes down: until
    the flush it waits in the process's own memory (`rocks.writer`), not in the kernel's. `storage_made`: a start made
    the database and its watermark, so a later start refuses a directory without them. (Versions that did not note it
    left it false.)
    """

    cluster_id: str
    broker: str
    incarnation: str
    run: int
    boot_id: str
    clean_shutdown: bool
    suspect_before_run: int = 0
    storage_made: bool = False
    registered_run: int = 0
    coordinator_revision: int = 0
    coordinator_rebuilt_at_ms: int = 0
    format_version: int = FORMAT_VERSION

    @property
    def member(self) -> MemberId:
        """The member that this disk makes the broker."""
        return MemberId(self.broker, self.incarnation)


@dataclass(frozen=True, slots=True)
class KnownMember:
    """What the cluster knows of the slot: the disk it was given, and the newest run of it."""

    incarnation: str
    run: int


class DataDirectory:
    """A data directory that this process holds the lock of.

    `passport` is None in an empty directory. `has_storage`: an earlier start made the storage, so it must be there.
    `ended_badly` speaks of the run before this one: its process or its machine went down, and what it had not flushed
    with it.
    """

    def __init__(self, path: Path, lock: int, passport: Passport | None, checksum: Checksum) -> None:
        """Use `open_directory`."""
        self.path = path
        self.passport = passport
        self._lock = lock
        self._writing = threading.Lock()  # the coordinator's revision is noted by another thread
        self._checksum = checksum
        self.ended_badly = passport is not None and not passport.clean_shutdown
        # A run that ended in good order had closed its storage, whether or not its version noted that it made one.
        ended_well = passport is not None and passport.run > 0 and passport.clean_shutdown
        self.has_storage = passport is not None and (passport.storage_made or ended_well)

    @property
    def has_data(self) -> bool:
        """Whether a broker ever opened its storage here."""
        return bool(_strays(self.path))

    def problem(self, run: int) -> str:
        """Whether this is still the directory that was locked, in that run and with data; empty if it is. Blocks.

        An error of the disk says nothing here: the next flush meets it, and ends the process.
        """
        try:
            opened, found = os.fstat(self._lock), (self.path / _LOCK).stat()
            passport = _read(self.path, self._checksum)
            has_data = self.has_data
        except (FileNotFoundError, NotADirectoryError):
            return f"the data directory {self.path} is gone, or was emptied, while the broker runs"
        except CorruptionError as error:
            return f"the passport of the data directory {self.path} was damaged while the broker runs: {error}"
        except (OSError, StorageError):
            return ""
        if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino):
            return f"the data directory {self.path} was replaced by another one while the broker runs"
        if passport is None or not has_data:
            return f"the data in the directory {self.path} is gone while the broker runs"
        assert self.passport is not None
        if (passport.incarnation, passport.run) != (self.passport.incarnation, run):
            return (
                f"the data directory {self.path} has the passport of {passport.member}, run {passport.run}, by now; "
                f"this process is run {run} of {self.passport.member}"
            )
        return ""

    def create(self, cluster_id: str, broker: str) -> Passport:
        """Make this empty directory a new incarnation, durably. Blocks."""
        assert self.passport is None, "the directory has a passport"
        passport = Passport(cluster_id, broker, uuid4().hex, run=0, boot_id=boot_id(), clean_shutdown=True)
        self._put(passport)
        return passport

    def raise_run(self) -> int:
        """Begin a run: its number, and that it did not end yet, are durable when this returns. Blocks."""
        assert self.passport is not None, "no passport yet"
        run = self.passport.run + 1
        before = run if self.ended_badly else self.passport.suspect_before_run
        self._write(
            format_version=FORMAT_VERSION,
            run=run,
            boot_id=boot_id(),
            clean_shutdown=False,
            suspect_before_run=before,
        )
        return run

    def note_coordinator(self, registered_run: int, revision: int, rebuilt_at_ms: int) -> None:
        """Keep what was seen of the coordinator, durably. Blocks; may be called by another thread."""
        assert self.passport is not None, "no passport yet"
        self._write(
            registered_run=registered_run, coordinator_revision=revision, coordinator_rebuilt_at_ms=rebuilt_at_ms
        )

    def note_storage(self) -> None:
        """Note, durably, that the database and its watermark are made. Blocks; does nothing if it is noted already."""
        assert self.passport is not None, "no passport yet"
        if not self.passport.storage_made:
            self._write(storage_made=True)
        self.has_storage = True

    def mark_clean(self) -> None:
        """Note that this run ended in good order: everything was written and closed. Blocks."""
        assert self.passport is not None, "no passport yet"
        self._write(clean_shutdown=True)

    def release(self) -> None:
        """Let another process have the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _write(self, **changes: Any) -> None:
        with self._writing:
            assert self.passport is not None, "no passport yet"
            self._put(replace(self.passport, **changes))

    def _put(self, passport: Passport) -> None:
        assert self._lock >= 0, "the directory was released"
        message = storage_pb2.StoredPassport(
            format_version=passport.format_version,
            cluster_id=passport.cluster_id,
            broker=passport.broker,
            incarnation=passport.incarnation,
            run=passport.run,
            boot_id=passport.boot_id,
            clean_shutdown=passport.clean_shutdown,
            suspect_before_run=passport.suspect_before_run,
            storage_made=passport.storage_made,
            registered_run=passport.registered_run,
            coordinator_revision=passport.coordinator_revision,
            coordinator_rebuilt_at_ms=passport.coordinator_rebuilt_at_ms,
        ).SerializeToString()
        data = _HEAD.pack(_MAGIC, self._checksum(0, message)) + message
        try:
            _replace(self.path, data)
        except OSError as error:
            raise StorageError(f"the passport in {self.path} cannot be written: {error}") from error
        self.passport = passport


def open_directory(path: Path, broker: str, cluster_id: str | None, checksum: Checksum) -> DataDirectory:
    """Lock a directory, made if need be, and read its passport. Blocks.

    Args:
        path: The data directory.
        broker: The name of the broker that is starting.
        cluster_id: The cluster that it is to belong to, or None while that is not known (`check_cluster` comes later).
        checksum: CRC-32C.

    Raises:
        ForeignDiskError: The directory belongs to another member or cluster.
        NewerFormatError: A newer version wrote it.
        CorruptionError: The passport is damaged, or is missing beside data.
        StorageError: Another process holds the directory, or it cannot be read.
    """
    lock = _lock(path)
    try:
        passport = _read(path, checksum)
        if passport is not None:
            _check_owner(path, passport, broker)
            if cluster_id is not None:
                check_cluster(passport, cluster_id)
    except BaseException:
        os.close(lock)
        raise
    return DataDirectory(path, lock, passport, checksum)


def read_passport(path: Path, checksum: Checksum) -> Passport | None:
    """What the passport of a directory says now, whoever holds the directory; None if it has none. Blocks.

    For who watches over brokers: it is replaced whole, so a reader sees the one of this run or of the one before.

    Raises:
        NewerFormatError: A newer version wrote it.
        CorruptionError: It is damaged, or is missing beside data.
        StorageError: It cannot be read.
    """
    return _read(path, checksum)


def check_cluster(passport: Passport, cluster_id: str) -> None:
    """Check that a disk belongs to this cluster.

    Raises:
        ForeignDiskError: It does not.
    """
    if passport.cluster_id != cluster_id:
        raise ForeignDiskError(
            f"this directory belongs to the cluster {passport.cluster_id}, not to {cluster_id}. Remedy: start the "
            "broker with its own directory, or with the coordinator of that cluster. If that coordinator lost its "
            "data, run seriatim coordinator rebuild while the other brokers run, and start again; nothing was changed",
            found=passport.cluster_id,
            expected=cluster_id,
        )


def judge(passport: Passport | None, known: KnownMember | None) -> None:
    """Compare a disk, as it was before its run number is raised, with what the cluster knows of the slot.

    A copy made within the last run has the same number and cannot be told from the original.

    Raises:
        WipedDiskError: The slot belongs to a disk that this empty directory is not.
        ForeignDiskError: It belongs to another disk.
        OldDiskError: The directory is a copy from before the newest run.
    """
    if known is None:
        return
    if passport is None:
        raise WipedDiskError(
            f"the directory is empty, but the slot belongs to the disk {known.incarnation}. Remedy: bring that disk "
            "back; if it is lost for good and its process is gone, start once with --replace-disk: this directory "
            "then takes the slot as a new incarnation",
            expected=known.incarnation,
        )
    if passport.incarnation != known.incarnation:
        raise ForeignDiskError(
            f"the directory is the disk {passport.incarnation}, but the slot belongs to {known.incarnation}. Remedy: "
            "start with that disk, or replace the member by a new, empty directory",
            found=passport.incarnation,
            expected=known.incarnation,
        )
    if passport.run < known.run:
        raise OldDiskError(
            f"the directory is an older copy: its last run is {passport.run}, the cluster knows run {known.run}; what "
            f"was acknowledged since is not on it. {_COPY_REMEDY}",
            found=passport.run,
            expected=known.run,
        )


def boot_id() -> str:
    """The machine's identity since it booted; empty where the kernel does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _check_owner(path: Path, passport: Passport, broker: str) -> None:
    if passport.broker != broker:
        raise ForeignDiskError(
            f"{path} belongs to the broker {passport.broker}, not to {broker}. Remedy: start the broker with its own "
            "directory; nothing was changed",
            found=passport.broker,
            expected=broker,
        )


def _lock(path: Path) -> int:
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise StorageError(f"the data directory {path} cannot be used: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StorageError(
            f"another process holds the data directory {path}. Remedy: stop it, or give this broker its own directory"
        ) from error
    return lock


def _read(path: Path, checksum: Checksum) -> Passport | None:
    try:
        data = (path / _FILE).read_bytes()
    except FileNotFoundError:
        strays = _strays(path)
        if strays:
            raise CorruptionError(
                f"{path} has no passport, but is not empty ({', '.join(strays[:3])}). {_COPY_REMEDY}"
            ) from None
        return None
    except OSError as error:
        raise StorageError(f"the passport in {path} cannot be read: {error}") from error
    return _parse(path, data, checksum)


def _strays(path: Path) -> list[str]:
    """What lies in the directory beside the passport and its lock."""
    known = (_FILE, _TEMPORARY, _LOCK, "lost+found")
    return sorted(file.name for file in path.iterdir() if file.name not in known)


def _parse(path: Path, data: bytes, checksum: Checksum) -> Passport:
    damaged = f"the passport in {path} is damaged. {_COPY_REMEDY}"
    if len(data) < _HEAD.size:
        raise CorruptionError(damaged)
    magic, expected = _HEAD.unpack_from(data)
    message = data[_HEAD.size :]
    if magic != _MAGIC or checksum(0, message) != expected:
        raise CorruptionError(damaged)
    try:
        stored = storage_pb2.StoredPassport.FromString(message)
    except DecodeError as error:
        raise CorruptionError(damaged) from error
    if stored.format_version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{path} was written by a newer version (format {stored.format_version}; this one reads up to "
            f"{FORMAT_VERSION}). Remedy: start that version; nothing was changed",
            found=stored.format_version,
            known=FORMAT_VERSION,
        )
    return Passport(
        cluster_id=stored.cluster_id,
        broker=stored.broker,
        incarnation=stored.incarnation,
        run=stored.run,
        boot_id=stored.boot_id,
        clean_shutdown=stored.clean_shutdown,
        suspect_before_run=stored.suspect_before_run,
        storage_made=stored.storage_made,
        registered_run=stored.registered_run,
        coordinator_revision=stored.coordinator_revision,
        coordinator_rebuilt_at_ms=stored.coordinator_rebuilt_at_ms,
        format_version=stored.format_version,
    )


def _replace(path: Path, data: bytes) -> None:
    temporary = path / _TEMPORARY
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path / _FILE)
    directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
