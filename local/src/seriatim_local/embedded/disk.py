"""The embedded coordinator's disk: one RocksDB database in a directory of its own.

    m/format, m/cluster                             the format, and the cluster's id
    m/revision, m/compacted                         the newest revision, and the oldest that is kept
    l + lease id (8 bytes)                          granted time in seconds (8 bytes)
    r + revision (8 bytes) + operation (4 bytes)    the event, as a `kv_pb2.Event`

All numbers are big-endian, so the order of keys is the order of events. A commit is one write batch, then one flush of
the write-ahead log. These calls block, so `store` makes them in its own thread.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aetcd.rpc import kv_pb2
from rocksdict import AccessType, DBRecoveryMode, Options, Rdict, WriteBatch
from seriatim_api.errors import (
    CorruptionError,
    ForeignDiskError,
    NewerFormatError,
    PreconditionError,
    SeriatimError,
)

from seriatim_local.embedded.mvcc import FIRST_REVISION, Change, Mvcc

FORMAT: Final = 1
"""The format above. A directory with a higher one is refused."""

_MEMTABLE_BYTES: Final = 8 * 1024 * 1024
_NUMBER: Final = struct.Struct(">Q")
_RECORD_KEY: Final = struct.Struct(">cQI")
_LEASE_KEY: Final = struct.Struct(">cq")
_FORMAT_KEY: Final = b"m/format"
_CLUSTER_KEY: Final = b"m/cluster"
_REVISION_KEY: Final = b"m/revision"
_COMPACTED_KEY: Final = b"m/compacted"


@dataclass(slots=True)
class Batch:
    """The content of one commit. All of it becomes durable, or nothing.

    Attributes:
        revision: The newest revision after the commit.
        compact_revision: The oldest revision that is kept after the commit.
        changes: New and removed versions of keys.
        leases: Granted seconds by lease id; None: the lease has ended.
    """

    revision: int
    compact_revision: int
    changes: list[Change] = field(default_factory=list)
    leases: dict[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remembered:
    """The content of a directory when it was opened."""

    cluster_id: int
    mvcc: Mvcc
    leases: dict[int, int]


class Disk:
    """An open database. Only one thread at a time may use it."""

    def __init__(self, directory: Path) -> None:
        """Open the database, or make it. The caller calls `load` next.

        Raises:
            PreconditionError: Another process has it open, or the directory cannot be used.
            ForeignDiskError: The directory has other files in it.
            CorruptionError: RocksDB cannot read its own files.
        """
        self._directory = directory
        _check_directory(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(directory), _options(), access_type=AccessType.read_write())
        except Exception as error:
            raise _open_error(directory, error) from error

    def load(self) -> Remembered:
        """Read all records. An empty database gets a new cluster id.

        Raises:
            NewerFormatError: A newer version wrote the database. Nothing was changed.
            ForeignDiskError: The database is not a coordinator's. Nothing was changed.
            CorruptionError: The records cannot be read. Nothing was changed.
        """
        try:
            found = self._db.get(_FORMAT_KEY)
            if found is None:
                return self._begin()
            version = _NUMBER.unpack(found)[0]
            if version > FORMAT:
                raise self._newer(version)
            mvcc = Mvcc.load(self._number(_REVISION_KEY), self._number(_COMPACTED_KEY), self._records())
            return Remembered(self._number(_CLUSTER_KEY), mvcc, dict(self._leases()))
        except SeriatimError:
            raise
        except Exception as error:
            raise CorruptionError(
                f"{self._directory} holds a coordinator's data that cannot be read ({error}): "
                "restore a copy, or move the directory away and begin with an empty one",
                directory=self._directory,
            ) from error

    def _newer(self, version: int) -> NewerFormatError:
        return NewerFormatError(
            f"{self._directory} was written by a newer version of the embedded coordinator "
            f"(format {version}, known here: {FORMAT}): start that version",
            format=version,
        )

    def commit(self, batch: Batch) -> None:
        """Make a batch durable. After an exception it is not known what is on the disk: the process must end."""
        writes = WriteBatch(raw_mode=True)
        for change in batch.changes:
            key = _RECORD_KEY.pack(b"r", change.revision, change.sub)
            if change.event is None:
                writes.delete(key)
            else:
                writes.put(key, change.event.SerializeToString())
        for lease_id, ttl_s in batch.leases.items():
            key = _LEASE_KEY.pack(b"l", lease_id)
            if ttl_s is None:
                writes.delete(key)
            else:
                writes.put(key, _NUMBER.pack(ttl_s))
        writes.put(_REVISION_KEY, _NUMBER.pack(batch.revision))
        writes.put(_COMPACTED_KEY, _NUMBER.pack(batch.compact_revision))
        self._db.write(writes)
        self._db.flush_wal(True)

    def close(self) -> None:
        """Close the database. Afterwards the directory can be opened again."""
        self._db.close()

    def _begin(self) -> Remembered:
        if next(iter(self._db.keys()), None) is not None:
            raise ForeignDiskError(f"{self._directory} is a RocksDB database, but not a coordinator's")
        cluster_id = secrets.randbits(63) | 1
        writes = WriteBatch(raw_mode=True)
        writes.put(_FORMAT_KEY, _NUMBER.pack(FORMAT))
        writes.put(_CLUSTER_KEY, _NUMBER.pack(cluster_id))
        writes.put(_REVISION_KEY, _NUMBER.pack(FIRST_REVISION))
        writes.put(_COMPACTED_KEY, _NUMBER.pack(FIRST_REVISION))
        self._db.write(writes)
        self._db.flush_wal(True)
        return Remembered(cluster_id, Mvcc(), {})

    def _number(self, key: bytes) -> int:
        found = self._db.get(key)
        if found is None:
            raise ValueError(f"{key!r} is missing")
        number: int = _NUMBER.unpack(found)[0]
        return number

    def _scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        # Not `items()`, which ends without an error at a block that cannot be read.
        cursor = self._db.iter()
        cursor.seek(prefix)
        while cursor.valid():
            key: bytes = cursor.key()
            if not key.startswith(prefix):
                return
            yield key, cursor.value()
            cursor.next()
        cursor.status()

    def _records(self) -> Iterator[Change]:
        for key, value in self._scan(b"r"):
            _, revision, sub = _RECORD_KEY.unpack(key)
            yield Change(revision, sub, kv_pb2.Event.FromString(value))

    def _leases(self) -> Iterator[tuple[int, int]]:
        for key, value in self._scan(b"l"):
            yield _LEASE_KEY.unpack(key)[1], _NUMBER.unpack(value)[0]


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_total_wal_size(4 * _MEMTABLE_BYTES)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    # A crash can leave a torn record at the end. Damage before the end is an error, and RocksDB must not skip it.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    return options


def _check_directory(directory: Path) -> None:
    """Refuse a directory with files of other programs, before RocksDB adds its own files."""
    if not directory.is_dir():
        return
    names = {entry.name for entry in directory.iterdir()}
    if names and "CURRENT" not in names and not names <= {"LOCK", "LOG", "IDENTITY"}:
        raise ForeignDiskError(
            f"{directory} is not empty and not an embedded coordinator's directory: name another one",
            directory=directory,
        )


def _open_error(directory: Path, error: Exception) -> PreconditionError | CorruptionError:
    text = str(error)
    if "lock" in text.lower():
        return PreconditionError(
            f"{directory} is in use by another process: one coordinator serves a directory", directory=directory
        )
    if "Corruption" in text:
        return CorruptionError(
            f"{directory} is damaged ({text}): restore a copy, or move it away and begin with an empty one",
            directory=directory,
        )
    return PreconditionError(f"{directory} cannot be opened: {text}", directory=directory)
