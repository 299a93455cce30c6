"""Who is in the cluster, how to reach them, what is wanted of their groups: members, live keys, intents, mirrored.

What the core learns is `DirectoryChanged`, and only when something changed that it asked for: admitted members by
group. Addresses, runs and live keys stay here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence

import structlog
from seriatim_api.ids import MemberId, RunId
from seriatim_api.v1 import records_pb2

from ..core.events import CertificateSeen, DirectoryChanged, DropPartitionData, Event
from ..core.placement import DEFAULT_SPEC, GroupSpec, placeable
from ..interfaces.coordinator import Coordinator
from .keys import Keys, partition_of
from .mirror import mirror
from .records import member_from_record, members_from_record, spec_from_value

_log = structlog.get_logger(__name__)


class Directory:
    """Mirrors members, live keys, certificates and tombstones.

    Args:
        broker: The own name.
        peers: Where others are reached from here, by name, where that differs from what they registered.
        emit: Takes the core's events.
    """

    def __init__(self, broker: str, keys: Keys, peers: Mapping[str, str], emit: Callable[[Event], None]) -> None:
        self._broker = broker
        self._keys = keys
        self._own_peers = dict(peers)
        self._emit = emit
        self._listeners: list[Callable[[], None]] = []
        self._groups: tuple[tuple[str, tuple[MemberId, ...]], ...] | None = None
        self._runs: tuple[tuple[MemberId, int], ...] = ()
        self.specs: dict[str, GroupSpec] = {}
        self.members: dict[str, records_pb2.MemberRecord] = {}
        self.live_runs: dict[str, int] = {}
        self.certified: set[RunId] = set()
        self.loaded = asyncio.Event()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Also tell this one when anything changed."""
        self._listeners.append(changed)

    # ---- questions ----

    def peer_address(self, broker: str) -> str | None:
        """Where this broker reaches another one."""
        own = self._own_peers.get(broker)
        if own:
            return own
        record = self.members.get(broker)
        if record is None:
            return None
        return record.peer_addresses.get(self._broker) or record.address or None

    def client_address(self, broker: str) -> str:
        """Where clients reach a broker; empty if it is not known."""
        record = self.members.get(broker)
        return record.address if record is not None else ""

    def group_address(self, group: str) -> str:
        """Where clients reach the first live member of a group; empty if there is none."""
        records = sorted((r for r in self.members.values() if r.group == group and r.admitted), key=lambda r: r.slot)
        for record in sorted(records, key=lambda r: not self.is_live(r.member.broker)):
            return str(record.address)
        return ""

    def is_admitted(self, member: MemberId) -> bool:
        """Whether the controller took this disk in."""
        record = self.members.get(member.broker)
        return record is not None and record.admitted and record.member.incarnation == member.incarnation

    def is_live(self, broker: str) -> bool:
        """Whether the broker's registered run has a live key: a hint."""
        record = self.members.get(broker)
        return record is not None and self.live_runs.get(broker) == record.run

    def run_of(self, broker: str) -> RunId | None:
        """The run that the broker last registered."""
        record = self.members.get(broker)
        return RunId(member_from_record(record.member), record.run) if record is not None else None

    def groups(self) -> dict[str, tuple[MemberId, ...]]:
        """The admitted members of each group, by slot."""
        return dict(self._groups or ())

    def spec(self, group: str) -> GroupSpec:
        """What is wanted of a group."""
        return self.specs.get(group, DEFAULT_SPEC)

    def placeable(self) -> list[str]:
        """The groups that new partitions go to, by name."""
        return placeable(self.groups(), self.specs)

    # ---- mirroring ----

    async def run(self, coordinator: Coordinator) -> None:
        """Follow the coordinator until cancelled."""
        async with asyncio.TaskGroup() as group:
            for prefix, changed in (
                (self._keys.members, self._members_changed),
                (self._keys.group_specs, self._specs_changed),
                (self._keys.lives, self._lives_changed),
                (self._keys.certificates, self._certificates_changed),
                (self._keys.tombstones, self._tombstones_changed),
            ):
                group.create_task(mirror(coordinator, prefix, changed), name=f"mirror of {prefix}")

    def _members_changed(self, values: Mapping[str, bytes], _keys: Sequence[str]) -> None:
        records = (records_pb2.MemberRecord.FromString(value) for value in values.values())
        self.members = {record.member.broker: record for record in records}
        groups: dict[str, list[records_pb2.MemberRecord]] = {}
        for record in self.members.values():
            if record.admitted:
                groups.setdefault(record.group, []).append(record)
        found = tuple(
            (sys.intern(name), members_from_record(r.member for r in sorted(records, key=lambda r: r.slot)))
            for name, records in sorted(groups.items())
        )
        runs = tuple(sorted((member_from_record(r.member), r.run) for r in self.members.values()))
        if (found, runs) != (self._groups, self._runs):
            self._groups = found
            self._runs = runs
            self._emit_groups()
        self.loaded.set()
        self._tell()

    def _specs_changed(self, values: Mapping[str, bytes], _keys: Sequence[str]) -> None:
        found = {key.rpartition("/")[2]: spec_from_value(value) for key, value in values.items()}
        if found != self.specs:
            self.specs = found
            if self._groups is not None:
                self._emit_groups()
            self._tell()

    def _emit_groups(self) -> None:
        assert self._groups is not None
        self._emit(DirectoryChanged(self._groups, self._runs, tuple(sorted(self.specs.items(), key=_name_of))))

    def _lives_changed(self, values: Mapping[str, bytes], _keys: Sequence[str]) -> None:
        records = (records_pb2.LiveRecord.FromString(value) for value in values.values())
        self.live_runs = {record.member.broker: record.run for record in records}
        self._tell()

    def _certificates_changed(self, values: Mapping[str, bytes], keys: Sequence[str]) -> None:
        for key in keys:
            value = values.get(key)
            if value is None:
                continue
            record = records_pb2.DeathCertificate.FromString(value)
            run = RunId(member_from_record(record.member), record.run)
            if run not in self.certified:
                self.certified.add(run)
                self._emit(CertificateSeen(run))
        self._tell()

    def _tombstones_changed(self, values: Mapping[str, bytes], keys: Sequence[str]) -> None:
        for key in keys:
            if key in values:
                self._emit(DropPartitionData(partition_of(key)))

    def _tell(self) -> None:
        for changed in self._listeners:
            changed()


def _name_of(pair: tuple[str, GroupSpec]) -> str:
    return pair[0]
