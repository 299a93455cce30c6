"""The versions of all keys, in memory, and the events of each revision.

This module has only data: no I/O, no clock. `requests` changes it. `take_changes` gives the changes for the disk, and
`load` fills it from the disk at start. This module does not know which changes are durable. `store` answers no client
before the change is.

Each key has its versions, oldest first. A deletion is a version without content. The log has, for watches, the events
of each revision that is not compacted away. Compaction at revision R keeps each key's versions from R on, and the one
that was in force at R. So reads at R and watches from R still see everything.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from aetcd.rpc import kv_pb2

KeyValueMessage: TypeAlias = Any
"""A `kv_pb2.KeyValue`; the generated code has no types."""

EventMessage: TypeAlias = Any
"""A `kv_pb2.Event`."""

FIRST_REVISION: Final = 1
"""The revision of an empty store, as in etcd. The first write makes revision 2."""

FROM_KEY: Final = b"\0"
"""As `range_end` it means: no end. As `key` too, it means all keys."""

_ITEM_OVERHEAD_BYTES: Final = 400
"""About the bytes of a version besides its key and value: objects, list entries, and the key a second time."""


class Version(NamedTuple):
    """A key as it was after one revision. `kv.version` 0: that revision deleted it."""

    kv: KeyValueMessage
    sub: int

    @property
    def is_deleted(self) -> bool:
        """Whether this version is a deletion."""
        return int(self.kv.version) == 0


class Change(NamedTuple):
    """One version for the disk. `event` None: the version was compacted away."""

    revision: int
    sub: int
    event: EventMessage | None


class Mvcc:
    """All versions of all keys from `compact_revision` on."""

    def __init__(self) -> None:
        self.revision = FIRST_REVISION
        self.compact_revision = FIRST_REVISION
        self.size_bytes = 0
        self._keys: list[bytes] = []
        self._versions: dict[bytes, list[Version]] = {}
        self._log: list[list[EventMessage]] = [[]]  # events of compact_revision and of each later revision
        self._open: list[EventMessage] = []  # of the revision being made
        self._changes: list[Change] = []

    # -- reading ------------------------------------------------------------------------------------------

    def key_slice(self, key: bytes, range_end: bytes) -> list[bytes]:
        """The keys in [key, range_end) that have a version, also if it is a deletion, ascending.

        An empty `range_end` means `key` alone.
        """
        if not range_end:
            return [key] if key in self._versions else []
        start = bisect_left(self._keys, key)
        if range_end == FROM_KEY:
            return self._keys[start:]
        return self._keys[start : bisect_left(self._keys, range_end)]

    def current(self, key: bytes) -> KeyValueMessage | None:
        """The key now, including the writes of the revision that is being made; None if it does not exist."""
        versions = self._versions.get(key)
        if versions is None or versions[-1].is_deleted:
            return None
        return versions[-1].kv

    def at(self, key: bytes, revision: int) -> KeyValueMessage | None:
        """The key as of `revision`, which must not be compacted away; None if it did not exist."""
        assert revision >= self.compact_revision, (revision, self.compact_revision)
        for version in reversed(self._versions.get(key, ())):
            if version.kv.mod_revision <= revision:
                return None if version.is_deleted else version.kv
        return None

    def read(self, key: bytes, range_end: bytes, revision: int = 0) -> list[KeyValueMessage]:
        """The keys that exist in the range, ascending: now (revision 0), or as of a revision that is still kept."""
        if revision == 0:
            found = (self.current(one) for one in self.key_slice(key, range_end))
        else:
            found = (self.at(one, revision) for one in self.key_slice(key, range_end))
        return [kv for kv in found if kv is not None]

    def events_of(self, revision: int) -> list[EventMessage]:
        """The events of one revision, in the order of the operations that made them."""
        assert self.compact_revision <= revision <= self.revision, revision
        return self._log[revision - self.compact_revision]

    # -- writing: put and delete, then commit -------------------------------------------------------------

    def put(self, key: bytes, value: bytes, lease: int) -> KeyValueMessage | None:
        """Write a key in the revision that is being made. Returns what it was before; None if it did not exist."""
        before = self.current(key)
        self._add(
            kv_pb2.KeyValue(
                key=key,
                value=value,
                lease=lease,
                create_revision=before.create_revision if before is not None else self.revision + 1,
                mod_revision=self.revision + 1,
                version=before.version + 1 if before is not None else 1,
            )
        )
        return before

    def delete(self, key: bytes) -> KeyValueMessage | None:
        """Delete a key in the revision that is being made. Returns what it was; None if it did not exist."""
        before = self.current(key)
        if before is not None:
            self._add(kv_pb2.KeyValue(key=key, mod_revision=self.revision + 1))
        return before

    def commit(self) -> int:
        """End the revision that is being made, if it has writes. Returns the newest revision."""
        if self._open:
            self.revision += 1
            self._log.append(self._open)
            self._open = []
        assert len(self._log) == self.revision - self.compact_revision + 1
        return self.revision

    def _add(self, kv: KeyValueMessage) -> None:
        kind = kv_pb2.Event.PUT if kv.version else kv_pb2.Event.DELETE
        event = kv_pb2.Event(type=kind, kv=kv)
        self._insert(event.kv, len(self._open))
        self._changes.append(Change(kv.mod_revision, len(self._open), event))
        self._open.append(event)

    def _insert(self, kv: KeyValueMessage, sub: int) -> None:
        versions = self._versions.get(kv.key)
        if versions is None:
            self._versions[kv.key] = versions = []
            insort(self._keys, kv.key)
        assert not versions or versions[-1].kv.mod_revision < kv.mod_revision, "versions of a key go forward"
        versions.append(Version(kv, sub))
        self.size_bytes += _size_bytes(kv)

    # -- compaction ---------------------------------------------------------------------------------------

    def compact(self, revision: int) -> None:
        """Forget all that no read at `revision` or later needs, and no watch from `revision` or later."""
        assert self.compact_revision < revision <= self.revision, revision
        assert not self._open, "no compaction in the middle of a revision"
        kept_from = revision - self.compact_revision
        touched = {event.kv.key: None for events in self._log[: kept_from + 1] for event in events}
        for key in touched:
            self._compact_key(key, revision)
        del self._log[:kept_from]
        self.compact_revision = revision

    def _compact_key(self, key: bytes, revision: int) -> None:
        versions = self._versions[key]
        in_force = -1
        for at, version in enumerate(versions):
            if version.kv.mod_revision > revision:
                break
            in_force = at
        if in_force < 0:
            return
        gone = in_force
        if versions[in_force].is_deleted and versions[in_force].kv.mod_revision < revision:
            gone += 1  # the key was deleted before `revision`, so no read or watch from there needs the deletion
        for version in versions[:gone]:
            self._changes.append(Change(version.kv.mod_revision, version.sub, None))
            self.size_bytes -= _size_bytes(version.kv)
        del versions[:gone]
        if not versions:
            del self._versions[key]
            del self._keys[bisect_left(self._keys, key)]

    # -- to and from the disk -----------------------------------------------------------------------------

    def take_changes(self) -> list[Change]:
        """The changes that the disk does not have yet, in order. The caller must write them."""
        assert not self._open, "a revision is given to the disk in full"
        changes, self._changes = self._changes, []
        return changes

    @classmethod
    def load(cls, revision: int, compact_revision: int, changes: Iterator[Change]) -> Mvcc:
        """Make the state that is on a disk. `changes` must come in the order of revision and operation."""
        assert FIRST_REVISION <= compact_revision <= revision
        mvcc = cls()
        mvcc.revision, mvcc.compact_revision = revision, compact_revision
        mvcc._log = [[] for _ in range(revision - compact_revision + 1)]
        for change in changes:
            event = change.event
            assert event is not None
            assert event.kv.mod_revision == change.revision <= revision, change
            mvcc._versions.setdefault(event.kv.key, []).append(Version(event.kv, change.sub))
            mvcc.size_bytes += _size_bytes(event.kv)
            if change.revision >= compact_revision:
                mvcc._log[change.revision - compact_revision].append(event)
        mvcc._keys = sorted(mvcc._versions)
        return mvcc

    def leased_keys(self) -> Iterator[tuple[int, bytes]]:
        """All existing keys that end with a lease, as (lease, key)."""
        for key in self._keys:
            kv = self.current(key)
            if kv is not None and kv.lease:
                yield kv.lease, key


def _size_bytes(kv: KeyValueMessage) -> int:
    return len(kv.key) + len(kv.value) + _ITEM_OVERHEAD_BYTES
