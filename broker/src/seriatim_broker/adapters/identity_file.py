"""The identity file of a data directory: the member to which the disk belongs, and its member run.

It is a small file. A write puts all of it under a second name, flushes it and renames it. A lock file beside it keeps a
second process out. A start reads the identity file first. If the disk belongs to another cluster or member, or a newer
version wrote it, the start fails and changes nothing on it. The identity file alone does not show that a disk is an
older copy, or was emptied: `judge` compares it with the member run that the cluster knows.

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
    OlderFormatError,
    StorageError,
    WipedDiskError,
)
from seriatim_api.ids import MemberId
from seriatim_api.v1 import storage_pb2

FORMAT_VERSION: Final = 5
"""The format of all files in the directory. It is raised when older code could not read them, or would read them
wrongly (docs/contributing/formats.md). Each start writes the format of its own version, before anything else.

1, 2, 3   before any release
4         what was optional must be there: packed tables, append times in windows, settings in control records
5         delayed messages: older code would give them to readers before they are due
"""

FORMAT_VERSION_MIN: Final = 4
"""The lowest format that this code reads. A directory below it is refused."""

_FILE: Final = "passport"
_TEMPORARY: Final = "passport.new"
_LOCK: Final = "lock"
_MAGIC: Final = b"SQPASS01"
_HEADER: Final = struct.Struct("<8sI")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_COPY_REMEDY: Final = (
    "Remedy: give the slot a new, empty directory (a new incarnation); the other members' data is copied to it"
)


@dataclass(frozen=True, slots=True)
class IdentityFile:
    """The identity of a disk, and what its member keeps there beside the data.

    Attributes:
        run: The number of the last member run. Each start raises it.
        boot_id: The machine's boot id at the last start.
        clean_shutdown: Whether the last member run ended cleanly.
        suspect_before_run: The member run after the last one that did not end cleanly; 0: all ended cleanly. Data
            that earlier member runs took without a flush may be gone, also if only the process was killed: until the
            flush the data is in the process's memory (`rocks.writer`) and not in the kernel's.
        storage_made: Whether a start made the database and its watermark, so that later starts refuse a directory
            without them.
        registered_run: The newest member run that the coordinator has registered for this disk.
        coordinator_revision: The highest revision of the coordinator that this broker has seen.
        coordinator_rebuilt_at_ms: When the coordinator's records were last rebuilt, in milliseconds since 1970 UTC.
        format_version: The format of the directory's files; see `FORMAT_VERSION`.
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
        """The member: the broker with this disk's incarnation."""
        return MemberId(self.broker, self.incarnation)


@dataclass(frozen=True, slots=True)
class KnownMember:
    """What the cluster knows of the slot: the incarnation of its disk, and the newest member run of it."""

    incarnation: str
    run: int


