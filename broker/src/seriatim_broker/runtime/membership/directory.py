"""Which brokers are in the cluster, how to reach them, and the intents of their broker groups, mirrored.

It mirrors members, live keys, certificates and intents. The core is sent the admitted members by broker group, their
runs, the intents, and which forms all brokers understand (`DirectoryChanged`), and only when one of these changed.
Addresses and live keys stay here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import and_

import structlog
from seriatim_api.ids import MemberId, RunId
from seriatim_api.v1 import records_pb2

from ...core.values.events import CertificateSeen, DirectoryChanged, DropDeleted, DropPartitionData, Event
from ...core.values.placement import DEFAULT_SPEC, BrokerGroupSpec, copies_wanted, placeable
from ...interfaces.coordinator import Coordinator
from ..coordinator.keys import Keys, partition_of
from ..coordinator.mirror import mirror
from ..coordinator.records import deleted_partitions_from, member_from_record, members_from_record, spec_from_value

_log = structlog.get_logger(__name__)


class Directory:
    """Mirrors members, live keys, certificates, tombstones, and the ranges of deleted partitions.

    Args:
        broker: The name of this broker.
        peers: By broker name, the address at which this broker reaches it, if that is not the registered one.
        emit: Takes the core's events.
        link_peers: The same for links.
    """

    def __init__(
        self,
        broker: str,
        keys: Keys,
        peers: Mapping[str, str],
        emit: Callable[[Event], None],
        link_peers: Mapping[str, str] | None = None,
    ) -> None:
        self._broker = broker
        self._keys = keys
        self._own_peers = dict(peers)
        self._own_link_peers = dict(link_peers or {})
        self._emit = emit
        self._listeners: list[Callable[[], None]] = []
        self._broker_groups: tuple[tuple[str, tuple[MemberId, ...]], ...] | None = None
        self._member_runs: tuple[tuple[MemberId, int], ...] = ()
        self._forms = 0  # those that all registered brokers read, as they said
        self.specs: dict[str, BrokerGroupSpec] = {}
        self.members: dict[str, records_pb2.MemberRecord] = {}
        self.live_member_runs: dict[str, int] = {}
        self._unlinked: dict[str, tuple[str, ...]] = {}  # what live brokers say of their links
        self.certified: set[RunId] = set()
        self._ended: dict[MemberId, int] = {}  # the newest certified run of each disk
        self._former: set[MemberId] = set()  # disks that were seen to lose their slot to another one
        self.loaded = asyncio.Event()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Also call `changed` when anything changed."""
        self._listeners.append(changed)

    # ---- questions ----

    def peer_address(self, broker: str) -> str | None:
        """The address at which this broker calls another one; None if it is not known."""
        return self._own_peers.get(broker) or self.client_address(broker) or None

    def link_address(self, broker: str) -> str | None:
        """The address to dial for a link: the one that was set by hand, or the registered one; None: not known."""
        record = self.members.get(broker)
        return self._own_link_peers.get(broker) or (record.link_address if record is not None else "") or None

    def client_address(self, broker: str) -> str:
        """The address at which clients reach a broker; empty if it is not known."""
        record = self.members.get(broker)
        return record.address if record is not None else ""

    def stream_port(self, broker: str) -> int:
        """Where a broker takes clients' streams over TCP, at the host of `client_address`; 0: only over gRPC."""
        record = self.members.get(broker)
        return record.stream_port if record is not None else 0

    def external_address(self, broker: str) -> str:
        """The address at which clients outside reach a broker; empty if its run has not registered one (yet)."""
        record = self.members.get(broker)
        # The run is compared because a broker may be started again without a second port, and keeps the field: clients
        # outside would be sent to a port that nothing serves.
        return record.external_address if record is not None and record.external_run == record.run else ""

    def first_of(self, group: str) -> str:
        """The first member of a broker group that is admitted, a live one if there is one; empty if there is none."""
        records = sorted((r for r in self.members.values() if r.group == group and r.admitted), key=lambda r: r.slot)
        for record in sorted(records, key=lambda r: not self.is_live(r.member.broker)):
            return str(record.member.broker)
        return ""

    def is_admitted(self, member: MemberId) -> bool:
        """Whether the controller has admitted this disk."""
        record = self.members.get(member.broker)
        return record is not None and record.admitted and record.member.incarnation == member.incarnation

    def is_live(self, broker: str) -> bool:
        """Whether the broker's registered run has a live key. This is a hint, never a proof."""
        record = self.members.get(broker)
        return record is not None and self.live_member_runs.get(broker) == record.run

    def unlinked(self, broker: str) -> tuple[str, ...]:
        """Live members of its own broker group to which a live broker says that it has no link."""
        return self._unlinked.get(broker, ()) if self.is_live(broker) else ()

    def live_partners(self) -> list[RunId]:
        """The newest runs of the other admitted members of the own broker group that are live and not dismissed."""
        own = self.members.get(self._broker)
        found = []
        for broker, record in sorted(self.members.items()):
            run = RunId(member_from_record(record.member), record.run)
            is_partner = own is not None and record.group == own.group and broker != self._broker and record.admitted
            if is_partner and self.is_live(broker) and not self.is_dismissed(run):
                found.append(run)
        return found

    def member_run_of(self, broker: str) -> RunId | None:
        """The run that the broker last registered."""
        record = self.members.get(broker)
        return RunId(member_from_record(record.member), record.run) if record is not None else None

    def is_dismissed(self, run: RunId) -> bool:
        """Whether the run may not take part any more: it is certified to have ended, or its disk has lost its slot.

        The core has the same rule (`BrokerDirectory.is_dismissed`). Here it prevents connections to such a run.
        """
        return self._ended.get(run.member, 0) >= run.run or run.member in self._former

    def broker_groups(self) -> dict[str, tuple[MemberId, ...]]:
        """The admitted members of each broker group, by slot."""
        return dict(self._broker_groups or ())

    def spec(self, group: str) -> BrokerGroupSpec:
        """Intent and weight of a broker group."""
        return self.specs.get(group, DEFAULT_SPEC)

    def placeable(self) -> list[str]:
        """The broker groups that take new partitions, by name."""
        return placeable(self.broker_groups(), self.specs)

    def copies_wanted(self, min_copies: int) -> int:
        """How many copies segments should have, by the sizes of the broker groups that take new partitions."""
        groups = self.broker_groups()
        return copies_wanted((len(groups[name]) for name in self.placeable()), min_copies)

    # ---- mirroring ----

    async def run(self, coordinator: Coordinator) -> None:
        """Follow the coordinator until cancelled."""
        async with asyncio.TaskGroup() as group:
            for prefix, changed in (
                (self._keys.members, self._members_changed),
                (self._keys.broker_group_specs, self._specs_changed),
                (self._keys.lives, self._lives_changed),
                (self._keys.certificates, self._certificates_changed),
                (self._keys.tombstones, self._tombstones_changed),
                (self._keys.deleted_partitions, self._deleted_changed),
            ):
                group.create_task(mirror(coordinator, prefix, changed), name=f"mirror of {prefix}")

    def _members_changed(self, values: Mapping[str, bytes], _keys: Sequence[str]) -> None:
        records = (records_pb2.MemberRecord.FromString(value) for value in values.values())
        before, self.members = self.members, {record.member.broker: record for record in records}
        self._note_former(before)
        groups: dict[str, list[records_pb2.MemberRecord]] = {}
        for record in self.members.values():
            if record.admitted:
                groups.setdefault(record.group, []).append(record)
        found = tuple(
            (sys.intern(name), members_from_record(r.member for r in sorted(records, key=lambda r: r.slot)))
            for name, records in sorted(groups.items())
        )
        runs = tuple(sorted((member_from_record(r.member), r.run) for r in self.members.values()))
        # A run that did not say what it reads leaves the field of an earlier run. Then it does not count.
        read = [record.forms if record.forms_run == record.run else 0 for record in self.members.values()]
        forms = reduce(and_, read) if read else 0
        if (found, runs, forms) != (self._broker_groups, self._member_runs, self._forms):
            self._broker_groups = found
            self._member_runs = runs
            self._forms = forms
            self._emit_broker_groups()
        self.loaded.set()
        self._tell()

    def _note_former(self, before: Mapping[str, records_pb2.MemberRecord]) -> None:
        """Note which disks have lost their slot. A disk whose record was only removed may come back."""
        for broker, record in self.members.items():
            holder = member_from_record(record.member)
            old = before.get(broker)
            if old is not None and member_from_record(old.member) != holder:
                self._former.add(member_from_record(old.member))
            self._former.discard(holder)

    def _specs_changed(self, values: Mapping[str, bytes], _keys: Sequence[str]) -> None:
        found = {key.rpartition("/")[2]: spec_from_value(value) for key, value in values.items()}
        if found != self.specs:
            self.specs = found
            if self._broker_groups is not None:
                self._emit_broker_groups()
            self._tell()

    def _emit_broker_groups(self) -> None:
        assert self._broker_groups is not None
        specs = tuple(sorted(self.specs.items(), key=_name_of))
        self._emit(DirectoryChanged(self._broker_groups, self._member_runs, specs, self._forms))

    def _lives_changed(self, values: Mapping[str, bytes], _keys: Sequence[str]) -> None:
        records = [records_pb2.LiveRecord.FromString(value) for value in values.values()]
        self._unlinked = {record.member.broker: tuple(record.unlinked) for record in records}
        self.live_member_runs = {record.member.broker: record.run for record in records}
        self._tell()

    def _certificates_changed(self, values: Mapping[str, bytes], keys: Sequence[str]) -> None:
        news: dict[MemberId, RunId] = {}
        for key in keys:
            value = values.get(key)
            if value is None:
                continue
            record = records_pb2.DeathCertificate.FromString(value)
            run = RunId(member_from_record(record.member), record.run)
            self.certified.add(run)
            if run.run > self._ended.get(run.member, 0):
                self._ended[run.member] = run.run
                news[run.member] = run
        for run in news.values():  # the newest proves the end of all runs before it: one event for each disk
            self._emit(CertificateSeen(run))
        self._tell()

    def _tombstones_changed(self, values: Mapping[str, bytes], keys: Sequence[str]) -> None:
        for key in keys:
            if key in values:
                self._emit(DropPartitionData(partition_of(key)))

    def _deleted_changed(self, values: Mapping[str, bytes], keys: Sequence[str]) -> None:
        """Send the core the ranges. They may name partitions whose tombstones this broker has never seen."""
        value = values.get(self._keys.deleted_partitions)
        if value is not None and keys:
            self._emit(DropDeleted(deleted_partitions_from(value)))

    def _tell(self) -> None:
        for changed in self._listeners:
            changed()


def _name_of(pair: tuple[str, BrokerGroupSpec]) -> str:
    return pair[0]
