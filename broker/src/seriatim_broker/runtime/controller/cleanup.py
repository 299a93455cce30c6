"""Cleanup: the controller removes records from the coordinator that nothing can need any more.

It also raises the format level, once all brokers know it.

**Death certificates.** A certificate of run R of a disk says that R and all runs of that disk before it have ended,
because a run begins only when the one before has ended. So a certificate can go if there is one of a later run of the
same disk. A switch that asks for R's certificate accepts the later one. In the end one certificate stays for each disk
that there ever was. Administrators may want to read the newest ones, so each is kept for at least `CERTIFICATE_KEPT_S`
(1 h).

A pass examines all certificates and removes at most `REMOVED_AT_ONCE_MAX` (100). Each transaction compares the
certificate that makes the others superfluous, and the election.

**Deleted cursors and tombstones** go after `deleted_kept_s`: see `expiry`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby

import structlog
from google.protobuf.message import DecodeError
from seriatim_api.v1 import records_pb2

from ...core.values.messages import FORMS
from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator, Delete, KeyValue, Put, mod_revision_is
from ..coordinator.forms import all_read
from ..coordinator.keys import Keys
from ..membership.election import Election
from ..membership.registration import FORMAT_LEVEL
from .caretaker import CaretakerSettings
from .expiry import Expiry

CERTIFICATE_KEPT_S = 3600.0
"""How long a certificate is kept after its issue, by the issuer's clock."""

REMOVED_AT_ONCE_MAX = 100
"""Keys that a pass removes, with one transaction for each disk; below the coordinator's limit of 128 operations."""

_log = structlog.get_logger(__name__)


class Cleanup:
    """A duty of the elected broker, until cancelled."""

    def __init__(
        self, coordinator: Coordinator, keys: Keys, election: Election, clock: Clock, settings: CaretakerSettings
    ) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._election = election
        self._clock = clock
        self._tidy_s = settings.tidy_s
        self._is_level_raised = False
        self._expiry = Expiry(coordinator, keys, election, clock, settings.deleted_kept_s)

    async def run(self) -> None:
        """Make a pass every `tidy_s` until cancelled."""
        while True:
            await asyncio.sleep(self._tidy_s)
            await self.raise_level()
            await self.remove_certificates()
            await self._expiry.remove_cursors()
            await self._expiry.remove_tombstones()

    async def raise_level(self) -> None:
        """Raise the cluster's format level to the one of this version, when every registered broker is as new.

        Rule `level-refuses` (K2): code that would misread records in the coordinator is refused when it joins. Without
        it:
          1. A cluster is rolled back. A broker of the older code gets a new, empty disk: no identity file refuses it.
          2. It serves a group in which order is by key, and does not know what its cursor says of lists.
          3. The group is given messages again that it has acknowledged.
        """
        if self._is_level_raised:
            return
        found = await self._coordinator.get(self._keys.cluster_record)
        if found is None:
            return
        record = records_pb2.ClusterRecord.FromString(found.value)
        if record.format_level < FORMAT_LEVEL:
            understood = await all_read(self._coordinator, self._keys, FORMS)
            if understood is None:
                return  # a broker of an older version is registered, and may start again
            before, record.format_level = record.format_level, FORMAT_LEVEL
            unchanged = mod_revision_is(found.key, found.mod_revision)
            put = Put(found.key, record.SerializeToString())
            if not (await self._election.txn([understood, unchanged], [put])).succeeded:
                return
            _log.info("format_level_raised", before=before, after=FORMAT_LEVEL)
        self._is_level_raised = True

    async def remove_certificates(self) -> int:
        """Make one pass over the death certificates. Returns how many were removed."""
        removed = 0
        listing = await self._coordinator.list(self._keys.certificates)
        for _, of_disk in groupby(listing.items, key=lambda item: item.key.rpartition("/")[0]):
            newest, *older = sorted(of_disk, key=_run_of, reverse=True)
            keys = list(self._removable(older))[: REMOVED_AT_ONCE_MAX - removed]
            if not keys:
                continue
            still_there = mod_revision_is(newest.key, newest.mod_revision)
            result = await self._election.txn([still_there], [Delete(key) for key in keys])
            removed += len(keys) if result.succeeded else 0
            if removed >= REMOVED_AT_ONCE_MAX:
                break
        if removed:
            _log.info("certificates_removed", count=removed)
        return removed

    def _removable(self, items: Iterable[KeyValue]) -> Iterable[str]:
        """Of the certificates that a later one makes superfluous, those that are old enough."""
        until_ms = self._clock.wall_ms() - CERTIFICATE_KEPT_S * 1000
        for item in items:
            try:
                record = records_pb2.DeathCertificate.FromString(item.value)
            except DecodeError:
                continue
            if record.issued_at_ms < until_ms:
                yield item.key


def _run_of(item: KeyValue) -> int:
    return int(item.key.rpartition("/")[2])