class DataDirectory:
    """A data directory of which this process holds the lock.

    Attributes:
        identity_file: None in an empty directory.
        has_storage: Whether an earlier start made the storage, so that it must be there.
        ended_badly: Whether the member run before this one did not end cleanly: its process or its machine went down,
            and the data that it had not flushed is gone.
    """

    def __init__(self, path: Path, lock: int, identity: IdentityFile | None, checksum: Checksum) -> None:
        """Do not call it: use `open_directory`."""
        self.path = path
        self.identity_file = identity
        self._lock = lock
        self._writing = threading.Lock()  # the coordinator's revision is noted by another thread
        self._checksum = checksum
        self.ended_badly = identity is not None and not identity.clean_shutdown
        self.has_storage = identity is not None and identity.storage_made

    @property
    def has_data(self) -> bool:
        """Whether a broker ever opened its storage here."""
        return bool(_strays(self.path))

    def problem(self, run: int) -> str:
        """What is wrong with the directory; empty if nothing is. Blocks.

        It must still be the locked directory, have data, and have the identity file of member run `run`. A disk error
        does not count as a problem here, because the next flush meets the error and ends the process.
        """
        try:
            opened, found = os.fstat(self._lock), (self.path / _LOCK).stat()
            identity = _read(self.path, self._checksum)
            has_data = self.has_data
        except (FileNotFoundError, NotADirectoryError):
            return f"the data directory {self.path} is gone, or was emptied, while the broker runs"
        except CorruptionError as error:
            return f"the identity file of the data directory {self.path} was damaged while the broker runs: {error}"
        except (OSError, StorageError):
            return ""
        if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino):
            return f"the data directory {self.path} was replaced by another one while the broker runs"
        if identity is None or not has_data:
            return f"the data in the directory {self.path} is gone while the broker runs"
        assert self.identity_file is not None
        if (identity.incarnation, identity.run) != (self.identity_file.incarnation, run):
            return (
                f"the data directory {self.path} now has the identity file of {identity.member}, run {identity.run}; "
                f"this process is run {run} of {self.identity_file.member}"
            )
        return ""

    def create(self, cluster_id: str, broker: str) -> IdentityFile:
        """Make this empty directory a new incarnation, durably. Blocks.

        Raises:
            StorageError: The identity file cannot be written.
        """
        assert self.identity_file is None, "the directory has an identity file"
        identity = IdentityFile(cluster_id, broker, uuid4().hex, run=0, boot_id=boot_id(), clean_shutdown=True)
        self._put(identity)
        return identity

    def raise_run(self) -> int:
        """Begin a member run, and return its number. Blocks.

        When this returns, the identity file says durably that this member run has begun and has not ended cleanly.

        Raises:
            StorageError: The identity file cannot be written.
        """
        assert self.identity_file is not None, "no identity file yet"
        run = self.identity_file.run + 1
        before = run if self.ended_badly else self.identity_file.suspect_before_run
        self._write(
            format_version=FORMAT_VERSION,
            run=run,
            boot_id=boot_id(),
            clean_shutdown=False,
            suspect_before_run=before,
        )
        return run

    def note_coordinator(self, registered_run: int, revision: int, rebuilt_at_ms: int) -> None:
        """Write durably what this broker has seen of the coordinator. Blocks; another thread may call it.

        Args:
            registered_run: The newest member run that the coordinator registered for this disk.
            revision: The highest revision of the coordinator.
            rebuilt_at_ms: When the coordinator's records were last rebuilt, in milliseconds since 1970 UTC; 0: never.

        Raises:
            StorageError: The identity file cannot be written.
        """
        assert self.identity_file is not None, "no identity file yet"
        self._write(
            registered_run=registered_run, coordinator_revision=revision, coordinator_rebuilt_at_ms=rebuilt_at_ms
        )

    def note_storage(self) -> None:
        """Note durably that the database and its watermark exist. Blocks. Idempotent."""
        assert self.identity_file is not None, "no identity file yet"
        if not self.identity_file.storage_made:
            self._write(storage_made=True)
        self.has_storage = True

    def mark_clean(self) -> None:
        """Note durably that this member run ended cleanly, with all data written and closed. Blocks."""
        assert self.identity_file is not None, "no identity file yet"
        self._write(clean_shutdown=True)

    def release(self) -> None:
        """Release the lock, so that another process may open the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _write(self, **changes: Any) -> None:
        with self._writing:
            assert self.identity_file is not None, "no identity file yet"
            self._put(replace(self.identity_file, **changes))

    def _put(self, identity: IdentityFile) -> None:
        assert self._lock >= 0, "the directory was released"
        message = storage_pb2.StoredPassport(
            format_version=identity.format_version,
            cluster_id=identity.cluster_id,
            broker=identity.broker,
            incarnation=identity.incarnation,
            run=identity.run,
            boot_id=identity.boot_id,
            clean_shutdown=identity.clean_shutdown,
            suspect_before_run=identity.suspect_before_run,
            storage_made=identity.storage_made,
            registered_run=identity.registered_run,
            coordinator_revision=identity.coordinator_revision,
            coordinator_rebuilt_at_ms=identity.coordinator_rebuilt_at_ms,
        ).SerializeToString()
        data = _HEADER.pack(_MAGIC, self._checksum(0, message)) + message
        try:
            _replace(self.path, data)
        except OSError as error:
            raise StorageError(f"the identity file in {self.path} cannot be written: {error}") from error
        self.identity_file = identity


def open_directory(path: Path, broker: str, cluster_id: str | None, checksum: Checksum) -> DataDirectory:
    """Lock a directory and read its identity file. Makes the directory if it does not exist. Blocks.

    Args:
        path: The data directory.
        broker: The name of the broker that is starting.
        cluster_id: The cluster to which the disk must belong; None if it is not known yet (the caller then uses
            `check_cluster` later).
        checksum: CRC-32C.

    Raises:
        ForeignDiskError: The directory belongs to another member or cluster.
        NewerFormatError: A newer version wrote it.
        OlderFormatError: A version whose directories this one does not read wrote it.
        CorruptionError: The identity file is damaged, or is missing beside data.
        StorageError: Another process holds the directory, or it cannot be read.
    """
    lock = _lock(path)
    try:
        identity = _read(path, checksum)
        if identity is not None:
            _check_owner(path, identity, broker)
            if cluster_id is not None:
                check_cluster(identity, cluster_id)
    except BaseException:
        os.close(lock)
        raise
    return DataDirectory(path, lock, identity, checksum)


def read_identity_file(path: Path, checksum: Checksum) -> IdentityFile | None:
    """The identity file of a directory, also while a broker holds its lock; None if it has none. Blocks.

    A runner uses it. A broker replaces the file in one step, so the reader gets the one before a write or after it.

    Raises:
        NewerFormatError: A newer version wrote the identity file.
        OlderFormatError: A version whose directories this one does not read wrote it.
        CorruptionError: The identity file is damaged, or is missing although there is data.
        StorageError: The identity file cannot be read.
    """
    return _read(path, checksum)


def check_cluster(identity: IdentityFile, cluster_id: str) -> None:
    """Check that a disk belongs to this cluster.

    Raises:
        ForeignDiskError: The disk belongs to another cluster.
    """
    if identity.cluster_id != cluster_id:
        raise ForeignDiskError(
            f"this directory belongs to the cluster {identity.cluster_id}, not to {cluster_id}. Remedy: start the "
            "broker with its own directory, or with the coordinator of that cluster. If that coordinator lost its "
            "data, run seriatim coordinator rebuild while the other brokers run, and start again; nothing was changed",
            found=identity.cluster_id,
            expected=cluster_id,
        )


def judge(identity: IdentityFile | None, known: KnownMember | None) -> None:
    """Compare a disk with what the cluster knows of the slot. Call it before the start raises the member run.

    If a copy was made during the last member run, it has the same number as the original, and this check cannot find
    it.

    Raises:
        WipedDiskError: The directory is empty, but the slot belongs to a disk.
        ForeignDiskError: The slot belongs to another disk.
        OldDiskError: The directory is a copy from before the newest member run.
    """
    if known is None:
        return
    # Rule `incarnation` (I14): an emptied disk is another member. Without it:
    # 1. As has acknowledged messages. Its disk is emptied, and As starts under its old identity.
    # 2. Am goes down. A switcher asks As for its tail, and As answers 0, because its disk is empty.
    # 3. The switcher seals the segment at 0. All acknowledged messages are lost.
    if identity is None:
        raise WipedDiskError(
            f"the directory is empty, but the slot belongs to the disk {known.incarnation}. Remedy: bring that disk "
            "back; if it is lost for good and its process is gone, start once with --replace-disk: this directory "
            "then takes the slot as a new incarnation",
            expected=known.incarnation,
        )
    if identity.incarnation != known.incarnation:
        raise ForeignDiskError(
            f"the directory is the disk {identity.incarnation}, but the slot belongs to {known.incarnation}. Remedy: "
            "start with that disk, or replace the member by a new, empty directory",
            found=identity.incarnation,
            expected=known.incarnation,
        )
    if identity.run < known.run:
        raise OldDiskError(
            f"the directory is an older copy: its last run is {identity.run}, the cluster knows run {known.run}; the "
            f"messages that were acknowledged since are not on it. {_COPY_REMEDY}",
            found=identity.run,
            expected=known.run,
        )


def boot_id() -> str:
    """The machine's identity since it booted; empty if the kernel does not give one."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _check_owner(path: Path, identity: IdentityFile, broker: str) -> None:
    if identity.broker != broker:
        raise ForeignDiskError(
            f"{path} belongs to the broker {identity.broker}, not to {broker}. Remedy: start the broker with its own "
            "directory; nothing was changed",
            found=identity.broker,
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


def _read(path: Path, checksum: Checksum) -> IdentityFile | None:
    try:
        data = (path / _FILE).read_bytes()
    except FileNotFoundError:
        strays = _strays(path)
        if strays:
            raise CorruptionError(
                f"{path} has no identity file, but is not empty ({', '.join(strays[:3])}). {_COPY_REMEDY}"
            ) from None
        return None
    except OSError as error:
        raise StorageError(f"the identity file in {path} cannot be read: {error}") from error
    return _parse(path, data, checksum)


def _strays(path: Path) -> list[str]:
    """The names in the directory, without the identity file and its lock."""
    known = (_FILE, _TEMPORARY, _LOCK, "lost+found")
    return sorted(file.name for file in path.iterdir() if file.name not in known)


def _parse(path: Path, data: bytes, checksum: Checksum) -> IdentityFile:
    damaged = f"the identity file in {path} is damaged. {_COPY_REMEDY}"
    if len(data) < _HEADER.size:
        raise CorruptionError(damaged)
    magic, expected = _HEADER.unpack_from(data)
    message = data[_HEADER.size :]
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
    if stored.format_version < FORMAT_VERSION_MIN:
        raise OlderFormatError(
            f"{path} was written by an older version (format {stored.format_version}; this one reads "
            f"{FORMAT_VERSION_MIN} and above). Remedy: start the version that wrote it, or make a new cluster with "
            "empty directories; nothing was changed",
            found=stored.format_version,
            known=FORMAT_VERSION_MIN,
        )
    return IdentityFile(
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
