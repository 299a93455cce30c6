"""Broker groups, as administrators and the operator see and change them: intent, weight, and what each broker group
holds.

Each call here is one read or one transaction. The broker that was asked makes it. The controller does what follows from
an intent (`drainer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
from seriatim_api.errors import BadRequestError, NotServingError, PreconditionError
from seriatim_api.ids import MemberId, RunId
from seriatim_api.v1 import records_pb2

from ...core.control.controller import holders
from ...core.control.obstacles import Around, obstacles
from ...core.values.chain import Chain
from ...core.values.placement import Intent, copies_wanted
from ...interfaces.coordinator import Compare, Coordinator, Delete, Get, KeyValue, Operation, Put, mod_revision_is
from ..coordinator.chain_list import all_chains
from ..coordinator.keys import Keys
from ..coordinator.operator_lease import Guard, unguarded
from ..coordinator.records import member_from_record, spec_from_value

ATTEMPTS_MAX = 10
"""Tries of a transaction that other writers overtake each time."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Count:
    """What a broker group holds: open segments, and all segments of which it holds a copy or a part.

    `waits_for`: if the broker group is cordoned or drained, what keeps something on it, as human-readable text. Empty
    if nothing does.
    """

    open_segments: int = 0
    segments: int = 0
    waits_for: str = ""


@dataclass(slots=True)
class BrokerGroupView:
    """A broker group as it is now; `members` by slot."""

    record: records_pb2.BrokerGroupRecord
    members: list[records_pb2.MemberRecord] = field(default_factory=list)
    count: Count | None = None


def broker_group_in(broker: str) -> str:
    """The broker group that the name of a broker reports, if its member record is gone."""
    return broker.rpartition("-")[0]


def count_segments(chains: Iterable[Chain], broker_group_of: dict[str, str], counts: dict[str, Count]) -> None:
    """Add the segments of these chains to the counts. `broker_group_of` has the broker group of each broker."""
    for chain in chains:
        for segment in chain.segments:
            groups = {_broker_group_of(member, broker_group_of) for member in holders(segment)}
            for group in sorted(groups):
                count = counts.setdefault(group, Count())
                count.segments += 1
                count.open_segments += segment is chain.open_segment and segment.broker_group == group


def _broker_group_of(member: MemberId, broker_group_of: Mapping[str, str]) -> str:
    return broker_group_of.get(member.broker) or broker_group_in(member.broker)


