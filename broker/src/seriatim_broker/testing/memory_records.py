"""The coordinator's records as plain objects: chains, cursors and death certificates, with revisions.

There is one revision counter. A write compares the revision of its key (0: the key does not exist). The write of a
chain also compares that the record has the chain epoch before, and that the certificate which it names exists. Here
nothing takes time, gets lost or fails: the simulator adds that.
"""

from __future__ import annotations

from typing import Any

from seriatim_api.ids import PartitionId, RunId

from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import CursorRecord


class MemoryRecords:
    """The coordinator's records. They are linearizable, because this is one object in one thread."""

    def __init__(self) -> None:
        self.revision = 0
        self.history: list[tuple[int, Chain]] = []
        self._chains: dict[PartitionId, tuple[Chain, int]] = {}
        self._cursors: dict[tuple[PartitionId, str], tuple[CursorRecord, int]] = {}
        self._certificates: dict[RunId, int] = {}

    def chain(self, partition: PartitionId) -> tuple[Chain | None, int]:
        """The chain of a partition, and the revision that wrote it; (None, 0) if there is none."""
        return self._chains.get(partition, (None, 0))

    def write_chain(
        self, chain: Chain, revision: int, certificate: RunId | None, cursors_revision: int = 0
    ) -> int | None:
        """Write a chain if the compares hold.

        Args:
            chain: The new chain.
            revision: The revision that the key must have; 0: the key must not exist.
            certificate: A member run whose death certificate must exist; None: none.
            cursors_revision: No cursor of the partition may be written after this revision; 0: not compared.

        Returns:
            The new revision; None if a compare did not hold.
        """
        known, known_revision = self.chain(chain.partition)
        if known_revision != revision or (known.epoch if known is not None else 0) + 1 != chain.epoch:
            return None
        if certificate is not None and certificate not in self._certificates:
            return None
        written = [entry[1] for (of, _), entry in self._cursors.items() if of == chain.partition]
        if cursors_revision and max(written, default=0) > cursors_revision:
            return None
        self.revision += 1
        self._chains[chain.partition] = (chain, self.revision)
        self.history.append((self.revision, chain))
        return self.revision

    def snapshot(self) -> tuple[dict[Any, Any], ...]:
        """A copy of all records, for `restore`."""
        return dict(self._chains), dict(self._cursors), dict(self._certificates)

    def restore(self, snapshot: tuple[dict[Any, Any], ...] | None) -> None:
        """Go back to a snapshot; None: to no records.

        Revisions continue above the highest, as after a restore of etcd with a bumped revision.
        """
        self._chains, self._cursors, self._certificates = map(dict, ({}, {}, {}) if snapshot is None else snapshot)
        self.revision += 1_000

    def put_chain(self, chain: Chain) -> None:
        """Write a chain without a compare: of a coordinator that is rebuilt, or of a long past."""
        self.revision += 1
        self._chains[chain.partition] = (chain, self.revision)

    def put_cursor(self, partition: PartitionId, group: str, record: CursorRecord) -> None:
        """Write a cursor without a compare."""
        self.revision += 1
        self._cursors[partition, group] = (record, self.revision)

    def cursor(self, partition: PartitionId, group: str) -> tuple[CursorRecord | None, int]:
        """A consumer group's cursor, and the revision that wrote it; (None, 0) if there is none."""
        return self._cursors.get((partition, group), (None, 0))

    def write_cursor(
        self, partition: PartitionId, group: str, record: CursorRecord, revision: int, chain_revision: int = 0
    ) -> int | None:
        """Write a cursor if the compares hold: of the cursor's revision, and (unless 0) of the chain's revision.

        Returns:
            The new revision; None if a compare did not hold, or the partition has no chain.
        """
        if self.cursor(partition, group)[1] != revision or partition not in self._chains:
            return None
        if chain_revision and self.chain(partition)[1] != chain_revision:
            return None
        self.revision += 1
        self._cursors[partition, group] = (record, self.revision)
        return self.revision

    def cursors(self) -> list[tuple[PartitionId, str, CursorRecord]]:
        """All cursors, in the order of their keys."""
        return [(partition, group, entry[0]) for (partition, group), entry in sorted(self._cursors.items())]

    def certificates(self) -> list[RunId]:
        """All member runs with a death certificate, in the order in which the certificates were written."""
        return list(self._certificates)

    def has_certificate(self, run: RunId) -> bool:
        """Whether the member run has a death certificate."""
        return run in self._certificates

    def proof_of(self, run: RunId) -> RunId | None:
        """The certificate of this member run, or of a later one of the same disk; None if there is none."""
        if run in self._certificates:
            return run
        later = [other for other in self._certificates if other.member == run.member and other.run > run.run]
        return max(later, key=lambda other: other.run, default=None)

    def remove_older_certificates(self, run: RunId) -> int:
        """Remove the certificates of earlier member runs of the same disk. The one of `run` makes them superfluous.

        Returns:
            How many were removed.
        """
        assert run in self._certificates
        older = [other for other in self._certificates if other.member == run.member and other.run < run.run]
        for other in older:
            self.revision += 1
            del self._certificates[other]
        return len(older)

    def write_certificate(self, run: RunId) -> bool:
        """Write a death certificate, if it does not exist. Returns whether it was new."""
        if run in self._certificates:
            return False
        self.revision += 1
        self._certificates[run] = self.revision
        return True