@dataclass(slots=True, eq=False)
class BrokerGroups:
    """See the module.

    Args:
        coordinator: It has the records.
        keys: Of the cluster.
        is_there: Whether a member is admitted and runs, as far as this broker knows.
        min_copies: How many copies a segment should have.
    """

    _coordinator: Coordinator
    _keys: Keys
    _is_there: Callable[[MemberId], bool]
    _min_copies: int

    # ---- looking ----

    async def views(self, *, with_counts: bool) -> list[BrokerGroupView]:
        """All broker groups by name, as the coordinator has them at this moment."""
        members = await self._members()
        specs = {key.rpartition("/")[2]: pair for key, pair in (await self._specs()).items()}
        views = {group: BrokerGroupView(record) for group, (_, record) in specs.items()}
        for _, member in members.values():
            default = records_pb2.BrokerGroupRecord(group=member.group)
            views.setdefault(member.group, BrokerGroupView(default)).members.append(member)
        if with_counts:
            intents = {group: spec_from_value(item.value).intent for group, (item, _) in specs.items()}
            closed = {group: intent for group, intent in intents.items() if intent is not Intent.ACTIVE}
            counts = await self._counts(members, closed)
            for name, view in views.items():
                view.count = counts.get(name, Count())
        for name, view in views.items():
            view.record.group = name
            view.record.intent = view.record.intent or records_pb2.BROKER_GROUP_INTENT_ACTIVE
            view.record.weight = view.record.weight or 1.0
            view.members.sort(key=lambda record: record.slot)
        return [views[name] for name in sorted(views)]

    async def _members(self) -> dict[str, tuple[KeyValue, records_pb2.MemberRecord]]:
        listing = await self._coordinator.list(self._keys.members)
        return {item.key: (item, records_pb2.MemberRecord.FromString(item.value)) for item in listing.items}

    async def _specs(self) -> dict[str, tuple[KeyValue, records_pb2.BrokerGroupRecord]]:
        listing = await self._coordinator.list(self._keys.broker_group_specs)
        return {item.key: (item, records_pb2.BrokerGroupRecord.FromString(item.value)) for item in listing.items}

    async def _counts(
        self, members: dict[str, tuple[KeyValue, records_pb2.MemberRecord]], closed: Mapping[str, Intent]
    ) -> dict[str, Count]:
        """What each broker group holds, and what keeps it on those that are cordoned or drained."""
        records = [record for _, record in members.values()]
        broker_group_of = {record.member.broker: record.group for record in records}
        around = self._around(records, closed, broker_group_of)
        counts: dict[str, Count] = {}
        untold = set(closed)
        async for chain in all_chains(self._coordinator, self._keys, strict=True):
            count_segments((chain,), broker_group_of, counts)
            for segment, text in obstacles(chain, around) if untold else ():
                keep = (
                    {segment.master} if segment is chain.open_segment else filter(around.is_leaving, holders(segment))
                )
                for group in untold & {_broker_group_of(member, broker_group_of) for member in keep}:
                    counts[group].waits_for = text
                    untold.discard(group)
        return counts

    def _around(
        self, records: list[records_pb2.MemberRecord], closed: Mapping[str, Intent], broker_group_of: Mapping[str, str]
    ) -> Around:
        there: dict[str, list[bool]] = {}
        takers = set()
        registered = {record.member.broker: member_from_record(record.member) for record in records}
        for record in records:
            if record.group not in closed:
                is_there = self._is_there(registered[record.member.broker])
                there.setdefault(record.group, []).append(is_there)
                takers |= {record.member.broker} if is_there else set()
        return Around(
            closed=closed.keys(),
            is_leaving=lambda member: closed.get(_broker_group_of(member, broker_group_of)) is Intent.DRAINING,
            is_there=self._is_there,
            is_replaced=lambda member: registered.get(member.broker) != member,
            takers=takers,
            has_whole_broker_group=any(len(found) >= self._min_copies and all(found) for found in there.values()),
            min_copies=copies_wanted(map(len, there.values()), self._min_copies),
        )

    # ---- changing ----

    async def set(
        self,
        group: str,
        intent: records_pb2.BrokerGroupIntent.ValueType | None,
        weight: float | None,
        guard: Guard = unguarded,
    ) -> BrokerGroupView:
        """Write intent and weight of a broker group. A value of None leaves the old one.

        If the call is cancelled, the write may still be made.

        Raises:
            BadRequestError: There is no such broker group, or the weight is not between 0 and 1,000,000.
            NotServingError: Other writers changed the record at each of 10 tries. Nothing was written.
            StaleOperatorError: From `guard`: a newer operator was seen. Nothing was written.
        """
        if weight is not None and not 0 < weight < 1e6:
            raise BadRequestError(f"a weight is above 0 and below 1,000,000, not {weight:g}")
        key = self._keys.broker_group_spec(group)
        for _ in range(ATTEMPTS_MAX):
            # Rule `older-operator`: `guard` refuses an operator that has lost its Lease to a newer one. Without it:
            # 1. Operator 1 is frozen, and operator 2 takes the Lease over.
            # 2. Operator 2 cancels the drain of a broker group.
            # 3. Operator 1 continues, and drains the broker group once more.
            compares = await guard()
            item = (await self._coordinator.txn((), [Get(key)])).responses[0].item
            await self._check_known(group, item)
            record = records_pb2.BrokerGroupRecord.FromString(item.value) if item else records_pb2.BrokerGroupRecord()
            record.group = group
            if intent is not None:
                record.intent = intent
            if weight is not None:
                record.weight = weight
            value = record.SerializeToString()
            if item is not None and item.value == value:
                break
            revision = item.mod_revision if item is not None else 0
            # Rule `operator-compare`: the transaction compares what `guard` read. Without it: 1. Operator 1 passes the
            # check, and this broker is frozen. 2. Operator 2 takes the Lease over and changes the broker group. 3. This
            # broker continues, and writes what operator 1 wanted.
            result = await self._coordinator.txn([*compares, mod_revision_is(key, revision)], [Put(key, value)])
            if result.succeeded:
                _log.info("broker_group_set", group=group, spec=str(spec_from_value(value)))
                break
        else:
            raise NotServingError(
                f"broker group {group!r} was changed by other writers at every try: nothing was written; try again",
                retry_after_ms=100,
            )
        return next(view for view in await self.views(with_counts=False) if view.record.group == group)

    async def _check_known(self, group: str, item: KeyValue | None) -> None:
        if item is None and not any(record.group == group for _, record in (await self._members()).values()):
            raise BadRequestError(f"there is no broker group {group!r}", group=group)

    async def remove(self, group: str, guard: Guard = unguarded) -> None:
        """Remove a broker group that is drained and whose brokers do not run. If it does not exist, do nothing.

        If the call is cancelled, the removal may still be made.

        Raises:
            PreconditionError: The broker group is not DRAINING, holds segments, or one of its brokers may run.
            NotServingError: A record was changed at the same time. Nothing was removed.
        """
        specs = await self._specs()
        members = await self._members()
        spec = specs.get(self._keys.broker_group_spec(group))
        mine = {key: pair for key, pair in members.items() if pair[1].group == group}
        if spec is None and not mine:
            return
        if spec is None or spec_from_value(spec[0].value).intent is not Intent.DRAINING:
            raise PreconditionError(f"broker group {group!r} is not being drained; drain it first", group=group)
        for _, record in mine.values():
            await self._check_ended(record)
        count = (await self._counts(members, {})).get(group, Count())
        if count.segments:
            raise PreconditionError(
                f"broker group {group!r} still holds {count.segments} segments, {count.open_segments} of them open; "
                "wait until it is drained",
                group=group,
                segments=count.segments,
                heads=count.open_segments,
            )
        compares: list[Compare] = [mod_revision_is(spec[0].key, spec[0].mod_revision)]
        operations: list[Operation] = [Delete(spec[0].key)]
        for key, (item, record) in mine.items():
            compares.append(mod_revision_is(key, item.mod_revision))
            operations += [Delete(key), Delete(self._keys.watermark(record.member.broker))]
        await self._change([*compares, *await guard()], operations, f"broker group {group!r}")
        _log.info("broker_group_removed", group=group, brokers=[record.member.broker for _, record in mine.values()])

    async def remove_member(self, broker: str, guard: Guard = unguarded) -> None:
        """Remove a broker that is certified dead and whose disk no segment needs. If it does not exist, do nothing.

        If the call is cancelled, the removal may still be made.

        Raises:
            PreconditionError: The broker may run, or its disk holds a segment.
            NotServingError: The member record was changed at the same time. Nothing was removed.
        """
        members = await self._members()
        key = self._keys.member(broker)
        if key not in members:
            return
        item, record = members[key]
        member = member_from_record(record.member)
        await self._check_ended(record, must_be_certified=True)
        async for chain in all_chains(self._coordinator, self._keys, strict=True):
            for segment in chain.segments:
                # Rule `tails-forgotten` (I13): `holders` counts members with a tail copy, too. Without it: 1. A drained
                # broker group holds only a tail copy of segment 3. 2. It counts as empty, and is removed. 3. The
                # record names a disk that never comes back, and segment 3 has one copy of its tail for good.
                if member in holders(segment):
                    raise PreconditionError(
                        f"the disk of {broker} is needed for segment {segment.no} of {chain.name}",
                        broker=broker,
                        partition=chain.partition,
                        segment=segment.no,
                    )
        compares = [mod_revision_is(key, item.mod_revision), *await guard()]
        await self._change(compares, [Delete(key), Delete(self._keys.watermark(broker))], broker)
        _log.info("member_removed", member=str(member))

    async def _check_ended(self, record: records_pb2.MemberRecord, *, must_be_certified: bool = False) -> None:
        run = RunId(member_from_record(record.member), record.run)
        certificate, live = (
            response.item
            for response in (
                await self._coordinator.txn(
                    (), [Get(self._keys.certificate(run)), Get(self._keys.live(run.member.broker))]
                )
            ).responses
        )
        if certificate is not None:
            return
        if must_be_certified or live is not None:
            raise PreconditionError(
                f"no certificate says that run {run.run} of {run.member.broker} has ended: nothing was removed; "
                "stop the broker first",
                broker=run.member.broker,
                run=run.run,
            )

    async def _change(self, compares: list[Compare], operations: list[Operation], what: str) -> None:
        if not (await self._coordinator.txn(compares, operations)).succeeded:
            raise NotServingError(f"{what} was changed at the same time: nothing was removed", retry_after_ms=100)
